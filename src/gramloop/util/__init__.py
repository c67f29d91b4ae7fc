"""Shared helpers: files, checksums, JSON and YAML, processes, progress bars, devices, tables."""
