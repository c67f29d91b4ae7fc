"""The table of suites, and suites opened on folders."""

import json
import pickle
import shutil

import numpy as np
import pytest

from gramloop.data import opening
from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.suites import DOMAINS, SHIFT_GROUPS, SHIFT_KINDS, SUITES, Condition, find_suite
from gramloop.errors import GramLoopError
from gramloop.shifts.recipes import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS
from small_sets import coco_content, write_coco, write_semantic

PART = ReadOptions(partial=True)


def test_the_table_has_the_sizes_of_the_benchmarks():
    sizes = {name: len(suite.conditions) for name, suite in SUITES.items()}
    assert sizes == {
        "ade20k": 1,
        "ade20k-c": 75,
        "ade20k-p": 85,
        "coco": 1,
        "coco-c": 75,
        "coco-p": 85,
        "nyu": 1,
        "nyu-c": 75,
        "nyu-p": 85,
        "kitti": 1,
        "kitti-c": 75,
        "kitti-p": 85,
        "coco-o": 6,
    }
    for suite in SUITES.values():
        assert len({condition.key for condition in suite.conditions}) == len(suite.conditions)


def test_every_shift_belongs_to_exactly_one_group():
    for kind, every in (("c", CORRUPTIONS), ("p", PERTURBATIONS)):
        grouped = [name for group in SHIFT_KINDS for name in SHIFT_GROUPS[kind].get(group, ())]
        assert sorted(grouped) == sorted(every)
        for group in SHIFT_KINDS:
            assert {Condition(name).group for name in SHIFT_GROUPS[kind].get(group, ())} <= {group}
    assert [Condition(name).group for name in EXTRA_CORRUPTIONS] == ["noise", "blur", "weather", "digital"]
    assert {Condition(name).group for name in DOMAINS} == {"domain"}


def test_a_group_stands_for_its_conditions():
    suite = find_suite("coco-c")
    assert suite.select(["noise"], [3]) == suite.select(
        ["impulse_noise", "gaussian_noise", "shot_noise"], [3]
    )
    assert suite.select(["weather", "fog"], [1]) == suite.select(["snow", "frost", "fog", "brightness"], [1])
    assert suite.select(["all"], [1])[-1] == Condition("saturate", 1)
    assert [c.name for c in find_suite("mine-p").select(["geometry"], [2])] == [
        "rotate",
        "translate",
        "shear",
    ]
    assert find_suite("coco-o").select(["weather"]) == (Condition("weather"),), "a domain, and no group there"


def test_a_group_that_is_not_there_is_told():
    with pytest.raises(GramLoopError, match=r"no condition 'nois'; did you mean noise\? it has .*groups "):
        find_suite("coco-c").select(["nois"])
    with pytest.raises(GramLoopError, match="no condition 'geometry'"):
        find_suite("coco-c").select(["geometry"])
    with pytest.raises(GramLoopError, match="no condition 'noise'"):
        find_suite("coco-o").select(["noise"])


def test_own_sets_are_suites_too():
    own = find_suite("my-set-c")
    assert (own.base, own.kind) == ("my-set", "c")
    assert own.conditions == SUITES["coco-c"].conditions
    assert find_suite("my-set-p").conditions == SUITES["ade20k-p"].conditions
    assert find_suite("my-set").conditions == (Condition("clean"),)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("coco-x", "did you mean 'coco-o'|did you mean 'coco-c'|did you mean 'coco-p'"),
        ("ade20-c", "did you mean 'ade20k-c'"),
        ("ADE20k-c", "did you mean 'ade20k-c'"),
        ("a/b-c", "is not a name for a suite"),
        ("", "is not a name for a suite"),
    ],
)
def test_typos_are_no_suites(name, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        find_suite(name)


@pytest.mark.parametrize(
    "name", ["kitti360-c", "my-coco-c", "mycoco-p", "coco2-c", "nyu-depth-c", "ade20k-full-c"]
)
def test_a_custom_set_may_be_called_after_a_public_one(name):
    suite = find_suite(name)
    assert (suite.name, suite.base) == (name, name[:-2])


def test_single_conditions_and_severities():
    suite = SUITES["coco-c"]
    assert suite.select(["fog", "gaussian_noise"], [5, 2, 5]) == (
        Condition("gaussian_noise", 2),
        Condition("gaussian_noise", 5),
        Condition("fog", 2),
        Condition("fog", 5),
    )
    assert len(suite.select(None, [3])) == 15
    assert suite.select(["spatter"], [1]) == (Condition("spatter", 1),)
    assert suite.select(["impulse_noise"], [10]) == (Condition("impulse_noise", 10),)
    assert SUITES["coco-o"].select(["tattoo"]) == (Condition("tattoo"),)
    for names, severities, sentence in (
        (["rain"], None, "has no condition 'rain'; it has gaussian_noise, "),
        (["fgo"], None, r"has no condition 'fgo'; did you mean fog\? it has gaussian_noise, "),
        (None, [0], "severity 0 does not exist"),
    ):
        with pytest.raises(GramLoopError, match=sentence):
            suite.select(names, severities)
    with pytest.raises(GramLoopError, match="has no severities"):
        SUITES["coco-o"].select(None, [1])


def test_a_generated_suite_is_the_same_in_any_order_and_after_pickling(tmp_path):
    opened = open_suite("my-set-c", write_semantic(tmp_path, 3), severities=[3])
    assert len(opened) == 15
    forth = {(condition, index): data[index].image() for condition, data in opened for index in range(3)}
    again = pickle.loads(pickle.dumps(opened))
    for condition, index in reversed(list(forth)):
        assert np.array_equal(again.open(condition)[index].image(), forth[condition, index])
    clean = open_suite("my-set", tmp_path).open(Condition("clean"))
    for (_, index), image in forth.items():
        assert image.shape == clean[index].image().shape
        assert not np.array_equal(image, clean[index].image())


def test_released_perturbation_folders_are_read_as_downloaded(tmp_path):
    for name, severity, count in (("fog", 1, 2), ("rotate", 5, 2)):
        content = coco_content(count)
        if name == "rotate":
            content["annotations"] = content["annotations"][:1]
        write_coco(tmp_path / name / str(severity) / "coco", content)
    opened = open_suite("coco-p", tmp_path, conditions=["fog"], severities=[1], options=PART)
    assert len(opened.open(Condition("fog", 1))[1].instances()) == 2
    turned = open_suite("coco-p", tmp_path, conditions=["rotate"], severities=[5], options=PART)
    assert len(turned.open(Condition("rotate", 5))[1].instances()) == 0
    with pytest.raises(GramLoopError, match="83 things are wrong"):
        open_suite("coco-p", tmp_path, options=PART)
    with pytest.raises(GramLoopError, match="was not opened"):
        opened.open(Condition("fog", 2))


def test_released_ade20k_folders_carry_their_own_labels(tmp_path):
    folder = tmp_path / "shear/2/ade/ADEChallengeData2016"
    write_semantic(folder, 2, classes=None, top=150)
    opened = open_suite("ade20k-p", tmp_path, conditions=["shear"], severities=[2], options=PART)
    record = opened.open(Condition("shear", 2))[0]
    assert record.label_path == folder / "annotations/validation/scene_000.png"
    strict = open_suite("ade20k-p", tmp_path, conditions=["shear"], severities=[2])
    with pytest.raises(GramLoopError, match="holds 2 images, not 2000"):
        strict.open(Condition("shear", 2))


def test_the_domains_of_coco_o_and_their_totals(tmp_path, monkeypatch):
    for domain in DOMAINS:
        write_coco(tmp_path / "ood_coco" / domain, coco_content(2))
    with pytest.raises(GramLoopError, match=r"(?s)holds 12 images, not 6782.*holds 24 objects, not 26624"):
        open_suite("coco-o", tmp_path)
    monkeypatch.setattr(opening, "COCO_O", opening.PublicSet(12, 24))
    opened = open_suite("coco-o", tmp_path)
    assert {condition.name: len(data) for condition, data in opened} == dict.fromkeys(DOMAINS, 2)
    shutil.rmtree(tmp_path / "ood_coco/tattoo")
    with pytest.raises(GramLoopError, match="the folder tattoo of coco-o is missing"):
        open_suite("coco-o", tmp_path)


def test_one_folder_with_both_kinds_of_labels_needs_a_task(tmp_path):
    write_semantic(tmp_path, 2)
    content = coco_content(2)
    write_coco(tmp_path, content)
    with pytest.raises(GramLoopError, match="choose the task semantic, detection, instance or panoptic"):
        open_suite("mine", tmp_path)
    for task in ("semantic", "detection"):
        opened = open_suite("mine", tmp_path, options=ReadOptions(task=task))
        assert opened.open(Condition("clean")).task == task


def test_what_cannot_be_shifted_is_told_before_the_work(tmp_path):
    content = coco_content(2)
    content["images"][1].update(height=31, width=128)
    root = write_coco(tmp_path, content)
    with pytest.raises(GramLoopError, match="is 128 x 31; shifts need 32 px a side"):
        open_suite("mine-c", root)
    good = write_coco(tmp_path / "good", coco_content(1))
    with pytest.raises(GramLoopError, match="severity 6 of fog"):
        open_suite("mine-c", good, conditions=["fog"], severities=[6])
    with pytest.raises(GramLoopError, match="does not exist"):
        open_suite("mine-c", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GramLoopError, match="is not a data set"):
        open_suite("mine-c", tmp_path / "empty")


def test_category_ids_of_public_names_are_checked_even_in_parts(tmp_path):
    content = coco_content(1)
    root = write_coco(tmp_path, content)
    open_suite("coco", root, options=PART)
    content["categories"] = [*content["categories"][:-1], {"id": 91, "name": "hair brush"}]
    (root / "annotations/instances_val2017.json").write_text(json.dumps(content))
    with pytest.raises(GramLoopError, match=r"not COCO's 80 \(lacking \[90\], unknown \[91\]\)"):
        open_suite("coco", root, options=PART)
