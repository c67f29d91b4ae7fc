"""Names that moved."""

from gramloop.replay.vit import TokenLayout as Layout  # noqa: F401

__all__ = ["Layout"]
