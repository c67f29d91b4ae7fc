"""The command line: a table of commands, each a small module with ``add_arguments`` and ``run``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from gramloop import __version__
from gramloop.cli.ending import hearing_sigterm, stop_code
from gramloop.cli.limits import check_numbers
from gramloop.cli.notes import notes_in_a_line
from gramloop.errors import GramLoopError

# name: one line of help; the module gramloop.cli.<name> is imported only when it is called
COMMANDS = {
    "corrupt": "write the shifted conditions of a suite to disk",
    "calibrate": "tell what ordinary images look like to a model, without labels",
    "evaluate": "compare methods over a suite, resumable at any moment",
    "tune": "find which mitigations help a model under shift, replay among them, and whether any does",
    "report": "turn stored results into one page, tables and figures",
    "sheet": "draw one picture under every condition and severity",
    "predict": "segment images or detect objects, ordinary and replayed side by side",
    "diagnose": "show what a replay does in an image: drift, gate, and what is left",
    "scan": "find where replay acts gently on a backbone, without labels",
    "demo": "see the method at work, with nothing to download",
    "scenes": "draw procedural scenes with labels, boxes and masks",
    "check": "see in a minute whether this machine computes what it should",
    "list": "tell which models, suites, shifts, methods and hosts can be named",
}

_MODULES = {"list": "listing"}  # a module of that name would hide Python's own


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it succeeded, 2 for misuse, 130 and 143 when it was stopped. A command's help says what a partial failure gives."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser = _parser(name)
    parsed = parser.parse_args(arguments)
    try:
        with hearing_sigterm(), notes_in_a_line():
            check_numbers(parsed)
            return int(parsed.run(parsed) or 0)
    except GramLoopError as error:
        print(f"gramloop {parsed.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gramloop"):
            raise
        print(
            f"gramloop {parsed.command}: this command needs the package {error.name!r}; "
            "pip install 'gramloop[all]' brings it",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as stop:
        print(f"gramloop {parsed.command}: stopped", file=sys.stderr)
        return stop_code(stop)


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gramloop", description="Gram-gated replay for frozen vision transformers."
    )
    parser.add_argument("--version", action="version", version=f"gramloop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == wanted:
            module = importlib.import_module(f"gramloop.cli.{_MODULES.get(name, name)}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
