"""The tune command: nothing downloaded, resumed, planned without running, and used wrongly."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.replay.config import read_replay
from gramloop.tune.result import stored_answer

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_runs import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_runs import write_scene_set

    return write_scene_set(tmp_path_factory.mktemp("scenes") / "set", 14)


def asked(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    small = ["--model", str(model), "--data", str(data), "--short-side", "64", "--workers", "1"]
    conditions = [word for name in ("fog", "pixelate", "impulse_noise") for word in ("--condition", name)]
    tried = ["--try", "window=0-0,1-1,2-2,3-3,4-4,5-5"]
    return ["tune", "--suite", "scenes-c", "--out", str(out), *tried, *small, *conditions, *more]


def units(out: Path) -> dict[Path, int]:
    """When every stored unit was written."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}


def test_a_search_a_second_look_and_its_file(model, scenes, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = asked(model, scenes, out, "--budget", "170")
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert "170 predictions" in told.err
    config, about = read_replay(out / "best.json"), json.loads((out / "best.json").read_text())["about"]
    answer = stored_answer(out)
    assert " ".join(answer.sentence.split()) in " ".join(told.out.split())  # as the stored file says it
    unseen = about["unseen images"]
    decides = unseen.get("other families", unseen["searched families"])
    assert answer.gains[0].gain == pytest.approx(decides["gain"])
    assert answer.gains[0].verdict == decides["verdict"]
    assert bool(answer.method) == (about["nearest"] is None)
    assert main(["report", str(out), "--out", str(tmp_path / "page"), "--no-pdf"]) == 0
    page = re.sub("</?span>", "", (tmp_path / "page" / "index.html").read_text())  # around words of a command
    assert "gramloop tune --suite scenes-c" in page
    assert "--budget 170" in page
    assert about["tried"]["predictions"] <= 170
    assert units(out)
    before = (out / "best.json").read_bytes(), units(out)
    assert main(arguments) == 0
    assert ((out / "best.json").read_bytes(), units(out)) == before
    evaluate = ["evaluate", "--suite", "scenes-c", "--model", str(model), "--data", str(scenes)]
    evaluate += [
        "--short-side",
        "64",
        "--workers",
        "1",
        "--condition",
        "fog",
        "--severity",
        "3",
        "--images",
        "2",
    ]
    method = f"found:{out / 'best.json'}"
    assert (
        main([*evaluate, "--out", str(tmp_path / "check"), "--method", "baseline", "--method", method]) == 0
    )
    stored = json.loads((tmp_path / "check" / "plan.json").read_text())["methods"]["found"]["replay"]
    assert stored["replays"] == config.replays


def test_a_dry_run_predicts_and_writes_nothing(model, scenes, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(asked(model, scenes, out, "--budget", "300", "--dry-run", "--try", "strength=0.5")) == 0
    told = capsys.readouterr().out
    assert "6 of 6 candidates" in told
    assert "Families kept for the verdict: " in told
    assert not out.exists()


def without_replays(arguments: list[str]) -> list[str]:
    place = arguments.index("--try")
    return arguments[:place] + arguments[place + 2 :]


def test_mitigations_by_name_and_by_default(model, scenes, tmp_path, capsys):
    few = without_replays(asked(model, scenes, tmp_path / "out", "--budget", "300", "--dry-run"))
    assert main([*few, "--mitigation", "recentre:0.3", "median", "--mitigation", "denoise+flip"]) == 0
    assert "3 of 3 candidates" in capsys.readouterr().out
    assert main([*few, "--max-cost", "1"]) == 0
    told = capsys.readouterr().out
    assert "Left out: flip: it costs 2.00x, more than the limit of 1" in told
    assert (
        "Left out: recentre:c=1: recentre:c=1 needs calibration statistics" in told
    )  # 14 scenes leave too few to learn from
    assert main([*few, "--mitigation", "median", "--try", "window=2-2"]) == 0
    told = capsys.readouterr().out  # three strengths, and the median
    assert "4 of 4 candidates" in told
    assert not (tmp_path / "out").exists()


def test_the_choice_is_predicted_with(model, scenes, tmp_path):
    from gramloop.mitigations import apply, parse_mitigations, write_mitigations
    from gramloop.tasks import load_predictor

    found, image = tmp_path / "best.json", next((scenes / "images").rglob("*.png"))
    write_mitigations(found, parse_mitigations("median+flip"))
    command = ["predict", str(image), "--model", str(model), "--task", "semantic", "--short-side", "64"]
    command += ["--out", str(tmp_path / "out"), "--method", str(found)]
    assert main(command) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"{image.stem}.{kind}.png" for kind in ("baseline", "mitigated", "picture")]
    predictor = load_predictor("semantic", {"folder": str(model)}, {"short_side": 64})
    labels = np.array(Image.open(tmp_path / "out" / f"{image.stem}.mitigated.png"))
    np.testing.assert_array_equal(labels, apply("median+flip", predictor).predict(image).labels)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--budget", "20"], "a budget of 20 predictions is too small"),
        (["--try", "colour=red"], "'colour' is no setting of a replay"),
        (["--try", "window=4-9"], "reaches past the last block"),
        (["--try", "eps=abc"], "eps is 'abc'; it is a small positive number"),
        (["--keep-unseen", "rain"], "no family 'rain'"),
        (["--max-cost", "1.01"], "no candidate costs at most 1.01"),
        (["--block", "7"], "blocks of 7 images, too few"),
        (["--mitigation", "blur"], "there is no mitigation 'blur'"),
        (["--workers", "0", "--budget", "170"], "--workers is 0; it is 1 to"),
    ],
)
def test_misuse_is_told_in_a_sentence(model, scenes, tmp_path, capsys, more, told):
    assert main(asked(model, scenes, tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_a_set_is_needed_where_nothing_can_be_drawn(tmp_path, capsys):
    assert main(["tune", "--suite", "mine-c", "--out", str(tmp_path / "out")]) == 2
    assert "--data DIR is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_the_embedded_model_on_scenes_that_nobody_downloaded(tmp_path):
    out = tmp_path / "out"
    arguments = ["tune", "--suite", "scenes-c", "--out", str(out), "--images", "12", "--budget", "120"]
    arguments += [
        "--condition",
        "fog",
        "--condition",
        "snow",
        "--try",
        "window=10-10,11-11",
        "--workers",
        "2",
    ]
    assert main(arguments) == 0
    assert read_replay(out / "best.json").replays in (0, 1)


def test_without_a_set_it_draws_scenes_that_no_evaluation_shows(model, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = asked(model, tmp_path, out, "--budget", "130", "--images", "12")
    place = arguments.index("--data")
    assert main(arguments[:place] + arguments[place + 2 :]) == 0
    settings = json.loads((out / "scenes" / "scenes.json").read_text())
    assert (settings["count"], settings["size"], settings["split"]) == (12, 192, "tune")
