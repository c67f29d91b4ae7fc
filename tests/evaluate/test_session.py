"""One unit: predictions are those of the predictors themselves, and bad images count for no method."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gramloop.data.records import Record
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import do_unit
from gramloop.evaluate.methods import blocks_per_view
from gramloop.evaluate.predicting import deterministic
from gramloop.lazy import calls
from gramloop.evaluate.rows import counts_of
from gramloop.models.dense_detect import boxes_of
from gramloop.evaluate.runner import Stopped
from gramloop.evaluate.session import Session
from gramloop.evaluate.store import Store
from gramloop.metrics.miou import count_pixels
from small_runs import SIDE, small_plan

METHODS = ["baseline", "gramloop", "ungated", "final-final", "late:window=4-5,replays=1"]


@pytest.fixture(scope="module")
def session(model_folder: Path, scene_folder: Path) -> Session:
    return Session(small_plan(model_folder, scene_folder, methods=METHODS, diagnostics=True))


def test_stored_counts_are_those_of_separate_predictions(session: Session):
    unit = session.plan.units[1]
    finished = session.run(unit)
    records = session.data(unit.condition)[unit.start : unit.stop]
    replayed = {}
    for method in session.plan.methods:
        stored = counts_of([finished.table], method.name)
        with deterministic(1):
            alone = [session.predictor.predict(record.image(), method.replay) for record in records]
        direct = [
            count_pixels(one.labels, record.labels(), 15) for one, record in zip(alone, records, strict=True)
        ]
        assert np.array_equal(stored, np.stack(direct)), method.name
        replayed[method.name] = stored
    assert not np.array_equal(replayed["baseline"], replayed["gramloop"])
    assert not np.array_equal(replayed["gramloop"], replayed["late"])


def test_the_baseline_costs_nothing_beside_a_replay(session: Session):
    unit = session.plan.units[0]
    finished = session.run(unit)
    assert finished.facts.blocks == len(unit) * blocks_per_view(session.plan.methods, 6, traced=True)
    calls = ["baseline+gramloop", "ungated", "final-final", "late", "gramloop-matched"]
    assert list(finished.facts.predict_seconds) == calls
    assert 0 < sum(finished.facts.predict_seconds.values()) <= finished.facts.seconds
    assert finished.facts.peak_memory > 10**7
    measured = {row["method"]: (len(row["drift"]), len(row["gate"])) for row in finished.table.to_pylist()}
    assert measured == {
        "baseline": (0, 0),
        "gramloop": (2, 2),
        "ungated": (2, 2),
        "final-final": (2, 2),
        "late": (1, 1),
        "gramloop-matched": (2, 2),
    }


def test_stored_boxes_are_those_of_separate_predictions(model_folder: Path, scene_folder: Path):
    session = Session(small_plan(model_folder, scene_folder, "detection"))
    unit = session.plan.units[2]
    table = session.run(unit).table
    records = session.data(unit.condition)[unit.start : unit.stop]
    for method in session.plan.methods:
        truth, found = boxes_of([table], method.name, list(session.plan.categories))
        with deterministic(1):
            alone = [session.predictor.predict(record.image(), method.replay) for record in records]
        assert np.array_equal(found.scores, np.concatenate([one.scores for one in alone]))
        assert np.array_equal(found.labels, np.concatenate([one.labels for one in alone]))
        assert len(found.scores) > len(records)
        assert truth.boxes.shape[0] == sum(len(record.instances()) for record in records)
        assert truth.images == list(range(unit.start, unit.stop))


def test_which_methods_share_a_call(session: Session):
    names = [[method.name for method in together] for together in calls(session.plan.methods)]
    assert names == [["baseline", "gramloop"], ["ungated"], ["final-final"], ["late"], ["gramloop-matched"]]
    baseline, *replays = session.plan.methods
    assert calls([baseline]) == [(baseline,)]
    assert calls(replays) == [(method,) for method in replays]
    assert calls([replays[0], baseline]) == [(baseline, replays[0])]


def test_a_run_leaves_the_model_and_torch_as_they_were(session: Session):
    threads = torch.get_num_threads()
    session.run(session.plan.units[0])
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert all(
        "forward" not in vars(block) and not block._forward_hooks for block in session.predictor.blocks
    )
    assert not session.predictor.model.training


def test_a_stop_is_heard_between_images(session: Session):
    seen: list[int] = []
    with pytest.raises(Stopped):
        session.run(session.plan.units[0], lambda: seen.append(1), lambda: len(seen) == 2)
    assert len(seen) == 2


def damaged_set(folder: Path, source: Path) -> Path:
    """Two images that cannot be used, each in its own way; headers are whole, so opening finds nothing."""
    shutil.copytree(source, folder)
    (folder / "annotations" / "instances_val.json").unlink()
    torn = folder / "images" / "validation" / "00000001.png"
    torn.write_bytes(torn.read_bytes()[:600])
    stranger = folder / "annotations" / "validation" / "00000002.png"
    Image.fromarray(np.full((SIDE, SIDE), 77, np.uint8)).save(stranger)
    return folder


def test_bad_images_are_recorded_and_count_for_no_method(model_folder, scene_folder, tmp_path):
    data = damaged_set(tmp_path / "set", scene_folder)
    plan = small_plan(model_folder, data, shards=1)
    session, store, unit = Session(plan), Store(tmp_path / "out", plan), plan.units[0]
    done = do_unit(session, store, unit)
    stored = store.read(unit)
    assert stored is not None
    assert done.excluded == 2
    reasons = {failure.image_id: failure.reason for failure in stored.failures}
    assert list(reasons) == ["00000001", "00000002"]
    assert "cannot decode the image" in reasons["00000001"]
    assert "label value 77" in reasons["00000002"]
    positions = stored.table["position"].to_pylist()
    assert positions == [p for p in range(11) if p not in (1, 2) for _ in plan.methods]
    whole = Session(small_plan(model_folder, scene_folder, shards=1)).run(unit).table
    kept = [0, *range(3, 11)]
    for method in ("baseline", "gramloop"):
        assert np.array_equal(counts_of([stored.table], method), counts_of([whole], method)[kept])


def test_memory_that_does_not_suffice_names_the_image(session: Session, monkeypatch):
    def too_large(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(session.predictor.model.backbone, "forward", too_large)
    with pytest.raises(
        GramLoopError,
        match=r"00000000\.png \(64 x 64, 64 tokens at once\) does not fit into the memory of cpu; try a smaller",
    ):
        session.run(session.plan.units[0])


def test_data_that_changed_after_planning_are_refused(model_folder, scene_folder, tmp_path):
    data = tmp_path / "set"
    shutil.copytree(scene_folder, data)
    plan = small_plan(model_folder, data)
    with (data / "images" / "validation" / "00000000.png").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(GramLoopError, match="changed since the evaluation was planned"):
        Session(plan)


def test_images_are_decoded_once_for_all_methods(session: Session, monkeypatch):
    from gramloop.data.shifted import ShiftedRecord

    decoded: list[object] = []
    original = ShiftedRecord.image

    def image(record: Record) -> object:
        decoded.append(record.image_id)
        return original(record)

    monkeypatch.setattr(ShiftedRecord, "image", image)
    unit = session.plan.units[1]
    session.run(unit)
    assert decoded == [f"{position:08d}" for position in range(unit.start, unit.stop)]
