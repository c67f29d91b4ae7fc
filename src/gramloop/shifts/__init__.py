"""Deterministic image shifts: the corruptions of the -C suites, the perturbations of the -P suites, their seeds."""
