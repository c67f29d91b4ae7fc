"""The command line: a table of commands, each a small module with ``add_arguments`` and ``run``.

A module that names ``KEYS``, the keys of its JSON document and what they hold, takes ``--json``; its ``run`` returns an
`Ended` with that document.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from gramloop import __version__
from gramloop.cli.ending import hearing_sigterm, stop_code
from gramloop.cli.help import Parser, commands_text, make_parser, meant, short_usage, then
from gramloop.cli.notes import notes_in_a_line
from gramloop.cli.output import Ended, print_document, speaking
from gramloop.cli.settings_file import add_options, check_target, parse, save
from gramloop.errors import GramLoopError

# name: one line of help; the module gramloop.cli.<name> is imported only when it is called
COMMANDS = {
    "demo": "see the method at work, with nothing to download",
    "app": "try images and open results in a browser, on this machine alone",
    "check": "see in a minute whether this machine computes what it should",
    "predict": "segment images or detect objects, ordinary and replayed side by side",
    "diagnose": "show what a replay does in an image: drift, gate, and what is left",
    "scan": "find where replay acts gently on a backbone, without labels",
    "calibrate": "tell what ordinary images look like to a model, without labels",
    "evaluate": "compare methods over a suite, resumable at any moment",
    "tune": "find which mitigations help a model under shift, replay among them, and whether any does",
    "report": "turn stored results into one page, tables and figures",
    "corrupt": "write the shifted conditions of a suite to disk",
    "scenes": "draw procedural scenes with labels, boxes and masks",
    "export": "write a model with its mitigation as one ONNX or pt2 file",
    "list": "tell which models, suites, shifts, methods and hosts can be named",
}
GROUPS = {
    "See it": ("demo", "app", "check"),
    "Find out what helps a model": ("predict", "diagnose", "scan", "calibrate", "evaluate", "tune", "report"),
    "Make data": ("corrupt", "scenes"),
    "Deploy": ("export",),
    "Look up": ("list",),
}  # in the order in which a task is done

_MODULES = {"list": "listing"}  # a module of that name would hide Python's own
_WHAT = "GramLoop tells which training-free mitigation helps a frozen vision model under distribution shift."
_OVERVIEW = f"""{_WHAT}

  gramloop demo                          see it, with nothing to download
  gramloop list models                   what can stand in place of tiny
  gramloop evaluate --suite scenes-c --model tiny --images 8 --severity 3 --out out/first
  gramloop report out/first --out out/report

gramloop --help lists all commands, gramloop COMMAND --help what one takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it succeeded, 2 for misuse, 130 and 143 when it was stopped. A command's help says what a partial failure gives."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words:
            print(_OVERVIEW)
            return 0
        if words[0] not in COMMANDS:
            return _no_command(words)
        return _command(words[0], words[1:])
    except BrokenPipeError:  # the reader has seen enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def command_parser(name: str) -> tuple[Parser, ModuleType]:
    """The parser of a command, and its module."""
    module = importlib.import_module(f"gramloop.cli.{_MODULES.get(name, name)}")
    summary = COMMANDS[name]
    parser = make_parser(f"gramloop {name}", summary[0].upper() + summary[1:] + ".")
    module.add_arguments(parser)
    group = parser.add_argument_group("settings and output")
    add_options(group)
    group.add_argument("--quiet", action="store_true", help="print nothing but errors")
    if hasattr(module, "KEYS"):
        group.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    parser.usage = short_usage(parser)
    return parser, module


def top_parser() -> argparse.ArgumentParser:
    """The parser of what comes before a command."""
    parser = make_parser("gramloop", _WHAT)
    parser.usage = "gramloop COMMAND [options]"
    parser.add_argument("--version", action="version", version=f"gramloop {__version__}")
    parser.epilog = f"{commands_text(GROUPS, COMMANDS)}\n\ngramloop COMMAND --help tells what one takes."
    return parser


def _no_command(words: Sequence[str]) -> int:
    if words[0].startswith("-"):
        top_parser().parse_args(words)
    else:
        said = then(
            f"there is no command {words[0]!r}{meant(words[0], COMMANDS)}", "gramloop --help lists them"
        )
        print(f"gramloop: {said}", file=sys.stderr)
    return 2


def _command(name: str, words: Sequence[str]) -> int:
    """Run one command, and tell what it came to."""
    parser, module = command_parser(name)
    scripted, notes = "--json" in words and hasattr(module, "KEYS"), list[str]()
    code, sentence = 2, None
    more: dict[str, Any] = {}
    try:
        parsed = parse(parser, name, words)
        from gramloop.cli.limits import check_numbers  # not for help: it costs a quarter of a start

        parsed.command, scripted = name, hasattr(module, "KEYS") and parsed.json
        with hearing_sigterm(), notes_in_a_line(parsed.quiet) as notes, speaking(parsed.quiet, scripted):
            check_numbers(parsed)
            if parsed.save_config is not None:
                check_target(parsed.save_config)
            ended = module.run(parsed)
            if isinstance(ended, Ended) and scripted:
                more = dict(ended.document())
        code = ended.code if isinstance(ended, Ended) else int(ended or 0)
        if parsed.save_config is not None and code in (0, 1):
            save(parsed.save_config, parser, name, parsed.given)
            if not parsed.quiet:
                print(f"gramloop {name} --config {parsed.save_config} runs this again", file=sys.stderr)
    except GramLoopError as error:
        sentence = str(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gramloop"):
            raise
        sentence = f"this command needs the package {error.name!r}; pip install 'gramloop[all]' brings it"
    except KeyboardInterrupt as stop:
        sentence, code = "stopped", stop_code(stop)
    if sentence is not None:
        print(f"gramloop {name}: {sentence}", file=sys.stderr)
        more = {"error": sentence}
    if scripted:
        print_document(name, __version__, code, notes, more)
    return code
