"""Write the numbers that ``gramloop check`` compares heads with, as this machine's CPU gives them in float32."""

from __future__ import annotations

import json

import torch

from gramloop.check.checking import HEADS, STORED, CheckedPrecision, sampled_outputs

if __name__ == "__main__":
    here = CheckedPrecision(torch.device("cpu"))
    found = {name: [each.tolist() for each in sampled_outputs(name, here)] for name in HEADS}
    STORED.write_text(json.dumps(found) + "\n")
    print(f"{STORED.name}: {STORED.stat().st_size} bytes")
