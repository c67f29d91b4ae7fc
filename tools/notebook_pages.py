"""A notebook with its stored outputs as Markdown and pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat


@dataclass
class NotebookPage:
    """The text of a page, and the pictures that it shows, by name."""

    text: str
    pictures: dict[str, bytes] = field(default_factory=dict)


def as_page(path: Path) -> NotebookPage:
    """Everything in a notebook, in its order."""
    page = NotebookPage("")
    parts = [
        f"{part}\n"
        for cell in nbformat.read(path, as_version=4).cells
        for part in _parts(cell, path.stem, page)
    ]
    file = f"`examples/notebooks/{path.name}`"
    page.text = "\n".join(
        [
            parts[0],
            f"*This page is the notebook {file}, with the outputs that its test asks for.*\n",
            *parts[1:],
        ]
    )
    return page


def _parts(cell: Any, name: str, page: NotebookPage) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source.replace(".ipynb)", ".md)")  # links between notebooks
        return
    yield _fenced(cell.source, "python")
    for output in cell.outputs:
        yield _output(output, name, page)


def _output(output: Any, name: str, page: NotebookPage) -> str:
    if output.output_type == "stream":
        return _fenced(output.text, "text")
    data = output.data
    for kind in ("jpeg", "png"):
        if f"image/{kind}" in data:
            picture = f"{name}-{len(page.pictures) + 1}.{kind}"
            page.pictures[picture] = base64.b64decode(data[f"image/{kind}"])
            return f"![what the cell above draws]({picture})"
    if "text/html" in data:
        return f'<div class="output" markdown="0">\n{_without_blank_lines(data["text/html"])}\n</div>'
    if "text/markdown" in data:
        return str(data["text/markdown"])
    return _fenced(data["text/plain"], "text")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _without_blank_lines(html: str) -> str:
    """Markdown would take what follows a blank line for its own."""
    return "\n".join(line for line in html.splitlines() if line.strip())
