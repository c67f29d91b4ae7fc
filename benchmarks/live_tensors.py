"""How many bytes of tensors live at once while something runs, on any device, without an allocator's help.

Every operation passes a dispatch mode. A storage counts from the operation that made it until its last tensor is gone,
so the peak is that of the code that ran. What a kernel takes and gives back inside one operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered.

    now, peak: bytes alive, at this moment and at the most; storages of ``given`` tensors, such as weights and inputs,
        are not counted.
    moved: bytes that operations read and wrote, if nothing stayed in a cache between two of them.
    given_read: the part of ``moved`` that was read from ``given`` tensors.
    """

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.moved = self.given_read = 0
        self._given = {_key(tensor) for tensor in given}
        self._seen = set(self._given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it made."""
        kwargs = kwargs or {}
        result = self.run(func, args, kwargs)
        read = list(_tensors((args, kwargs)))
        before = {_key(tensor) for tensor in read}
        wrote = [
            tensor for tensor in _tensors(result) if func._schema.is_mutable or _key(tensor) not in before
        ]
        for tensor in _tensors(result):
            self._note(tensor.untyped_storage())
        if wrote:  # not a mere view of what there was
            self._count_moved(read, wrote)
        return result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation."""
        return func(*args, **kwargs)

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """What is made meanwhile lives, but was written by somebody else."""
        before = self.moved, self.given_read
        yield
        self.moved, self.given_read = before

    def _count_moved(self, read: list[Tensor], wrote: list[Tensor]) -> None:
        different = {id(tensor): tensor for tensor in read}.values()
        self.moved += sum(tensor.numel() * tensor.element_size() for tensor in (*different, *wrote))
        self.given_read += sum(
            tensor.numel() * tensor.element_size() for tensor in different if _key(tensor) in self._given
        )

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_of(run: Callable[[], object], given: Iterable[Tensor] = ()) -> int:
    """Bytes of tensors that were made during ``run`` and alive at once, at the most."""
    live = LiveTensors(given)
    with live:
        run()
    return live.peak


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of some tensors, each counted once."""
    sizes: dict[int, int] = {_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
