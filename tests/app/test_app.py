"""The app predicts what the library predicts, computes only what changed, and answers on this machine alone."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio")

from gramloop.app import (
    Bench,
    find_folders,
    mitigation_choices,
    read_upload,
    report_html,
    serving,
    shift_choices,
    shift_of,
    trial_html,
)
from gramloop.cli import main
from gramloop.data.records import Record
from gramloop.data.scenes import scene
from gramloop.errors import GramLoopError
from gramloop.metrics.segmentation import count_pixels, mean_iou
from gramloop.mitigations import apply
from gramloop.mitigations.stack import KINDS, REPLAYS, parse_mitigations
from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS, corrupt, generator
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks import open_model
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.options import ModelOptions
from gramloop.tasks.semantic import Segmentation

REPLAY = "replay:window=2-3,replays=1,strength=0.8"
NOISE = shift_of("c:impulse_noise", 3)
IMAGE = scene(3, 96, "val").image


@pytest.fixture(scope="module")
def model(small_model: Path) -> ModelOptions:
    return ModelOptions(model=str(small_model))


@pytest.fixture
def bench(model: ModelOptions) -> Bench:
    return Bench(model)


def test_every_shift_is_offered_once_and_is_that_of_the_library() -> None:
    names, values = zip(*shift_choices(), strict=True)
    corruptions = [f"c:{name}" for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    assert values == ("none", *corruptions, *(f"p:{name}" for name in PERTURBATIONS))
    assert len(set(names)) == len(values) == 37
    shift = shift_of("c:gaussian_noise", 4)
    assert shift is not None
    found = shift.pixels(IMAGE, Record("abc", None, "abc", 96, 96))  # type: ignore[arg-type]
    assert np.array_equal(
        found, corrupt(IMAGE, "gaussian_noise", 4, generator("image-c", "gaussian_noise", 4, "abc"))
    )
    assert shift_of("none", 4) is None


def test_every_mitigation_is_offered_ready_for_use(bench: Bench) -> None:
    offered = mitigation_choices(bench.open(None)[0])
    assert {text.partition(":")[0] for text in offered} == {*KINDS, *REPLAYS}
    assert all(parse_mitigations(text) for text in offered)


def test_only_what_changed_is_predicted(bench: Bench) -> None:
    first = bench.run(IMAGE, None, NOISE, ["denoise", REPLAY])
    again = bench.run(IMAGE.copy(), None, NOISE, [f"denoise+{REPLAY}"])
    assert first.mitigations == f"denoise+{REPLAY}"
    assert all(map(lambda one, two: one is two, again.predictions, first.predictions))
    other = bench.run(IMAGE, None, NOISE, ["median", " "])
    assert other.predictions[0] is first.predictions[0]
    assert other.predictions[1] is not first.predictions[1]


def test_predictions_are_those_of_the_library(bench: Bench, small_model: Path) -> None:
    trial = bench.run(IMAGE, None, NOISE, ["median", REPLAY])
    predictor = open_model(str(small_model))
    clean, baseline = predictor.predict(IMAGE), predictor.predict(trial.shifted)
    mitigated = apply(f"median+{REPLAY}", predictor).predict(trial.shifted)
    assert isinstance(clean, Segmentation)
    assert (baseline.labels != mitigated.labels).any()  # type: ignore[attr-defined]
    for found, wanted, score in zip(trial.predictions, (baseline, mitigated), trial.agreement, strict=True):
        assert isinstance(found, Segmentation)
        assert isinstance(wanted, Segmentation)
        assert np.array_equal(found.labels, wanted.labels)
        assert found.blocks == wanted.blocks
        counts = count_pixels(wanted.labels, clean.labels.astype(np.uint16), 32, 65535)
        assert score == pytest.approx(float(mean_iou(counts)))


def test_the_clean_prediction_moves_with_the_pixels(bench: Bench) -> None:
    shift = shift_of("p:rotate", 5)
    trial = bench.run(IMAGE, None, shift)
    assert shift is not None
    clean, found = trial.clean_prediction, trial.predictions[0]
    assert isinstance(clean, Segmentation)
    assert isinstance(found, Segmentation)
    matrix = shift.affine(Record("moved", Path(), "moved", 96, 96, shift=shift))
    moved = warp_labels(clean.labels.astype(np.uint16), matrix, 65535)
    assert 0 < (moved == 65535).mean() < 0.5
    counts = count_pixels(found.labels, moved, 32, 65535)
    assert trial.agreement[0] == pytest.approx(float(mean_iou(counts)))
    assert bench.run(IMAGE, None, None).agreement == pytest.approx((100,))


@pytest.mark.parametrize(
    "text", ["sunshine", "denoise+denoise", "replay:window=4-1", "levels", "no-such.json"]
)
def test_wrong_mitigations_are_refused(bench: Bench, text: str) -> None:
    with pytest.raises(GramLoopError):
        bench.run(IMAGE, None, NOISE, [text])


def test_boxes_and_depth_are_compared_too() -> None:
    bench = Bench(ModelOptions())
    for task, kind in (("detection", Detection), ("depth", Depth)):
        trial = bench.run(IMAGE, task, shift_of("c:contrast", 4), ["levels", "replay:window=6-6"])
        assert isinstance(trial.predictions[0], kind)
        page = trial_html(trial, "tiny", ["a note"])
        assert page.count("<img") == 2
        assert f"tiny · {task} · contrast 4 · levels+replay:window=6-6" in page
        assert "<p>a note</p>" in page
        assert all(0 <= score <= 100 for score in trial.agreement)
    assert trial_html(bench.run(IMAGE, "detection", None), "tiny").count("<img") == 1


def test_a_bad_upload_is_refused_and_a_large_one_shrunk(tmp_path: Path) -> None:
    odd = tmp_path / "odd.png"
    for content in (b"hello", b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        odd.write_bytes(content)
        with pytest.raises(GramLoopError, match=r"odd\.png"):
            read_upload(odd)
    flat = np.full((600, 1200, 3), (10, 200, 90), np.uint8)
    Image.fromarray(flat).save(tmp_path / "wide.png")
    pixels, note = read_upload(tmp_path / "wide.png")
    assert pixels.shape == (512, 1024, 3)
    assert (pixels == (10, 200, 90)).all()  # a mean of equal pixels is that pixel
    assert note == "Shrunk from 1200 x 600 to 1024 x 512 pixels."
    exif = Image.Exif()
    exif[274] = 6  # turn by 90 degrees to the right
    Image.fromarray(IMAGE[:50]).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read_upload(tmp_path / "turned.png")[0], np.rot90(IMAGE[:50], -1))


def test_results_are_found_at_any_level_and_reported(stored_results: Path) -> None:
    wanted = [stored_results / "detection", stored_results / "semantic"]
    assert find_folders([stored_results]) == find_folders([stored_results.parent]) == wanted
    assert find_folders([stored_results / "semantic", stored_results]) == wanted[::-1]
    page = report_html(str(stored_results / "semantic"))
    assert "&lt;!doctype html&gt;" in page.lower()
    assert "median" in page
    for typed in (stored_results / "semantic" / "units", "/no/such/folder"):
        with pytest.raises(GramLoopError):
            report_html(str(typed))


def status(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_this_machine_s_names_are_answered_and_no_file_is_served(
    model: ModelOptions, tmp_path: Path
) -> None:
    with serving(model) as url:
        port = url.rstrip("/").rpartition(":")[2]
        assert status(url) == 200
        assert status(url, Host="evil.example") == status(url, Host=f"evil.example:{port}") == 400
        assert status(url, Host=f"localhost:{port}") == 200
        for path in (tmp_path, "/etc/passwd", Path(__file__).resolve(), "../../../../etc/passwd"):
            assert status(f"{url}gradio_api/file={path}") in (403, 404)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "--port is 70000; it is 1 to 65535"),
        (["--model", "no-such-model"], "there is no model 'no-such-model'"),
        (["--results", "/no/such"], "--results /no/such is no folder"),
        (["--backbone", "x.pth"], "--head FILE is missing"),
        (["--device", "abacus"], "abacus"),
        (["--calibration", "no.json"], "--calibration no.json is no file"),
    ],
)
def test_the_command_refuses_wrong_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["app", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_the_command_starts_and_ends(tmp_path: Path) -> None:
    """From the shell: it prints its address, and a signal ends it and deletes uploads."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    code = "import sys; from gramloop.cli import main; sys.exit(main(['app']))"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process: Any = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path, **pipes)
    address = process.stdout.readline().split()[0]
    assert status(address) == 200
    assert list(tmp_path.glob("gramloop-app-*"))
    process.terminate()
    _, error = process.communicate(timeout=120)
    assert process.returncode in (130, 143)
    assert "Traceback" not in error
    assert not list(tmp_path.glob("gramloop-app-*"))
