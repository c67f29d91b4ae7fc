"""Readers of the public layouts of data sets, one file each."""
