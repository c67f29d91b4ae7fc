"""Labelled image sets: readers for the public layouts, suites of shifted conditions, procedural scenes."""
