"""Helpers that know nothing of models or data: files, processes, progress, tables, plots."""
