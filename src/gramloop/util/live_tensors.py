"""How many bytes of tensors are alive at once while something runs, on any device, without an allocator's help."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of this thread while it is entered.

    A storage counts from the operation that made it until its last tensor is gone; one that was there before, such as a
    weight, counts all the time. What a kernel allocates and frees within one operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = self._made = self._most_made = 0
        self._known: set[int] = set()

    @property
    def peak(self) -> int:
        """The most bytes alive at once."""
        return self._given + self._most_made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it reads and what it makes."""
        for storage in self._new((args, kwargs)):
            self._given += storage.nbytes()
            weakref.finalize(storage, self._known.discard, storage._cdata)
        result = func(*args, **(kwargs or {}))
        for storage in self._new(result):
            self._made += storage.nbytes()
            weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self._most_made = max(self._most_made, self._made)
        return result

    def _new(self, tensors: Any) -> list[UntypedStorage]:
        """The storages that were not seen before."""
        found = [each.untyped_storage() for each in tree_leaves(tensors) if isinstance(each, Tensor)]
        new = {each._cdata: each for each in found if each._cdata not in self._known}
        self._known |= new.keys()
        return list(new.values())

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._made -= size
