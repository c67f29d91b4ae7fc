"""Calling a ViT's blocks again as the host called them, watching them run, and answering for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.replay.vit import Grid, ViT

Run = Callable[..., Any]  # a block's forward
_pure: WeakSet[nn.Module] = WeakSet()  # blocks that were seen to leave their input alone


def states_of(output: Any) -> list[Tensor]:
    """The hidden states in a block's output: a tensor, a tuple that begins with one, or a list of resolutions."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return [output[0]]
    if isinstance(output, list) and output and all(isinstance(entry, Tensor) for entry in output):
        return list(output)
    raise GramLoopError(
        f"a block returned {type(output).__name__}; replay understands a tensor, a tuple that begins with "
        "one, and a list of tensors"
    )


def with_states(output: Any, states: list[Tensor]) -> Any:
    """The same kind of output with other hidden states."""
    if isinstance(output, tuple):
        return (states[0], *output[1:])
    return states if isinstance(output, list) else states[0]


def hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The hidden states that a block is called with; they come first, or have a name."""
    return args[0] if args else kwargs[_hidden_name(kwargs)]


def with_hidden(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], hidden: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with other hidden states."""
    if args:
        return (hidden, *args[1:]), dict(kwargs)
    return (), {**kwargs, _hidden_name(kwargs): hidden}


def _hidden_name(kwargs: Mapping[str, Any]) -> str:
    for name in ("hidden_states", "x", "input"):
        if name in kwargs:
            return name
    raise GramLoopError(f"blocks are called with hidden states first; these are given {sorted(kwargs)}")


class BlockCall:
    """How the host called a block: its hidden states aside, every block is given the same arguments."""

    def __init__(self, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        hidden = hidden_states(args, kwargs)
        self.vit, self.executed, self.listed = vit, 0, isinstance(hidden, list)
        self.grid: Grid | None = vit.layout.grid(states_of(hidden)[0])
        self._args, self._kwargs = with_hidden(args, kwargs, None)

    @classmethod
    def of(cls, vit: ViT, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[BlockCall]:
        """The call, or one for each resolution where the host passes lists of them through its blocks."""
        hidden = hidden_states(args, kwargs)
        if not isinstance(hidden, list):
            return [cls(vit, args, kwargs)]

        def entry(value: Any, i: int) -> Any:
            return [value[i]] if isinstance(value, list) and len(value) == len(hidden) else value

        return [
            cls(
                vit, tuple(entry(each, i) for each in args), {name: entry(kwargs[name], i) for name in kwargs}
            )
            for i in range(len(hidden))
        ]

    def run(self, first: int, last: int, tokens: Tensor) -> Tensor:
        """Blocks first to last (inclusive; none when last < first) applied to a state (B, T, C)."""
        # block.forward, not block(): the hooks of others must not count replays and probes
        for block in self.vit.blocks[first : last + 1]:
            state = self.shaped(tokens)
            args, kwargs = with_hidden(self._args, self._kwargs, [state] if self.listed else state)
            run = (
                block.forward
                if torch.compiler.is_compiling() or block in _pure
                else partial(_first_run, block)
            )
            tokens = self.vit.layout.tokens(states_of(run(*args, **kwargs))[0])
            self.executed += 1
        return tokens

    def shaped(self, tokens: Tensor) -> Tensor:
        """Tokens as the host passes them from block to block."""
        return self.vit.layout.state(tokens, self.grid)


def _first_run(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a block for the first time, and refuse it if it writes into its input, which a replay needs again."""
    (state,) = states_of(hidden_states(args, kwargs))
    before = state.clone() if state.is_inference() else state._version
    output = block.forward(*args, **kwargs)
    if not (torch.equal(state, before) if isinstance(before, Tensor) else state._version == before):
        raise GramLoopError(
            f"{type(block).__name__}, a block of the ViT, works in place: it writes into the state that it "
            "is given, which a replay needs again; let it return a new one, as in x = x + …"
        )
    _pure.add(block)
    return output


class ForwardPatch:
    """Takes the place of a block's forward, for everyone who watches it or answers for it."""

    def __init__(self, block: nn.Module) -> None:
        self.own = vars(block).get("forward")  # accelerate, for one, leaves its own there
        self.forward = block.forward
        self.arounds: tuple[Run, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run: Run = self.forward
        for around in self.arounds:
            run = partial(around, run)
        return run(*args, **kwargs)


@contextmanager
def patched(blocks: Sequence[nn.Module], around: Run) -> Iterator[None]:
    """Call ``around`` with a block's index, what runs it, and its arguments, in place of the block, in any thread."""
    added = [(vars(block), block, partial(around, index)) for index, block in enumerate(blocks)]
    with _patching:
        for own, block, each in added:
            if not isinstance(own.get("forward"), ForwardPatch):
                own["forward"] = ForwardPatch(block)
            own["forward"].arounds += (each,)
    try:
        yield
    finally:
        with _patching:
            for own, _, each in added:
                patch = own["forward"]
                patch.arounds = tuple(one for one in patch.arounds if one is not each)
                if not patch.arounds:
                    del own["forward"]
                    if patch.own is not None:
                        own["forward"] = patch.own


_patching = threading.RLock()  # patches come and go in any order
_shown: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how often each was shown to the compiler


def show_to_compiler(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Let models that were compiled before be compiled again, now that these modules have hooks.

    A compiled graph checks whether a module has a ``forward`` of its own, but by default not whether it has hooks.
    """
    with _patching:
        shown = [module for module in modules if module in _shown or "forward" not in vars(module)]
        for module in shown:
            _shown[module] = _shown.get(module, 0) + 1
            vars(module).setdefault("forward", module.forward)
        return shown


def hide_from_compiler(shown: Sequence[nn.Module]) -> None:
    """Undo `show_to_compiler`, once no other replay has shown a module."""
    with _patching:
        for module in shown:
            left = _shown.pop(module, 1) - 1
            own = vars(module).get("forward")
            if left:
                _shown[module] = left
            elif isinstance(own, ForwardPatch):
                own.own = None
            elif getattr(own, "__func__", None) is type(module).forward:  # and not what was put there since
                del vars(module)["forward"]


class BlockReuse:
    """What one thread's blocks were given and returned; after ``repeat`` they answer from it where that is the same.

    executed: blocks that ran.
    views: how often the first block ran before ``repeat``: a model may see parts of an image one by one.
    answered: blocks that did not have to run again.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._runs: list[list[tuple[list[Tensor], Any, list[int]]]] = [[] for _ in blocks]
        self._thread = threading.get_ident()
        self.executed = self.views = self.answered = 0

    def repeat(self) -> None:
        """From now on blocks answer where they can."""
        _thread.repeats = True

    def around(self, index: int, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Run a block, or answer for it."""
        if threading.get_ident() != self._thread:
            return run(*args, **kwargs)
        given = states_of(hidden_states(args, kwargs))
        for before, output, versions in self._runs[index] if _thread.repeats else ():
            if versions == _versions(before, output) and _all_same(before, given):
                self.answered += 1
                return output
        output = run(*args, **kwargs)
        self.executed += 1
        if not _thread.repeats:
            self.views += index == 0
            # of inference tensors later changes in place cannot be noticed
            if not any(state.is_inference() for state in (*given, *states_of(output))):
                self._runs[index].append((given, output, _versions(given, output)))
        return output


@contextmanager
def reusing_blocks(blocks: Sequence[nn.Module]) -> Iterator[BlockReuse]:
    """Let a second forward of this thread reuse what its blocks have in common with the first, whatever a head reads.

    A block that is given what it was given before returns what it returned then, so a replay attached for the second
    forward costs what it adds. Inputs are compared, not assumed: a model with random layers, or one that changes its
    states in place, is run in full.
    """
    reuse = BlockReuse(blocks)
    try:
        with patched(blocks, reuse.around):
            yield reuse
    finally:
        _thread.repeats = False


def repeats() -> bool:
    """Whether this thread is running a forward again."""
    return _thread.repeats


class _Thread(threading.local):
    repeats = False


_thread = _Thread()


def _versions(given: list[Tensor], output: Any) -> list[int]:
    return [state._version for state in (*given, *states_of(output))]


def _all_same(before: list[Tensor], given: list[Tensor]) -> bool:
    return len(before) == len(given) and all(map(_same, before, given))


def _same(old: Tensor, new: Tensor) -> bool:
    if old is new:
        return True
    if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
        return False
    # the last token first: states that differ mostly differ there
    return torch.equal(old[:, -1], new[:, -1]) and torch.equal(old, new)
