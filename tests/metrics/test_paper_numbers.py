"""The arithmetic of the paper's tables, from the numbers it prints (three decimals)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gramloop.metrics.bootstrap import cluster_bootstrap, verdict

PAPER: dict[str, Any] = json.loads(Path(__file__).with_name("paper_tables.json").read_text(encoding="utf-8"))
PRINTED = 0.0005 + 1e-9  # how far a printed number may be from the one it stands for
SUITES = ("ade20k-c", "coco-p")


def printed_rows() -> list[Any]:
    tables = {
        "main": PAPER["main"],
        **PAPER["families"],
        "subset": PAPER["partitions"]["subset"],
        "complement": PAPER["partitions"]["complement"],
        "classes": PAPER["top classes"],
    }
    return [
        pytest.param(*row, id=f"{table}-{name}")
        for table, rows in tables.items()
        for name, row in rows.items()
    ]


@pytest.mark.parametrize(("baseline", "method", "delta"), printed_rows())
def test_printed_differences_are_those_before_rounding(baseline: float, method: float, delta: float) -> None:
    """Three roundings lie between a printed difference and that of the printed numbers."""
    assert method - baseline == pytest.approx(delta, abs=3 * PRINTED)


@pytest.mark.parametrize("suite", SUITES)
def test_bootstrap_intervals(suite: str) -> None:
    """The third decimal hangs on the stream, which the paper does not name, and on rounded inputs."""
    gains = {family: [row[2]] * 5 for family, row in PAPER["families"][suite].items()}
    interval = cluster_bootstrap(gains)
    estimate, low, high = PAPER["intervals"][suite]
    assert interval.estimate == pytest.approx(estimate, abs=2 * PRINTED)
    assert interval.low == pytest.approx(low, abs=0.002)
    assert interval.high == pytest.approx(high, abs=0.002)
    assert verdict(interval) == "helps"
