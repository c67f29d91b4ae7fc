"""A search for a setting within a stated budget, judged on what it has not seen."""
