"""COCO's panoptic sets and instance masks: read as they were written, moved with the pixels, and refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as reference_masks

from gramloop.data.coco import COCO_CATEGORY_IDS, STUFF_IDS, open_panoptic
from gramloop.data.opening import ReadOptions, open_set, open_suite
from gramloop.data.records import LabelledImage
from gramloop.data.scenes import CLASSES, SCENE_CATEGORIES, THING_NUMBERS, SceneFiles, scene, write_scenes
from gramloop.data.suites import Condition
from gramloop.data.truth import ObjectMasks, SegmentMap, decode_mask, read_segment_map, segments_png
from gramloop.data.writing import write_suite
from gramloop.errors import GramLoopError
from gramloop.tasks.base import read_labelled
from gramloop.tasks.class_names import COCO_PANOPTIC
from small_panoptic import blocks, write_panoptic
from small_sets import coco_content, write_coco

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def same(one: SegmentMap, two: SegmentMap) -> bool:
    columns = ("ids", "numbers", "categories", "crowd")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns)


@given(hnp.arrays(np.int32, SHAPES, elements=st.integers(0, 256**3 - 1)))
@settings(max_examples=60, deadline=None)
def test_every_id_survives_its_colour(ids: np.ndarray) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "map.png"
        path.write_bytes(segments_png(ids))
        infos = [{"id": int(number), "category_id": 1} for number in np.unique(ids[ids > 0])]
        np.testing.assert_array_equal(read_segment_map(path, infos).ids, ids)


def test_a_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_panoptic(tmp_path, 3)
    data = open_panoptic(tmp_path)
    assert (data.task, len(data)) == ("panoptic", 3)
    assert data.categories == {1: "cat", 2: "dog", 9: "grass"}
    assert data.things == {1, 2}
    for index, record in enumerate(data):
        assert same(record.segments(), blocks(index))
    assert open_set("mine", tmp_path, ReadOptions()).task == "panoptic"  # it holds nothing else
    bare = open_set("mine", tmp_path, ReadOptions(task="panoptic", labels=False))
    assert [record.image_id for record in bare] == [100, 101, 102]
    assert bare[0].annotations is None


def test_the_truth_of_a_record_is_that_of_its_task(tmp_path: Path) -> None:
    write_panoptic(tmp_path / "segments", 1)
    write_coco(tmp_path / "masks", coco_content(1))
    segments = read_labelled(open_panoptic(tmp_path / "segments")[0], "panoptic")
    masks = read_labelled(open_set("mine", tmp_path / "masks", ReadOptions(task="instance"))[0], "instance")
    assert isinstance(segments, LabelledImage)
    assert isinstance(masks, LabelledImage)
    assert isinstance(segments.truth, SegmentMap)
    assert isinstance(masks.truth, ObjectMasks)
    assert masks.truth.size == (96, 128)


def _changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _stranger(content: dict[str, Any]) -> None:
    content["annotations"][0]["segments_info"][0]["id"] = 8


def _twice(content: dict[str, Any]) -> None:
    content["annotations"][0]["segments_info"][1]["id"] = 7


def _unlisted(content: dict[str, Any]) -> None:
    content["annotations"][0]["segments_info"][0]["category_id"] = 4


def _no_kind(content: dict[str, Any]) -> None:
    del content["categories"][0]["isthing"]


def _no_entry(content: dict[str, Any]) -> None:
    del content["annotations"][1]


def _leads_out(content: dict[str, Any]) -> None:
    content["annotations"][0]["file_name"] = "../000000.png"


def _crowd_in_words(content: dict[str, Any]) -> None:
    content["annotations"][0]["segments_info"][0]["iscrowd"] = "0"


def _no_colour(content: dict[str, Any]) -> None:
    content["annotations"][0]["segments_info"][0]["id"] = 0


def _gone(content: dict[str, Any]) -> None:
    content["annotations"][0]["file_name"] = "none.png"


WRONG = [
    (_stranger, r"panoptic_val2017/000000.png holds segment 7, which the annotation file does not list"),
    (_twice, "the annotation of image 100: segment 7 occurs 2 times"),
    (_unlisted, "image 100 has a segment of category 4, which is not listed"),
    (_no_kind, r"categories\[0\]: object missing required field `isthing`"),
    (_no_entry, "image 101 has no annotation"),
    (_leads_out, "has a PNG file .* outside of its folder"),
    (_crowd_in_words, r"annotations\[0\].*segments_info\[0\].iscrowd: expected `int`, got `str`"),
    (_no_colour, r"annotations\[0\].*segments_info\[0\].id: expected `int` >= 1"),
    (_gone, "none.png is missing"),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=lambda each: getattr(each, "__name__", ""))
def test_a_wrong_set_is_told(tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    write_panoptic(tmp_path, 2)
    _changed(tmp_path / "annotations" / "panoptic_val2017.json", change)
    with pytest.raises(GramLoopError, match=words):
        open_panoptic(tmp_path)[0].segments()


def test_a_folder_without_panoptic_annotations_is_told(tmp_path: Path) -> None:
    write_coco(tmp_path, coco_content(1))
    with pytest.raises(GramLoopError, match=r"needs annotations/panoptic_val2017\.json"):
        open_set("coco", tmp_path, ReadOptions(task="panoptic"))
    write_panoptic(tmp_path / "own", 1)
    with pytest.raises(GramLoopError, match=r"(?s)are not COCO's 133.*holds 1 images, not 5000"):
        open_set("coco", tmp_path / "own", ReadOptions(task="panoptic"))
    assert set(COCO_PANOPTIC) == COCO_CATEGORY_IDS | STUFF_IDS


@pytest.mark.parametrize("name", ["rotate", "translate", "shear"])
def test_segments_move_as_label_maps_do(tmp_path: Path, name: str) -> None:
    """Every segment alone, as a label map of 0 and 1, goes where it goes in the map."""
    write_panoptic(tmp_path, 1)
    opened = open_suite("mine-p", tmp_path, conditions=[name], severities=[3])
    record = opened.open(Condition(name, 3))[0]
    moved, clean = record.segments(), blocks(0)
    affine = opened.shift(Condition(name, 3)).affine(record)
    assert not np.array_equal(moved.ids, clean.ids)
    for number in clean.numbers:
        alone = (clean.ids == number).astype(np.uint8)
        expected = cv2.warpAffine(alone, affine, (128, 96), flags=cv2.INTER_NEAREST, borderValue=0)
        np.testing.assert_array_equal(moved.ids == number, expected == 1)
    assert set(moved.numbers) == set(np.unique(moved.ids)) - {0}


CASES = [("mine-p", ["fog", "rotate", "shear"]), ("mine-c", ["impulse_noise"])]


@pytest.mark.parametrize(("suite", "names"), CASES)
def test_a_written_suite_of_segments_is_the_generated_one(
    tmp_path: Path, suite: str, names: list[str]
) -> None:
    write_panoptic(tmp_path / "clean", 2)
    generated = open_suite(suite, tmp_path / "clean", conditions=names, severities=[2])
    assert not write_suite(generated, tmp_path / "out", workers=1).failures
    read = open_suite(suite, tmp_path / "out", conditions=names, severities=[2])
    assert read.clean is None
    for condition, expected in generated:
        found = read.open(condition)
        assert (found.categories, found.things) == (expected.categories, expected.things)
        for one, two in zip(expected, found, strict=True):
            assert np.array_equal(one.image(), two.image())
            assert same(one.segments(), two.segments())


@pytest.mark.parametrize(("suite", "names"), CASES)
def test_a_written_suite_of_masks_is_the_generated_one(tmp_path: Path, suite: str, names: list[str]) -> None:
    content = coco_content(2)
    content["annotations"][1].update(
        iscrowd=1, segmentation={"size": [96, 128], "counts": [96, 20, 96 * 127 - 20]}
    )
    write_coco(tmp_path / "clean", content)
    options = ReadOptions(task="instance")
    generated = open_suite(suite, tmp_path / "clean", conditions=names, severities=[2], options=options)
    assert not write_suite(generated, tmp_path / "out", workers=1).failures
    read = open_suite(suite, tmp_path / "out", conditions=names, severities=[2], options=options)
    for condition, expected in generated:
        for one, two in zip(expected, read.open(condition), strict=True):
            first, second = one.object_masks(), two.object_masks()
            assert first.masks == second.masks
            assert first.areas.tolist() == second.areas.tolist()
            assert first.crowd.tolist() == second.crowd.tolist()


def test_masks_are_those_that_pycocotools_scores(tmp_path: Path) -> None:
    content = coco_content(1)
    content["annotations"][0]["segmentation"] = [[10.5, 10.25, 60, 20, 40.75, 70], [80, 5, 110, 5, 100, 30.5]]
    write_coco(tmp_path, content)
    found = open_set("mine", tmp_path, ReadOptions(task="instance"))[0].object_masks()
    for entry, mask in zip(content["annotations"], found.masks, strict=True):
        parts = reference_masks.frPyObjects(entry["segmentation"], 96, 128)
        np.testing.assert_array_equal(decode_mask(mask), reference_masks.decode(reference_masks.merge(parts)))


def test_an_object_without_a_mask_is_told(tmp_path: Path) -> None:
    content = coco_content(1)
    del content["annotations"][1]["segmentation"]
    write_coco(tmp_path, content)
    data = open_set("mine", tmp_path, ReadOptions(task="instance"))
    assert "annotation 2 has no segmentation" in str(read_labelled(data[0], "instance"))


def test_scenes_have_segments(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneFiles(4, size=96), workers=1)
    data = open_panoptic(tmp_path)
    assert data.categories == SCENE_CATEGORIES
    assert data.things == THING_NUMBERS
    for index, record in enumerate(data):
        one, found = scene(index, 96, "val"), record.segments()
        names = np.array(["", *SCENE_CATEGORIES.values()])[np.append(0, found.categories)[found.places()]]
        assert (names == np.array(["", *CLASSES])[one.labels]).all()  # the same class at every pixel
        things = [
            number
            for number, kind in zip(found.numbers, found.categories, strict=True)
            if kind in data.things
        ]
        assert len(things) == len(one.masks)
        for number, mask in zip(things, one.masks, strict=True):
            np.testing.assert_array_equal(found.ids == number, mask)
    with pytest.raises(GramLoopError, match="choose the task"):
        open_set("scenes", tmp_path, ReadOptions())
