"""Images without labels: any folder is a set, and a labelled set shows the images that it shows with its labels."""

import numpy as np
import pytest
from PIL import Image

from gramloop.data.folders import open_photos
from gramloop.data.opening import ReadOptions, open_set, open_suite
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from small_sets import coco_content, picture, write_coco, write_semantic

BARE = ReadOptions(task="semantic", labels=False)


def write_photos(folder, names=("b.jpg", "a.PNG", "trip/c.jpeg")):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number, 80, 96)).save(path)
    return folder


def test_every_image_below_a_folder_is_a_record_and_nothing_else(tmp_path):
    write_photos(tmp_path)
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes((tmp_path / "a.PNG").read_bytes())
    found = open_photos(tmp_path, "detection")
    assert [record.image_id for record in found] == ["a", "b", "trip/c"]
    assert found.task == "detection"
    assert not found.categories
    assert np.array_equal(found[1].image(), np.array(Image.open(tmp_path / "b.jpg")))
    with pytest.raises(GramLoopError, match="has no instances"):
        found[0].instances()


def test_two_files_of_one_stem_are_two_images(tmp_path):
    write_photos(tmp_path, ("a.jpg", "a.png", "b.jpg"))
    assert [record.image_id for record in open_photos(tmp_path)] == ["a.jpg", "a.png", "b"]


def test_what_is_no_image_is_refused_by_name(tmp_path):
    with pytest.raises(GramLoopError, match="holds no images"):
        open_photos(tmp_path)
    write_photos(tmp_path)
    (tmp_path / "torn.jpg").write_bytes(b"no picture")
    with pytest.raises(GramLoopError, match=r"torn\.jpg cannot be read: it is not a picture"):
        open_photos(tmp_path)


def test_a_labelled_set_shows_the_same_shifted_images_without_its_labels(tmp_path):
    semantic = write_semantic(tmp_path / "semantic", 3)
    coco = write_coco(tmp_path / "coco", coco_content(2))
    for root, task in ((semantic, "semantic"), (coco, "detection")):
        shown = [
            open_suite(
                "my-c",
                root,
                conditions=["gaussian_noise"],
                severities=[3],
                options=ReadOptions(task=task, labels=labels),
            ).open(Condition("gaussian_noise", 3))
            for labels in (True, False)
        ]
        assert [one.image_id for one in shown[0]] == [one.image_id for one in shown[1]]
        assert np.array_equal(shown[0][1].image(), shown[1][1].image())
    for path in (semantic / "annotations").rglob("*.png"):
        path.write_bytes(b"torn")  # nobody looks
    (semantic / "classes.txt").unlink()
    unlabelled = ReadOptions(task="semantic", labels=False)
    assert len(open_set("mine", semantic, unlabelled)) == 3
    assert len(open_set("mine", coco, unlabelled)) == 2


def test_a_suite_over_photographs(tmp_path):
    opened = open_suite("photos-c", write_photos(tmp_path), severities=[3], options=BARE)
    assert len(opened) == 15
    assert opened.open(Condition("fog", 3))[2].image().shape == (80, 96, 3)
    with pytest.raises(GramLoopError, match="photographs without labels need --truth clean"):
        open_suite("photos-c", tmp_path)
