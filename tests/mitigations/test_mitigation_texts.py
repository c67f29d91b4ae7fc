"""Mitigations as text: read back, ordered by stage, slips named in one sentence."""

import pytest

from gramloop.errors import GramLoopError
from gramloop.mitigations import STAGES, parse_mitigations, stack_text
from gramloop.replay.config import ReplayConfig


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
        "replay:window=2-2,replays=1,adaptive=length:1.7068:1.7068",
        "substeps:4",
        "substeps:3,window=2-4",
        "replay:window=2-2,replays=1,substeps=3",
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
        ("medial", "there is no mitigation 'medial'; there are median"),
        ("", "there is no mitigation ''"),
        ("median:4", "a side of 1, 3, 5 or 7 pixels, not 4"),
        ("median:x", "a side of 1, 3, 5 or 7 pixels, not 'x'"),
        ("gaussian:-1", "gaussian takes a number from 0 to 20, not '-1'"),
        ("nlm:nan", "nlm takes a number from 0 to 255, not 'nan'"),
        ("flip:2", "flip takes no arguments, so not '2'"),
        ("recentre", "recentre takes a weight"),
        ("recentre:0.3,0.4", "recentre takes a weight"),
        ("recentre:2", "recentre's weight is 2.0; it is a number from 0 to 1"),
        ("substeps", "substeps takes how many, and a window, such as substeps:3,window=2-2, not ''"),
        ("substeps:2,3", "substeps takes how many, and a window"),
        ("substeps:none", "substeps takes how many, and a window"),
        ("substeps:0", "substeps is 0; it is a whole number from 1 to 1000"),
        ("substeps:2,window=3", "window is '3'; it is a pair of blocks"),
        ("substeps:2+gramloop", "replay is given twice"),
        ("replay:substeps=2", "substeps is 2 and replays 2; substeps are taken once"),
        ("replay:substeps=2,replays=1,update_at=final", "substeps end at the window's end"),
        ("scales", "scales takes the sizes"),
        ("scales:1,0", "each of scales takes a number from 0.1 to 10, not '0'"),
        ("resize:1,2", "resize takes a number"),
        ("gramloop:replays=1", "others are given as replay:replays=1"),
        ("median+median:5", "median is given twice"),
        ("gramloop+ungated", "replay is given twice"),
    ],
)
def test_slips_are_named(text, sentence):
    with pytest.raises(GramLoopError, match=sentence):
        parse_mitigations(text)
