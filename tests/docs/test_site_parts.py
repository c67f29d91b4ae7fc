"""What the site is made of beside its pages: docstrings with lists of names, and notebooks as Markdown."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "names", "shown"),
    [
        ("Do it.\n\nmodel: a ViT,\n    or more\ntaps, norm: of it", {"model", "taps", "norm"},
         "Do it.\n\n- `model`: a ViT,\n    or more\n- `taps, norm`: of it"),
        ("Do it.\nmodel: a ViT\nAnd then.", {"model"}, "Do it.\n\n- `model`: a ViT\n\nAnd then."),
        ("Compared with\neverything: the mean.", {"model"}, "Compared with\neverything: the mean."),
        ("Do it.\n\nArgs:\n    model: a ViT", {"model"}, "Do it.\n\nArgs:\n    model: a ViT"),
    ],
    ids=["a run", "text after it", "a sentence", "a section of its own"],
)  # fmt: skip
def test_named_lines_become_a_list(text: str, names: set[str], shown: str) -> None:
    assert tool("site_docstrings").with_lists(text, names) == shown


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    new = nbformat.v4
    cell = new.new_code_cell("1 + 1")
    cell.outputs = [
        new.new_output("stream", name="stdout", text="said\n"),
        new.new_output("display_data", data={"image/png": "iVBORw0=", "text/plain": "<Figure>"}),
        new.new_output("execute_result", data={"text/html": "<b>two</b>\n\n<i>more</i>", "text/plain": "2"}),
        new.new_output("execute_result", data={"text/markdown": "| a |", "text/plain": "x"}),
        new.new_output("execute_result", data={"text/plain": "2"}),
    ]
    book = new.new_notebook(cells=[new.new_markdown_cell("# Title, see [b](b.ipynb)"), cell])
    (tmp_path / "a.ipynb").write_text(nbformat.writes(book))
    page = tool("notebook_pages").as_page(tmp_path / "a.ipynb")
    assert page.pictures == {"a-1.png": b"\x89PNG\r"}
    parts = ["# Title, see [b](b.md)", "```python\n1 + 1\n```", "```text\nsaid\n```", "](a-1.png)",
             "<b>two</b>\n<i>more</i>", "| a |", "```text\n2\n```"]  # fmt: skip
    places = [page.text.index(part) for part in parts]
    assert places == sorted(places)
