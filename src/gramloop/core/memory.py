"""Two forwards of one image share what they have in common, whatever the head reads.

The first forward is remembered block by block. In the second a block that is given what it was given before
returns what it returned then, so a replay attached in between costs what it adds: nothing is run again before
the window's end, the ordinary suffix is known, and where an image is not replayed, nothing is run at all. Inputs
are compared, not assumed: a model with random layers, or one that changes its states in place, is run in full.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.core.call import States, hidden_states, states_of
from gramloop.core.watch import Run, standing_around


@dataclass(frozen=True)
class _Known:
    """One run of a block: its hidden states before and after, with the versions they had."""

    given: States
    output: Any
    versions: tuple[int, ...]

    @classmethod
    def of(cls, given: States, output: Any) -> _Known | None:
        """What is remembered of a run; None where later changes in place could not be noticed."""
        states = [*given, *states_of(output)]
        if any(state.is_inference() for state in states):
            return None
        return cls(given, output, tuple(state._version for state in states))

    def fits(self, given: States) -> bool:
        """Whether the block is given the same once more, and nobody wrote into what it returned."""
        states = [*self.given, *states_of(self.output)]
        if tuple(state._version for state in states) != self.versions or len(given) != len(self.given):
            return False
        return all(_same(old, new) for old, new in zip(self.given, given, strict=True))


class Memory:
    """What one thread's blocks were given and returned; after ``repeat`` they answer from it.

    executed: blocks that ran.
    views: how often the first block ran before ``repeat``: a model may look at parts of an image one by one.
    answered: blocks that did not have to run again.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._runs: list[list[_Known]] = [[] for _ in blocks]
        self._thread, self._repeats = threading.get_ident(), False
        self.executed = self.views = self.answered = 0

    def repeat(self) -> None:
        """From now on blocks answer where they can."""
        self._repeats = _here.repeats = True

    def around(self, index: int, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or answer for it."""
        if threading.get_ident() != self._thread:
            return run(*args, **kwargs)
        given = hidden_states(args, kwargs)
        if self._repeats:
            known = next((known for known in self._runs[index] if known.fits(given)), None)
            if known is not None:
                self.answered += 1
                return known.output
        output = run(*args, **kwargs)
        self.executed += 1
        if not self._repeats:
            self.views += index == 0
            known = _Known.of(given, output)
            self._runs[index] += [] if known is None else [known]
        return output


@contextmanager
def remembering(blocks: Sequence[nn.Module]) -> Iterator[Memory]:
    """Remember this thread's runs of these blocks; other threads do not notice."""
    memory = Memory(blocks)
    try:
        with standing_around(blocks, memory.around):
            yield memory
    finally:
        _here.repeats = False


def repeats() -> bool:
    """Whether this thread is running a forward again."""
    return _here.repeats


class _Here(threading.local):
    repeats = False


_here = _Here()


def _same(old: Tensor, new: Tensor) -> bool:
    if old is new:
        return True
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    # the last token first: states that differ mostly differ there
    return torch.equal(old[:, -1], new[:, -1]) and torch.equal(old, new)
