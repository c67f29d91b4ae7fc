"""How large the package is, and how much of it one image runs through.

    python tools/measure_size.py                 # this checkout
    python tools/measure_size.py --src OTHER/src # another one, to compare

Counts lines, files, long functions and public names that two modules define; then runs four commands under a profile
hook and counts the package's files and functions that they enter.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LONG = 40  # lines of a function that no longer fits a screen

HOOK = """
import json, sys, threading
package, seen = {package!r}, {{}}
def hook(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        key = frame.f_code.co_filename[len(package):] + ":" + frame.f_code.co_qualname
        seen[key] = seen.get(key, 0) + 1
def start():
    threading.setprofile(hook); sys.setprofile(hook)
def stop():
    sys.setprofile(None); threading.setprofile(None)
    imported = {{m.__file__ for m in list(sys.modules.values())
                if (getattr(m, "__file__", None) or "").startswith(package)}}
    print("MEASURED" + json.dumps({{"calls": seen, "imported": len(imported)}}), flush=True)
"""
ATTACH = """
import warnings, torch, gramloop
from transformers import DINOv3ViTConfig, DINOv3ViTModel
warnings.simplefilter("ignore")
model = DINOv3ViTModel(DINOv3ViTConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
    intermediate_size=64)).eval()
image = torch.zeros(1, 3, 32, 32)
with gramloop.attach(model): model(image)
start()
with gramloop.attach(model): model(image)
stop()
"""
COMMAND = """
import gramloop.cli
start()
code = gramloop.cli.main({argv!r})
stop()
sys.exit(code)
"""


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--src", type=Path, default=Path(__file__).parents[1] / "src")
    args = parser.parse_args()
    for name, value in {**counts(args.src / "gramloop"), **paths(args.src.resolve())}.items():
        print(f"{name:58} {value}")


def counts(package: Path) -> dict[str, int]:
    """What can be counted without running anything."""
    names: Counter[str] = Counter()
    lines = code = long = 0
    files = sorted(package.rglob("*.py"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        tree = ast.parse(text)
        code += code_lines(text, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long += (node.end_lineno or 0) - node.lineno + 1 > LONG
        names.update(public_names(tree))
    return {
        "lines of src": lines,
        "of them code": code,
        "files of src": len(files),
        "files below 100 lines": sum(path.read_text().count("\n") < 100 for path in files),
        "public names defined in two modules": sum(number > 1 for number in names.values()),
        f"functions over {LONG} lines": long,
    }


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines that are not blank and belong to no comment, docstring or import at the top of the module."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                left_out.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        number not in left_out and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in lines
    )


def public_names(tree: ast.Module) -> set[str]:
    """Classes, functions and constants that a module defines without an underscore."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def paths(src: Path) -> dict[str, str]:
    """Files and functions that commands run through."""
    evaluate = [
        "evaluate",
        "--suite",
        "scenes-c",
        "--data",
        "scenes",
        "--condition",
        "fog",
        "--severity",
        "3",
    ]
    evaluate += ["--method", "baseline", "--method", "gramloop", "--workers", "1"]
    tune = [
        "tune",
        "--suite",
        "scenes-c",
        "--data",
        "scenes",
        "--budget",
        "150",
        "--workers",
        "1",
        "--out",
        "tuned",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        run(src, scratch, COMMAND.format(argv=["scenes", "scenes", "--count", "24"]))
        few, more = (
            run(src, scratch, COMMAND.format(argv=[*evaluate, "--images", str(n), "--out", f"run{n}"]))
            for n in (2, 3)
        )
        one = {name: number for name, number in more["calls"].items() if number > few["calls"].get(name, 0)}
        found = {
            "attach and one forward": run(src, scratch, ATTACH),
            "evaluate, what one image more runs": {"calls": one, "imported": more["imported"]},
            "evaluate, from command to results": more,
            "report": run(src, scratch, COMMAND.format(argv=["report", "run3", "--out", "report"])),
            "tune": run(src, scratch, COMMAND.format(argv=tune)),
        }
    return {f"{name}: files, functions (imported files)": described(each) for name, each in found.items()}


def described(found: dict[str, Any]) -> str:
    """The files and functions of a run."""
    ran = [name.partition(":") for name in found["calls"] if not name.endswith(":<module>")]
    return f"{len({file for file, _, _ in ran})}, {len(ran)} ({found['imported']})"


def run(src: Path, folder: str, code: str) -> dict[str, Any]:
    """One program under the hook: calls by function, and how many files of the package it imported."""
    program = HOOK.format(package=str(src / "gramloop")) + code
    environment = {**os.environ, "PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    for line in done.stdout.splitlines():
        if line.startswith("MEASURED"):
            measured: dict[str, Any] = json.loads(line.removeprefix("MEASURED"))
            return measured
    sys.exit(f"a command failed: {(done.stderr or done.stdout).strip()}")


if __name__ == "__main__":
    main()
