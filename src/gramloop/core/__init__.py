"""Replay on any ViT: Algorithm 1, its gate and drift, the hosts it attaches to, its settings and its cost."""
