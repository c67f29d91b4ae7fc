"""Methods that need calibration statistics learn them from clean images that are not judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

import gramloop
from dense_folders import save_model
from gramloop import GramLoopError
from gramloop.evaluate.provenance import CALIBRATION, PlannedImages
from gramloop.mitigations import apply, calibrate
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.report.load import load_runs
from gramloop.report.stats import compare_methods
from gramloop.tasks import as_predictor, load_predictor, open_model
from user_models import PatchDepth, grey_depth

METHODS = ("baseline", "recentre:0.5", "levels", "sharpen")
GIVEN: dict[str, Any] = {"suite": "my-photos-c", "conditions": ["fog"], "severities": [5], "truth": "clean"}
PHOTOS = 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for index in range(PHOTOS):
        small = rng.integers(0, 256, (6, 8, 3), np.uint8)
        cv2.imwrite(
            str(folder / f"{index:02d}.png"), cv2.resize(small, (64, 48), interpolation=cv2.INTER_CUBIC)
        )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return save_model("DPT depth", tmp_path_factory.mktemp("hf"))


def intervals(out: Path) -> dict[str, tuple[float, float]]:
    """The interval of every method's gain over images."""
    (evidence,) = compare_methods(load_runs([out]).runs, ("images",), replicates=50)
    return {name: (gains[0].interval.low, gains[0].interval.high) for name, gains in evidence.gains.items()}


@pytest.mark.parametrize("kind", ["folder", "module"])
def test_features_and_pixels_of_any_model_with_a_vit(
    kind: str, photos: Path, folder: Path, tmp_path: Path
) -> None:
    model = f"hf:{folder}" if kind == "folder" else PatchDepth()
    out = tmp_path / "out"
    found = gramloop.evaluate(model, photos, out=out, methods=METHODS, workers=1, **GIVEN)
    split = found.plan.calibration_split
    assert split is not None
    assert len(split.positions) == PHOTOS // 2 == found.plan.conditions["fog/5"]
    assert CalibrationStats.read(out / CALIBRATION).images == PHOTOS // 2
    for low, high in intervals(out).values():
        assert np.isfinite([low, high]).all()
        assert low <= high
    again = gramloop.evaluate(model, photos, out=out, methods=("gramloop",), workers=1, **GIVEN)
    assert again.plan.calibration_split == split, "a method that needs none is added to the same images"
    predictor = open_model(model) if kind == "folder" else as_predictor(model)
    check_predicted(predictor, ("recentre:0.5", "levels", "sharpen"), out / CALIBRATION, photos)
    path = tmp_path / "model.pt2"
    stack, sizes = "sharpen+levels+recentre:0.5", {} if kind == "folder" else {"height": 48, "width": 64}
    made = gramloop.export(predictor, path, mitigations=stack, stats=out / CALIBRATION, **sizes)
    assert path.is_file()
    assert made.companions, "filters on pixels are a Python file next to the model"


def check_predicted(predictor: Any, methods: tuple[str, ...], stats: Path, photos: Path) -> None:
    """Statistics that an evaluation learnt serve single predictions, too."""
    image = np.asarray(Image.open(next(iter(sorted(photos.iterdir())))))
    pale = (200 + image / 8).astype(np.uint8)
    plain = predictor.predict(pale).values
    for method in methods:
        found = apply(method, predictor, stats).predict(pale).values
        assert found.shape == plain.shape
        assert not np.array_equal(found, plain) or method == "sharpen"


def test_pixels_of_a_function_and_no_features(photos: Path, tmp_path: Path) -> None:
    methods = ("baseline", "levels", "sharpen", "denoise")
    gramloop.evaluate(grey_depth, photos, task="depth", out=tmp_path / "out", methods=methods, **GIVEN)
    assert set(intervals(tmp_path / "out")) == {"levels", "sharpen", "denoise"}
    predictor = as_predictor(grey_depth, "depth")
    check_predicted(predictor, ("levels", "sharpen"), tmp_path / "out" / CALIBRATION, photos)
    with pytest.raises(GramLoopError, match=r"recentre acts on the patches of a ViT .* no torch module"):
        gramloop.evaluate(
            grey_depth, photos, task="depth", out=tmp_path / "no", methods=("recentre:0.5",), **GIVEN
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("images", "learnt"), [(None, 10), (15, 10), (9, 11)])
def test_what_is_judged_never_enters_the_statistics(
    images: int | None, learnt: int, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = {**GIVEN, "images": images, "task": "depth"}
    plan = gramloop.evaluate(grey_depth, photos, out=out, methods=("baseline", "levels"), **given).plan
    assert plan.calibration_split is not None
    opened = PlannedImages(plan)
    judged = {record.path.name for record in opened.records("fog/5", range(plan.conditions["fog/5"]))}
    whole = opened.whole.clean
    assert whole is not None
    used = {whole[position].path.name for position in plan.calibration_split.positions}
    assert len(used) == learnt
    assert not used & judged
    predictor = load_predictor("depth", {"object": plan.model.files["object"]})
    expected = calibrate(predictor, [photos / name for name in sorted(used)])
    stats = CalibrationStats.read(out / CALIBRATION)
    assert stats.pixels == expected.pixels, "learnt from these and from no others"
    everything = calibrate(predictor, sorted(photos.iterdir()))
    assert stats.pixels != everything.pixels


def test_a_folder_in_which_all_were_judged(photos: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "task": "depth", "out": tmp_path / "out"}
    gramloop.evaluate(grey_depth, photos, methods=("baseline",), **given)
    with pytest.raises(GramLoopError, match="none is left to learn calibration statistics from"):
        gramloop.evaluate(grey_depth, photos, methods=("levels",), **given)


def test_too_few_images_to_learn_from(photos: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for path in sorted(photos.iterdir())[:9]:
        (few / path.name).write_bytes(path.read_bytes())
    with pytest.raises(GramLoopError, match="9 images are too few to calibrate on some and judge the others"):
        gramloop.evaluate(grey_depth, few, task="depth", out=tmp_path / "out", methods=("levels",), **GIVEN)
    found = gramloop.evaluate(
        grey_depth, few, task="depth", out=tmp_path / "out", methods=("baseline", "denoise"), **GIVEN
    )
    assert set(found.to_pandas()["images"]) == {9}, (
        "denoise has a threshold without statistics, and holds nothing out"
    )
