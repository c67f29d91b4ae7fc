from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gramloop.data.records import LabelledImage, Record
from gramloop.data.truth import ClassList, PixelLabels
from gramloop.tasks.base import read_labelled

ENTRY = {"id": 7, "bbox": [1, 2, 3, 4], "category_id": 5, "area": 12.0, "iscrowd": 0}


@pytest.fixture
def record(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.tile(np.arange(4, dtype=np.uint8), (6, 2))).save(tmp_path / "labels.png")
    classes = ClassList.numbered_from_one(["sky", "tree", "car"])
    return Record("a", tmp_path / "a.png", "a.png", 6, 8, tmp_path / "labels.png", classes, (ENTRY,))


def test_image_and_truth_are_those_of_the_record(record):
    labelled = read_labelled(record, "semantic")
    assert np.array_equal(labelled.pixels, record.image())
    assert np.array_equal(labelled.truth.indices[0], [255, 0, 1, 2] * 2)
    assert labelled.truth.ignored == 255
    objects = read_labelled(record, "detection").truth
    assert objects.boxes.tolist() == [[1, 2, 3, 4]]
    assert objects.categories.tolist() == [5]


def test_the_ignored_index_is_that_of_the_class_list(record):
    many = replace(record, classes=ClassList.numbered_from_one([str(number) for number in range(300)]))
    labelled = read_labelled(many, "semantic")
    assert labelled.truth.ignored == 65535
    assert (labelled.truth.indices[:, 0] == 65535).all()


def test_what_cannot_be_used_is_one_sentence(record, tmp_path):
    changed = replace(record, height=7)
    assert read_labelled(changed, "semantic") == f"{record.path} is 8 x 6, but was 8 x 7"
    assert "has no instances" in read_labelled(replace(record, annotations=None), "detection")
    (tmp_path / "a.png").write_bytes(b"no image")
    assert f"cannot decode the image {record.path}" in read_labelled(record, "detection")


def test_an_image_in_memory_is_taken_as_it_is_unless_its_labels_do_not_fit():
    pixels = np.zeros((6, 8, 3), np.uint8)
    given = LabelledImage(3, pixels, PixelLabels(np.zeros((6, 8), np.uint8)))
    assert read_labelled(given, "semantic") is given
    wrong = LabelledImage(3, pixels, PixelLabels(np.zeros((6, 9), np.uint8)))
    assert read_labelled(wrong, "semantic") == "the labels of 3 are 9 x 6, unlike the image"
