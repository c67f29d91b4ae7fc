"""Write the numbers that ``gramloop check`` compares heads with, as this machine's CPU gives them in float32."""

from __future__ import annotations

import json

import torch

from gramloop.check.heads import HEADS, STORED, sampled

if __name__ == "__main__":
    found = {
        name: {part: value.tolist() for part, value in sampled(run(torch.device("cpu"), False)).items()}
        for name, run in HEADS.items()
    }
    STORED.write_text(json.dumps(found) + "\n")
    print(f"{STORED.name}: {STORED.stat().st_size} bytes")
