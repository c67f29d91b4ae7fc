"""Predicted segments and masks as files: read back as they were, by this package and by others; and as pictures."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from pycocotools.coco import COCO

from gramloop.cli import main
from gramloop.data.coco import open_panoptic
from gramloop.data.scenes import CLASSES, scene
from gramloop.data.truth import decode_mask, read_segment_map
from gramloop.tasks.base import task_of
from gramloop.tasks.prediction import draw_predictions
from gramloop.tasks.segments import InstanceMasks, Panoptic, Segment
from gramloop.util.plotting import CaptionedFigure

MODELS = Path(__file__).parents[1] / "support" / "small_components.py"
IDS = hnp.arrays(
    np.int32,
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    elements=st.sampled_from([0, 1, 5, 300, 70_000]),
)


def of_ids(ids: np.ndarray) -> Panoptic:
    numbers = np.unique(ids[ids > 0]).tolist()
    return Panoptic(ids, tuple(Segment(number, 1 + number % 3, number % 3 == 0, 0.5) for number in numbers))


@given(IDS)
@settings(max_examples=40, deadline=None)
def test_segments_come_back_from_their_files(ids: np.ndarray) -> None:
    found = of_ids(ids)
    files = task_of(found).files(found, Path("photos/12.jpg"), "12.baseline", {1: "cat", 2: "dog", 3: None})
    content = json.loads(files[".json"])
    with TemporaryDirectory() as folder:
        path = Path(folder) / content["annotations"][0]["file_name"]
        path.write_bytes(files[".png"])
        back = read_segment_map(path, content["annotations"][0]["segments_info"])
    np.testing.assert_array_equal(back.ids, ids)
    assert back.categories.tolist() == [info.category for info in found.infos]
    assert content["images"][0] == {
        "id": 12,
        "file_name": "12.jpg",
        "height": ids.shape[0],
        "width": ids.shape[1],
    }
    assert {each["id"]: each["isthing"] for each in content["categories"]} == {
        info.category: int(info.is_thing) for info in found.infos
    }


def test_masks_come_back_from_their_file() -> None:
    rng = np.random.default_rng(0)
    masks = rng.random((4, 9, 7)) < 0.4
    masks[2] = False
    found = InstanceMasks.from_masks(masks, np.array([0.2, 0.9, 0.5, 0.7]), np.array([3, 1, 1, 2]))
    rows = json.loads(task_of(found).files(found, Path("7.png"), "7.baseline", {})[".json"])
    assert [row["score"] for row in rows] == pytest.approx([0.9, 0.7, 0.5, 0.2])
    assert [row["category_id"] for row in rows] == [1, 2, 1, 3]
    for index, row in zip([1, 3, 2, 0], rows, strict=True):
        np.testing.assert_array_equal(decode_mask(row["segmentation"]), masks[index])
    with contextlib.redirect_stdout(io.StringIO()):
        annotated = COCO()
        annotated.dataset = {
            "info": {},
            "images": [{"id": 7, "height": 9, "width": 7}],
            "categories": [],
            "annotations": [],
        }
        annotated.createIndex()
        loaded = annotated.loadRes(rows)
    areas = [entry["area"] for entry in loaded.dataset["annotations"]]
    assert areas == [int(masks[index].sum()) for index in [1, 3, 2, 0]]


def test_predict_writes_a_set_that_opens(tmp_path: Path) -> None:
    Image.fromarray(scene(1, 96, "val").image).save(tmp_path / "5.png")
    model = f"{MODELS}:panoptic"
    assert main(["predict", str(tmp_path / "5.png"), "--model", model, "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "5.baseline.json", "5.baseline.png", "5.mitigated.json", "5.mitigated.png", "5.picture.png",
    ]  # fmt: skip
    for version in ("baseline", "mitigated"):
        root = tmp_path / f"set-{version}"
        (root / "annotations" / "panoptic_val").mkdir(parents=True)
        (root / "val").mkdir()
        copy(tmp_path / "5.png", root / "val" / "5.png")
        copy(tmp_path / "out" / f"5.{version}.json", root / "annotations" / "panoptic_val.json")
        copy(tmp_path / "out" / f"5.{version}.png", root / "annotations" / "panoptic_val")
        data = open_panoptic(root)
        assert data[0].image_id == 5
        assert len(data[0].segments().numbers) > 2
        assert set(data.categories.values()) <= set(CLASSES)
    masks = ["predict", str(tmp_path / "5.png"), "--model", f"{MODELS}:instances", "--method", "baseline"]
    assert main([*masks, "--out", str(tmp_path / "masks")]) == 0
    rows = json.loads((tmp_path / "masks" / "5.baseline.json").read_text())
    assert all(decode_mask(row["segmentation"]).shape == (96, 96) for row in rows)


@pytest.mark.parametrize("empty", [False, True])
def test_pictures_of_segments_and_masks(empty: bool) -> None:
    image = scene(1, 96, "val").image
    ids = np.zeros((96, 96), np.int32)
    masks = np.zeros((0 if empty else 2, 96, 96), np.bool_)
    if not empty:
        ids[20:60, 10:50], ids[50:90, 40:90] = 1, 2
        masks[:] = [ids == 1, ids == 2]
    numbers = np.full(len(masks), 3)
    found = InstanceMasks.from_masks(masks, np.full(len(masks), 0.9), numbers)
    pictures = []
    for one in (of_ids(ids), found):
        figure = draw_predictions(image, {"a": one, "b": one}, {3: "cat"})
        content = CaptionedFigure(figure, "", "", "").png()
        pictures.append(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    assert all(picture.std() > 10 for picture in pictures)
