"""Gram-gated replay on any ViT: Algorithm 1, the hook that runs it, its settings and its cost."""
