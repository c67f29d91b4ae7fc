"""How one trial of a search is measured, and how it is learnt what ordinary images look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from gramloop.data.checks import ChangedFileError
from gramloop.data.records import LabelledImage
from gramloop.data.truth import DepthMap, Instances, PixelLabels, Truth
from gramloop.errors import GramLoopError
from gramloop.evaluate.predicting import CleanTruth
from gramloop.metrics.depth import NoScoreError, aligned_depth, depth_scores
from gramloop.metrics.miou import count_pixels
from gramloop.mitigations.calibration import CalibrationStats, calibrate, sha256_of
from gramloop.mitigations.mitigated import apply
from gramloop.tasks.base import get_task, read_labelled
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.semantic import Segmentation
from gramloop.tune.search.looks import Looks
from gramloop.tune.search.segments import segment_statistic
from gramloop.tune.search.split import Sample
from gramloop.tune.search.stacks import Stack
from gramloop.tune.search.subject import Subject

PREPARED = 4  # images kept ready, since trials on one image follow each other
APPLIED = 64  # predictors with mitigations kept ready


@dataclass(frozen=True)
class Trial:
    """Some candidates on one image under one condition: done and stored as a whole."""

    condition: str
    position: int
    image_id: str
    candidates: tuple[int, ...]  # by their number in the plan
    stacks: tuple[Stack, ...]
    ordinary: bool = True  # whether the ordinary prediction is wanted, too
    source: str | None = None  # the file about ordinary images

    @property
    def key(self) -> str:
        """Its name in the journal."""
        return f"{self.condition}\t{self.image_id}\t{','.join(map(str, self.candidates))}"


class Bench:
    """A subject with its predictor loaded, ready for trials."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.predictor = subject.make_predictor()
        self._records = lru_cache(2)(subject.open_records)  # conditions come one after the other
        self._shown = lru_cache(PREPARED)(self._show)
        self._source = lru_cache(1)(CalibrationStats.read)
        self._applied = lru_cache(APPLIED)(self._apply)
        self._clean = CleanTruth(self.predictor, get_task(subject.task), subject.truth_score)
        self._clean_places = {name: place for place, name in enumerate(subject.images.get("clean", ()))}

    def run(self, trial: Trial) -> dict[str, object]:
        """The statistics of a trial as plain values: the ordinary prediction if wanted, then every candidate's.

        A candidate that refuses the image has none, and a sentence under "refused". Seconds are no part of what is
        stored: they differ from run to run.
        """
        shown = self._shown(trial.condition, trial.position, trial.image_id)
        if isinstance(shown, str):
            return {"job": trial.key, "failed": shown}
        source = None if trial.source is None else self._source(trial.source)
        looks = Looks(self.predictor, shown.pixels, lambda stack: self._applied(stack, trial.source), source)
        result: dict[str, object] = {"job": trial.key}
        try:
            if trial.ordinary:
                ordinary, signals = looks.ordinary(trial.stacks)
                result["ordinary"] = self._statistic(ordinary, shown.truth)
                if signals is not None:
                    result["signals"] = signals
            found = [looks.of(stack) for stack in trial.stacks]
            result["replayed"] = [
                None if isinstance(each, str) else self._statistic(each, shown.truth) for each in found
            ]
        except NoScoreError as error:
            return {"job": trial.key, "failed": str(error)}
        result["blocks"] = [0 if isinstance(each, str) else int(each.blocks) for each in found]
        if refused := {
            str(number): each
            for number, each in zip(trial.candidates, found, strict=True)
            if isinstance(each, str)
        }:
            result["refused"] = refused
        if trial.ordinary and isinstance(shown.truth, Instances):
            result["truth"] = {
                "boxes": shown.truth.boxes.tolist(),
                "labels": shown.truth.categories.tolist(),
                "areas": shown.truth.areas.tolist(),
                "crowd": shown.truth.iscrowd.tolist(),
            }
        result["seconds"] = looks.seconds
        return result

    def calibrate(self, samples: Sequence[Sample], path: str) -> dict[str, object]:
        """Learn from clean images what ordinary ones look like, and write it to a file."""
        images = []
        for sample in samples:
            shown = read_labelled(self._records("clean")[sample.position], self.subject.task, labels=False)
            if not isinstance(shown, str):  # one that cannot be read is told of where it is measured
                images.append(shown.pixels)
        calibrate(self.predictor, images).save(path)
        return {"sha256": sha256_of(Path(path)), "images": len(images)}

    def _apply(self, stack: Stack, source: str | None) -> Predictor[Prediction]:
        return apply(stack, self.predictor, None if source is None else self._source(source))

    def _statistic(self, found: Prediction, truth: Truth | None) -> dict[str, object]:
        """Plain lists of numbers, from which any score follows."""
        if isinstance(found, Segmentation) and isinstance(truth, PixelLabels):
            counts = count_pixels(found.labels, truth.indices, len(self.subject.categories), truth.ignored)
            return {"counts": counts.tolist()}
        if isinstance(found, Detection) and isinstance(truth, Instances):
            columns = {"boxes": found.boxes, "scores": found.scores, "labels": found.labels}
            return {name: np.asarray(column).tolist() for name, column in columns.items()}
        if isinstance(found, Depth) and isinstance(truth, DepthMap):
            metres = aligned_depth(found.values, truth, disparity=found.disparity)
            return {"delta1": depth_scores(metres, truth).delta1}
        if (segments := segment_statistic(found, truth, self.subject.categories)) is not None:
            return segments
        raise GramLoopError(f"a {type(found).__name__} cannot be compared with {type(truth).__name__}")

    def _show(self, condition: str, position: int, image_id: str) -> LabelledImage | str:
        """The image with its truth; or a sentence about what is wrong with them."""
        record = self._records(condition)[position]
        if str(record.image_id) != image_id:
            raise GramLoopError(
                f"image {position} of {condition} is {record.image_id}, but was {image_id} when the search was planned"
            )
        shown = read_labelled(record, self.subject.task, labels=not self.subject.label_free)
        if isinstance(shown, str) or not self.subject.label_free:
            return shown
        clean = self._records("clean")[self._clean_places[image_id]]
        try:
            return replace(shown, truth=self._clean.of(clean, record))
        except ChangedFileError:
            raise
        except GramLoopError as error:
            return str(error)
