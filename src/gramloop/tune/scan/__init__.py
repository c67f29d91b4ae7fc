"""What replaying does at every window of a backbone, without labels."""
