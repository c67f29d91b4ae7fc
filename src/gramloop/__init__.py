"""Gram-gated replay: extra inference computation for frozen vision transformers."""

__version__ = "0.1.0"
