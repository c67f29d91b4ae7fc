"""What a choice on the page means: the same shifts, mitigations and replays that the commands know."""

import numpy as np
import pytest

from gramloop.app.choices import (
    mitigation_choices,
    mitigations_of,
    replay_settings,
    shift_choices,
    shift_of,
)
from gramloop.data.records import Record
from gramloop.errors import GramLoopError
from gramloop.mitigations.replay import REPLAYS, SUBSTEPS
from gramloop.mitigations.stack import KINDS, parse_mitigations, stack_text
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS, corrupt, generator

REPLAY = ReplayConfig(window=(2, 3), replays=1)


def test_every_shift_is_offered_once() -> None:
    values = [value for _, value in shift_choices()]
    assert len(CORRUPTIONS + EXTRA_CORRUPTIONS) == 19
    assert len(PERTURBATIONS) == 17
    expected = {f"c:{name}" for name in CORRUPTIONS + EXTRA_CORRUPTIONS} | {
        f"p:{name}" for name in PERTURBATIONS
    }
    assert set(values) == {"none"} | expected
    assert len(values) == 37
    assert len({name for name, _ in shift_choices()}) == 37  # nobody has to guess which fog is meant


def test_a_shift_is_the_one_of_the_library() -> None:
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    shift = shift_of("c:gaussian_noise", 4)
    assert shift is not None
    found = shift.pixels(image, Record("abc", None, "abc", 48, 64))  # type: ignore[arg-type]
    wanted = corrupt(image, "gaussian_noise", 4, generator("image-c", "gaussian_noise", 4, "abc"))
    assert np.array_equal(found, wanted)
    assert shift_of("none", 4) is None


@pytest.mark.parametrize(("name", "severity"), [("fog", 3), ("c:sunshine", 3), ("c:fog", 0), ("c:fog", 6)])
def test_other_shifts_are_refused(name: str, severity: int) -> None:
    with pytest.raises(GramLoopError):
        shift_of(name, severity)


def test_every_kind_of_mitigation_is_offered_ready_for_use() -> None:
    offered = mitigation_choices()
    kinds = {text.partition(":")[0] for text in offered}
    assert kinds == {*KINDS, SUBSTEPS, *REPLAYS}
    for text in offered:
        assert stack_text(mitigations_of([text], REPLAY))


def test_chosen_ones_combine_and_replay_takes_the_sliders() -> None:
    found = mitigations_of(["replay", " denoise + levels "], REPLAY)
    assert stack_text(found) == "denoise+levels+replay:window=2-3,replays=1"
    assert parse_mitigations(stack_text(found)) == found  # what the page says can be given to any command
    own = mitigations_of(["replay:window=0-1"], REPLAY)
    assert stack_text(own) == "replay:window=0-1"
    assert mitigations_of([], REPLAY) == mitigations_of(["", " "], REPLAY) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("replay:/etc/passwd.json", "files cannot be named here"),
        ("found.json", "files cannot be named here"),
        ("replay:FOUND.JSON", "files cannot be named here"),
        ("../secret", "files cannot be named here"),
        ("sunshine", "there is no mitigation 'sunshine'"),
        ("denoise+denoise", "given twice"),
        ("denoise+" * 100, "at most 400 characters"),
        ("replay+gramloop", "given twice"),
    ],
)
def test_what_cannot_be_done_here_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(GramLoopError, match=said):
        mitigations_of([text], REPLAY)


def test_settings_of_a_replay() -> None:
    controls = {"window": [1, 4], "replays": 2, "gate": "uniform", "strength": 0.5}
    found = replay_settings(REPLAY, controls, ("spread", 0.2, 0.3), "eps=1e-5,until=5")
    rule = Adaptive("spread", 0.2, 0.3)
    assert found == ReplayConfig((1, 4), 2, "uniform", 0.5, eps=1e-5, until=5, adaptive=rule)
    plain = replay_settings(found, {**controls, "gate": "gram"}, ("none", 0.2, 0.3))
    assert plain == ReplayConfig((1, 4), 2, "gram", 0.5, eps=1e-5, until=5)
    steps = replay_settings(REPLAY, controls, ("none", 0, 0), "substeps=3,replays=1")
    assert (steps.substeps, steps.replays) == (3, 1)


@pytest.mark.parametrize(
    ("changes", "rule", "more"),
    [
        ({"window": [4, 1]}, ("none", 0, 0), ""),
        ({"window": [1.5, 4]}, ("none", 0, 0), ""),
        ({"replays": 10**9}, ("none", 0, 0), ""),
        ({"gate": "open"}, ("none", 0, 0), ""),
        ({"strength": None}, ("none", 0, 0), ""),
        ({}, ("luck", 0.2, 0.3), ""),
        ({}, ("spread", None, 0.3), ""),
        ({}, ("none", 0, 0), "colour=blue"),
        ({}, ("none", 0, 0), "x" * 401),
    ],
)
def test_wrong_settings_are_sentences(
    changes: dict[str, object], rule: tuple[object, ...], more: str
) -> None:
    controls = {"window": [1, 4], "replays": 2, "gate": "gram", "strength": 0.5, **changes}
    with pytest.raises(GramLoopError):
        replay_settings(REPLAY, controls, rule, more)
