"""Sets of images and label pictures: what is read, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gramloop.data.folders import ade20k_classes, open_semantic, read_class_list
from gramloop.data.opening import ReadOptions, open_set
from gramloop.data.truth import ClassList, read_label_values
from gramloop.errors import GramLoopError
from small_sets import write_semantic


def test_records_hold_what_the_files_hold(tmp_path):
    data = open_semantic(write_semantic(tmp_path, 3))
    assert [record.image_id for record in data] == ["scene_000", "scene_001", "scene_002"]
    assert data.categories == {0: "sky", 1: "road", 2: "car"}
    record = data[1]
    with Image.open(record.path) as picture:
        assert np.array_equal(record.image(), np.asarray(picture.convert("RGB")))
    raw = read_label_values(record.label_path)
    assert np.array_equal(record.labels(), np.where(raw == 0, 255, raw - 1))
    assert record.labels().dtype == np.uint8


def test_ade20k_is_found_below_its_usual_folder_and_counts_150_classes(tmp_path):
    root = write_semantic(tmp_path / "ADEChallengeData2016", 2, classes=None, top=150)
    data = open_semantic(tmp_path, classes=ade20k_classes(tmp_path))
    assert data.root == root
    assert len(data.categories) == 150
    with pytest.raises(GramLoopError, match="holds 2 images, not 2000"):
        open_set("ade20k", tmp_path, ReadOptions())


def test_sets_without_splits_or_with_folders_of_their_own_are_opened_whole(tmp_path):
    write_semantic(tmp_path / "cities", 2)
    for kind in ("images", "annotations"):
        (tmp_path / "cities" / kind / "validation").rename(tmp_path / "cities" / kind / "zurich")
    data = open_semantic(tmp_path / "cities")
    assert [record.image_id for record in data] == ["zurich/scene_000", "zurich/scene_001"]
    assert data[0].name == "zurich/scene_000.jpg"
    for kind in ("images", "annotations"):
        for path in (tmp_path / "cities" / kind / "zurich").iterdir():
            path.rename(path.parent.parent / path.name)
        (tmp_path / "cities" / kind / "zurich").rmdir()
    assert len(open_semantic(tmp_path / "cities")) == 2
    with pytest.raises(
        GramLoopError, match="no split 'val' with images and labels; images/ holds no subfolders"
    ):
        open_semantic(tmp_path / "cities", split="val")


def test_ade20k_names_come_from_its_own_table(tmp_path):
    write_semantic(tmp_path, 1, classes=None)
    rows = "".join(f"{n}\t0.1\t10\t1\tname {n}, other\n" for n in range(1, 151))
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tTrain\tVal\tName\n" + rows)
    assert ade20k_classes(tmp_path).names[149] == "name 150, other"
    assert open_semantic(tmp_path).categories[0] == "name 1, other"


def test_class_lists_may_number_their_lines(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("# street\n0 road\n7 car\n\n33 traffic light\n")
    classes = read_class_list(file)
    assert classes == ClassList(("road", "car", "traffic light"), (0, 7, 33))
    mapped = classes.to_indices(np.array([[0, 7], [33, 255]]), file)
    assert mapped.tolist() == [[0, 1], [2, 255]]
    assert classes.ignored_value == 255  # 0 is a class here


@given(st.sets(st.integers(0, 400), min_size=1, max_size=300), st.randoms())
def test_label_values_survive_the_way_there_and_back(values, random):
    ordered = sorted(values)
    random.shuffle(ordered)
    classes = ClassList(tuple(f"class {value}" for value in ordered), tuple(ordered))
    raw = np.array([[*ordered, classes.ignored_value]])
    indices = classes.to_indices(raw, "labels.png")
    assert indices[0, :-1].tolist() == list(range(len(ordered)))
    assert indices[0, -1] == classes.ignored
    assert np.array_equal(classes.to_values(indices), raw)


def test_palettes_and_sixteen_bits_are_read_as_numbers(tmp_path):
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    palette = Image.fromarray(numbers).convert("P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    palette.save(tmp_path / "palette.png")
    Image.fromarray(numbers.astype(np.uint16) * 1000).save(tmp_path / "deep.png")
    assert np.array_equal(read_label_values(tmp_path / "palette.png"), numbers)
    assert np.array_equal(read_label_values(tmp_path / "deep.png"), numbers.astype(int) * 1000)


def test_everything_wrong_is_told_in_one_error(tmp_path):
    write_semantic(tmp_path, 6)
    images, labels = tmp_path / "images/validation", tmp_path / "annotations/validation"
    (labels / "scene_000.png").unlink()
    (images / "scene_001.jpg").unlink()
    (images / "scene_002.jpg").write_bytes(b"not a picture")
    Image.new("RGB", (128, 96)).save(labels / "scene_003.png")
    Image.new("L", (64, 96)).save(labels / "scene_004.png")
    with pytest.raises(GramLoopError) as caught:
        open_semantic(tmp_path)
    message = str(caught.value)
    assert "5 things are wrong" in message
    assert "scene_000.jpg has no label picture" in message
    assert "scene_001.png has no image" in message
    assert "scene_002.jpg cannot be read: it is not a picture" in message
    assert "scene_003.png is a RGB picture" in message
    assert "scene_004.png is 64 x 96, but its image is 128 x 96" in message


def test_a_truncated_image_passes_by_its_header_and_is_found_when_it_is_read(tmp_path):
    write_semantic(tmp_path, 2)
    victim = tmp_path / "images/validation/scene_001.jpg"
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    data = open_semantic(tmp_path)
    with pytest.raises(GramLoopError, match=r"cannot decode the image .*scene_001.jpg"):
        data[1].image()


def test_only_the_first_problems_are_listed(tmp_path):
    write_semantic(tmp_path, 15)
    for label in (tmp_path / "annotations/validation").iterdir():
        label.unlink()
    with pytest.raises(GramLoopError) as caught:
        open_semantic(tmp_path)
    assert str(caught.value).count("\n") == 11
    assert str(caught.value).endswith("… and 5 more")


def test_strange_label_values_and_missing_class_lists_are_named(tmp_path):
    write_semantic(tmp_path, 1, classes="sky\nroad\n", top=3)
    record = open_semantic(tmp_path)[0]
    with pytest.raises(
        GramLoopError, match=r"scene_000.png holds the label value 3, .*names 2 values in 1..2"
    ):
        record.labels()
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(GramLoopError, match=r"classes.txt is missing: it lists the class names"):
        open_semantic(tmp_path)
    with pytest.raises(
        GramLoopError, match="has no split 'test' with images and labels; images/ holds validation"
    ):
        open_semantic(tmp_path, split="test", classes=ClassList.numbered_from_one(["a"]))
    with pytest.raises(GramLoopError, match="has no instances"):
        record.instances()
