"""What GramLoop says when it is used in a way that cannot work."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class GramLoopError(ValueError):
    """A mistake of the caller: one sentence that names the value and what would have been right."""


class UserCodeError(GramLoopError):
    """Code that the user provided failed; ``details`` is its own traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)  # both, so that other processes can send it
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, what: str, error: Exception) -> UserCodeError:
        """The error of user-provided code, with its traceback from where that code begins."""
        others = Path(__file__).parent, Path(sysconfig.get_paths()["purelib"])
        frames = error.__traceback__
        while frames is not None and any(
            Path(frames.tb_frame.f_code.co_filename).is_relative_to(each) for each in others
        ):
            frames = frames.tb_next
        frames = frames or error.__traceback__
        details = "".join(traceback.format_exception(type(error), error, frames, chain=False))
        return cls(f"{what} with {type(error).__name__}: {error}", details)


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Any error of user-provided code as a `UserCodeError`, which begins with ``what`` failed."""
    try:
        yield
    except GramLoopError:
        raise
    except Exception as error:  # whatever it is, it is not ours
        raise UserCodeError.of(what, error) from error


class GramLoopWarning(UserWarning):
    """Something that works, but probably not as the caller believes."""


class UntunedWindowWarning(GramLoopWarning):
    """The window is a guess: it was not measured on this backbone."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that a wrong one looks like, as the end of a message, or nothing."""
    close = difflib.get_close_matches(word.partition("=")[0], list(known), n=1, cutoff=0.65)
    return f"; did you mean {close[0]}?" if close else ""


def then(message: str, more: str) -> str:
    """A message and what follows it; the message may end with a question."""
    return f"{message}{' ' if message.endswith('?') else '; '}{more}"


def short_repr(value: object) -> str:
    """A value for an error message: one line, not too long; tuples as lists, as files have them."""
    try:
        text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    except Exception:  # a message about a value must not fail because of the value
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
