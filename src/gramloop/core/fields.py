"""One setting by itself: what is right, how a value is checked, and how a text is read.

A text that cannot be read stays a text, which the check then refuses. So a wrong value gets the same sentence
whether it came from Python, a file, a command line or a list of settings.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real

from gramloop.errors import GramLoopError

LARGEST, SMALLEST = (
    3.4028234663852886e38,
    1.1754943508222875e-38,
)  # what float32 holds, in which models compute


@dataclass(frozen=True)
class Field:
    """A setting: one of ``words``, or a number of a kind from ``low`` to ``high``, or None where it is optional.

    right: what the value is beside the words, for every way in.
    kind: of number. A float may be given as an int, and stays one; numpy's numbers become Python's.
    meaning: what it does, in a few words, for help; the default is said by whoever knows it.
    symbol: what stands for a value there; the words where it is one of them alone.
    """

    right: str = ""
    words: tuple[str, ...] = ()
    kind: type[int] | type[float] | None = None
    low: float = 0
    high: float = LARGEST
    optional: bool = False
    meaning: str = ""
    symbol: str = ""

    def check(self, name: str, value: object) -> object:
        """The value as it is kept, or one sentence that says what would have been right."""
        if value is None and self.optional:
            return None
        kept = self.keep(value)
        if kept is None:
            choices = [*(f'"{word}"' for word in self.words), self.right]
            right = " or ".join(filter(None, choices)) + ", or none" * self.optional
            raise GramLoopError(f"{name} is {shown(value)}; it is {right}")
        return kept

    def parse(self, name: str, text: str) -> object:
        """The value of a text, checked; ``none`` is None where that is right."""
        return self.check(name, None if self.optional and text.lower() == "none" else self.read(text))

    def keep(self, value: object) -> object:
        """The value as it is kept, None where it is not right."""
        if isinstance(value, str):
            return str(value) if value in self.words else None
        if self.kind is None or isinstance(value, bool) or not isinstance(value, Real):
            return None
        with suppress(OverflowError):
            found = int(value) if isinstance(value, Integral) else float(value)
            if self.low <= found <= self.high and isinstance(found, int | self.kind):
                return found
        return None

    def read(self, text: str) -> object:
        """The number that a text is, or the text; a fraction in place of a whole number is read to be refused."""
        for kind in (int, float):
            if self.kind in (int, kind) and "_" not in text:
                with suppress(ValueError):
                    return kind(text)
        return text


def shown(value: object) -> str:
    """A value in a sentence: one line, not too long; tuples as lists, as files have them."""
    try:
        text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    except Exception:  # a sentence about a value must not fail because of the value
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
