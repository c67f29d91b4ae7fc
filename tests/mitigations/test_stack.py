"""Mitigations as text and as files: read back, ordered by stage, mistakes named."""

import json

import numpy as np
import pytest

import gramloop
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import calibration_of, parse_method
from gramloop.mitigations import (
    STAGES,
    apply,
    parse_mitigations,
    read_mitigations,
    stack_text,
    write_mitigations,
)
from gramloop.replay.config import ReplayConfig, read_replay, write_replay

TEXT = "denoise+replay:window=9-9,replays=1+recentre:c=1"


@pytest.fixture
def stored(tmp_path, stats):
    stats.save(tmp_path / "source.safetensors")
    write_mitigations(
        tmp_path / "found.json", parse_mitigations(TEXT), tmp_path / "source.safetensors", {"n": 1}
    )
    return tmp_path / "found.json"


def test_a_file_predicts_as_its_mitigations_do(stored, segmenter, stats, images):
    assert read_mitigations(stored)[0] == parse_mitigations(TEXT)
    expected = apply(TEXT, segmenter, stats).predict(images[2]).labels
    assert not np.array_equal(expected, segmenter.predict(images[2]).labels)
    np.testing.assert_array_equal(apply(str(stored), segmenter).predict(images[2]).labels, expected)


@pytest.mark.parametrize("config", [ReplayConfig(window=(2, 3), replays=1), ReplayConfig(replays=0)])
def test_a_replay_alone_and_nothing_are_files_as_before(tmp_path, config):
    stack = parse_mitigations("replay:window=2-3,replays=1") if config.replays else ()
    write_mitigations(tmp_path / "new.json", stack, about={"n": 1})
    write_replay(tmp_path / "old.json", config, {"n": 1})
    assert (tmp_path / "new.json").read_bytes() == (tmp_path / "old.json").read_bytes()
    assert read_replay(tmp_path / "new.json") == config
    assert read_mitigations(tmp_path / "old.json")[0] == stack


def test_more_than_a_replay_is_attached_by_nobody(stored, segmenter):
    told = r"found\.json holds more than a replay \(denoise\+recentre:c=1\).*gramloop\.mitigations\.apply\("
    for attempt in (
        lambda: gramloop.attach(segmenter.backbone.model, str(stored)),
        lambda: read_replay(stored),
        lambda: parse_mitigations(f"replay:{stored}"),
    ):
        with pytest.raises(GramLoopError, match=told):
            attempt()


def test_evaluate_takes_the_file_with_its_source(stored, tmp_path, stats):
    method = parse_method(f"found:{stored}")
    assert method.stack == parse_mitigations(TEXT)
    assert calibration_of(None, [method]) == (tmp_path / "source.safetensors").resolve()
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(GramLoopError, match="one evaluation has one calibration"):
        calibration_of(tmp_path / "other", [method])


def test_a_source_of_other_images_is_refused(stored, tmp_path):
    (tmp_path / "source.safetensors").write_bytes(b"something else")
    with pytest.raises(GramLoopError, match="not the file that these mitigations were measured with"):
        read_mitigations(stored)
    (tmp_path / "source.safetensors").unlink()
    with pytest.raises(GramLoopError, match=r"found\.json: cannot read the file"):
        read_mitigations(stored)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mitigations": 3}, "mitigations is 3; it is a text such as recentre:0.3"),
        ({"mitigations": "recenter:0.3"}, "there is no mitigation 'recenter'"),
        ({"replay": {"window": 3}}, "window is 3"),
        ({"calibration": "a"}, "calibration is 'a'; it is"),
    ],
)
def test_a_damaged_file_is_told(stored, changes, told):
    stored.write_text(json.dumps({**json.loads(stored.read_text()), **changes}))
    with pytest.raises(GramLoopError, match=told) as error:
        read_mitigations(stored)
    assert str(stored) in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "median",
        "median:5",
        "gaussian",
        "gaussian:0.7",
        "nlm",
        "nlm:6",
        "denoise",
        "denoise:8",
        "gramloop",
        "matched",
        "replay:window=2-2,replays=1,adaptive=noise:1.7068:1.7068",
        "recentre:0.3",
        "recentre:c=1",
        "recentre:0.5,c=2",
        "flip",
        "scales:0.75,1,1.25",
        "resize:1.1",
        "median+gramloop+recentre:0.3+flip",
    ],
)
def test_a_text_is_read_back(text):
    assert stack_text(parse_mitigations(text)) == text


def test_the_order_is_that_of_the_stages_whatever_the_order_written():
    stack = parse_mitigations("flip+pair+recentre:0.3+gramloop+median+gaussian")
    assert [each.name for each in stack] == ["median", "gaussian", "replay", "recentre", "pair", "flip"]
    assert [STAGES.index(each.stage) for each in stack] == [0, 0, 1, 2, 3, 3]
    assert parse_mitigations("recentre:0.3+gramloop") == parse_mitigations("gramloop+recentre:0.3")


def test_replays_have_the_names_of_the_table_or_settings():
    (found,) = parse_mitigations("replay:window=5-6,replays=1")
    assert found.config == ReplayConfig(window=(5, 6), replays=1)
    assert parse_mitigations("replay:")[0].text == "gramloop"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("medial", "there is no mitigation 'medial'; did you mean median"),
        ("", "there is no mitigation ''"),
        ("median:4", "a side of 1, 3, 5 or 7 pixels, not 4"),
        ("median:5,7", "median takes one number, not '5,7'"),
        ("median:x", "median takes a number from 1 to 7, not 'x'"),
        ("gaussian:-1", "gaussian takes a number from 0 to 20, not '-1'"),
        ("nlm:nan", "nlm takes a number from 0 to 255, not 'nan'"),
        ("flip:2", "flip takes no arguments, not '2'"),
        ("recentre", "recentre takes a weight"),
        ("recentre:0.3,0.4", "recentre takes a weight"),
        ("recentre:2", "recentre's weight takes a number from 0 to 1, not '2'"),
        ("scales", "scales takes the sizes"),
        ("scales:1,0", "each of scales takes a number from 0.1 to 10, not '0'"),
        ("resize:1,2", "resize takes a number"),
        ("gramloop:replays=1", "give others as replay:replays=1"),
        ("median+median:5", "median is given twice"),
        ("gramloop+ungated", "replay is given twice"),
    ],
)
def test_slips_are_named(text, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        parse_mitigations(text)
