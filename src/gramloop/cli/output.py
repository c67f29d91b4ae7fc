"""What a command prints and how it ends: for people, quietly (``--quiet``), or for a script (``--json``).

Results go to standard output, progress and notes to standard error. A script gets one JSON document on standard output
and nothing else there, whatever a library prints.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopWarning

if TYPE_CHECKING:
    from gramloop.evaluate.answer import Answer
    from gramloop.evaluate.engines import Listener
    from gramloop.tasks.options import ModelOptions

NAMED = 10  # failures listed one by one

_silent = False


def note(text: str) -> None:
    """Print a line about the work under way, unless the command is quiet."""
    if not _silent:
        print(text, file=sys.stderr)


def note_embedded(model: ModelOptions, images: Iterable[Path]) -> None:
    """Say what the embedded model is where it is given images that were not drawn by `gramloop scenes`."""
    from gramloop.data.scenes import SETTINGS_FILE

    if model.model != "tiny" or model.head is not None or model.backbone is not None:
        return
    folders = {parent for path in images for parent in (path.absolute(), *path.absolute().parents[:3])}
    if not any((folder / SETTINGS_FILE).is_file() for folder in folders):
        note(
            "gramloop: note: the embedded model knows drawn scenes only, so its predictions on photographs mean nothing; "
            "--model names another, such as examples/saliency.py:make"
        )


def is_quiet() -> bool:
    """Whether nothing but errors is asked for."""
    return _silent


def listening() -> Listener:
    """What shows an evaluation as it proceeds."""
    from gramloop.evaluate.display import Display
    from gramloop.evaluate.engines import Listener

    return Listener() if _silent else Display()


def print_failures(title: str, lines: Sequence[str]) -> None:
    """Print what failed, the first few by name."""
    if lines:
        more = [f"… and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
        print("\n  ".join([title, *lines[:NAMED], *more]), file=sys.stderr)


def print_files(file: Path, folder: Path) -> None:
    """Print where results are, and how to read them."""
    print(f"Results: {file}\nAs a page: gramloop report {folder} --out {folder}-report")


def show(found: object, **style: Any) -> None:
    """Print a table, or what shows itself as one, as wide as the terminal."""
    from rich.console import Console

    Console().print(found, **style)


def print_answer(answer: Answer) -> None:
    """Print what to use, the table of methods, and the lines that deploy it."""
    show(answer)
    for line in answer.deploy:
        print(f"  {line}")
    print()


def print_document(name: str, version: str, code: int, notes: Sequence[str], more: Mapping[str, Any]) -> None:
    """Print the one document of a command: paths as texts, null in place of a number that is not finite.

    Every document begins with these four keys; where a command was refused, an "error" holds the message.
    """
    import msgspec

    def plain(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else str(value)  # a number of numpy, or a path

    content = {"command": name, "version": version, "exit_code": code, "notes": list(notes), **more}
    print(msgspec.json.format(msgspec.json.encode(content, enc_hook=plain), indent=2).decode())


@contextmanager
def quiet_or_scripted(quiet: bool, document: bool) -> Iterator[None]:
    """Drop what people did not ask for, and what is not the document of a script."""
    global _silent
    with ExitStack() as stack:
        if quiet:
            from gramloop.util.progress import no_bars

            stack.enter_context(no_bars())
            _silent = True
        if quiet or document:  # also what libraries and worker processes write past Python
            sys.stdout.flush()
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            with suppress(OSError):  # the process has no standard output
                kept = os.dup(1)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, 1)
                os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            _silent = False


@contextmanager
def notes_in_a_line(quiet: bool = False) -> Iterator[list[str]]:
    """Print warnings of this package as one line without a place in the code; the list collects them."""
    usual, notes = warnings.formatwarning, list[str]()

    def in_a_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> str:
        if issubclass(category, GramLoopWarning):
            known = str(message) in notes  # one that every image raises is printed once
            notes.extend([] if known else [str(message)])
            return "" if quiet or known else f"gramloop: note: {message}\n"
        return usual(message, category, *rest, **more)

    warnings.formatwarning = in_a_line
    try:
        yield notes
    finally:
        warnings.formatwarning = usual


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; it is handled like Ctrl-C."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Turn the first SIGTERM into `Terminated`; a second one ends the process at once."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.getsignal(signal.SIGTERM)
    ours = threading.current_thread() is threading.main_thread()  # which alone may set signals
    if before is signal.SIG_IGN or not ours:  # or the parent process wants it so
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_code(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was stopped, as shells count: 128 and the number of the signal."""
    return 143 if isinstance(stop, Terminated) else 130
