"""A stand-in for a GPU: tensors that say they are on ``cuda:0``, compute on the CPU, and refuse what CUDA refuses.

They do not mix with tensors of the CPU (in arithmetic, indexing, concatenation or assignment), have no ``.numpy()``,
and raise for operations that PyTorch's list names as having no deterministic CUDA kernel while that mode is on. The
numbers are those of the CPU to the bit, so that a wrong place is an error and nothing else is a difference. Autocast
for CUDA is the dispatcher's own.

Operators arrive at a dispatch mode, factory functions among them. A few Python bindings ask for a guard of the device
before anything is dispatched, which a build without CUDA does not have: methods of these tensors, and a function mode,
take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda:0")
MEMORY = 80 * 2**30


_settings = SimpleNamespace(indices_from_cpu=False)


class OnGPU(Tensor):
    """A tensor of the stand-in: the values are those of ``values``, which is on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> OnGPU:
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        made.values = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        return f"OnGPU({self.values!r})"

    # what follows asks for a guard of the device

    def __getitem__(self, index: Any) -> Tensor:
        if not _settings.indices_from_cpu:
            parts = index if isinstance(index, tuple) else (index,)
            _check_places("index", [self, *(each for each in parts if isinstance(each, Tensor))])
        return OnGPU(self.values[tree_map(_values, index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        given = [each for each in (*parts, value) if isinstance(each, Tensor) and each.ndim]
        _check_places("index_put_", [self, *given])
        self.values[tree_map(_values, index)] = _values(value)

    def contiguous(self, **kwargs: Any) -> Tensor:
        found = self.values.contiguous(**kwargs)
        return self if found is self.values else OnGPU(found)

    def nonzero(self, **kwargs: Any) -> Any:
        return tree_map(OnGPU, self.values.nonzero(**kwargs))

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return OnGPU(self.values.new_tensor(_values(data), dtype=kwargs.get("dtype")))

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def __invert__(self) -> Tensor:
        return OnGPU(~self.values)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind(0))

    def __float__(self) -> float:
        return float(self.values)

    def __int__(self) -> int:
        return int(self.values)

    def tolist(self) -> Any:
        return self.values.tolist()

    __index__ = __int__

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any], name: str | None = None) -> Any:
    name = name or func.overloadpacket.__name__
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    here = [each for each in tensors if isinstance(each, OnGPU)]
    asked = _asked_device(func, args, kwargs)
    if here and name not in _MAY_MIX:
        _check_places(name, tensors)
    if here:
        _check_deterministic(name, args, kwargs)
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if name == "_pin_memory":
        raise AssertionError("a tensor of the stand-in is pinned already")
    known = {id(each.values): each for each in here}
    found = func(*tree_map(_values, args), **tree_map(_values, kwargs))
    on_gpu = bool(here) if asked is None else asked.type == "cuda"
    if name == "copy_":
        on_gpu = isinstance(args[0], OnGPU)

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, OnGPU) or not on_gpu:
            return value
        return known[id(value)] if id(value) in known else OnGPU(value)

    return tree_map(placed, found)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, OnGPU) else value


_MAY_MIX = {"copy_", "_to_copy", "to"}  # what moves tensors from one place to another


def _asked_device(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return torch.device(device) if device is not None else None


def _check_places(name: str, tensors: list[Tensor]) -> None:
    # a number that Python or a 0-dimensional CPU tensor holds may meet a tensor of any device
    strangers = [each for each in tensors if not isinstance(each, OnGPU)]
    number = name not in _NO_NUMBERS and all(each.ndim == 0 for each in strangers)
    if strangers and not number:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu "
            f"({', '.join(str(tuple(each.shape)) for each in strangers)})"
        )


_NO_NUMBERS = {"cat", "stack", "index", "index_put", "index_put_"}


def _floating(args: Any) -> bool:
    return bool(args and isinstance(args[0], Tensor) and args[0].dtype.is_floating_point)


# PyTorch's list, as far as forwards go: the operator, and when it has no deterministic kernel on CUDA
NOT_DETERMINISTIC: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "cumsum": lambda args, _: _floating(args),
    "cumsum_": lambda args, _: _floating(args),
    "cumprod": lambda args, _: False,
    "kthvalue": lambda *_: True,
    "median": lambda args, kwargs: len(args) > 1 or "dim" in kwargs,
    "nanmedian": lambda args, kwargs: len(args) > 1 or "dim" in kwargs,
    "histc": lambda *_: True,
    "bincount": lambda args, kwargs: len(args) > 1 or kwargs.get("weights") is not None,
    "put_": lambda *_: True,
    "max_unpool2d": lambda *_: True,
    "max_unpool3d": lambda *_: True,
    "nll_loss_forward": lambda *_: True,
    "nll_loss2d_forward": lambda *_: True,
    "scatter_reduce": lambda args, _: args[4] not in ("sum", "mean"),
    "scatter_reduce_": lambda args, _: args[4] not in ("sum", "mean"),
    "resize_": lambda args, _: bool(args[0].is_quantized),
}


def _check_deterministic(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    refused = torch.are_deterministic_algorithms_enabled() and name in NOT_DETERMINISTIC
    if refused and NOT_DETERMINISTIC[name](args, kwargs):
        raise RuntimeError(f"{name}_cuda does not have a deterministic implementation")


class _Operators(TorchDispatchMode):
    """Every operator, so that factory functions that name the device are seen, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Named(TorchFunctionMode):
    """A device without a number is asked for which one is current, and data of Python are copied with a guard."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_numbered, (args, kwargs or {}))
        if func in _WHOLE:
            return _WHOLE[func](*args, **kwargs)
        if func is Tensor.cuda:
            return args[0].to(DEVICE)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            data = _values(args[0])
            return func(data, dtype=kwargs.get("dtype")).to(DEVICE)
        return func(*args, **kwargs)


def _numbered(value: Any) -> Any:
    named = isinstance(value, torch.device) and value.type == "cuda"
    return DEVICE if named or (isinstance(value, str) and value in ("cuda", "cuda:0")) else value


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose kernels ask for the device; the autocast that the dispatcher puts before them comes here."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        if not any(isinstance(each, OnGPU) for each in tensors):
            return function(*args, **kwargs)
        _check_places(function.__name__, tensors)
        lower = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None

        def given(value: Any) -> Any:
            found = _values(value)
            casts = lower is not None and isinstance(found, Tensor) and found.is_floating_point()
            return found.to(lower) if casts else found

        return OnGPU(function(*tree_map(given, args), **tree_map(given, kwargs)))

    return run


_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_WHOLE = {each: _whole(each) for each in (_ATTENTION, torch.conv1d, torch.conv2d, torch.conv_transpose2d)}


@contextmanager
def stand_in_gpu(*, indices_from_cpu: bool = False) -> Iterator[None]:
    """In this thread there is a GPU, and ``torch.cuda`` tells of it.

    CUDA lets tensors of the CPU index its own, at the price of waiting for a copy; here that is refused, unless a
    host of somebody else's does it.
    """
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda *_: "stand-in",
        "get_device_properties": lambda *_: SimpleNamespace(
            name="stand-in", total_memory=MEMORY, major=9, minor=0
        ),
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "max_memory_allocated": lambda *_: 2**30,
        "reset_peak_memory_stats": lambda *_: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "set_device": lambda *_: None,
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch.nn.functional, _ATTENTION.__name__, _WHOLE[_ATTENTION]))
        stack.enter_context(patch.object(_settings, "indices_from_cpu", indices_from_cpu))
        # a parameter's storage cannot be exchanged for one of another place, so modules get new ones
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(_Operators())
        stack.enter_context(_Named())
        yield
