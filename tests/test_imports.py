"""A room imports only from rooms to its left, and a name costs no import before it is used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import gramloop

SURFACE = [
    "gramloop",
    *(
        f"gramloop.{room}"
        for room in [
            "compare",
            "data",
            "evaluate",
            "export",
            "metrics",
            "mitigations",
            "models",
            "report",
            "reproduce",
            "shifts",
            "tasks",
            "tune",
        ]
    ),
]
ROOT = Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "benchmarks").glob("*.py")), *sorted((ROOT / "tools").glob("*.py"))]
PACKAGE = Path(gramloop.__file__).parent
ORDER = [
    "errors",
    "lazy",
    "util",
    "replay",
    "models",
    "shifts",
    "data",
    "metrics",
    "tasks",
    "mitigations",
    "export",
    "evaluate",
    "tune",
    "report",
    "compare",
    "reproduce",
    "demo",
    "check",
    "app",
    "cli",
]


def imports_of(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything of the package that a file imports, by statement or by a module's name in text."""
    inside = (package.name, *path.parent.relative_to(package).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(rf"{package.name}(\.\w+)+\.?", str(node.value)):
            yield node.lineno, str(node.value)


def missing(path: Path) -> list[str]:
    """Names that a script imports from the package and that are not there."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gramloop":
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:
                found.append(str(error))
                continue
            inside = {each.name for each in pkgutil.iter_modules(getattr(module, "__path__", ()))}
            names = [alias.name for alias in node.names if alias.name not in inside]
            found += [f"{node.module}.{name}" for name in names if not hasattr(module, name)]
    return found


def against_the_order(package: Path) -> list[str]:
    """Imports from a room to the right, or from the package's own surface, which hides the room."""
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        if file == Path("__init__.py"):
            continue
        left = ORDER[: ORDER.index(file.parts[0].removesuffix(".py")) + 1]
        for line, name in imports_of(path, package):
            root, *rest = name.split(".")
            if root == package.name and rest and rest[0] not in (*left, "__version__"):
                found.append(f"{file.as_posix()}:{line} imports {name}")
    return found


def test_no_import_runs_against_the_order() -> None:
    assert against_the_order(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [
        ("tasks/predictor.py", "from gramloop.evaluate.plan import Plan", "gramloop.evaluate.plan.Plan"),
        ("tasks/predictor.py", "import gramloop.report", "gramloop.report"),
        ("tasks/predictor.py", "from gramloop import tune", "gramloop.tune"),
        ("tasks/predictor.py", "from gramloop import attach", "gramloop.attach"),
        ("tasks/predictor.py", "from ..cli import main", "gramloop.cli.main"),
        ("tasks/predictor.py", "def late():\n    from gramloop.demo import table", "gramloop.demo.table"),
        ("tune/map.py", "import_module('gramloop.report.load')", "gramloop.report.load"),
        ("util/files.py", "from gramloop.replay import config", "gramloop.replay.config"),
        ("errors.py", "from gramloop.util import files", "gramloop.util.files"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, name: str) -> None:
    package = tmp_path / "gramloop"
    for room in ORDER:
        (package / room / "scan").mkdir(parents=True)
        (package / room / "ordinary.py").write_text(
            "from gramloop.errors import GramLoopError\nimport torch\n"
        )
    (package / "__init__.py").write_text("from gramloop.replay.attach import attach\n")
    assert against_the_order(package) == []
    (package / file).write_text(f"{line}\n")
    assert against_the_order(package) == [f"{file}:{1 + line.count(chr(10))} imports {name}"]


def test_a_public_name_is_defined_in_one_module() -> None:
    public_names = runpy.run_path(str(ROOT / "tools" / "measure_size.py"))["public_names"]
    modules: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in public_names(ast.parse(path.read_text(encoding="utf-8"))):
            modules.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_what_is_there(script: Path) -> None:
    assert missing(script) == []


@pytest.mark.parametrize("package", SURFACE)
def test_every_public_name_is_there(package: str) -> None:
    room = importlib.import_module(package)
    inside = {module.name for module in pkgutil.iter_modules(room.__path__)}
    assert not inside & set(room.__all__), "a module of this name would hide what it stands for"
    for name in room.__all__:
        assert getattr(room, name) is not None
    assert set(room.__all__) <= set(dir(room))
    assert not set(room.__all__) & {
        name for name, value in vars(room).items() if isinstance(value, ModuleType)
    }
    with pytest.raises(AttributeError, match=f"{package}.*no_such_name"):
        room.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ("sys", "gramloop"),
        ("sys", f"import {', '.join(SURFACE)}"),
        ("torch", "gramloop.attach"),
    ],
    ids=["gramloop", "rooms", "attach"],
)
def test_import_needs_nothing_and_attach_torch_alone(before: str, use: str) -> None:
    """torch takes seconds to import, and commands that only shift images never need it."""
    program = f"import sys, {before}; seen = set(sys.modules); import gramloop; {use}; print(*set(sys.modules) - seen)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"gramloop"}
