"""``gramloop check``: the first minute on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES

if TYPE_CHECKING:
    from gramloop.check.cases import Case
    from gramloop.util.table import Table

KEYS = {
    "machine": "versions of packages, devices and their memory",
    "precision": "float32, bfloat16 autocast or bfloat16 weights",
    "passed": "whether everything that was judged agrees",
    "verdict": "the same in one line",
    "cases": "what was compared: group, name, passed (null where it is only reported), words, digits, needed",
}


EPILOG = (
    "Drift, gate and every placement are compared with float64, heads with stored numbers; forwards are repeated and captured "
    "as one graph. Nothing is downloaded. The exit code is 1 where something differs."
    f"{EXAMPLES}  gramloop check\n  gramloop check --device cuda:1 --autocast --json > check.json"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where, and in which precision."""

    device: str | None = option("cpu, cuda, cuda:1, mps or auto (auto)", None, metavar="NAME")
    autocast: bool = option("blocks in bfloat16, as GPUs run the released models", False)
    dtype: Literal["float32", "bfloat16"] = option("of the backbone's weights (float32)", "float32")


def run(options: Options) -> Ended:
    """Print a table and a verdict."""
    from rich.console import Console

    from gramloop.check.checking import check_machine
    from gramloop.util.device import choose_device

    device, console = choose_device(options.device), Console()
    with console.status(f"checking {device}") as status:
        found = check_machine(
            device,
            options.autocast,
            options.dtype,
            lambda case: status.update(f"{case.group}: {case.name}"),
        )
    console.print(found.verdict, highlight=False, markup=False)
    for line in machine_lines(found.machine):
        console.print(line, highlight=False, markup=False)
    console.print(_table(found.cases))
    return Ended(1 if found.failed else 0, found.as_json)


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """Versions, the machine, and every device with its memory."""
    packages = [f"{name} {number}" for name, number in machine["packages"].items() if number]
    built = [f"CUDA {machine['cuda']}"] if machine["cuda"] else []
    memory = f", {_gib(machine['memory_bytes'])}" if machine["memory_bytes"] else ""
    threads = f"cores: {machine['cores']}, threads: {machine['threads']}{memory}"
    lines = [
        ", ".join([*packages, *built]),
        f"Python {machine['python']}, {machine['system']}, {threads}",
    ]
    for each in machine["devices"]:
        words = [each["name"]]
        if "memory_bytes" in each:
            words.append(_gib(each["memory_bytes"]))
        if "capability" in each:
            words.append(f"compute capability {each['capability']}")
        if each["device"] in (machine["device"], f"{machine['device']}:0"):
            free = machine["free_bytes"]
            words.append("checked here" if free is None else f"{_gib(free)} free, checked here")
        lines.append(f"{each['device']}: {', '.join(words)}")
    return lines


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _table(cases: tuple[Case, ...]) -> Table:
    from gramloop.check.cases import EXACT
    from gramloop.util.table import Column, Table

    rows = []
    for case in cases:
        digits = "" if case.digits is None else "all" if case.digits >= EXACT else f"{case.digits:.1f}"
        needed = "" if case.needed is None else f"{case.needed:.1f}"
        judged = {True: "ok", False: "NO", None: "--"}[case.passed]
        rows.append((judged, f"{case.group}: {case.name}", digits, needed, case.words))
    kinds = {"": "text", "check": "text", "digits": "number", "needed": "number", "compared with": "text"}
    return Table("", [Column(name, kind=kind) for name, kind in kinds.items()], rows)  # type: ignore[arg-type]
