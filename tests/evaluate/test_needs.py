"""What a plan needs of a GPU that is not here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gramloop.cli import main
from gramloop.data.scenes.files import SceneFiles, draw_scenes
from gramloop.errors import GramLoopError
from gramloop.evaluate import estimate, needs
from gramloop.evaluate.estimate import describe
from gramloop.evaluate.needs import Card, needs_lines, plan_needs
from gramloop.evaluate.plan import DataSource, Plan, plan_of, read_plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.models.tiny import WEIGHTS

FILES = {"folder": str(WEIGHTS)}
pytestmark = [
    pytest.mark.filterwarnings("ignore::gramloop.errors.UntunedWindowWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU"),
]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_scenes(tmp_path_factory.mktemp("needs") / "scenes", SceneFiles(3))


@pytest.fixture(scope="module")
def request_(scenes: Path) -> Request:
    return Request(
        "scenes-c", "semantic", FILES, DataSource(str(scenes)), ("baseline", "gramloop", "ungated"), ("fog", "snow"), (2, 5),
        device="cuda",
    )  # fmt: skip


@pytest.fixture(scope="module")
def plan(request_: Request) -> Plan:
    return make_plan(request_)


def test_blocks_are_those_of_all_views_and_methods(plan):
    found = plan_needs(plan)
    assert found.views == 4 * 3  # whole images
    # 12 blocks; window of one, five after it: 12 + 2 (1 + 5) + 5, and ungated without probes 12 + 2
    assert found.blocks == found.views * (29 + 14)
    assert list(found.calls) == ["baseline+gramloop", "ungated"]
    assert found.calls["ungated"].moved < found.calls["baseline+gramloop"].moved


def test_mitigations_are_left_out_and_the_model_is_not(request_):
    plan = make_plan(replace(request_, methods=("flip=flip",)))
    assert list(plan_needs(plan).calls) == ["baseline"]


def test_a_card_is_compared_with_the_peak(plan):
    found = plan_needs(plan)
    for factor, said in ((1.2, "it fits"), (1.01, "it does not fit; --dtype bfloat16")):
        lines = needs_lines(plan, found, Card("A card", int(found.peak * factor)))
        assert said in lines[-1]
    assert needs_lines(plan, found, None)[-1].startswith("no such card here (--device cuda)")


def test_nothing_is_tried_where_there_is_no_card_or_too_small_a_one(plan, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(estimate, "Session", refuse)
    assert describe(plan, 1).endswith("no image was tried")
    monkeypatch.setattr(estimate, "available_devices", lambda: ("cpu", "cuda:0"))
    monkeypatch.setattr(estimate, "card_here", lambda kind: Card("a small card", 1000))
    assert "does not fit" in describe(plan, 1)


def test_a_model_that_is_not_known_is_said_to_be(plan, monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise GramLoopError("what mine needs is known for others")

    monkeypatch.setattr(needs, "footprint", unknown)
    assert "memory is not known: what mine needs is known for others" in describe(plan, 1)


def asked(scenes: Path, out: Path, *more: str) -> list[str]:
    shown = [
        "evaluate",
        "--suite",
        "scenes-c",
        "--data",
        str(scenes),
        "--condition",
        "fog",
        "--severity",
        "3",
    ]
    return [*shown, "--model", "tiny", "--out", str(out), *more]


def test_a_dry_run_for_cuda_works_without_one(scenes, tmp_path, capsys):
    assert (
        main(asked(scenes, tmp_path / "out", "--dry-run", "--device", "cuda:1", "--dtype", "bfloat16")) == 0
    )
    told = capsys.readouterr().out
    assert "the backbone's in bfloat16" in told
    assert "no such card here (--device cuda)" in told
    assert "no image was tried" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["cuda:x", "gpu", "cuda;1"])
def test_a_device_that_no_machine_has_is_refused(scenes, tmp_path, capsys, name):
    assert main(asked(scenes, tmp_path / "out", "--dry-run", "--device", name)) == 2
    assert f"--device {name} is not on this machine" in capsys.readouterr().err


def test_without_a_dry_run_the_device_must_be_here(scenes, tmp_path, capsys):
    assert main(asked(scenes, tmp_path / "out", "--device", "cuda")) == 2
    assert "--device cuda is not on this machine" in capsys.readouterr().err


def test_the_precision_of_weights_is_in_the_plan_where_it_is_not_the_usual(request_, plan):
    rounded = make_plan(replace(request_, dtype="bfloat16"))
    assert "dtype" not in json.loads(plan.text())["model"]
    assert json.loads(rounded.text())["model"]["dtype"] == "bfloat16"
    assert rounded.hash != plan.hash
    assert plan_of(rounded.text(), Path("plan.json")) == rounded
    broken = rounded.text().replace('"bfloat16"', '"float8"')
    with pytest.raises(GramLoopError, match="float8"):
        plan_of(broken, Path("plan.json"))


def test_rounded_weights_are_evaluated_and_told(scenes, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(asked(scenes, out, "--dtype", "bfloat16", "--workers", "1", "--method", "baseline")) == 0
    assert read_plan(out / "plan.json").model.dtype == "bfloat16"
    assert main(asked(scenes, out, "--workers", "1", "--method", "baseline")) == 2
    assert "dtype" in capsys.readouterr().err
    assert main(["evaluate", "--out", str(out), "--dtype", "float32"]) == 2
    assert "--dtype belongs to a new evaluation" in capsys.readouterr().err
    report = tmp_path / "report"
    assert main(["report", str(out), "--out", str(report)]) == 0
    assert "weights in bfloat16" in "".join(each.read_text() for each in report.rglob("*.html"))


def test_a_machine_without_a_gpu_may_submit_to_a_cluster_that_has_some(scenes, tmp_path, capsys, monkeypatch):
    planned = []

    def submit(job: object, **_: object) -> list[object]:
        planned.append(job.plan.model.device)
        raise GramLoopError("the cluster is another's affair")

    monkeypatch.setattr("gramloop.evaluate.engines.slurm.run_slurm", submit)
    assert main(asked(scenes, tmp_path / "out", "--device", "cuda", "--engine", "slurm")) == 2
    assert planned == ["cuda"]
    assert "another's affair" in capsys.readouterr().err
    assert main(asked(scenes, tmp_path / "out", "--device", "cuda:1", "--engine", "slurm")) == 2
    assert "--engine slurm shares out GPUs itself" in capsys.readouterr().err
