"""SIGTERM ends a command as Ctrl-C does: a sentence, a code of its own, and nothing lost."""

import signal
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.cli.output import Terminated, sigterm_interrupts
from killing import command, hit, needs_proc
from small_runs import write_model, write_scene_set
from small_sets import write_semantic

pytest.importorskip("transformers")


def stored(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


def terminated(arguments: list[str], folder: Path, pattern: str, *, group: bool = False) -> str:
    """A command is told to end once a file of the pattern exists; what it said."""
    said = folder.parent / "said"
    ready = lambda: stored(folder, pattern) > 0  # noqa: E731
    assert hit(command, (arguments, said), signal.SIGTERM, ready, group=group) == 143
    assert not list(folder.rglob(".gramloop-*"))
    lines = said.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line or "died (out of memory" in line]
    return lines[-1]


@needs_proc
@pytest.mark.parametrize(
    ("workers", "group"), [("1", False), pytest.param("2", True, marks=pytest.mark.slow)]
)
def test_an_evaluation_goes_on_after_sigterm(tmp_path: Path, workers: str, group: bool):
    model, scenes = write_model(tmp_path / "model"), write_scene_set(tmp_path / "set", 40)
    arguments = [
        "evaluate",
        "--suite",
        "scenes-c",
        "--data",
        str(scenes),
        "--model",
        str(model),
        "--shards",
        "40",
    ]
    arguments += ["--short-side", "64", "--condition", "fog", "--severity", "3", "--method", "baseline"]
    out, whole = tmp_path / "out", tmp_path / "whole"
    last = terminated(
        [*arguments, "--workers", workers, "--out", str(out)], out, "units/fog-3/*/*.parquet", group=group
    )
    assert last.startswith("gramloop evaluate: stopped with ")
    assert last.endswith(f" of 40 units stored; gramloop evaluate --out {out} resumes")
    assert 0 < stored(out, "units/fog-3/*/*.parquet") < 40
    assert main(["evaluate", "--out", str(out), "--workers", "1"]) == 0
    assert main([*arguments, "--workers", "1", "--out", str(whole)]) == 0
    assert (out / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()


@needs_proc
@pytest.mark.slow
def test_a_search_goes_on_after_sigterm(tmp_path: Path):
    model, scenes = write_model(tmp_path / "model"), write_scene_set(tmp_path / "set", 33)
    arguments = [
        "tune",
        "--suite",
        "scenes-c",
        "--data",
        str(scenes),
        "--model",
        str(model),
        "--short-side",
        "64",
    ]
    arguments += [
        "--condition",
        "fog",
        "--condition",
        "pixelate",
        "--condition",
        "contrast",
        "--workers",
        "1",
    ]
    arguments += ["--try", "window=2-2,4-5", "--try", "replays=1", "--budget", "400"]
    out, whole = tmp_path / "out", tmp_path / "whole"
    last = terminated([*arguments, "--out", str(out)], out, "units/*/*/*.parquet")
    assert last == f"gramloop tune: stopped; what was measured is in {out}, and the same command resumes"
    assert main([*arguments, "--out", str(out)]) == 0
    assert main([*arguments, "--out", str(whole)]) == 0
    for name in ("plan.json", "best.json"):
        text = (out / name).read_text().replace(str(out), str(whole))  # in the command that it keeps
        assert text == (whole / name).read_text()


@needs_proc
def test_a_set_that_is_being_written_goes_on_after_sigterm(tmp_path: Path):
    clean = write_semantic(tmp_path / "clean", 12)
    wanted = ["--suite", "mine-c", "--condition", "glass_blur", "--condition", "fog", "--workers", "1"]
    out, whole = tmp_path / "out", tmp_path / "whole"
    last = terminated(["corrupt", str(clean), str(out), *wanted], out, "glass_blur/1/images/validation/*.png")
    assert last == "gramloop corrupt: stopped"
    assert main(["corrupt", str(clean), str(out), *wanted]) == 0
    assert main(["corrupt", str(clean), str(whole), *wanted]) == 0
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


def test_the_signal_is_heard_once_and_then_as_before():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), sigterm_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_interrupts():  # whoever ignores it wants it so
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
