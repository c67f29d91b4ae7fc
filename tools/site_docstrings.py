"""Lines such as ``model: a ViT, or any model that contains one`` in a docstring become a list on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMED = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): (?=\S)")


class NamedLines(griffe.Extension):
    """Griffe calls it for everything that has a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """The text, with every run of named lines as a list; their continuation is indented already."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        named = NAMED.match(line)
        if named:
            if not in_list and lines and lines[-1].strip():
                lines.append("")
            lines.append(f"- `{named[1]}`: {line[named.end() :]}")
        elif in_list and line and not line.startswith(" "):
            lines += ["", line]
        else:
            lines.append(line)
        in_list = bool(named) or (in_list and (not line.strip() or line.startswith(" ")))
    return "\n".join(lines)
