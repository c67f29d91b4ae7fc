"""Peak of live tensor memory while a function runs, on any device, without an allocator's help."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _LiveTensors(TorchDispatchMode):
    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self._note(value.untyped_storage())
        return result

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


def peak_of(run: Callable[[], object], given: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of tensors that were made during ``run`` and alive at once, at the most.

    Views of the ``given`` tensors, such as weights and inputs, are not counted.
    """
    with _LiveTensors(given) as live:
        run()
    return live.peak
