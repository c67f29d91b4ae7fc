"""COCO-format sets: what is read, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from gramloop.data.coco import COCO_CATEGORY_IDS, open_coco
from gramloop.data.opening import ReadOptions, open_set
from gramloop.errors import GramLoopError
from small_sets import COCO_IDS, coco_content, write_coco


def rewrite(root, content):
    (root / "annotations/instances_val2017.json").write_text(json.dumps(content))


def test_instances_agree_with_pycocotools(tmp_path, capsys):
    root = write_coco(tmp_path, coco_content(4))
    data = open_coco(root)
    oracle = COCO(str(root / "annotations/instances_val2017.json"))
    capsys.readouterr()
    assert [record.image_id for record in data] == oracle.getImgIds()
    assert data.categories == {entry["id"]: entry["name"] for entry in oracle.loadCats(oracle.getCatIds())}
    for record in data:
        entries = oracle.loadAnns(oracle.getAnnIds(record.image_id))
        found = record.instances()
        assert found.ids.tolist() == [entry["id"] for entry in entries]
        assert found.boxes.tolist() == [entry["bbox"] for entry in entries]
        assert found.categories.tolist() == [entry["category_id"] for entry in entries]
        assert found.areas.tolist() == [entry["area"] for entry in entries]
        assert not found.iscrowd.any()
        assert record.image().shape == (96, 128, 3)


def test_the_eighty_ids_of_coco():
    assert len(COCO_CATEGORY_IDS) == 80
    assert sorted(COCO_CATEGORY_IDS) == COCO_IDS


def test_annotation_id_zero_is_renumbered_with_a_note(tmp_path):
    content = coco_content(2)
    content["annotations"][2]["id"] = 0
    data = open_coco(write_coco(tmp_path, content))
    assert data[1].instances().ids.tolist() == [5, 4]
    assert len(data.notes) == 1
    assert "id 0 was renumbered to 5" in data.notes[0]


def test_an_image_without_objects_has_no_rows(tmp_path):
    content = coco_content(1)
    content["annotations"] = []
    instances = open_coco(write_coco(tmp_path, content))[0].instances()
    assert len(instances) == 0
    assert instances.boxes.shape == (0, 4)


def test_everything_wrong_is_told_in_one_error(tmp_path):
    content = coco_content(6)
    root = write_coco(tmp_path, content)
    entries = content["annotations"]
    entries[2]["category_id"] = 12
    entries[3]["image_id"] = 999
    entries[4]["id"] = entries[5]["id"]
    content["images"][3]["width"] = 130
    rewrite(root, content)
    (root / "val2017/000004.jpg").unlink()
    (root / "val2017/000005.jpg").write_bytes(b"")
    with pytest.raises(GramLoopError) as caught:
        open_coco(root)
    message = str(caught.value)
    assert "6 things are wrong" in message
    for part in (
        "annotation 3 has category 12, which is not listed",
        "an annotation belongs to image 999, which is not listed",
        "annotation 6 occurs 2 times",
        "is 128 x 96, but its annotation says 130 x 96",
        "000004.jpg is missing",
        "000005.jpg cannot be read",
    ):
        assert part in message


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("iscrowd", "0", "iscrowd: expected `int`"),
        ("iscrowd", 2, "iscrowd: invalid"),
        ("iscrowd", None, "iscrowd: expected `int`"),
        ("area", None, "area: expected `float`"),
        ("area", "big", "area: expected `float`, got `str`"),
        ("area", NAN, "area: expected `float`"),
        ("area", INFINITE, "area: expected `float`"),
        ("area", -1, "area: expected `float` >= 0"),
        ("bbox", [1, 2, 3], "bbox: expected `array` of length 4"),
        ("bbox", [1, 2, 3, "4"], "bbox[3]: expected `float`"),
        ("bbox", [1, 2, 3, INFINITE], "bbox[3]: expected `float`"),
        ("bbox", {"x": 1}, "bbox: expected `array`"),
        ("id", "2", "id: expected `int`"),
        ("id", True, "id: expected `int`"),
        ("id", 2**70, "id: "),
        ("image_id", [100], "image_id: expected `int`"),
        ("category_id", 1.5, "category_id: expected `int`"),
        ("segmentation", [[1, 2, 3, 4, 5]], "segmentation[0]: expected `array` of length >= 6"),
        ("segmentation", [[]], "segmentation[0]: expected `array` of length >= 6"),
        ("segmentation", "polygon", "segmentation: expected"),
        ("segmentation", [1, 2, 3, 4], "segmentation[0]: expected `array`, got `int`"),
        ("segmentation", [[1, 2, 3, 4, 5, NAN]], "segmentation[0][5]: expected `float`"),
        ("segmentation", [[1, 2, 3, 4, 5, "6"]], "segmentation[0][5]: expected `float`, got `str`"),
        ("segmentation", {"counts": 5, "size": [96, 128]}, "segmentation.counts: expected"),
        ("segmentation", {"counts": [5]}, "missing required field `size`"),
        ("segmentation", {"counts": [-5, 5], "size": [96, 128]}, "segmentation.counts[0]"),
    ],
)
def test_fields_that_a_metric_reads_are_checked(tmp_path, field, value, sentence):
    content = coco_content(1)
    content["annotations"][1][field] = value
    with pytest.raises(GramLoopError) as caught:
        open_coco(write_coco(tmp_path, content))
    assert sentence in str(caught.value)
    assert "annotations[1]" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (
            "bbox",
            [200, 10, 5, 5],
            "has the box [200, 10, 5, 5], which lies outside its image of 128 x 96",
        ),
        ("segmentation", [[1, 2, 3, 4, 5, 6, 7]], "has a polygon of 7 numbers"),
        (
            "segmentation",
            {"counts": [5, 5], "size": [96, 128]},
            "has run lengths that add up to 10, not to 96 x 128",
        ),
        (
            "segmentation",
            {"counts": "~!", "size": [96, 128]},
            "has a segmentation that cannot be read: invalid RLE",
        ),
        (
            "segmentation",
            {"counts": "N2", "size": [96, 128]},
            "has a segmentation that cannot be read: invalid RLE: negative count",
        ),
        (
            "segmentation",
            {"counts": [96 * 128], "size": [128, 96]},
            "has run lengths of 96 x 128 pixels, but its image is 128 x 96",
        ),
    ],
)
def test_objects_that_do_not_fit_their_image(tmp_path, field, value, sentence):
    content = coco_content(1)
    content["annotations"][1][field] = value
    with pytest.raises(GramLoopError) as caught:
        open_coco(write_coco(tmp_path, content))
    assert f"annotation 2 {sentence}" in str(caught.value)


def test_what_may_be_left_out(tmp_path):
    content = coco_content(1)
    for field in ("area", "iscrowd", "segmentation"):
        del content["annotations"][1][field]
    for field in ("width", "height"):
        del content["images"][0][field]
    del content["categories"][0]["name"]
    root = write_coco(tmp_path, coco_content(1))
    rewrite(root, content)
    found = open_coco(root)
    assert found[0].instances().areas.tolist() == [2000, 108]
    assert found.categories[1] == "1"


@pytest.mark.parametrize(
    ("what", "field", "value"),
    [
        ("images", "id", "100"),
        ("images", "width", "128"),
        ("images", "width", 0),
        ("images", "file_name", 5),
        ("images", "file_name", ""),
        ("categories", "id", None),
        ("categories", "name", 5),
    ],
)
def test_images_and_categories_are_checked(tmp_path, what, field, value):
    content = coco_content(1)
    root = write_coco(tmp_path, content)
    content[what][0][field] = value
    rewrite(root, content)
    with pytest.raises(GramLoopError, match=rf"{what}\[0\]\.{field}: "):
        open_coco(root)


@pytest.mark.parametrize("entry", [5, None, [], "x"])
def test_entries_that_are_no_objects(tmp_path, entry):
    content = coco_content(1)
    content["annotations"].append(entry)
    with pytest.raises(GramLoopError, match=r"annotations\[2\]: expected `object`"):
        open_coco(write_coco(tmp_path, content))


def test_public_counts_and_categories_are_insisted_on(tmp_path):
    content = coco_content(2)
    content["categories"].append({"id": 12, "name": "street sign"})
    with pytest.raises(GramLoopError) as caught:
        open_set("coco", write_coco(tmp_path, content), ReadOptions())
    message = str(caught.value)
    assert "it holds 2 images, not 5000" in message
    assert "it holds 4 objects, not 36781" in message
    assert "not COCO's 80 (lacking [], unknown [12])" in message


def test_a_turned_image_is_explained(tmp_path):
    root = write_coco(tmp_path, coco_content(1))
    turned = Image.fromarray(np.zeros((128, 96, 3), dtype=np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(root / "val2017/000000.jpg", exif=exif)
    with pytest.raises(
        GramLoopError, match=r"96 x 128, but its annotation says 128 x 96 .*EXIF tag rotates it"
    ):
        open_coco(root)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON"),
        ("[]", "in COCO format, with images, annotations and categories: expected `object`"),
        ('{"images": []}', "missing required field `annotations`|images: expected `array`"),
        ('{"images": [], "annotations": [], "categories": []}', "images: expected `array` of length >= 1"),
    ],
)
def test_files_that_are_not_coco(tmp_path, text, sentence):
    root = write_coco(tmp_path, coco_content(1))
    (root / "annotations/instances_val2017.json").write_text(text)
    with pytest.raises(GramLoopError, match=sentence):
        open_coco(root)


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    content = coco_content(1)
    root = write_coco(tmp_path, content)
    content["images"][0]["file_name"] = "../../secret.jpg"
    rewrite(root, content)
    with pytest.raises(GramLoopError, match="leads out of the folder"):
        open_coco(root)


def test_other_splits_and_places_are_found(tmp_path):
    data = open_coco(write_coco(tmp_path / "a" / "coco", coco_content(1), split="test"))
    assert open_coco(tmp_path / "a")[0].path == data[0].path
    (tmp_path / "a/coco/test").rename(tmp_path / "elsewhere")
    with pytest.raises(GramLoopError, match=r"were not found; searched in .*coco/test"):
        open_coco(tmp_path / "a")
    with pytest.raises(GramLoopError, match="has no COCO annotations"):
        open_coco(tmp_path / "elsewhere")
