"""Lines such as ``model: a ViT, or any model that contains one`` in a docstring become a list on the site."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

import griffe

NAMED = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): (?=\S)")


class NamedLines(griffe.Extension):
    """Griffe calls it for everything that has a docstring."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Rewrite a function's docstring, which speaks of its parameters, before it is parsed."""
        _rewrite(func, {parameter.name.lstrip("*") for parameter in func.parameters})

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """The same for a class, which speaks of its fields."""
        _rewrite(cls, set(cls.members))


def _rewrite(about: griffe.Object, names: Set[str]) -> None:
    if about.docstring is not None:
        about.docstring.value = with_lists(about.docstring.value, names)


def with_lists(text: str, names: Set[str]) -> str:
    """The text, with every run of lines about these names as a list; their continuation is indented already.

    A line of a sentence may begin with any word and a colon, so other words are left alone.
    """
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        named = NAMED.match(line)
        if named and {name.strip("* ") for name in named[1].split(",")} <= names:
            if not in_list and lines and lines[-1].strip():
                lines.append("")
            lines.append(f"- `{named[1]}`: {line[named.end() :]}")
            in_list = True
        elif in_list and line and not line.startswith(" "):
            lines += ["", line]
            in_list = False
        else:
            lines.append(line)
    return "\n".join(lines)
