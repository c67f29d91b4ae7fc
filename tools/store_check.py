"""Write the numbers that ``gramloop check`` compares heads with, as this machine's CPU gives them in float32."""

from __future__ import annotations

import json

import torch

from gramloop.check.cases import STORED, sampled
from gramloop.check.small_models import HEADS, Precision

if __name__ == "__main__":
    here = Precision(torch.device("cpu"))
    found = {
        name: {part: value.tolist() for part, value in sampled(run(here)).items()}
        for name, run in HEADS.items()
    }
    STORED.write_text(json.dumps(found) + "\n")
    print(f"{STORED.name}: {STORED.stat().st_size} bytes")
