"""Every command produces what it did before the package was rebuilt: see record.py."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
import record

pytest.importorskip("transformers")

# Libraries add up floating-point numbers in another order on another type of CPU. A logit that moves by 1e-6 turns a
# few pixels of a label map, and the order of two boxes may change, which on four small scenes moves AP by points. So
# there scores are compared to a tolerance, images by their mean and spread, and what follows from an order or a
# choice (reports and searches) is run and not compared. On a CPU of the recorded type everything is, to the byte.
PIXEL_TOLERANCE = 1.0  # of the mean and the standard deviation of an array
STATISTIC_TOLERANCE = 1e-3  # of calibrated statistics, relative to the largest of them
NOT_COMPARED = ("report/", "found/", "said/", "out/")


@cache
def same_machine() -> bool:
    return record.probe() == json.loads((record.RECORD / "probe.json").read_text())


def recorded(case: record.Case) -> dict[str, str]:
    folder = record.RECORD / case.name
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * case.slow) for case in record.CASES],
)
def test_a_case_produces_what_it_did(case: record.Case, tmp_path: Path):
    record.run_case(case, tmp_path / "run")
    found, expected = (
        {name: record.results_only(name, text) for name, text in texts.items()}
        for texts in (record.kept(case, tmp_path / "run"), recorded(case))
    )
    assert expected, f"nothing is recorded for {case.name}"
    if same_machine():
        assert sorted(found) == sorted(expected)
        for name, text in expected.items():
            assert found[name] == text, f"{name}:\n{difference(text, found[name])}"
        return
    for name, text in expected.items():
        if not name.startswith(NOT_COMPARED):
            assert name in found
            wrong = list(far_apart(name, text, found[name], case.tolerance))
            assert not wrong, f"{name}: {wrong[:10]}"


def test_a_killed_run_ends_as_one_that_was_not_killed():
    killed, whole = (record.RECORD / f"evaluate-{name}" for name in ("killed", "not-killed"))
    assert (killed / "scenes-c/results.csv").read_text() == (whole / "scenes-c/results.csv").read_text()


def test_a_written_suite_gives_the_scores_of_a_generated_one():
    rows = {}
    for name in ("segment", "written"):
        text = (record.RECORD / f"evaluate-{name}" / "scenes-c/results.csv").read_text()
        rows[name] = set(text.splitlines())
    assert rows["written"] <= rows["segment"]


def test_every_recorded_case_is_still_run():
    folders = {path.name for path in record.RECORD.iterdir() if path.is_dir()}
    assert folders == {case.name for case in record.CASES}


def difference(expected: str, found: str) -> str:
    """The first lines that differ."""
    lines = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "recorded", "now", lineterm="", n=0
    )
    return "\n".join(line[:400] for line, _ in zip(lines, range(20), strict=False))


def far_apart(name: str, expected: str, found: str, tolerance: float) -> Iterator[object]:
    """What differs by more than another type of CPU explains."""
    if name.endswith("arrays.json"):
        arrays, now = json.loads(expected), json.loads(found)
        for path, about in arrays.items():
            numbers = [(about[key], now[path][key]) for key in ("mean", "deviation")]
            if about["shape"] != now[path]["shape"] or any(abs(a - b) > PIXEL_TOLERANCE for a, b in numbers):
                yield path, about, now[path]
    elif name.endswith(".csv"):
        rows, others = (list(csv.reader(text.splitlines())) for text in (expected, found))
        for row, other in zip_longest(rows, others, fillvalue=[]):
            for cell, another in zip_longest(row, other, fillvalue="missing"):
                if cell != another and not near(cell, another, tolerance):
                    yield row, other
    elif name.endswith("safetensors.json"):
        tensors, others = (json.loads(text)["tensors"] for text in (expected, found))
        for key, tensor in tensors.items():
            size = max(map(abs, tensor["values"]))
            pairs = zip(tensor["values"], others[key]["values"], strict=True)
            if any(abs(a - b) > STATISTIC_TOLERANCE * size for a, b in pairs):
                yield key
    elif expected != found:
        yield difference(expected, found)


def near(cell: str, another: str, tolerance: float) -> bool:
    try:
        return abs(float(cell) - float(another)) <= tolerance
    except ValueError:
        return False
