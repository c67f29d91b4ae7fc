"""The command line: a table of commands, each a function of its options, ``NAME_command`` in its module."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gramloop import __version__
from gramloop.cli import output
from gramloop.cli.options import Command, Formatter, Parser, make_parser, parse
from gramloop.errors import GramLoopError, did_you_mean, then

# by group, in the order of a task; the module of a command is imported only when it is called
GROUPS = {
    "See it": {
        "demo": "see the method at work, with nothing to download",
        "app": "try images and open results in a browser, on this machine alone",
        "check": "find out in a minute whether this machine computes what it should",
    },
    "Find out what helps a model": {
        "predict": "predict images with and without a mitigation, side by side",
        "diagnose": "plot what a replay does in an image: drift, gate, and what is left",
        "calibrate": "learn statistics of in-distribution images, for some mitigations",
        "evaluate": "compare methods over a suite, resumable at any moment",
        "tune": "find which mitigations help a model under shift, if any",
        "compare": "find out whether a model is as good as another one under shift",
        "report": "turn stored results into one page, tables and figures",
        "reproduce": "run a recipe: every table and figure of the paper",
    },
    "Make data": {
        "corrupt": "write the shifted conditions of a suite to disk",
        "scenes": "draw procedural scenes with labels, boxes, masks and depth",
    },
    "Deploy": {"export": "write a model with its mitigation as one ONNX or pt2 file"},
    "Look up": {"list": "list models, suites, shifts, methods and hosts"},
}
COMMANDS = {name: line for commands in GROUPS.values() for name, line in commands.items()}

_MODULES = {  # where a command is not in the module of its name
    **dict.fromkeys(("demo", "app", "check"), "first_look"),
    **dict.fromkeys(("predict", "diagnose", "calibrate"), "images"),
    "tune": "evaluate",
    **dict.fromkeys(("report", "compare", "reproduce"), "results"),
    **dict.fromkeys(("corrupt", "scenes", "list"), "data"),
}
_WHAT = (
    "GramLoop: Gram-gated replay for frozen ViTs, and what helps a dense model under shift without training."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 when it succeeded, 1 for a partial failure or a failed gate, 2 for misuse, 3 for an undecided gate, 130 and 143 when it was stopped.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets ?, and no traceback
    try:
        if words[0] not in COMMANDS:
            return _no_command(words)
        if sys.flags.optimize > 1:
            print(
                "gramloop: python -OO removes docstrings, which transformers reads; take python or python -O",
                file=sys.stderr,
            )
            return 2
        return _command(words[0], words[1:])
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def find_command(name: str) -> Command:
    """A command of the table."""
    module = importlib.import_module(f"gramloop.cli.{_MODULES.get(name, name)}")
    found: Command = getattr(module, f"{name}_command")
    return found


def command_parser(name: str) -> tuple[Parser, Command]:
    """The parser of a command, and the command."""
    found, summary = find_command(name), COMMANDS[name]
    return make_parser(name, summary[0].upper() + summary[1:] + ".", found), found


def _no_command(words: Sequence[str]) -> int:
    if not words[0].startswith("-"):
        wrong = f"there is no command {words[0]!r}{did_you_mean(words[0], COMMANDS)}"
        print(f"gramloop: {then(wrong, 'gramloop --help lists them')}", file=sys.stderr)
        return 2
    width = max(map(len, COMMANDS))
    lines = []
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}  {line}" for name, line in commands.items())]
    lines += ["", "gramloop COMMAND --help lists the options of one."]
    parser = Parser(prog="gramloop", description=_WHAT, epilog="\n".join(lines), formatter_class=Formatter)
    parser.usage = "gramloop COMMAND [options]"
    parser.add_argument("--version", action="version", version=f"gramloop {__version__}")
    parser.parse_args(words)
    return 2


def _command(name: str, words: Sequence[str]) -> int:
    """Run one command and report what it came to."""
    parser, wanted = command_parser(name)
    scripted, notes, code, problem = "--json" in words, list[str](), 2, None
    document = {}
    try:
        words = _with_files(words)
        options, common = parse(parser, wanted.options, words)
        scripted = common.json
        if hasattr(options, "typed"):  # the command is kept with the results
            options = replace(options, typed=shlex.join(["gramloop", name, *words]))
        with (
            output.sigterm_interrupts(),
            output.notes_in_a_line(common.quiet) as notes,
            output.quiet_or_scripted(common.quiet, common.json),
        ):
            code, found = wanted.run(options)
            document = dict(found)
    except GramLoopError as error:
        problem = str(error)
        print(getattr(error, "details", ""), end="", file=sys.stderr)  # of user-provided code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gramloop"):
            raise
        problem = f"this command needs the package {error.name!r}; the extra gramloop[all] installs it"
    except MemoryError:
        problem = "this process may not use more memory (ulimit -v, or the limit of a container); it needs about 2 GB"
    except KeyboardInterrupt as stop:
        problem, code = "stopped", output.stop_code(stop)
    if problem is not None:
        print(f"gramloop {name}: {problem}", file=sys.stderr)
        document = {"error": problem}
    if scripted:
        output.print_document(name, __version__, code, notes, document)
    return code


def _with_files(words: Sequence[str]) -> list[str]:
    """The words of a call, with those of a file in place of ``@FILE``; lines that start with # are comments."""
    found: list[str] = []
    for word in words:
        if not word.startswith("@"):
            found.append(word)
            continue
        try:
            found += shlex.split(Path(word[1:]).read_text(encoding="utf-8"), comments=True)
        except (OSError, ValueError) as error:
            raise GramLoopError(f"cannot read options from {word[1:]}: {error}") from error
    return found
