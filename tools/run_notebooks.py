"""Run the notebooks from top to bottom in fresh kernels, and keep their outputs in the files.

    python tools/run_notebooks.py [examples/notebooks/look_inside.ipynb …]

Each runs in an empty folder next to copies of the examples, with one thread, so that what it prints depends on nothing here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from rich.progress import track

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
LARGEST = 500_000  # bytes of a file: it has to open on a web page
SECONDS = 600  # for one cell on a busy machine
ALONE = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(path: Path, environment: Mapping[str, str] = ALONE) -> Any:
    """The notebook with the outputs of a fresh kernel."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as root, patch.dict(os.environ, environment):
        for example in FOLDER.parent.glob("*.py"):
            shutil.copy(example, root)
        (folder := Path(root) / "notebooks").mkdir()
        client = NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of its messages
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def _joined(outputs: Iterable[Any]) -> Iterator[Any]:
    """What a cell prints comes in pieces, cut wherever the kernel looked at its clock."""
    for name, group in groupby(outputs, key=lambda output: output.get("name")):
        if name is None:
            yield from group
        else:
            yield nbformat.v4.new_output("stream", name=name, text="".join(each.text for each in group))


def main() -> None:
    """Run those that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path)
    paths = parser.parse_args().notebooks or sorted(FOLDER.glob("*.ipynb"))
    for path in track(paths, "running notebooks"):
        text = nbformat.writes(run(path)) + "\n"
        if len(text.encode()) > LARGEST:
            raise SystemExit(
                f"{path} would have {len(text.encode())} bytes; at most {LARGEST} are wanted: smaller pictures"
            )
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
