"""Notebooks run from top to bottom in fresh kernels, and say what is stored in them."""

from __future__ import annotations

import importlib.util
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import nbformat
import pytest

TOOL = importlib.util.spec_from_file_location(
    "run_notebooks", Path(__file__).parents[2] / "tools" / "run_notebooks.py"
)
assert TOOL is not None
assert TOOL.loader is not None
TOOL.loader.exec_module(tool := importlib.util.module_from_spec(TOOL))

NOTEBOOKS = sorted(tool.FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TEXTS = ("text/plain", "text/html", "text/markdown")
QUICK = "look_inside"


def pictures_in(output: Any) -> int:
    return sum(kind.startswith("image/") for kind in output.get("data", {}))


def texts_of(notebook: Any) -> list[str]:
    """Everything that code cells print or show as text; names of figures and axes are no results."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                found.append(output.text)
            elif not pictures_in(output):
                found += [output.data[kind] for kind in TEXTS if kind in output.data]
    return found


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["how_robust", "look_inside", "paper_tables"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_reads_on_a_web_page(path: Path) -> None:
    assert path.stat().st_size < tool.LARGEST
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [
        output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert sum(pictures_in(output) for output in outputs) + len(texts_of(notebook)) >= 5
    for text in texts_of(notebook):
        assert not re.search(r"/(home|tmp|root|work|Users)/|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", text)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == QUICK else pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_fresh_kernel_says_what_is_stored(path: Path) -> None:
    """Words are the same. Numbers may differ by what another CPU's order of summation moves: a few pixels."""
    stored, now = texts_of(nbformat.read(path, as_version=4)), texts_of(tool.run(path))
    for before, after in zip_longest(stored, now, fillvalue=""):
        assert NUMBER.sub("#", after) == NUMBER.sub("#", before)
        for one, other in zip(NUMBER.findall(before), NUMBER.findall(after), strict=True):
            old, new = (float(number.replace("−", "-")) for number in (one, other))
            assert abs(new - old) <= 0.05 + 0.01 * abs(old), f"{one} became {other} in:\n{after}"
