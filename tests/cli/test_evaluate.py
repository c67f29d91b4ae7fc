"""The evaluate command: nothing downloaded, resumed, asked how far it is, and used wrongly."""

import csv
import functools
import shutil
from pathlib import Path

import pytest
import torch

from gramloop.cli import main

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_runs import write_model

    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_runs import write_scene_set

    return write_scene_set(tmp_path_factory.mktemp("scenes") / "set", 5)


def asked(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    small = ["--model", str(model), "--data", str(data), "--short-side", "64", "--workers", "1"]
    conditions = ["--condition", "fog", "--condition", "pixelate", "--severity", "3", "--shards", "2"]
    return ["evaluate", "--suite", "scenes-c", "--out", str(out), *small, *conditions, *more]


@pytest.fixture(scope="module")
def evaluated(model: Path, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluated") / "out"
    assert main(asked(model, scenes, out)) == 0
    return out


def test_the_embedded_model_sees_scenes_that_nobody_downloaded(tmp_path, capsys):
    arguments = ["evaluate", "--model", "tiny", "--suite", "scenes-c", "--out", str(tmp_path / "out")]
    arguments += ["--condition", "brightness", "--severity", "1", "--images", "2", "--workers", "1"]
    assert main(arguments) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert [(row["condition"], row["method"], row["images"]) for row in rows[:2]] == [
        ("brightness/1", "baseline", "2"),
        ("brightness/1", "gramloop", "2"),
    ]
    told = capsys.readouterr().out
    assert "brightness/1" in told
    assert f"{float(rows[0]['mIoU']):.2f}" in told
    assert f"({float(rows[1]['mIoU gain']):+.2f})" in told


def test_detection_on_a_set_of_ones_own(model, scenes, tmp_path):
    out = tmp_path / "out"
    arguments = [
        "evaluate",
        "--suite",
        "mine-p",
        "--task",
        "detection",
        "--model",
        str(model),
        "--out",
        str(out),
    ]
    arguments += ["--data", str(scenes), "--condition", "rotate", "--severity", "2", "--workers", "1"]
    assert main([*arguments, "--method", "baseline", "--method", "m:window=4-5"]) == 0
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["baseline", "m"] * 2
    assert all(float(row["AP"]) >= 0 for row in rows)


def test_a_set_on_disk_gives_the_scores_of_generated_images(model, scenes, evaluated, tmp_path, capsys):
    written, out = tmp_path / "written", tmp_path / "out"
    wanted = ["--condition", "fog", "--condition", "pixelate", "--severity", "3", "--workers", "1"]
    arguments = ["corrupt", str(scenes), str(written), "--suite", "scenes-c", "--task", "semantic", *wanted]
    assert main(arguments) == 0
    assert main(asked(model, written, out)) == 0
    assert (out / "results.csv").read_bytes() == (evaluated / "results.csv").read_bytes()
    with next((written / "fog" / "3").rglob("*.png")).open("ab") as stream:
        stream.write(b"\0")
    next(out.glob("units/fog-3/*/*.parquet")).unlink()
    assert main(["evaluate", "--out", str(out), "--workers", "1"]) == 2
    assert ".png changed since the run was planned: its sha256 is" in capsys.readouterr().err


def test_a_backbone_and_a_head_from_files(model, scenes, evaluated, tmp_path):
    """The same weights, given as two files and seen through one window, give the same labels."""
    out = tmp_path / "out"
    arguments = asked(model, scenes, out, "--backbone", str(model / "backbone"), "--whole")
    place = arguments.index("--model")
    del arguments[place : place + 2]  # a whole model and a head exclude each other
    assert main([*arguments, "--head", str(model / "segment.safetensors")]) == 0
    assert (out / "results.csv").read_bytes() == (evaluated / "results.csv").read_bytes()


def test_going_on_needs_the_folder_alone(evaluated, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(evaluated, out)
    unit = next(out.glob("units/fog-3/*/*.parquet"))
    unit.unlink()
    (out / "results.csv").unlink()
    assert main(["evaluate", "--out", str(out), "--status"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0] == "scenes-c, mIoU in percent"
    assert "7 of 8 units are stored, 1 are missing" in told
    assert main(["evaluate", "--out", str(out), "--workers", "1"]) == 0
    assert (out / "results.csv").read_bytes() == (evaluated / "results.csv").read_bytes()
    assert unit.is_file()


def test_the_status_names_files_that_cannot_be_used(evaluated, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(evaluated, out)
    unit = next(out.glob("units/fog-3/*/*.parquet"))
    unit.write_bytes(unit.read_bytes()[:100])
    assert main(["evaluate", "--out", str(out), "--status"]) == 0
    told = capsys.readouterr()
    assert f"{unit} is torn or damaged" in told.err
    assert "7 of 8 units are stored" in told.out


def test_a_dry_run_writes_nothing(model, scenes, tmp_path, capsys):
    assert main([*asked(model, scenes, tmp_path / "out"), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "2 conditions, 8 units, 10 images" in told
    # 6 blocks, window [3, 3], two replays with two blocks after it: 6 + 2 (1 + 2) + 2
    assert "14 blocks per view of an image (2.33 baseline passes of 6)" in told
    assert "140 blocks in all" in told
    assert "MB of results" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_dry_run_leaves_the_caches_of_transformers_alone(model, scenes, tmp_path, device):
    from transformers.models.dinov3_vit.modeling_dinov3_vit import get_patches_center_coordinates

    remembered = functools.lru_cache(functools.partial(get_patches_center_coordinates, dtype=torch.float32))
    remembered.__module__ = get_patches_center_coordinates.__module__
    remembered(2, 3, device=torch.device("cpu"))
    assert main([*asked(model, scenes, tmp_path / "out"), "--dry-run", "--device", device]) == 0
    assert remembered.cache_info().currsize == 1


def test_another_plan_is_refused_and_nothing_is_mixed(model, scenes, evaluated, capsys):
    before = {path: path.read_bytes() for path in evaluated.rglob("*") if path.is_file()}
    assert main(asked(model, scenes, evaluated, "--images", "4")) == 2
    assert "it was made with conditions: fog/3 = 5, not 4" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in evaluated.rglob("*") if path.is_file()}


def test_an_unreadable_image_is_named_and_costs_the_exit_code(model, scenes, evaluated, tmp_path, capsys):
    data, out = tmp_path / "set", tmp_path / "out"
    shutil.copytree(scenes, data)
    torn = data / "images" / "validation" / "00000002.png"
    torn.write_bytes(torn.read_bytes()[:600])
    assert main(asked(model, data, out)) == 1
    told = capsys.readouterr().err
    assert "2 predictions were left out for all methods" in told
    assert f"fog/3, image 00000002: cannot decode the image {torn}" in told
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert {(row["images"], row["excluded"]) for row in rows if row["images"]} == {("4", "1")}


def test_a_condition_without_one_usable_image_has_no_score(model, scenes, tmp_path):
    data, out = tmp_path / "set", tmp_path / "out"
    shutil.copytree(scenes, data)
    for path in (data / "images" / "validation").iterdir():
        path.write_bytes(path.read_bytes()[:600])
    for task in ("semantic", "detection"):
        size = ["--short-side", "64"] if task == "semantic" else []
        arguments = ["evaluate", "--suite", "scenes-c", "--model", str(model), "--data", str(data), *size]
        arguments += ["--out", str(out / task), "--task", task, "--condition", "fog", "--severity", "1"]
        assert main([*arguments, "--workers", "1"]) == 1
        rows = (out / task / "results.csv").read_text().splitlines()
        assert rows[1].startswith("fog/1,baseline,0,5,nan")
        assert len(rows) == 3  # and no mean that would mislead


def test_settings_files_diagnostics_and_pictures_from_the_command_line(model, scenes, tmp_path):
    from gramloop import ReplayConfig
    from gramloop.evaluate.plan import read_plan
    from gramloop.replay.config import write_replay

    tuned, other = tmp_path / "tuned.json", tmp_path / "other.json"
    write_replay(tuned, ReplayConfig((4, 5), 1))
    write_replay(other, ReplayConfig((1, 2), 1, eps=0.5))
    options = ["--diagnostics", "--pictures", "1", "--method", "baseline", "--method", f"mine:{other}"]
    out = tmp_path / "out"
    assert main(asked(model, scenes, out, *options, "--method", f"tuned:{tuned}")) == 0
    plan = read_plan(out / "plan.json")
    assert (plan.diagnostics, plan.pictures) == (True, 1)
    replays = {method.name: method.replay for method in plan.methods if method.replay is not None}
    assert replays["mine"] == ReplayConfig((1, 2), 1, eps=0.5)
    assert replays["tuned"] == ReplayConfig((4, 5), 1)
    assert set(replays) == {"mine", "tuned", "mine-raw", "mine-matched"}
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {"baseline", *replays}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "holds no evaluation; gramloop evaluate --suite NAME begins one"),
        (["--status"], "holds no evaluation"),
        (["--suite", "coco-c"], "--data DIR is missing"),
        (["--suite", "coco-c", "--engine", "slurm", "--slurm", "gpu"], "--slurm takes NAME=VALUE"),
        (["--suite", "coco-c", "--dry-run", "--slurm", "nan"], "--slurm nan belongs to --engine slurm"),
        (["--suite", "coco-x", "--data", "."], "did you mean"),
        (["--suite", "scenes-c", "--images", "1", "--backbone", "x"], "--head FILE is missing"),
        (["--suite", "scenes-c", "--images", "1", "--head", "nowhere.pth"], "nowhere.pth does not exist"),
        (["--suite", "scenes-c", "--images", "1", "--task", "detection", "--crop", "64"], "--task semantic"),
        (["--suite", "scenes-c", "--images", "1", "--model", "nowhere"], "there is no model 'nowhere'"),
        (
            ["--suite", "scenes-c", "--images", "1", "--method", "mine:no.json"],
            "cannot read no.json",
        ),
        (["--suite", "scenes-c", "--images", "1", "--method", "a:eps=abc"], "eps is 'abc'; it is a small"),
        (["--suite", "scenes-c", "--images", "1", "--pictures", "-1"], "--pictures is -1; it is 0 or more"),
    ],
    ids=" ".join,
)
def test_misuse_is_told_in_a_sentence(tmp_path, capsys, arguments, sentence):
    assert main(["evaluate", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("slip", [["--method", "a:eps=abc"], ["--method", "mine:no.json"]], ids=" ".join)
def test_a_slip_in_settings_writes_nothing(tmp_path, slip):
    assert main(["evaluate", "--out", str(tmp_path / "out"), "--suite", "scenes-c", *slip]) == 2
    assert not (tmp_path / "out").exists()


def test_settings_without_a_suite_are_not_ignored(evaluated, capsys):
    assert main(["evaluate", "--out", str(evaluated), "--method", "ungated"]) == 2
    assert "--method belongs to a new evaluation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [
        ("--model saved --suite photos-c --data photos --truth clean", "write --model hf:saved"),
        ("--model own.py --suite photos-c --data photos --truth clean", "as in --model own.py:make"),
        ("--model own.py:make --suite photos-c --data photos", "add --truth clean"),
        ("--model tinny --suite scenes-c", "did you mean tiny?"),
        ("--suite scenes-c --method denoize", "did you mean denoise?"),
        ("--suite scenes-c --task segmentation", "did you mean semantic?"),
    ],
)
def test_a_near_miss_is_answered_with_what_works(given, suggestion, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("saved", "photos"):
        Path(folder).mkdir()
    Path("saved/config.json").write_text("{}")
    Path("photos/1.jpg").touch()
    Path("own.py").write_text("def make():\n    return lambda image: image[..., 0]\n")
    assert main(["evaluate", *given.split(), "--out", "out"]) == 2
    assert suggestion in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_detector_that_finds_nothing_gets_words_and_no_nan(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import numpy as np\n"
        "def make():\n"
        "    def predict(image):\n"
        "        return np.array([[1.0, 1, 20, 20]]), np.array([0.05]), np.zeros(1, int)\n"
        "    predict.classes, predict.task = ('a', 'b'), 'detection'\n"
        "    return predict\n"
    )
    words = "--model own.py:make --suite scenes-c --images 2 --condition fog --severity 3 --truth clean --workers 1"
    methods = ["--method", "baseline", "--method", "median"]
    assert main(["evaluate", *words.split(), *methods, "--out", "out"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "No score for fog/3: no object of the clean predictions scores 0.5 or more" in told
    assert "nan" not in told
