"""Progress bars of rich: on a terminal, one at a time, gone when the work is done."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_T = TypeVar("_T")

_screen = threading.Lock()  # held while a bar is shown: a bar inside another would tear both


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on standard error, and ``advance(now="", steps=1)``, which names the current item and moves the bar on.

    The total may be unknown; one step needs no bar.
    """
    with use_screen() as free:
        if not free or (total is not None and total < 2):
            yield lambda now="", steps=1: None
            return
        from rich.progress import TextColumn

        with make_bar(TextColumn("{task.fields[now]}")) as bar:
            task = bar.add_task(description, total=total, now="")
            yield lambda now="", steps=1: bar.update(task, advance=steps, now=now)


def tracked(items: Iterable[_T], description: str, total: int) -> Iterator[_T]:
    """Pass items through, with a bar that counts them."""
    with progress_bar(description, total) as advance:
        for item in items:
            yield item
            advance()


def make_bar(*more: ProgressColumn) -> Progress:
    """A bar to be shown inside `use_screen`: description, bar, count, time left, and ``more``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(
        *columns,
        *more,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # piped output must not end up on the screen
    )


@contextmanager
def no_bars() -> Iterator[None]:
    """Show no bars meanwhile."""
    held = _screen.acquire(blocking=False)
    try:
        yield
    finally:
        if held:
            _screen.release()


@contextmanager
def use_screen() -> Iterator[bool]:
    """Whether a bar may be shown: on a terminal, with no other bar there, and not by a worker process."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # loading a model needs no bar
        yield False
        return
    alone = multiprocessing.parent_process() is None and Console(stderr=True).is_terminal
    if not (alone and _screen.acquire(blocking=False)):
        yield False
        return
    try:
        yield True
    finally:
        _screen.release()
