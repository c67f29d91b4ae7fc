"""``--quiet`` prints nothing but errors, ``--json`` one document; both whatever a library prints."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gramloop import cli
from gramloop.cli import main
from gramloop.cli.output import print_document
from small_stores import make_plan, write_store

Said = pytest.CaptureFixture[str]


def document(capsys: Said, command: str) -> dict[str, Any]:
    """The one document on standard output."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(found)[:4] == ["command", "version", "exit_code", "notes"]
    assert found["command"] == command
    return found


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder / "c", make_plan())
    write_store(folder / "clean", make_plan(suite="scenes", conditions=["clean"]))
    return folder


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    return path


def test_list(capsys: Said) -> None:
    assert main(["list", "shifts", "--json"]) == 0
    entries = {(each["name"], each["meaning"]) for each in document(capsys, "list")["entries"]}
    assert ("fog", "corruption") in entries
    assert ("noise", "group of -c suites: gaussian_noise, shot_noise, impulse_noise") in entries
    assert ("geometry", "group of -p suites: rotate, translate, shear") in entries


def test_status(stores: Path, capsys: Said) -> None:
    assert main(["evaluate", "--out", str(stores / "c"), "--status", "--json"]) == 0
    found = document(capsys, "evaluate")
    assert found["missing"] == []
    assert found["plan"] == make_plan().hash
    means = {
        name: np.mean([each[name]["mIoU"] for each in found["scores"].values()]) for name in found["methods"]
    }
    assert found["means"] == pytest.approx(means, rel=1e-12)
    assert found["gains"]["baseline"] == 0


def test_report(stores: Path, tmp_path: Path, capsys: Said) -> None:
    assert main(["report", str(stores / "c"), "--no-pdf", "--out", str(tmp_path / "report"), "--json"]) == 0
    found = document(capsys, "report")
    assert Path(found["page"]).is_file()
    [answer] = found["answers"]
    assert answer["suite"] == "scenes-c"
    assert answer["sentence"]


def test_predict_and_diagnose(photo: Path, tmp_path: Path, capsys: Said) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    words = [
        "--task",
        "depth",
        "--short-side",
        "64",
        "--no-picture",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert main(["predict", str(photo), str(bad), *words]) == 1
    found = document(capsys, "predict")
    assert found["exit_code"] == 1
    [one], [failure] = found["images"], found["failures"]
    assert one["image"] == str(photo)
    assert sorted(map(Path, one["files"])) == sorted((tmp_path / "out").iterdir())
    assert failure["image"] == str(bad)
    words = [
        "--short-side",
        "64",
        "--shift",
        "contrast",
        "--severity",
        "3",
        "--out",
        str(tmp_path / "d"),
        "--json",
    ]
    assert main(["diagnose", str(photo), *words]) == 0
    [one] = document(capsys, "diagnose")["images"]
    assert one == json.loads((tmp_path / "d" / "photo.diagnosis.json").read_text())


def test_making_data(photo: Path, tmp_path: Path, capsys: Said) -> None:
    folder = tmp_path / "scenes"
    assert main(["scenes", str(folder), "--count", "2", "--size", "64", "--workers", "1", "--json"]) == 0
    assert document(capsys, "scenes") | {"folder": str(folder), "scenes": 2} == {
        **{"command": "scenes", "version": cli.__version__, "exit_code": 0, "notes": []},
        **{"folder": str(folder), "scenes": 2},
    }
    words = ["--suite", "scenes-c", "--condition", "digital", "--severity", "1", "--task", "semantic"]
    assert main(["corrupt", str(folder), str(tmp_path / "c"), *words, "--workers", "1", "--json"]) == 0
    found = document(capsys, "corrupt")
    digital = ("contrast", "elastic_transform", "jpeg_compression", "pixelate")
    assert sorted(found["finished"]) == [f"{name}/1" for name in digital]
    assert (found["made"], found["failures"]) == (8, [])


def test_calibrate(photo: Path, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "source.safetensors"
    copies = [str(shutil.copy(photo, tmp_path / f"{number}.png")) for number in range(8)]
    assert main(["calibrate", *copies, "--short-side", "64", "--out", str(out), "--json"]) == 0
    found = document(capsys, "calibrate")
    assert (found["file"], found["images"]) == (str(out), 8)


def test_a_plan_of_tune(tmp_path: Path, capsys: Said) -> None:
    words = [
        "--suite",
        "scenes-c",
        "--images",
        "24",
        "--budget",
        "300",
        "--condition",
        "noise",
        "--condition",
        "fog",
    ]
    words += ["--keep-unseen", "noise", "--out", str(tmp_path / "out"), "--dry-run", "--json"]
    assert main(["tune", *words]) == 0
    found = document(capsys, "tune")
    assert 0 < found["predictions"] <= 300
    assert not (tmp_path / "out").exists()


def test_a_refusal_is_a_document_and_a_sentence(tmp_path: Path, capsys: Said) -> None:
    assert main(["scenes", str(tmp_path / "x"), "--count", "0", "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["error"] in told.err
    assert json.loads(told.out)["exit_code"] == 2
    assert main(["list", "hosts", "--json", f"@{tmp_path / 'none.txt'}"]) == 2
    assert "none.txt" in json.loads(capsys.readouterr().out)["error"]


def test_quiet_prints_nothing(tmp_path: Path, capsys: Said) -> None:
    assert main(["scenes", str(tmp_path / "made"), "--count", "1", "--size", "64", "--quiet"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")
    assert list(tmp_path.iterdir())


def test_a_quiet_evaluation_prints_errors_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "--suite", "scenes-c", "--condition", "fog", "--severity", "3", "--images", "1"]
    words += ["--method", "baseline", "--workers", "1", "--quiet", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")
    wrong = str(tmp_path / "wrong")
    assert main([*words[:-1], wrong, "--condition", "smog"]) == 2
    assert not Path(wrong).exists(), "no scenes are drawn for a slip of the pen"
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("gramloop evaluate: the suite scenes-c has no condition 'smog'")


LOUD = """
import math, os, subprocess, sys, types, warnings
from dataclasses import dataclass
from pathlib import Path
from gramloop import cli
from gramloop.cli.options import command
from gramloop.util.options import option
from gramloop.errors import GramLoopError, UntunedWindowWarning

@dataclass(frozen=True, kw_only=True)
class Options:
    fail: bool = option("raise an error", False)

@command(Options, "", ())
def loud_command(options):
    print("to people")
    os.write(1, b"past Python\\n")
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    warnings.warn("a window that nobody tuned", UntunedWindowWarning)
    if options.fail:
        raise GramLoopError("this went wrong")
    return 1, {"value": math.nan, "path": Path("a")}

module = sys.modules["gramloop.cli.loud"] = types.ModuleType("loud")
module.loud_command = loud_command
cli.COMMANDS["loud"] = "print in every way there is, and warn"
sys.exit(cli.main(["loud", *sys.argv[1:]]))
"""


def loud(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that prints in every way there is."""
    told = subprocess.run([sys.executable, "-c", LOUD, *words], capture_output=True, text=True, check=False)
    return told.returncode, told.stdout, told.stderr


def test_nothing_else_gets_out() -> None:
    note = "gramloop: note: a window that nobody tuned\n"
    code, out, err = loud("--json")
    assert (code, err) == (1, note)
    assert json.loads(out) == {
        **{"command": "loud", "version": cli.__version__, "exit_code": 1},
        **{"notes": ["a window that nobody tuned"], "value": None, "path": "a"},
    }
    assert loud("--quiet") == (1, "", "")
    assert loud("--quiet", "--fail") == (2, "", "gramloop loud: this went wrong\n")
    code, out, err = loud("--quiet", "--json")
    assert (json.loads(out)["notes"], err) == (["a window that nobody tuned"], "")
    code, out, err = loud()
    assert (code, err) == (1, note)
    assert sorted(out.splitlines()) == ["of a child", "past Python", "to people"]


def test_values_that_json_does_not_have(capsys: Said) -> None:
    value = {"a": np.float64(0.5), 1: (np.int64(2), None, math.inf, True), "p": Path("x")}
    print_document("loud", "1", 0, [], value)
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in "a1p"} == {"a": 0.5, "1": [2, None, None, True], "p": "x"}


def test_a_reader_that_has_seen_enough() -> None:
    code = "import sys; from gramloop.cli import main; sys.exit(main(['list', 'shifts']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.wait()
