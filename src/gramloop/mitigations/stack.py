"""Several mitigations together: as text, as a file, their cost, and a predictor that predicts with them.

Stages act in the order pixels → backbone → features → outputs, whatever the order written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

from torch import nn

from gramloop.core.config import ReplayConfig
from gramloop.core.cost import Cost
from gramloop.core.hosts import Host
from gramloop.core.loop import attach
from gramloop.core.settings import MITIGATIONS_KIND, read_content, read_replay, write_replay
from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.io.atomic import atomic_write
from gramloop.io.shown import Cell
from gramloop.mitigations.base import STAGES, Mitigation, Stage, View
from gramloop.mitigations.calibration import CalibrationStats, calibrate, placeholder_stats, read_stats, sha256_of
from gramloop.mitigations.features import Norms, Recentre
from gramloop.mitigations.outputs import Flip, PairMean, Resize, Scales, brought_back, resized_for, scaled, with_scores
from gramloop.mitigations.pixels import Denoise, Gaussian, Levels, Median, Nlm, Sharpen
from gramloop.mitigations.replay import REPLAYS, SUBSTEPS, Replay, parse_substeps
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.tasks.prediction import Pair, Prediction, Segmentation
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.renumbering import Renumbered, before_renumbering

Stack = tuple[Mitigation, ...]
Mitigations = str | Path | ReplayConfig | Mitigation | Sequence[Mitigation]
_PIXELS = (Median, Gaussian, Nlm, Denoise, Levels, Sharpen)
_OTHERS = (Replay, Recentre, Norms, Scales, Resize, Flip, PairMean)
KINDS: Mapping[str, type[Mitigation]] = {kind.name: kind for kind in (*_PIXELS, *_OTHERS)}


def parse_mitigations(text: str) -> Stack:
    """Read ``recentre:0.3``, or several joined by a plus, ``median+recentre:0.3+gramloop``."""
    return ordered([_parse_one(part.strip()) for part in text.split("+")])


def stack_text(stack: Sequence[Mitigation]) -> str:
    """What `parse_mitigations` reads back."""
    return "+".join(each.text for each in stack)


def names_mitigations(text: str) -> bool:
    """Whether every part of a text begins with the name of a mitigation."""
    return all(part.strip().partition(":")[0] in {*KINDS, *REPLAYS, SUBSTEPS} for part in text.split("+"))


def ordered(stack: Sequence[Mitigation]) -> Stack:
    """By stage, and within one as written, `pair` first; refuses two of one kind."""
    for index, each in enumerate(stack):
        if any(type(each) is type(other) for other in stack[:index]):
            raise GramLoopError(f"{each.name} is given twice in {stack_text(stack)!r}")
    return tuple(sorted(stack, key=lambda each: (STAGES.index(each.stage), not isinstance(each, PairMean))))


def _parse_one(text: str) -> Mitigation:
    name, colon, arguments = text.partition(":")
    if name in REPLAYS:
        if colon:
            raise GramLoopError(f"the settings of {name} are fixed; give others as replay:{arguments}")
        return Replay(REPLAYS[name])
    if name == SUBSTEPS:
        return parse_substeps(arguments)
    if name not in KINDS:
        known = ", ".join([*KINDS, SUBSTEPS])
        raise GramLoopError(
            f"there is no mitigation {name!r}; there are {known}, and the replays {', '.join(REPLAYS)}"
        )
    return KINDS[name].parse(arguments)


@dataclass(frozen=True)
class StoredMitigations:
    """The mitigations of a file, and the file of calibration statistics that belongs to them, checked."""

    stack: Stack
    calibration: Path | None = None

    def read_stats(self) -> CalibrationStats | None:
        """The calibration statistics, if the file names some."""
        return read_stats(self.calibration)


def read_mitigations(path: str | Path) -> StoredMitigations:
    """Read a file that `gramloop tune` wrote, also one of a replay alone; an empty stack is the baseline."""
    content = read_content(path)
    if content["kind"] != MITIGATIONS_KIND:
        config = read_replay(path)
        return StoredMitigations((Replay(config),) if config.replays else ())
    try:
        calibration = _checked_file(Path(path), content.get("calibration"))
        return StoredMitigations(stack_from_json(content), calibration)
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


def write_mitigations(
    path: str | Path,
    stack: Sequence[Mitigation],
    calibration: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Store mitigations, whole or not at all; a replay alone becomes a file that `gramloop.attach` takes.

    Args:
        path: the file.
        stack: the mitigations.
        calibration: the file of calibration statistics that they need, in the same folder.
        about: what is known about them, as plain JSON values.
    """
    config = replay_alone(stack) if stack else ReplayConfig(replays=0)
    if config is not None:
        write_replay(path, config, about)
        return
    content: dict[str, Any] = {"kind": MITIGATIONS_KIND, **stack_json(stack)}
    if calibration is not None:
        content["calibration"] = {"file": Path(calibration).name, "sha256": sha256_of(Path(calibration))}
    content["about"] = dict(about or {})
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())


def stack_json(stack: Sequence[Mitigation]) -> dict[str, Any]:
    """Plain values for plans and files: the text, and a replay's settings in full."""
    text = stack_text([each for each in stack if not isinstance(each, Replay)])
    config = replay_of(stack)
    return {"mitigations": text, **({} if config is None else {"replay": config.as_json()})}


def stack_from_json(settings: Mapping[str, Any]) -> Stack:
    """What `stack_json` wrote."""
    text = settings.get("mitigations")
    if not isinstance(text, str):
        raise GramLoopError(f"mitigations is {text!r}; it is a text such as recentre:0.3")
    replays = [Replay(ReplayConfig.from_json(settings["replay"]))] if "replay" in settings else []
    return ordered([*(parse_mitigations(text) if text else ()), *replays])


def _checked_file(path: Path, entry: object) -> Path | None:
    """The calibration file that a settings file at ``path`` names, if it is still the same."""
    if entry is None:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise GramLoopError(f'calibration is {entry!r}; it is {{"file": …, "sha256": …}}')
    found = path.parent / str(entry["file"])
    if sha256_of(found) != entry.get("sha256"):
        raise GramLoopError(f"{found} is not the file that these mitigations were measured with")
    return found


def replay_of(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay among the mitigations, if there is one."""
    return next((each.config for each in stack if isinstance(each, Replay)), None)


def replay_alone(stack: Sequence[Mitigation]) -> ReplayConfig | None:
    """The replay, if the stack holds nothing else."""
    return replay_of(stack) if len(stack) == 1 else None


def stack_scales(stack: Sequence[Mitigation]) -> list[float]:
    """One entry per forward pass over an image: its scale relative to the usual input size."""
    scales = [1.0]
    for each in stack:
        scales = [scale * factor for scale in scales for factor in each.scales]
    return scales


@dataclass(frozen=True)
class StackCost(Cost):
    """Blocks executed for one image, over all forward passes; ``area`` is that of an input, on average."""

    area: float = 1.0

    @property
    def multiplier(self) -> float:
        """Work per baseline forward: a block on an image of twice the area counts twice."""
        return self.area * self.blocks / self.ordinary

    def _rows(self) -> tuple[tuple[Cell, ...], ...]:
        executed, baseline, share = super()._rows()
        return executed, baseline, ("area of an input, on average", f"{self.area:.2f}×"), ("work", share[1])


def stack_cost(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> StackCost:
    """What the mitigations execute, at most; filters on pixels take time, but no block."""
    return Mitigated(tuple(stack), predictor).cost()


def read_stack(
    mitigations: Mitigations, stats: CalibrationStats | str | Path | None = None
) -> tuple[Stack, CalibrationStats | None]:
    """A text, a file of `gramloop tune`, a replay or mitigations as a stack; a file brings its own statistics."""
    known = read_stats(stats)
    if isinstance(mitigations, ReplayConfig):
        return (Replay(mitigations),), known
    if isinstance(mitigations, Mitigation):
        return (mitigations,), known
    text = str(mitigations) if isinstance(mitigations, str | Path) else None
    if text is None:
        return ordered(mitigations), known  # type: ignore[arg-type]
    if isinstance(mitigations, Path) or (text.endswith(".json") and not names_mitigations(text)):
        stored = read_mitigations(text)
        return stored.stack, known or stored.read_stats()
    return parse_mitigations(text), known


def check_stack(
    stack: Sequence[Mitigation], predictor: Predictor[Prediction], stats: CalibrationStats | None = None
) -> None:
    """Refuse mitigations that a predictor cannot take, or that do not work together."""
    for each in stack:
        each.check(before_renumbering(predictor), stack, stats)


def needs_calibration(stack: Sequence[Mitigation], predictor: Predictor[Prediction]) -> bool:
    """Whether calibration statistics would change what a stack does, or are required by it."""
    if any(isinstance(each, Denoise) and each.level is None for each in stack):
        return True
    try:
        check_stack(stack, predictor)
    except GramLoopError:
        return True
    return False


def stats_for(
    stack: Sequence[Mitigation],
    predictor: Predictor[Prediction],
    given: CalibrationStats | str | Path | None = None,
    images: Callable[[], Iterable[ImageLike]] | None = None,
) -> CalibrationStats | None:
    """The calibration statistics for a stack: given ones, or learnt from in-distribution images if it needs some.

    Args:
        stack: the mitigations.
        predictor: what they are for.
        given: statistics or their file.
        images: opens in-distribution images that nothing is judged on (`split_for_calibration`).
    """
    if given is not None or images is None or not needs_calibration(stack, predictor):
        return read_stats(given)
    check_stack(stack, predictor, placeholder_stats(predictor, 1 << 30))  # what no statistics would allow
    return calibrate(predictor, images())


def apply(
    mitigations: Mitigations,
    predictor: Predictor[Prediction],
    stats: CalibrationStats | str | Path | None = None,
) -> Mitigated:
    """A predictor that predicts with the mitigations; the given one is not changed, and weights are shared.

    Args:
        mitigations: as text, such as ``median+recentre:0.3+gramloop``, as objects, or the file of `gramloop tune`.
        predictor: any; a mitigation that it cannot take is refused with the reason.
        stats: what `calibrate` returned, or its file, for mitigations that need it.
    """
    stack, known = read_stack(mitigations, stats)
    check_stack(stack, predictor, known)
    return Mitigated(stack, predictor, known)


def mitigate(
    model: nn.Module,
    mitigations: Mitigations,
    stats: CalibrationStats | str | Path | None = None,
    *,
    this_thread: bool = False,
) -> Attachment:
    """Attach replay, recentre and norms to a torch module until ``detach()`` or the end of a ``with`` statement.

    Args:
        model: any module with one ViT inside.
        mitigations: as `apply` takes them; those on pixels and outputs are no part of a model, and refused.
        stats: what `calibrate` returned for the model, or its file.
        this_thread: act in forwards of the calling thread alone.
    """
    stack, known = read_stack(mitigations, stats)
    return attach_stack(model, stack, known, this_thread=this_thread)


class Attachment(ExitStack):
    """What `mitigate` attached to a model."""

    def detach(self) -> None:
        """Remove all hooks: the model is what it was, to the bit."""
        self.close()


def attach_stack(
    model: nn.Module,
    stack: Stack,
    stats: CalibrationStats | None,
    *,
    predictor: Predictor[Prediction] | None = None,
    this_thread: bool = False,
) -> Attachment:
    """Attach a stack to a module, or to that of a predictor whose head is known."""
    attached = Attachment()
    try:
        for each in stack:
            if isinstance(each, Replay):
                attached.enter_context(attach(model, each.config, this_thread=this_thread))
            elif isinstance(each, Recentre | Norms):
                attached.enter_context(each.hooked(predictor or model, stats, this_thread))
            else:
                raise GramLoopError(
                    f"{each.text} acts on {each.stage}, not inside the model; use gramloop.mitigations.apply with a predictor"
                )
    except BaseException:
        attached.close()
        raise
    return attached


class Mitigated:
    """A `Predictor` around another; it always runs the replay that is among its mitigations."""

    def __init__(
        self, stack: Stack, predictor: Predictor[Prediction], stats: CalibrationStats | None = None
    ) -> None:
        self.stack, self.stats = stack, stats
        self.plain, self._numbered = before_renumbering(predictor), predictor
        self._replay = replay_of(stack)
        self._averages_pair = any(isinstance(each, PairMean) for each in stack)
        self._gives_scores = bool(getattr(getattr(self.plain, "config", None), "scores", False))
        merges = len(stack_scales(stack)) > 1 or self._averages_pair
        self._scoring = with_scores(self.plain) if merges else self.plain

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.plain.task

    @property
    def classes(self) -> Classes:
        """The numbers in its predictions."""
        return self._numbered.classes

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks, first to last."""
        return self.plain.blocks

    @property
    def host(self) -> Host | None:
        """The ViT of these blocks."""
        return self.plain.host

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks that the head reads."""
        return self.plain.taps

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> StackCost:
        """Blocks executed for one view of an image, over all forward passes."""
        config, both = self._chosen(replay, paired)
        one, scales = self.plain.cost(config, both), stack_scales(self.stack)
        area = sum(scale**2 for scale in scales) / len(scales)
        return StackCost(one.blocks * len(scales), one.ordinary, area)

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        paired: Literal[False] = ...,
        *,
        trace: bool | None = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        *,
        paired: Literal[True],
        trace: bool | None = ...,
    ) -> Pair[Prediction]: ...

    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> Prediction | Pair[Prediction]:
        """Predict an image with the mitigations.

        Args:
            image: a path, a PIL image or an array.
            replay: what to replay; only if no replay is among the mitigations.
            paired: also return the prediction with all mitigations but the replay.
            trace: return drift and gate; only of a single view.
        """
        config, both = self._chosen(replay, paired)
        pixels = read_image(image)
        view = self._view(config, both, trace)
        for each in self._stage("pixels"):
            pixels = each.filtered(pixels, self.stats)
        for each in self._stage("outputs"):
            view = each.around(view, self.plain)
        with self._hooked():
            versions = [self._finished(each) for each in view(pixels, 1.0)]
        return Pair(*versions) if paired else versions[-1]

    def _chosen(self, replay: ReplayConfig | None, paired: bool) -> tuple[ReplayConfig | None, bool]:
        """The replay that is run, and whether the baseline prediction is needed in addition."""
        if replay is not None and self._replay is not None:
            raise GramLoopError(f"{stack_text(self.stack)} contains a replay; leave out the other one")
        if paired and self._averages_pair:
            raise GramLoopError(f"{stack_text(self.stack)} averages the pair, so there is none to return")
        config = replay or self._replay
        if config is not None:
            check_replay(self.plain, config)
        elif paired:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        return config, paired or self._averages_pair

    def _stage(self, stage: Stage) -> Stack:
        return tuple(each for each in self.stack if each.stage == stage)

    def _hooked(self) -> AbstractContextManager[object]:
        attached = ExitStack()
        try:
            for each in self._stage("features"):
                attached.enter_context(each.hooked(self.plain, self.stats))
        except BaseException:
            attached.close()
            raise
        return attached

    def _view(self, config: ReplayConfig | None, paired: bool, trace: bool | None) -> View:
        def view(pixels: RGB, scale: float) -> list[Prediction]:
            predictor, shown = scaled(self._scoring, scale), resized_for(self.plain, pixels, scale)
            if paired:
                pair = predictor.predict(shown, config, paired=True, trace=trace)
                versions = [pair.ordinary, pair.replayed]
            else:
                versions = [predictor.predict(shown, config, trace=trace)]
            return [brought_back(each, shown, pixels) for each in versions]

        return view

    def _finished(self, found: Prediction) -> Prediction:
        """With the numbers asked for, and without scores that were needed for an average alone."""
        if isinstance(found, Segmentation) and self._scoring is not self.plain and not self._gives_scores:
            found = replace(found, scores=None)
        return self._numbered.renumbered(found) if isinstance(self._numbered, Renumbered) else found
