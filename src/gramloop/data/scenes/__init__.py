"""Procedural scenes: an endless labelled data set that needs no download."""
