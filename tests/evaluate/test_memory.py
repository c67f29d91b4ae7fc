"""A model that runs out of memory on some images: they are named, their units are left, and everything else goes on."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gramloop import evaluate as evaluate_model
from gramloop.cli import main
from gramloop.data.scenes import SceneFiles, write_scenes
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Listener, run_local
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.ray_engine import _run_part
from gramloop.evaluate.runner import Done, Missed
from gramloop.evaluate.slurm import run_missing
from gramloop.evaluate.store import Store
from gramloop.util.device import is_out_of_memory
from small_runs import job_of, runner_of

MODEL = """
import os
import numpy as np
import torch
from gramloop.data.scenes import STUFF, THINGS

def make():
    def predict(image):
        if image.shape[0] > 64 and not os.environ.get("MUCH_MEMORY"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return np.full(image.shape[:2], int(image.mean()) % 15, np.int32)
    predict.task = "semantic"
    predict.classes = [*STUFF, *THINGS]
    return predict
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six scenes of 64 pixels, the fourth of which is one of 80."""
    write_scenes(tmp_path / "set", SceneFiles(6, size=64), workers=1)
    write_scenes(tmp_path / "large", SceneFiles(6, size=80), workers=1)
    for part in ("images", "annotations"):
        large = tmp_path / "large" / part / "validation" / "00000003.png"
        large.replace(tmp_path / "set" / part / "validation" / "00000003.png")
    (tmp_path / "set" / "annotations" / "instances_val.json").unlink(missing_ok=True)
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.delenv("MUCH_MEMORY", raising=False)
    return tmp_path


def planned(folder: Path) -> Plan:
    request = Request(
        "mine-c",
        "semantic",
        {"make": f"{folder / 'model.py'}:make"},
        DataSource(str(folder / "set"), classes=str(_classes(folder))),
        conditions=["fog", "contrast"],
        severities=[3],
        shards=3,
    )
    return make_plan(request)


def _classes(folder: Path) -> Path:
    return next((folder / "set").glob("*.txt"), folder / "set" / "classes.txt")


LOST = ["fog-3/000002-000004", "contrast-3/000002-000004"]


@pytest.mark.parametrize(("workers", "prepare"), [(1, 0), (1, 1), pytest.param(2, 0, marks=pytest.mark.slow)])
def test_the_others_go_on_and_the_next_run_tries_again(folder, monkeypatch, workers, prepare):
    plan, told = planned(folder), []

    class Recorder(Listener):
        def outcome(self, outcome: Done | Missed) -> None:
            told.extend([outcome] if isinstance(outcome, Missed) else [])

    outcome = evaluate(plan, folder / "out", workers=workers, prepare=prepare, listener=Recorder())
    assert sorted(str(one.part) for one in outcome.missed) == sorted(LOST)
    assert list(outcome.missed) == told
    for one in outcome.missed:
        assert "00000003.png (80 x 80) does not fit into the memory of cpu; try a smaller" in one.reason
    missing, damaged = Store(folder / "out", plan).survey(plan.parts)
    assert sorted(map(str, missing)) == sorted(LOST)
    assert not damaged
    assert outcome.conditions == ()
    monkeypatch.setenv("MUCH_MEMORY", "1")
    ran: list[str] = []

    class Recording(Listener):
        def outcome(self, outcome) -> None:
            ran.append(str(outcome.part))

    outcome = evaluate(plan, folder / "out", workers=1, listener=Recording())
    assert sorted(ran) == sorted(LOST)
    assert not outcome.missed
    evaluate(plan, folder / "whole", workers=1)
    assert (folder / "out" / "results.csv").read_bytes() == (folder / "whole" / "results.csv").read_bytes()


def test_the_command_names_them_and_ends_with_one(folder, monkeypatch, capsys):
    arguments = ["evaluate", "--suite", "mine-c", "--data", str(folder / "set"), "--shards", "3"]
    arguments += ["--model", f"{folder / 'model.py'}:make", "--condition", "fog", "--severity", "3"]
    arguments += ["--classes", str(_classes(folder)), "--workers", "1"]
    assert main([*arguments, "--out", str(folder / "out")]) == 1
    said = capsys.readouterr().err
    assert "00000003.png (80 x 80) does not fit into the memory of cpu" in said
    assert "  fog-3/000002-000004\n" in said
    assert "Traceback" not in said
    monkeypatch.setenv("MUCH_MEMORY", "1")
    assert main(["evaluate", "--out", str(folder / "out"), "--workers", "1"]) == 0


def test_clusters_report_them_too(folder: Path):
    plan = planned(folder)
    subject, store = plan_workload(plan), Store(folder / "out", plan)
    missed = run_missing((subject, store, plan.parts, 0))
    assert sorted(str(one.part) for one in missed) == sorted(LOST)
    [lost] = [part for part in plan.parts if str(part) == LOST[0]]
    assert isinstance(_run_part((subject, store, 0), lost), Missed)
    assert not store.path(lost.units[0]).exists()


def test_a_call_from_python_raises(folder: Path):
    with pytest.raises(GramLoopError, match=r"not stored \(fog-3/000000-000006\).*tries these again"):
        evaluate_model(
            f"{folder / 'model.py'}:make",
            folder / "set",
            suite="mine-c",
            out=folder / "out",
            conditions=["fog"],
            severities=[3],
            classes=_classes(folder),
            workers=1,
        )


def test_memory_is_given_back_before_the_next_unit(folder: Path, monkeypatch):
    """The error holds the frames that it passed, and they hold tensors: none of it may be left."""
    import gc
    import weakref

    held: list[weakref.ref] = []
    plan = planned(folder)
    runner = runner_of(plan)

    class Big:
        pass

    def predict(image, replay=None, paired=False, *, trace=None):
        big = Big()
        held.append(weakref.ref(big))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runner.predictor, "predict", predict)
    gc.disable()
    try:
        for found in runner.run(plan.parts[:2]):
            assert isinstance(found, Missed)
            assert held[-1]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_mean_it(error: Exception, is_one: bool):
    assert is_out_of_memory(error) is is_one


def test_all_of_a_job_may_be_missing(folder: Path):
    plan = planned(folder)
    job = job_of(plan, folder / "out")
    lost = [part for part in plan.parts if str(part) in LOST]
    found = list(run_local(replace(job, parts=lost), 1))
    assert [type(one) for one in found] == [Missed, Missed]
