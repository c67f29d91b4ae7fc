"""Names that a package imports on first use: torch takes seconds, and commands that only shift images never need it."""

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose ``__init__`` imports its names under ``TYPE_CHECKING``.

    Type checkers and editors read these imports; a running program makes each when its name is asked for.
    """
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        import ast

        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> object:
        home = homes().get(name)
        if home == package:  # a package inside this one
            return importlib.import_module(f"{package}.{name}")
        if home is None or not home.startswith(f"{package}."):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *homes()})


def calls(package: str, name: str) -> None:
    """Let a package be called like the function of this name in it."""

    class CallableModule(ModuleType):
        def __call__(self, *args: object, **kwargs: object) -> object:
            return getattr(self, name)(*args, **kwargs)

    sys.modules[package].__class__ = CallableModule
