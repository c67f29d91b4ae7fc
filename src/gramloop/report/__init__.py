"""Reports: stored results become tables, figures and one page; nothing here runs a model."""
