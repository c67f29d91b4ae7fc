"""``gramloop check``: the first minute on a machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gramloop.cli.help import examples
from gramloop.cli.model_options import add_device_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "Drift, gate and every placement are compared with float64, heads with stored numbers. Nothing is downloaded. The "
        "exit code is 1 where something does not agree."
        + examples("gramloop check", "gramloop check --device cuda --autocast --json check.json")
    )
    add_device_option(parser)
    parser.add_argument(
        "--autocast", action="store_true", help="blocks in bfloat16, as GPUs run the released models"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, for a bug report")


def run(args: argparse.Namespace) -> int:
    """Print a table and a verdict."""
    from rich.console import Console

    from gramloop.check.checking import check_machine
    from gramloop.io.atomic import atomic_write
    from gramloop.io.device import choose_device

    device = choose_device(args.device)
    console = Console()
    with console.status(f"checking {device}") as status:
        found = check_machine(device, args.autocast, lambda case: status.update(f"{case.group}: {case.name}"))
    machine = found.machine
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items() if number)
    console.print(
        f"{packages}; Python {machine['python']}; {machine['system']}", highlight=False, soft_wrap=True
    )
    console.print(_device_line(machine), highlight=False, soft_wrap=True)
    console.print(_table(found.cases))
    console.print(found.verdict, highlight=False, soft_wrap=True)
    if args.json is not None:
        atomic_write(args.json, json.dumps(found.as_json(), indent=2).encode() + b"\n")
    return 1 if found.failed else 0


def _device_line(machine: dict[str, object]) -> str:
    line = f"{machine['device']}, {machine['cores']} cores, {machine['threads']} threads"
    if "memory_bytes" in machine:
        memory = int(str(machine["memory_bytes"])) / 2**30
        line += f"; {machine['name']}, {memory:.0f} GiB, CUDA {machine['cuda']}, {machine['devices']} in all"
    return line


def _table(cases: object) -> object:
    from rich import box
    from rich.table import Table

    from gramloop.check.case import EXACT, Case

    table = Table(box=box.SIMPLE)
    for name, justify in (
        ("", "left"),
        ("check", "left"),
        ("digits", "right"),
        ("needed", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for case in cases:  # type: ignore[attr-defined]
        assert isinstance(case, Case)
        digits = "" if case.digits is None else "all" if case.digits >= EXACT else f"{case.digits:.1f}"
        needed = "" if case.needed is None else f"{case.needed:.1f}"
        table.add_row(
            "ok" if case.passed else "[red]NO[/red]", f"{case.group}: {case.name}", digits, needed, case.words
        )
    return table
