"""What the blocks of a ViT return, remembered for a second forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.replay.vit import hidden_states, states_of
from gramloop.util.forward_patch import ModuleForward, patched


class BlockReuse:
    """Inputs and outputs of one thread's blocks; after ``repeat``, known inputs are answered with known outputs.

    executed: blocks that ran.
    views: how often the first block ran before ``repeat``: a model may see parts of an image one by one.
    answered: blocks that did not have to run again.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._runs: list[list[tuple[list[Tensor], Any, list[int]]]] = [[] for _ in blocks]
        self._thread, self._repeats = get_ident(), False
        self.executed = self.views = self.answered = 0

    def repeat(self) -> None:
        """From now on blocks answer where they can."""
        self._repeats = True

    def around(self, index: int, run: ModuleForward, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or answer for it."""
        if get_ident() != self._thread:
            return run(*args, **kwargs)
        given = states_of(hidden_states(args, kwargs))
        for before, output, versions in self._runs[index] if self._repeats else ():
            same = len(before) == len(given) and all(map(_same, before, given))
            if same and versions == _state_versions(before, output):
                self.answered += 1
                return output
        output = run(*args, **kwargs)
        self.executed += 1
        if not self._repeats:
            self.views += index == 0
            # of inference tensors later changes in place cannot be noticed
            if not any(state.is_inference() for state in (*given, *states_of(output))):
                self._runs[index].append((given, output, _state_versions(given, output)))
        return output


@contextmanager
def reusing_blocks(blocks: Sequence[nn.Module]) -> Iterator[BlockReuse]:
    """Let a second forward of this thread reuse what its blocks have in common with the first, whatever a head reads.

    A replay attached for the second forward then costs only what it adds. Inputs are compared, not assumed: a model
    with random layers, or one that changes its states in place, is run in full.
    """
    reuse = BlockReuse(blocks)
    with patched(blocks, reuse.around):
        yield reuse


def _state_versions(given: list[Tensor], output: Any) -> list[int]:
    return [state._version for state in (*given, *states_of(output))]


def _same(old: Tensor, new: Tensor) -> bool:
    if old is new:
        return True
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    # the last token first: states that differ mostly differ there
    return torch.equal(old[:, -1], new[:, -1]) and torch.equal(old, new)
