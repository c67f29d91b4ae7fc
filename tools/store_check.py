"""Write the numbers that ``gramloop check`` compares heads with, as this machine's CPU gives them in float32."""

from __future__ import annotations

import json

import torch
from gramloop.check.way import Way

from gramloop.check.cases import STORED, sampled
from gramloop.check.small_models import HEADS

if __name__ == "__main__":
    here = Way(torch.device("cpu"))
    found = {
        name: {part: value.tolist() for part, value in sampled(run(here)).items()}
        for name, run in HEADS.items()
    }
    STORED.write_text(json.dumps(found) + "\n")
    print(f"{STORED.name}: {STORED.stat().st_size} bytes")
