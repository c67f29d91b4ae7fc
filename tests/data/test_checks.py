"""What is told of a set before it is evaluated, and images that predict and evaluate read alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.checks import refuse_unscorable
from gramloop.data.coco import open_coco
from gramloop.data.folders import open_photos, open_semantic
from gramloop.data.opening import ReadOptions, open_set
from gramloop.data.records import DataSet, Shift, shift_record
from gramloop.data.records import decode_image as evaluated
from gramloop.data.scenes import SceneFiles, write_scenes
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.tasks.images import read_image as predicted
from small_sets import coco_content, picture, write_coco, write_semantic


def ignored_labels(root: Path) -> DataSet:
    write_semantic(root, 3)
    for path in (root / "annotations").rglob("*.png"):
        Image.fromarray(np.full((96, 128), 255, np.uint8)).save(path)
    return open_semantic(root)


def crowds(root: Path) -> DataSet:
    content = coco_content(3)
    for entry in content["annotations"]:
        entry["iscrowd"] = 1
    return open_coco(write_coco(root, content))


def no_objects(root: Path) -> DataSet:
    return open_coco(write_coco(root, {**coco_content(3), "annotations": []}))


def unknown_depth(root: Path) -> DataSet:
    write_scenes(root, SceneFiles(3, size=64), workers=1)
    for path in (root / "depth").rglob("*.png"):
        Image.fromarray(np.zeros((64, 64), np.uint16)).save(path)
    return open_set("mine", root, ReadOptions(task="depth"))


@pytest.mark.parametrize("make", [ignored_labels, crowds, no_objects, unknown_depth])
def test_a_set_with_nothing_to_score_is_refused(tmp_path: Path, make) -> None:
    with pytest.raises(GramLoopError, match="none of its 3 images has anything to score"):
        refuse_unscorable(make(tmp_path), 3)


def test_one_label_is_enough(tmp_path: Path) -> None:
    data = ignored_labels(tmp_path)
    labels = np.full((96, 128), 255, np.uint8)
    labels[5, 6] = 2
    path = data[2].label_path
    assert path is not None
    Image.fromarray(labels).save(path)
    refuse_unscorable(data, 3)
    with pytest.raises(GramLoopError):
        refuse_unscorable(data, 2)


def test_evaluate_refuses_such_a_set_before_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "set", tmp_path / "out"
    write_scenes(root, SceneFiles(2, size=64), workers=1)
    for path in (root / "annotations" / "validation").glob("*.png"):
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(path)
    code = main(["evaluate", "--suite", "mine", "--data", str(root), "--task", "semantic", "--out", str(out)])
    assert code == 2
    assert "none of its 2 images has anything to score" in capsys.readouterr().err
    assert not out.exists()


def turned_jpeg(path: Path, tag: int) -> None:
    image = Image.fromarray(picture(1, 64, 96))
    exif = image.getexif()
    exif[0x0112] = tag
    image.save(path, exif=exif, quality=95)


@pytest.mark.parametrize("tag", range(1, 9))
def test_photographs_are_turned_as_predict_turns_them(tmp_path: Path, tag: int) -> None:
    turned_jpeg(tmp_path / "one.jpg", tag)
    record = open_photos(tmp_path)[0]
    assert np.array_equal(record.image(), predicted(tmp_path / "one.jpg"))
    assert record.image().shape[:2] == (record.height, record.width) == ((64, 96) if tag < 5 else (96, 64))


@pytest.mark.parametrize("tag", [1, 3, 6])
def test_labelled_images_stay_as_stored_and_a_note_says_so(tmp_path: Path, tag: int) -> None:
    content = coco_content(2, 64, 96)
    content["annotations"] = [{**entry, "bbox": [1, 2, 9, 9]} for entry in content["annotations"]]
    root = write_coco(tmp_path, content)
    turned_jpeg(root / "val2017" / "000001.jpg", tag)
    data = open_coco(root)
    assert len(data.notes) == (tag != 1)
    for note in data.notes:
        assert re.search(r"1 of 2 images in .* such as 000001\.jpg; they are evaluated as", note)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white_for_both(tmp_path: Path, mode: str) -> None:
    pixels = np.zeros((8, 9, 4), np.uint8)
    pixels[:, 4:] = (200, 200, 200, 255)
    image = Image.fromarray(pixels).convert(mode)
    path = tmp_path / "one.png"
    image.save(path, transparency=image.getpixel((0, 0)) if mode == "P" else None)
    assert np.array_equal(evaluated(path), predicted(path))
    assert (evaluated(path)[:, :4] == 255).all()


def test_a_note_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import warnings

    from gramloop.cli.output import notes_in_a_line

    with notes_in_a_line():
        assert (
            warnings.formatwarning("mind this", GramLoopWarning, "file.py", 3)
            == "gramloop: note: mind this\n"
        )
        assert "file.py:3" in warnings.formatwarning("other", UserWarning, "file.py", 3)


def test_an_annotation_file_is_refused_before_anything_is_written(tmp_path: Path, capsys) -> None:
    root, out = tmp_path / "set", tmp_path / "out"
    write_scenes(root, SceneFiles(2, size=64), workers=1)
    path = root / "annotations" / "instances_val.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["area"] = "big"
    path.write_text(json.dumps(content))
    code = main(
        ["evaluate", "--suite", "mine", "--data", str(root), "--task", "detection", "--out", str(out)]
    )
    assert code == 2
    assert "annotations[0].area: expected `float`, got `str`" in capsys.readouterr().err
    assert not out.exists()


def test_a_shifted_photograph_is_turned_before_it_is_shifted(tmp_path: Path) -> None:
    turned_jpeg(tmp_path / "one.jpg", 6)
    record = open_photos(tmp_path)[0]
    shifted = shift_record(record, Shift("mine-c", "c", Condition("brightness", 1)))
    assert shifted.image().shape == record.image().shape == (96, 64, 3)
