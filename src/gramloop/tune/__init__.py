"""Finding a replay for a backbone: what can be seen without labels, and what labels say."""
