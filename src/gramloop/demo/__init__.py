"""The demonstration: the embedded model on unseen procedural scenes, ordinary against replayed."""
