import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from gramloop.errors import GramLoopError
from gramloop.tasks.base import task_of
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import find_images
from gramloop.tasks.semantic import labels_png


@pytest.fixture
def folder(tmp_path):
    for name in (
        "b.jpg",
        "a.png",
        "inner/c.JPEG",
        "notes.txt",
        ".hidden.png",
        "a.baseline.png",
        "a.mitigated.png",
        "a.diagnosis.png",
        "a.picture.png",
    ):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"")
    return tmp_path / "in"


def names(files, root):
    return [str(file.target.relative_to(root)) for file in files]


def test_a_folder_stands_for_the_images_below_it(folder):
    files = find_images([str(folder)], Path("out"))
    assert [file.path.name for file in files] == ["a.png", "b.jpg", "c.JPEG"]
    assert names(files, "out") == ["a", "b", "inner/c"]
    assert files[2].result("mitigated", ".json") == Path("out/inner/c.mitigated.json")


def test_files_and_globs_and_no_image_twice(folder):
    files = find_images(
        [str(folder / "b.jpg"), str(folder / "*.*"), str(folder / "missing.png")], Path("out")
    )
    assert names(files, "out") == ["b", "a", "missing"]
    assert names(find_images([str(folder / "**" / "c*")], Path("out")), "out") == ["c"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    (tmp_path / "a[1].png").write_bytes(b"")
    (tmp_path / "a1.png").write_bytes(b"")
    assert names(find_images([str(tmp_path / "a[1].png")], Path("out")), "out") == ["a[1]"]


def test_results_that_would_overwrite_each_other_are_refused(folder):
    (folder / "inner" / "b.png").write_bytes(b"")
    with pytest.raises(GramLoopError, match=r"b\.jpg and .*b\.png would both be written"):
        find_images([str(folder / "b.jpg"), str(folder / "inner" / "b.png")], Path("out"))


def test_nothing_found_is_said(tmp_path):
    with pytest.raises(GramLoopError, match="holds no images"):
        find_images([str(tmp_path)], Path("out"))
    with pytest.raises(GramLoopError, match="no image matches"):
        find_images([str(tmp_path / "*.png")], Path("out"))


@pytest.mark.parametrize(("top", "mode"), [(255, "L"), (256, "I;16")])
def test_label_maps_come_back(top, mode):
    labels = np.random.default_rng(0).integers(0, top + 1, (20, 30))
    labels[0, 0] = top
    image = Image.open(io.BytesIO(labels_png(labels)))
    assert image.mode == mode
    assert np.array_equal(np.asarray(image), labels)


def test_detections_are_results_that_coco_s_own_tools_read(tmp_path):
    annotations = COCO()
    annotations.dataset = {
        "info": {},
        "images": [{"id": 139, "width": 100, "height": 80}],
        "categories": [{"id": 3, "name": "car"}, {"id": 90, "name": "toothbrush"}],
        "annotations": [],
    }
    annotations.createIndex()
    boxes = np.array([[1.5, 2, 11.5, 22], [0, 0, 100, 80]], np.float32)
    data = _coco(Path("x/000000000139.jpg"), Detection(boxes, np.array([0.9, 0.25]), np.array([3, 90])))
    (tmp_path / "results.json").write_bytes(data)
    results = annotations.loadRes(str(tmp_path / "results.json"))
    found = results.loadAnns(results.getAnnIds(imgIds=[139]))
    assert [each["bbox"] for each in found] == [[1.5, 2, 10, 20], [0, 0, 100, 80]]
    assert [(each["category_id"], each["score"]) for each in found] == [(3, 0.9), (90, 0.25)]
    assert (
        json.loads(_coco(Path("cat.jpg"), Detection(boxes[:1], np.ones(1), np.ones(1))))[0]["image_id"]
        == "cat"
    )
    assert json.loads(_coco(Path("cat.jpg"), Detection(boxes[:0], np.ones(0), np.ones(0)))) == []


def _coco(image: Path, found: Detection) -> bytes:
    return task_of(found).files(found, image, image.stem, {})[".json"]
