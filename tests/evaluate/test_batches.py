"""Batches: images of one size together, results in order, each what it is alone up to the order of sums."""

import shutil
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gramloop.cli import main
from gramloop.data.records import LabelledImage
from gramloop.data.scenes import scene
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource, read_plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.runner import LoopImage, _batches
from gramloop.evaluate.store import Store
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.loading import load_predictor
from gramloop.util.device import deterministic
from small_runs import SIDE, counts_of, rows_of, runner_of, small_plan

WHOLE = {"short_side": SIDE, "mode": "whole"}
REPLAY = ReplayConfig(window=(5, 7))


@given(st.lists(st.sampled_from([(4, 6), (6, 4), (5, 5)]), max_size=40), st.integers(1, 7))
def test_every_image_is_in_one_group_of_its_size(sizes, batch):
    loaded = [
        (LoopImage(None, place, None), LabelledImage(place, np.empty(size), None))
        for place, size in enumerate(sizes)
    ]
    found = [[image.position for image in group] for group in _batches(loaded, batch)]
    assert sorted(index for group in found for index in group) == list(range(len(sizes)))
    for group in found:
        assert group == sorted(group)
        assert len({sizes[index] for index in group}) == 1
        assert 1 <= len(group) <= batch
    for size, many in Counter(sizes).items():  # and no more groups than it takes
        assert sum(sizes[group[0]] == size for group in found) == -(-many // batch)


def pictures(many: int) -> list[np.ndarray]:
    return [scene(seed, size=192).image[40:] for seed in range(many)]  # 152 x 192


@pytest.mark.parametrize("task", ["semantic", "detection", "depth"])
@pytest.mark.parametrize("method", ["plain", "replayed", "paired"])
def test_the_embedded_model_predicts_of_a_batch_what_it_predicts_of_each(task: str, method: str):
    """The heads' convolutions add up in another order: 8e-7 of a depth, 4e-7 of a score (2026-11-17)."""
    predictor = load_predictor(task, {"folder": str(WEIGHTS)})
    replay = None if method == "plain" else REPLAY
    images, paired = pictures(3), method == "paired"
    with deterministic(1):
        together = predictor.predict_batch(images, replay, paired, trace=True if replay else None)
        alone = [predictor.predict(image, replay, paired, trace=True if replay else None) for image in images]
    for one, other in zip(together, alone, strict=True):
        pairs = [(one.baseline, other.baseline), (one.replayed, other.replayed)] if paired else [(one, other)]
        for found, expected in pairs:
            assert found.blocks == expected.blocks
            if task == "semantic":  # a class changes only where two have the same score to six digits
                assert np.mean(found.labels != expected.labels) < 1e-3
            elif task == "depth":
                assert np.allclose(found.values, expected.values, rtol=1e-5)
            else:
                assert len(found.scores) == len(expected.scores) > 0
                assert np.allclose(np.sort(found.scores), np.sort(expected.scores), atol=1e-5)
            if found.trace is not None:
                assert np.allclose(found.trace.drift, expected.trace.drift, rtol=1e-4, atol=1e-7)
        assert (pairs[-1][0].trace is None) == (replay is None)


def test_images_of_a_batch_have_one_size():
    predictor = load_predictor("semantic", {"folder": str(WEIGHTS)})
    image = pictures(1)[0]
    assert predictor.predict_batch([]) == []
    with pytest.raises(GramLoopError, match="images of a batch have one size, not 192 x 152 and 192 x 160"):
        predictor.predict_batch([image, np.zeros((160, 192, 3), np.uint8)])


MODEL = """
import numpy as np
from gramloop.replay.config import Cost
from gramloop.data.scenes import STUFF, THINGS
from gramloop.tasks.semantic import Segmentation

class Sums:
    task, blocks, host, taps = "semantic", (), None, ()
    classes = dict(enumerate([*STUFF, *THINGS]))
    shown = []

    def cost(self, replay=None, paired=False):
        return Cost(1, 1)

    def predict(self, image, replay=None, paired=False, *, trace=None):
        return self.predict_batch([image])[0]

    def predict_batch(self, images, replay=None, paired=False, *, trace=None):
        self.shown.append([image.shape[:2] for image in images])
        return [Segmentation((image.sum(axis=2) % 15).astype(np.int32)) for image in images]

def make():
    return Sums()
"""


@pytest.fixture
def mixed_set(scene_folder: Path, tmp_path: Path) -> Path:
    """Scenes of which some are lower than others, and one cannot be decoded."""
    folder = tmp_path / "set"
    shutil.copytree(scene_folder, folder)
    (folder / "annotations" / "instances_val.json").unlink()
    for number in (2, 5, 6):
        for part in ("images", "annotations"):
            path = folder / part / "validation" / f"{number:08d}.png"
            with Image.open(path) as picture:
                cut = picture.crop((0, 16, SIDE, SIDE))
            cut.save(path)
    torn = folder / "images" / "validation" / "00000001.png"
    torn.write_bytes(torn.read_bytes()[:600])
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    return folder


def planned(folder: Path, batch: int, **changes: object) -> object:
    files = {"make": f"{folder.parent / 'model.py'}:make"}
    options = {"conditions": ["fog"], "severities": [3], "shards": 1, "batch": batch, **changes}
    return make_plan(Request("scenes-c", "semantic", files, DataSource(str(folder)), **options))


def test_mixed_sizes_a_bad_image_and_a_ragged_end(mixed_set: Path, tmp_path: Path):
    """Nothing is summed over a batch in this model, so that every row is the same to the bit."""
    single, plan = planned(mixed_set, 1), planned(mixed_set, 3)
    runner = runner_of(plan)
    found, expected = (
        rows_of(each, one.run_one(each.parts[0]), "baseline")
        for each, one in ((plan, runner), (single, runner_of(single)))
    )
    tall, low = (SIDE, SIDE), (SIDE - 16, SIDE)
    # positions 0, 3, 4 | 2, 5, 6 | 7, 8, 9 | 10: the single last one goes through predict
    shown = [sizes for sizes in type(runner.predictor).shown if sizes != [low]]  # without the trial images
    assert shown[:4] == [[tall] * 3, [low] * 3, [tall] * 3, [tall]]
    assert found.table.equals(expected.table)
    assert found.failures == expected.failures
    assert [failure.image_id for failure in found.failures] == ["00000001"]
    assert found.positions == [0, *range(2, 11)]


@pytest.mark.parametrize("truth", ["labels", "clean"])
def test_filters_and_clean_truths_in_batches_to_the_bit(mixed_set: Path, truth: str):
    """Of denoise some images keep their pixels, and share the prediction without it; the others are a smaller batch."""
    options = {"methods": ["baseline", "median", "denoise:3", "resize:2"], "truth": truth}
    options["conditions"] = ["fog", "gaussian_noise"]
    single, plan = (planned(mixed_set, batch, **options) for batch in (1, 4))
    one, several = runner_of(single), runner_of(plan)
    for before, part in zip(single.parts, plan.parts, strict=True):
        alone, together = one.run_one(before), several.run_one(part)
        for method in plan.methods:
            found, expected = rows_of(plan, together, method.name), rows_of(single, alone, method.name)
            assert found.table.equals(expected.table)
            assert found.failures == expected.failures
            assert [failure.position for failure in found.failures] == [1]


METHODS = ["recentre:0.3", "flip", "scales:0.75,1", "both=gramloop+pair", "denoise+recentre:0.5"]


@pytest.mark.parametrize(
    ("suite", "truth"), [("scenes-c", "labels"), ("scenes-c", "clean"), ("scenes", "clean")]
)
def test_mitigations_in_batches(model_folder: Path, scene_folder: Path, suite: str, truth: str):
    """Counts of pixels differ by few, blocks not at all; clean images agree with themselves."""
    options = {"suite": suite, "sizes": WHOLE, "shards": 1, "truth": truth}
    options |= (
        {"conditions": ["fog"], "severities": [3]}
        if suite == "scenes-c"
        else {"conditions": [], "severities": []}
    )
    methods = ["baseline", *METHODS]
    one, plan = (
        small_plan(model_folder, scene_folder, **options, methods=methods, batch=batch) for batch in (1, 4)
    )
    alone, together = (runner_of(each).run_one(each.parts[0]) for each in (one, plan))
    for method in plan.methods:
        found, expected = rows_of(plan, together, method.name), rows_of(one, alone, method.name)
        assert found.positions == expected.positions
        assert found.blocks == expected.blocks
        assert np.abs(counts_of(found) - counts_of(expected)).max() <= 4
        if (suite, method.name) == ("scenes", "baseline"):
            intersection, predicted, _ = counts_of(found).swapaxes(0, 1)
            assert np.array_equal(intersection, predicted)


def test_an_evaluation_in_batches(model_folder: Path, scene_folder: Path, tmp_path: Path):
    """Of the random model of six blocks: counts of pixels differ by few, blocks and order not at all."""
    one, plan = (
        small_plan(model_folder, scene_folder, sizes=WHOLE, conditions=["fog"], batch=batch, diagnostics=True)
        for batch in (1, 4)
    )
    for each in (one, plan):
        evaluate(each, tmp_path / str(each.batch), workers=1)
    for unit in plan.units:
        found = Store(tmp_path / "4", plan).rows([unit])
        expected = Store(tmp_path / "1", one).rows([unit])
        assert found.image_ids == expected.image_ids
        assert found.blocks == expected.blocks
        assert found.table["picture"].is_null().equals(expected.table["picture"].is_null())
        # of 4,096 pixels: ties that fall the other way
        assert np.abs(counts_of(found) - counts_of(expected)).max() <= 4
    evaluate(plan, tmp_path / "prepared", workers=1, prepare=1)
    assert (tmp_path / "prepared" / "results.csv").read_bytes() == (
        tmp_path / "4" / "results.csv"
    ).read_bytes()
    assert read_plan(tmp_path / "4" / "plan.json") == plan


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"methods": ["late:window=4-5,adaptive=noise:1:2"]}, "late decides for each image"),
        ({"methods": ["both=median+replay:window=4-5,adaptive=noise:1:2"]}, "both decides for each image"),
    ],
    ids=["adaptive", "adaptive in a stack"],
)
def test_what_cannot_be_batched_is_refused(model_folder, scene_folder, changes, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        small_plan(model_folder, scene_folder, **{"sizes": WHOLE, "batch": 4, **changes})


def test_a_function_predicts_one_at_a_time(scene_folder: Path, tmp_path: Path):
    code = "import numpy as np\ndef make():\n    return lambda image: np.zeros(image.shape[:2], np.int32)\n"
    (tmp_path / "own.py").write_text(code)
    arguments = ["evaluate", "--suite", "scenes-c", "--data", str(scene_folder), "--task", "semantic"]
    arguments += ["--model", f"{tmp_path / 'own.py'}:make", "--batch", "2", "--out", str(tmp_path / "out")]
    arguments += ["--method", "baseline", "--condition", "fog", "--severity", "1"]
    with pytest.warns(GramLoopWarning, match="predicts one image at a time, also with --batch"):
        assert main(arguments) == 0


def test_lack_of_memory_in_a_batch_says_so(model_folder: Path, scene_folder: Path, monkeypatch):
    plan = small_plan(model_folder, scene_folder, sizes=WHOLE, batch=4)
    runner = runner_of(plan)

    def forward(pixels, *rest, **named):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner.predictor.model.backbone, "forward", forward)
    with pytest.raises(GramLoopError, match=r"in a batch of 3, does not fit .*; try --batch 1, a smaller"):
        runner.run_one(plan.parts[0])
    single = small_plan(model_folder, scene_folder)
    runner = runner_of(single)
    monkeypatch.setattr(runner.predictor.model.backbone, "forward", forward)
    with pytest.raises(GramLoopError, match=r"00000000\.png \(64 x 64\) does not fit"):
        runner.run_one(single.parts[0])
