"""The tables of a report, each from loaded runs and what is known of their differences."""
