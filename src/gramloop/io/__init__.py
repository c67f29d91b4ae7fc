"""Files, locks, process pools, progress bars and devices: one of each, for every room."""
