"""The paper that is reproduced: its title, authors and citation."""

from __future__ import annotations

TITLE = "GramLoop: Training-Free Gram-Gated Replay for Robust Dense Prediction"
AUTHORS = (
    "Yang Chen", "Canyu Shen", "Xinzhe Rao", "Yuanyi Yan", "Yunlu Chen", "Meng Tang", "Teng Long", "Vincent Tao Hu",
)  # fmt: skip
CODE = "https://github.com/cheyan9/GramLoop"  # announced by the authors; this package is independent of it
BIBTEX = f"""@misc{{chen2026gramloop,
  title  = {{{TITLE}}},
  author = {{{" and ".join(f"{name.rpartition(' ')[2]}, {name.rpartition(' ')[0]}" for name in AUTHORS)}}},
  year   = {{2026}},
  note   = {{Preprint. Code announced at {CODE}}}
}}"""
CITATION = f"{', '.join(AUTHORS)}. {TITLE}. Preprint, 2026."
