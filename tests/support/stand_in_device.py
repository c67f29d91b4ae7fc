"""A stand-in for a device that is not here: tensors that say they are on it, compute on the CPU, and refuse to mix.

They do not mix with tensors of the CPU (in arithmetic, indexing, concatenation or assignment) and have no
``.numpy()``. The numbers are those of the CPU to the bit, so that a wrong place is an error and nothing else is a
difference. What a kind of device refuses beyond that is its `Place`'s to say: see `stand_in_gpu` and `stand_in_mps`.
Autocast is the dispatcher's own.

Operators arrive at a dispatch mode, factory functions among them. A few Python bindings ask for a guard of the device
before anything is dispatched, which a build without that device does not have: methods of these tensors, and a
function mode, take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def _allow(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Place:
    """A device, and what it refuses.

    ``refuse`` sees the name and the arguments of every operator on its tensors, ``refuse_dtype`` the dtype of every
    tensor that is to lie there. ``indices_from_cpu``: whether tensors of the CPU may index its own.
    """

    device: torch.device
    refuse: Callable[[str, Any, Mapping[str, Any]], None] = _allow
    refuse_dtype: Callable[[torch.dtype], None] = _allow
    indices_from_cpu: bool = False

    def named(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in (self.device.type, str(self.device))
        return isinstance(value, torch.device) and value.type == self.device.type


_places: list[Place] = []


def _place() -> Place:
    return _places[-1]


class Elsewhere(Tensor):
    """A tensor of the stand-in: the values are those of ``values``, which is on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> Elsewhere:
        _place().refuse_dtype(values.dtype)
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=_place().device,
        )
        made.values = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.values!r})"

    # what follows asks for a guard of the device

    def __getitem__(self, index: Any) -> Tensor:
        if not _place().indices_from_cpu:
            parts = index if isinstance(index, tuple) else (index,)
            _check_places("index", [self, *(each for each in parts if isinstance(each, Tensor))])
        return Elsewhere(self.values[_mapped(_values, index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        given = [each for each in (*parts, value) if isinstance(each, Tensor) and each.ndim]
        _check_places("index_put_", [self, *given])
        self.values[_mapped(_values, index)] = _values(value)

    def contiguous(self, **kwargs: Any) -> Tensor:
        found = self.values.contiguous(**kwargs)
        return self if found is self.values else Elsewhere(found)

    def nonzero(self, **kwargs: Any) -> Any:
        return _mapped(Elsewhere, self.values.nonzero(**kwargs))

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return Elsewhere(self.values.new_tensor(_values(data), dtype=kwargs.get("dtype")))

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cuda")

    def __invert__(self) -> Tensor:
        return Elsewhere(~self.values)

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


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, place = func.overloadpacket.__name__, _place()
    tensors: list[Tensor] = []
    _collect(args, tensors)
    _collect(kwargs, tensors)
    here = [each for each in tensors if isinstance(each, Elsewhere)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    there = bool(here) if asked is None else asked.type == place.device.type
    if here and name not in _MAY_MIX:
        _check_places(name, tensors)
    if here:
        place.refuse(name, args, kwargs)
    _check_generator(kwargs.get("generator"), there)
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if name == "_pin_memory":
        raise AssertionError("a tensor of the stand-in is pinned already")
    known = {id(each.values): each for each in here}
    found = func(*_mapped(_values, args), **_mapped(_values, kwargs))
    if name == "copy_":
        there = isinstance(args[0], Elsewhere)

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Elsewhere):
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value)

    return _mapped(placed, found) if there else found


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """As pytree's ``tree_map`` for what operators take and return, at a fraction of its time."""
    if isinstance(value, tuple):
        found = [_mapped(function, each) for each in value]
        if type(value) is tuple:
            return tuple(found)
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    if isinstance(value, list):
        return [_mapped(function, each) for each in value]
    if isinstance(value, dict):
        return {name: _mapped(function, each) for name, each in value.items()}
    return function(value)


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, tuple | list):
        for each in value:
            _collect(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _collect(each, found)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, Elsewhere) else value


_MAY_MIX = {"copy_", "_to_copy", "to"}  # what moves tensors from one place to another
_NO_NUMBERS = {"cat", "stack", "index", "index_put", "index_put_"}


def _check_places(name: str, tensors: list[Tensor]) -> None:
    # a number that Python or a 0-dimensional CPU tensor holds may meet a tensor of any device
    strangers = [each for each in tensors if not isinstance(each, Elsewhere)]
    number = name not in _NO_NUMBERS and all(each.ndim == 0 for each in strangers)
    if strangers and not number:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, but found {_place().device} and cpu "
            f"({', '.join(str(tuple(each.shape)) for each in strangers)})"
        )


def _check_generator(generator: torch.Generator | None, there: bool) -> None:
    if there and generator is not None:
        raise RuntimeError(
            f"Expected a '{_place().device.type}' device type for generator but found '{generator.device}'"
        )


class _Operators(TorchDispatchMode):
    """Every operator, so that factory functions that name the device are seen, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Named(TorchFunctionMode):
    """A device without a number is asked for which one is current, and data of Python are copied with a guard."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = _place()
        args = tuple(place.device if place.named(each) else each for each in args)
        kwargs = {name: place.device if place.named(each) else each for name, each in (kwargs or {}).items()}
        if func in _WHOLE:
            return _WHOLE[func](*args, **kwargs)
        if func is Tensor.cuda:
            return args[0].to("cuda")
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == place.device:
            data = _values(args[0])
            return func(data, dtype=kwargs.get("dtype")).to(place.device)
        return func(*args, **kwargs)


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose kernels ask for the device; the autocast that the dispatcher puts before them comes here."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        _collect((args, kwargs), tensors)
        if not any(isinstance(each, Elsewhere) for each in tensors):
            return function(*args, **kwargs)
        _check_places(function.__name__, tensors)
        _place().refuse(function.__name__, args, kwargs)
        kind = _place().device.type
        lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

        def given(value: Any) -> Any:
            found = _values(value)
            casts = lower is not None and isinstance(found, Tensor) and found.is_floating_point()
            return found.to(lower) if casts else found

        return Elsewhere(function(*_mapped(given, args), **_mapped(given, kwargs)))

    return run


_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_WHOLE = {each: _whole(each) for each in (_ATTENTION, torch.conv1d, torch.conv2d, torch.conv_transpose2d)}


@contextmanager
def standing_in(place: Place) -> Iterator[None]:
    """In this thread there is such a device."""
    with ExitStack() as stack:
        _places.append(place)
        stack.callback(_places.pop)
        stack.enter_context(patch.object(torch.nn.functional, _ATTENTION.__name__, _WHOLE[_ATTENTION]))
        # a parameter's storage cannot be exchanged for one of another place, so modules get new ones
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(_Operators())
        stack.enter_context(_Named())
        yield
