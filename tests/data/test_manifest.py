"""Written suites are compared with their checksums: damage is named, made good, and never blessed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data import manifest as manifests
from gramloop.data.manifest import CHECKSUMS, damaged_files, read_manifest
from gramloop.data.opening import OpenSuite, ReadOptions, open_suite
from gramloop.data.writing import write_suite
from gramloop.errors import GramLoopError
from small_sets import write_semantic

ASKED = {"conditions": ["contrast", "pixelate"], "severities": [1]}


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write_semantic(tmp_path / "clean", 3)


@pytest.fixture
def opened(clean: Path) -> OpenSuite:
    return open_suite("mine-c", clean, **ASKED)


@pytest.fixture
def written(opened: OpenSuite, tmp_path: Path) -> Path:
    write_suite(opened, tmp_path / "out", workers=1)
    return tmp_path / "out"


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def swap(folder: Path) -> tuple[Path, Path]:
    """Two images of a condition change places: same names, same sizes together."""
    one, two = sorted((folder / "contrast/1/images/validation").glob("*.png"))[:2]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return one, two


def turn_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_an_image_swapped_in_a_finished_set_is_named_and_made_again(opened, written, capsys):
    whole = files(written)
    one, two = swap(written)
    asked = [
        "corrupt",
        str(opened.root),
        str(written),
        "--suite",
        "mine-c",
        "--workers",
        "1",
        "--severity",
        "1",
    ]
    assert main([*asked, "--condition", "contrast", "--condition", "pixelate"]) == 0
    said = capsys.readouterr().err
    assert f"made again, since it was not what had been written: {one}" in said
    assert str(two) in said
    assert files(written) == whole


@pytest.mark.parametrize("part", ["images", "annotations"])
def test_damage_is_not_blessed_where_the_checksum_file_is_gone(opened, written, part: str):
    whole = files(written)
    victim = next((written / "pixelate/1" / part).rglob("*.png"))
    turn_one_bit(victim)
    (written / "pixelate/1" / CHECKSUMS).unlink()
    outcome = write_suite(opened, written, workers=1)
    assert outcome.replaced == [str(victim)]
    assert files(written) == whole


def test_a_file_of_an_unfinished_condition_is_kept_only_if_it_is_as_it_was_written(opened, written):
    whole = files(written)
    folder = written / "contrast/1"
    content = json.loads((written / "manifest.json").read_text())
    del content["conditions"]["contrast/1"], content["sizes"]["contrast/1"]
    (written / "manifest.json").write_text(json.dumps(content))
    lines = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
    torn = "".join(line for line in lines if "images" in line)[:-20]  # the last line is incomplete
    (folder / CHECKSUMS).write_text(torn)
    images = sorted((folder / "images/validation").glob("*.png"))
    shutil.copy(images[1], images[0])
    outcome = write_suite(opened, written, workers=1)
    assert outcome.replaced == [str(images[0])]
    assert (outcome.made, outcome.found) == (1, 2)
    assert files(written) == whole


def test_a_clean_set_of_other_pixels_in_files_of_equal_size_is_refused(clean: Path, opened, written):
    before = files(written)
    victim = clean / "annotations/validation/scene_001.png"
    turn_one_bit(victim)
    again = open_suite("mine-c", clean, conditions=["fog"], severities=[1])
    with pytest.raises(GramLoopError, match="was made from other images or annotations"):
        write_suite(again, written, workers=1)
    assert files(written) == before


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_a_suite_with_swapped_images_is_not_read(written: Path, verify: str):
    one, _ = swap(written)
    with pytest.raises(GramLoopError, match=f"{one} is not what was written"):
        open_suite("mine-c", written, **ASKED, options=ReadOptions(verify=verify))
    open_suite("mine-c", written, **ASKED, options=ReadOptions(verify="none"))


def test_a_suite_without_its_checksums_is_not_read(written: Path):
    (written / "contrast/1" / CHECKSUMS).unlink()
    with pytest.raises(GramLoopError, match=r"contrast/1/checksums\.sha256 is missing, so that damage"):
        open_suite("mine-c", written, **ASKED)


def test_checksums_alone_are_enough_to_compare(written: Path):
    (written / "manifest.json").unlink()
    open_suite("mine-c", written, **ASKED)
    swap(written)
    with pytest.raises(GramLoopError, match="is not what was written"):
        open_suite("mine-c", written, **ASKED)


def test_a_quick_look_sees_sizes_and_samples_and_a_full_one_every_file(written: Path, monkeypatch):
    monkeypatch.setattr(manifests, "SAMPLE", 1)
    folder, manifest = written / "contrast/1", read_manifest(written)
    assert manifest is not None
    size = manifest.sizes["contrast/1"]
    listed = [line.split("  ")[1] for line in (folder / CHECKSUMS).read_text().splitlines()]
    assert size == sum((folder / name).stat().st_size for name in listed)
    victim = sorted((folder / "images/validation").glob("*.png"))[2]
    monkeypatch.setattr(
        manifests.random, "sample", lambda files, many: [each for each in files if each != victim][:many]
    )
    turn_one_bit(victim)
    assert damaged_files(folder, size, full=False) == []  # the sample missed it
    assert damaged_files(folder, size, full=True) == [victim]
    victim.write_bytes(victim.read_bytes() + b"\0")
    assert damaged_files(folder, size, full=False) == [victim]  # its size tells
    victim.unlink()
    assert damaged_files(folder, None, full=False) == [victim]


def test_each_image_of_a_written_suite_is_compared_as_it_is_read(written: Path):
    """What a quick look misses is refused when an evaluation comes to it."""
    from gramloop.data.checks import ChangedFileError, with_contents
    from gramloop.tasks.base import read_labelled

    suite = open_suite("mine-c", written, **ASKED)
    condition = suite.conditions[0]
    data, whole = with_contents(suite.open(condition), 3, suite.listed(condition))
    hashed, same = with_contents(suite.open(condition), 3)
    assert whole == same
    assert [one.content for one in data] == [one.content for one in hashed]
    one, _ = swap(written)
    with pytest.raises(ChangedFileError, match=str(one)):
        read_labelled(data[0], "semantic")


def test_evaluate_refuses_a_damaged_suite_before_it_writes(written: Path, tmp_path: Path, capsys):
    pytest.importorskip("transformers")
    images = sorted((written / "contrast/1/images/validation").glob("*.png"))
    Image.fromarray(np.zeros((96, 128, 3), np.uint8)).save(images[0])
    asked = [
        "evaluate",
        "--suite",
        "mine-c",
        "--data",
        str(written),
        "--condition",
        "contrast",
        "--severity",
        "1",
    ]
    assert main([*asked, "--verify", "--truth", "labels", "--out", str(tmp_path / "results")]) == 2
    assert f"{images[0]} is not what was written, by its checksum" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
