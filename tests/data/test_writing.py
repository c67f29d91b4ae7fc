"""Suites on disk: what is read back is what would have been generated."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from gramloop.data import writing
from gramloop.data.checks import with_contents
from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.records import ChangedFileError, refuse_change
from gramloop.data.suites import Condition
from gramloop.data.writing import write_suite
from gramloop.errors import GramLoopError
from gramloop.util.files import locked
from small_sets import coco_content, write_coco, write_semantic

PART = ReadOptions(partial=True)


def assert_same(expected, found):
    assert len(expected) == len(found)
    assert expected.categories == found.categories
    for one, two in zip(expected, found, strict=True):
        assert one.image_id == two.image_id
        assert (one.height, one.width) == (two.height, two.width)
        assert np.array_equal(one.image(), two.image())
        if expected.task == "semantic":
            assert np.array_equal(one.labels(), two.labels())
        else:
            assert json.dumps(one.coco_entries()) == json.dumps(two.coco_entries())


CASES = [
    ("coco-p", ["fog", "rotate", "shear"], "png"),
    ("coco-p", ["contrast", "translate"], "jpg"),
    ("coco-c", ["impulse_noise", "frost"], "png"),
    ("mine-p", ["snow", "rotate"], "png"),
    ("mine-c", ["glass_blur", "spatter"], "jpg"),
]


@pytest.mark.parametrize(("suite", "names", "encoding"), CASES)
@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_reading_back_gives_the_generated_records(tmp_path, suite, names, encoding, task):
    source, target = tmp_path / "clean", tmp_path / "shifted"
    if task == "detection":
        content = coco_content(3)
        content["annotations"][4]["id"] = 0
        content["annotations"].reverse()
        write_coco(source, content)
    else:
        suite = suite.replace("coco", "ade20k")
        numbered = suite.startswith("mine")  # 0 is a class here, so the unseen must be filled with 255
        write_semantic(source, 3, classes="0 other\n1 sky\n2 road\n3 car\n" if numbered else None)
    asked = {"conditions": names, "severities": [2, 5], "options": PART}
    generated = open_suite(suite, source, encoding=encoding, **asked)
    outcome = write_suite(generated, target, workers=1)
    assert (outcome.made, outcome.found, outcome.failures) == (6 * len(names), 0, [])
    read = open_suite(suite, target, **asked)
    assert read.clean is None
    for condition, expected in generated:
        assert_same(expected, read.open(condition))


def test_the_layout_is_that_of_the_released_sets_and_checksums_check(tmp_path):
    write_coco(tmp_path / "clean", coco_content(2))
    opened = open_suite("coco-p", tmp_path / "clean", conditions=["fog"], severities=[4], options=PART)
    write_suite(opened, tmp_path / "out", workers=1)
    files = {
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert files == {
        ".lock",
        "manifest.json",
        "fog/4/checksums.sha256",
        "fog/4/coco/annotations/instances_val2017.json",
        "fog/4/coco/val2017/000000.png",
        "fog/4/coco/val2017/000001.png",
    }
    subprocess.run(
        ["sha256sum", "--check", "--strict", "checksums.sha256"], cwd=tmp_path / "out/fog/4", check=True
    )
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["packages, which decide the pixels"]["numpy"] == np.__version__


def test_processes_and_order_do_not_change_a_byte(tmp_path):
    write_semantic(tmp_path / "clean", 11)
    for target, workers, names in (("one", 1, ["fog", "rotate"]), ("two", 2, ["rotate", "fog"])):
        opened = open_suite("mine-p", tmp_path / "clean", conditions=names, severities=[3])
        write_suite(opened, tmp_path / target, workers=workers)
    for name in ("manifest.json", "fog/3/checksums.sha256", "rotate/3/checksums.sha256"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_set_grows_by_conditions_and_what_is_missing_is_made(tmp_path):
    write_semantic(tmp_path / "clean", 2)
    asked = {"conditions": ["brightness", "pixelate"], "severities": [1]}
    write_suite(open_suite("mine-c", tmp_path / "clean", **asked), tmp_path / "whole", workers=1)
    target = tmp_path / "parts"
    for name in asked["conditions"]:
        write_suite(
            open_suite("mine-c", tmp_path / "clean", conditions=[name], severities=[1]), target, workers=1
        )
    opened = open_suite("mine-c", tmp_path / "clean", **asked)
    again = write_suite(opened, target, workers=1)
    assert (again.made, again.skipped) == (0, list(opened.conditions))
    (target / "pixelate/1/checksums.sha256").unlink()
    victim = next((target / "pixelate/1/images").rglob("*.png"))
    victim.unlink()
    (victim.parent / ".gramloop-1-left.png").write_bytes(b"half")
    repaired = write_suite(opened, target, workers=1)
    assert (repaired.made, repaired.found) == (1, 1)
    assert not list(target.rglob(".gramloop-*"))
    for path in (tmp_path / "whole").rglob("*.*"):
        assert (
            path.name == ".lock"
            or path.read_bytes() == (target / path.relative_to(tmp_path / "whole")).read_bytes()
        )


def test_a_target_made_otherwise_is_refused(tmp_path, monkeypatch):
    clean = write_semantic(tmp_path / "clean", 1)
    target = tmp_path / "out"

    def write(suite="mine-c", names=("contrast",), **more):
        opened = open_suite(suite, clean, conditions=list(names), severities=[1], **more)
        return write_suite(opened, target, workers=1)

    write()
    with pytest.raises(GramLoopError, match="was made with the suite mine-c, not mine-p"):
        write("mine-p")
    with pytest.raises(GramLoopError, match="was made with the image format png, not jpg"):
        write(encoding="jpg")
    with monkeypatch.context() as patch:
        patch.setattr(writing, "RECIPE_VERSION", 999)
        with pytest.raises(GramLoopError, match="was made with the recipe version 1, not 999"):
            write()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "package_versions", lambda: {"numpy": "9.9"})
        with pytest.raises(GramLoopError, match=r"was made with the packages.* numpy = .*, not 9.9"):
            write()
    image = clean / "images/validation/scene_000.jpg"
    image.write_bytes(image.read_bytes() + b" ")
    with pytest.raises(GramLoopError, match="was made with the checksum of the clean set"):
        write()


def test_targets_that_are_not_ours_are_left_alone(tmp_path):
    clean = write_semantic(tmp_path / "clean", 1)
    opened = open_suite("mine-c", clean, conditions=["contrast"], severities=[1])
    with pytest.raises(GramLoopError, match="lies in the source"):
        write_suite(opened, clean / "out", workers=1)
    assert not (clean / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("mine")
    with pytest.raises(GramLoopError, match=r"is not empty and has no manifest.json"):
        write_suite(opened, tmp_path / "full", workers=1)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(GramLoopError, match="cannot write to"):
        write_suite(opened, tmp_path / "file", workers=1)
    with locked(tmp_path / "busy"), pytest.raises(GramLoopError, match="another gramloop is writing"):
        write_suite(opened, tmp_path / "busy", workers=1)
    with pytest.raises(GramLoopError, match="at least 1, not 0"):
        write_suite(opened, tmp_path / "new", workers=0)


def test_an_unreadable_image_fails_alone_and_its_condition_stays_open(tmp_path):
    clean = write_semantic(tmp_path / "clean", 3)
    whole = (clean / "images/validation/scene_001.jpg").read_bytes()
    (clean / "images/validation/scene_001.jpg").write_bytes(whole[: len(whole) // 2])
    opened = open_suite("mine-c", clean, conditions=["contrast"], severities=[1])
    outcome = write_suite(opened, tmp_path / "out", workers=1)
    assert outcome.made == 2
    assert len(outcome.failures) == 1
    assert "contrast/1: cannot decode the image" in outcome.failures[0]
    with pytest.raises(GramLoopError, match="contrast/1 is not finished"):
        open_suite("mine-c", tmp_path / "out", conditions=["contrast"], severities=[1])
    with pytest.raises(GramLoopError, match="holds the suite mine-c, not mine-p"):
        open_suite("mine-p", tmp_path / "out", conditions=["contrast"], severities=[1])
    (clean / "images/validation/scene_001.jpg").write_bytes(whole)
    repaired = open_suite("mine-c", clean, conditions=["contrast"], severities=[1])
    with pytest.raises(GramLoopError, match="was made with the checksum of the clean set"):
        write_suite(repaired, tmp_path / "out", workers=1)
    assert write_suite(repaired, tmp_path / "new", workers=1).failures == []


def test_a_place_that_cannot_be_written_ends_the_run(tmp_path):
    clean = write_semantic(tmp_path / "clean", 3)
    opened = open_suite("mine-c", clean, conditions=["contrast"], severities=[1])
    write_suite(opened, tmp_path / "out", workers=1)
    shutil.rmtree(tmp_path / "out/contrast/1")
    (tmp_path / "out/contrast/1").write_text("in the way")
    with pytest.raises(GramLoopError, match=r"cannot write to the folder .*contrast/1"):  # not three failures
        write_suite(opened, tmp_path / "out", workers=1)


def test_names_that_would_fall_together_are_refused(tmp_path):
    content = coco_content(2)
    content["images"][1]["file_name"] = "000000.jpeg"
    clean = write_coco(tmp_path / "clean", content)
    opened = open_suite("mine-c", clean, conditions=["fog"], severities=[1])
    with pytest.raises(GramLoopError, match=r"would both become 000000.png"):
        write_suite(opened, tmp_path / "out", workers=1)
    folders = replace(opened, clean=None)
    with pytest.raises(GramLoopError, match="a clean set is needed"):
        write_suite(folders, tmp_path / "out", workers=1)
    assert Condition("fog", 1) in opened.conditions


def test_damage_in_a_written_suite_is_found_as_an_image_is_read(tmp_path):
    clean, out = write_semantic(tmp_path / "clean", 3), tmp_path / "out"
    asked = {"conditions": ["contrast"], "severities": [1]}
    write_suite(open_suite("mine-c", clean, **asked), out, workers=1)
    suite = open_suite("mine-c", out, **asked)
    data = suite.open(suite.conditions[0])
    without = replace(data, records=tuple(replace(record, content=()) for record in data))
    assert with_contents(data, 3) == with_contents(without, 3)
    one, two = sorted((out / "contrast/1/images/validation").glob("*.png"))[:2]
    shutil.copy(two, one)
    with pytest.raises(ChangedFileError, match=str(one)):
        refuse_change(data[0])
    (out / "contrast/1/checksums.sha256").unlink()
    with pytest.raises(GramLoopError, match="contrast/1 is not finished"):
        open_suite("mine-c", out, **asked)
