"""Deterministic image shifts: corruptions (-C suites), perturbations (-P suites), and their seeds."""
