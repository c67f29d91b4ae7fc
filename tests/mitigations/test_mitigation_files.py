"""Mitigations as files: what was written is applied again, and nobody takes a part for the whole."""

import json

import numpy as np
import pytest

import gramloop
from gramloop.core.config import ReplayConfig
from gramloop.core.settings import read_replay, write_replay
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import parse_method, with_found_source
from gramloop.mitigations import apply, parse_mitigations, read_mitigations, write_mitigations, write_source

TEXT = "denoise+replay:window=9-9,replays=1+recentre:c=1"


@pytest.fixture
def stored(tmp_path, source):
    write_source(tmp_path / "source.safetensors", source)
    write_mitigations(
        tmp_path / "best.json", parse_mitigations(TEXT), tmp_path / "source.safetensors", {"n": 1}
    )
    return tmp_path / "best.json"


def test_a_file_predicts_as_its_mitigations_do(stored, segmenter, source, images):
    assert read_mitigations(stored).stack == parse_mitigations(TEXT)
    expected = apply(TEXT, segmenter, source).predict(images[2]).labels
    assert not np.array_equal(expected, segmenter.predict(images[2]).labels)
    np.testing.assert_array_equal(apply(str(stored), segmenter).predict(images[2]).labels, expected)


@pytest.mark.parametrize("config", [ReplayConfig(window=(2, 3), replays=1), ReplayConfig(replays=0)])
def test_a_replay_alone_and_nothing_are_files_as_before(tmp_path, config):
    stack = parse_mitigations("replay:window=2-3,replays=1") if config.replays else ()
    write_mitigations(tmp_path / "new.json", stack, about={"n": 1})
    write_replay(tmp_path / "old.json", config, {"n": 1})
    assert (tmp_path / "new.json").read_bytes() == (tmp_path / "old.json").read_bytes()
    assert read_replay(tmp_path / "new.json") == config
    assert read_mitigations(tmp_path / "old.json").stack == stack


def test_more_than_a_replay_is_attached_by_nobody(stored, segmenter):
    told = r"found\.json holds more than a replay \(denoise\+recentre:c=1\).*gramloop\.mitigations\.apply\("
    for attempt in (
        lambda: gramloop.attach(segmenter.backbone.model, str(stored)),
        lambda: read_replay(stored),
        lambda: parse_mitigations(f"replay:{stored}"),
    ):
        with pytest.raises(GramLoopError, match=told):
            attempt()


def test_evaluate_takes_the_file_with_its_source(stored, tmp_path, source):
    method = parse_method(f"found:{stored}")
    assert method.mitigations == parse_mitigations(TEXT)
    assert with_found_source({"folder": "m"}, [method]) == {
        "folder": "m",
        "source": str((tmp_path / "source.safetensors").resolve()),
    }
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(GramLoopError, match="one evaluation has one source"):
        with_found_source({"source": str(tmp_path / "other")}, [method])


def test_a_source_of_other_images_is_refused(stored, tmp_path):
    (tmp_path / "source.safetensors").write_bytes(b"something else")
    with pytest.raises(GramLoopError, match="not the file that these mitigations were measured with"):
        read_mitigations(stored)
    (tmp_path / "source.safetensors").unlink()
    with pytest.raises(GramLoopError, match=r"found\.json: cannot read the source statistics"):
        read_mitigations(stored)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mitigations": 3}, "a text such as recentre:0.3, not 3"),
        ({"mitigations": "recenter:0.3"}, "there is no mitigation 'recenter'"),
        ({"replay": {"window": 3}}, "window is 3"),
        ({"source": "a"}, "the source is given as"),
    ],
)
def test_a_damaged_file_is_told(stored, changes, told):
    stored.write_text(json.dumps({**json.loads(stored.read_text()), **changes}))
    with pytest.raises(GramLoopError, match=told) as error:
        read_mitigations(stored)
    assert str(stored) in str(error.value)


@pytest.mark.parametrize("text", ["recentre:c=1", "recentre:0.5,c=0.5+replay:window=6-6,replays=1"])
def test_recentring_by_c_with_or_without_a_replay_can_be_attached(tmp_path, text, segmenter, images, source):
    from same_predictions import same

    write_source(tmp_path / "source.safetensors", source)
    stack = parse_mitigations(text)
    write_mitigations(tmp_path / "best.json", stack, tmp_path / "source.safetensors")
    plain = segmenter.predict(images[0])
    with gramloop.attached(segmenter.backbone.model, tmp_path / "best.json"):
        attached = segmenter.predict(images[0])
    same(attached, apply(str(tmp_path / "best.json"), segmenter).predict(images[0]))
    same(segmenter.predict(images[0]), plain)
    assert (attached.labels != plain.labels).any()


def test_recentring_by_a_weight_alone_is_not_attached_from_a_file(tmp_path, segmenter, source):

    write_source(tmp_path / "source.safetensors", source)
    write_mitigations(
        tmp_path / "best.json", parse_mitigations("recentre:0.3"), tmp_path / "source.safetensors"
    )
    with pytest.raises(GramLoopError, match=r"found\.json: recentre:0\.3 leans on the head's own batch norm"):
        gramloop.attach(segmenter.backbone.model, tmp_path / "best.json")
