"""A search goes on only with what it began with, in its folder and in every process."""

import shutil
from pathlib import Path

import pytest

from gramloop.data.checks import ChangedFileError
from gramloop.errors import GramLoopError
from gramloop.evaluate import provenance
from gramloop.mitigations.replay import Replay
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.plan import plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.subject import Subject
from gramloop.tune.search.suites import suite_subject
from gramloop.tune.search.tuning import run
from small_runs import small_request

SPACE = Space({"window": [(2, 2), (4, 5)], "replays": [1], "strength": [0.5]})
SENTENCE = r"segment\.safetensors changed since the evaluation was planned"


@pytest.fixture
def places(model_folder: Path, scene_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    model, scenes = (
        shutil.copytree(model_folder, tmp_path / "model"),
        shutil.copytree(scene_folder, tmp_path / "set"),
    )
    return Path(model), Path(scenes)


def subject_in(places: tuple[Path, Path]) -> Subject:
    return suite_subject(small_request(*places, conditions=["fog", "pixelate"]))


def turn_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("set/annotations/validation/00000003.png", "subject: data"),
        ("model/segment.safetensors", "subject: model"),
    ],
)
def test_labels_and_weights_that_changed_are_refused_untouched(
    places, tmp_path: Path, place: str, named: str
):
    run(plan_search(subject_in(places), SPACE, 90), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    turn_one_bit(tmp_path / place)
    with pytest.raises(GramLoopError, match=f"holds a search with {named}"):
        run(plan_search(subject_in(places), SPACE, 90), tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_refused_folder_gets_no_lock(places, tmp_path: Path):
    (tmp_path / "trials.jsonl").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(GramLoopError, match=r"has trials\.jsonl but no plan\.json"):
        run(plan_search(subject_in(places), SPACE, 90), tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_workers_look_for_themselves(places, monkeypatch):
    subject = subject_in(places)
    bench = Bench(subject)
    turn_one_bit(places[1] / "images" / "validation" / "00000002.png")
    trial = Trial("fog/3", 2, subject.images["fog/3"][2], (0,), ((Replay(SPACE.candidates(6)[0]),),))
    with pytest.raises(ChangedFileError, match=r"00000002\.png changed since the run was planned"):
        bench.run(trial)
    turn_one_bit(places[0] / "segment.safetensors")
    with pytest.raises(GramLoopError, match=SENTENCE):
        Bench(subject)
    turn_one_bit(places[0] / "segment.safetensors")
    monkeypatch.setattr(provenance, "origin_versions", lambda: {})
    with pytest.raises(GramLoopError, match=r"planned with gramloop .*, and none is installed here"):
        Bench(subject)
