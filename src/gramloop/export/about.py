"""The description inside an exported file: model, task, mitigations, input and outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.export.programs import ExportSubject
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.feature_hooks import hooks_on
from gramloop.mitigations.features import Recentre
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_of
from gramloop.replay.attach import Loop, loops_on
from gramloop.replay.vit import find_vit
from gramloop.tasks.graphs import METADATA
from gramloop.util.json_files import checked, parse_json
from gramloop.util.table import Cell, Table, TableRepr

PT2_MEMBER = f"{METADATA}.json"  # of the extra files
_BYTES = "uint8 RGB ({batch}, {high}, {wide}, 3), in this size only, normalised inside"
_FLOATS = "float32 images ({batch}, 3, {high}, {wide}), normalised as the model expects it"
_CLASSES = 8  # named in a table


@dataclass(frozen=True)
class About(TableRepr):
    """The description of an exported file.

    gramloop, torch: the versions that wrote it.
    model, task, classes: what it predicts; classes by number, None where they have no name.
    mitigations: as `gramloop.mitigations` reads them; empty for the baseline.
    settings: normalisation, the replay's settings, the origin of calibration statistics, and a precision below fp32.
    input, outputs: a description by name; ``shape`` is that of the input.
    recipe: how images are prepared and outputs read, as `gramloop.tasks.graphs.GraphRecipe` has it; empty where
        nothing that can be evaluated comes out.
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
    recipe: dict[str, Any]
    note: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, where: str) -> About:
        """What `to_json` wrote, found in the file ``where``."""
        what = "a file that gramloop export wrote"
        return checked(parse_json(text.encode(), where, what), cls, where, what)

    def _table(self) -> Table:
        rows: list[tuple[Cell, ...]] = [
            ("model", self.model),
            ("task", self.task),
            ("mitigations", self.mitigations or "none"),
            *((f"input {name}", words) for name, words in self.input.items()),
            *((f"output {name}", words) for name, words in self.outputs.items()),
            ("classes", self._class_words()),
            ("written by", f"gramloop {self.gramloop}, torch {self.torch}"),
        ]
        return Table("Exported model", ("", "what it is"), tuple(rows), (self.note,) if self.note else ())

    def _class_words(self) -> str:
        named = [f"{number} {name or ''}".strip() for number, name in self.classes.items()]
        more = f" and {len(named) - _CLASSES} more" if len(named) > _CLASSES else ""
        return ", ".join(named[:_CLASSES]) + more if named else "none"


def describe_export(
    subject: ExportSubject,
    stack: Sequence[Mitigation],
    stats: CalibrationStats | None,
    batch: int,
    precision: str = "fp32",
) -> About:
    """The description of a subject with its mitigations."""
    high, wide = subject.size
    shape = (batch, 3, high, wide) if subject.normalisation is None else (batch, high, wide, 3)
    words = (_FLOATS if subject.normalisation is None else _BYTES).format(batch=batch, high=high, wide=wide)
    text, settings = _mitigations(subject, stack, stats)
    settings |= {"precision": precision} if precision != "fp32" else {}
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
        dict(subject.program.outputs),
        dict(subject.program.recipe),
        subject.note,
    )


def _mitigations(
    subject: ExportSubject, stack: Sequence[Mitigation], stats: CalibrationStats | None
) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    if subject.normalisation is not None:
        settings["normalisation"] = asdict(subject.normalisation)
    texts = [each.text for each in stack] or [hooks.text for hooks in hooks_on(subject.root)]
    replay = replay_of(stack)
    if not stack and (loop := _attached_loop(subject.root)) is not None and loop.config.replays:
        replay = loop.config  # of a module that came with it
        texts = [Replay(replay).text, *texts]
    if replay is not None:
        settings["replay"] = replay.as_json()
    if stats is not None and any(isinstance(each, Recentre) for each in stack):
        taps = sorted(stats.means)
        settings["calibration"] = {"images": stats.images, "backbone": stats.backbone, "taps": taps}
    return "+".join(texts), settings


def _attached_loop(root: nn.Module) -> Loop | None:
    try:
        return next(iter(loops_on(find_vit(root))), None)
    except GramLoopError:
        return None
