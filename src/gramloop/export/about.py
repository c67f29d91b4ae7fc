"""What a file says of itself: model, task, mitigation, and what goes in and out. The same export says the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gramloop import __version__
from gramloop.core.settings import replay_text
from gramloop.export.mitigated import Stack, attached_before
from gramloop.export.subject import Subject
from gramloop.util.json_files import checked, parse_json
from gramloop.util.table import Cell, Shown, ShownTable

KEY = "gramloop"  # of the metadata in ONNX; the file of the extra files in pt2 has it as its stem
PT2_MEMBER = f"{KEY}.json"
_BYTES = "uint8 RGB images ({batch}, {high}, {wide}, 3), in exactly this size; normalising is inside"
_FLOATS = "float32 images ({batch}, 3, {high}, {wide}), normalised as the model expects it"
_CLASSES = 8  # named in a table


@dataclass(frozen=True)
class About(Shown):
    """The description of an exported file.

    gramloop, torch: the versions that wrote it.
    model, task, classes: what it predicts; classes by number, None where they have no name.
    mitigations: as `gramloop.mitigations` reads them; empty for the model as it is.
    settings: the replay's settings, and what recentring goes by.
    input, outputs: by name, in words; ``shape`` is that of the input.
    """

    gramloop: str
    torch: str
    model: str
    task: str
    classes: dict[str, str | None]
    mitigations: str
    settings: dict[str, Any]
    input: dict[str, str]
    shape: tuple[int, ...]
    outputs: dict[str, str]
    note: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: str) -> About:
        """What `to_json` wrote, found in the file ``where``."""
        what = "a file that gramloop export wrote"
        return checked(parse_json(text.encode(), where, what), cls, where, what)

    def _shown(self) -> ShownTable:
        rows: list[tuple[Cell, ...]] = [
            ("model", self.model),
            ("task", self.task),
            ("mitigations", self.mitigations or "none: the model as it is"),
            *((f"input {name}", words) for name, words in self.input.items()),
            *((f"output {name}", words) for name, words in self.outputs.items()),
            ("classes", self._class_words()),
            ("written by", f"gramloop {self.gramloop}, torch {self.torch}"),
        ]
        return ShownTable(
            "Exported model", ("", "what it is"), tuple(rows), (self.note,) if self.note else ()
        )

    def _class_words(self) -> str:
        named = [f"{number} {name or ''}".strip() for number, name in self.classes.items()]
        more = f" and {len(named) - _CLASSES} more" if len(named) > _CLASSES else ""
        return ", ".join(named[:_CLASSES]) + more if named else "none"


def about(subject: Subject, stack: Stack, batch: int) -> About:
    """The description of a subject with its mitigations."""
    high, wide = subject.size
    shape = (batch, 3, high, wide) if subject.normalisation is None else (batch, high, wide, 3)
    words = (_FLOATS if subject.normalisation is None else _BYTES).format(batch=batch, high=high, wide=wide)
    text, settings = _mitigation(subject, stack)
    return About(
        __version__,
        torch.__version__,
        subject.name,
        subject.task,
        {str(number): name for number, name in subject.classes.items()},
        text,
        json.loads(json.dumps(settings)),  # as it will be read
        {subject.input_name: words},
        shape,
        dict(subject.outputs),
        subject.note,
    )


def _mitigation(subject: Subject, stack: Stack) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    if subject.normalisation is not None:
        settings["normalisation"] = asdict(subject.normalisation)
    before = attached_before(subject.root)
    if before is not None and not stack.mitigations:  # a module that came with something attached
        settings["replay"] = before.config.as_json()
        parts = ["recentre"] * before.recentres + [f"replay:{replay_text(before.config)}"] * bool(
            before.config.replays
        )
        return "+".join(parts), settings
    if stack.replay is not None:
        settings["replay"] = stack.replay.as_json()
    if stack.recentring is not None and stack.source is not None:
        source = stack.source
        settings["source"] = {
            "images": source.images,
            "backbone": source.backbone,
            "taps": sorted(source.means),
        }
    return stack.text, settings
