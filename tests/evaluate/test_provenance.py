"""A run goes on only with what it began with: other weights, versions, images or labels are named and refused."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramloop.cli import main
from gramloop.data.records import ChangedFileError
from gramloop.errors import GramLoopError
from gramloop.evaluate import provenance
from gramloop.evaluate.engines import run_local
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Plan, read_plan
from gramloop.evaluate.provenance import file_checksums
from gramloop.evaluate.ray_engine import _run_part
from gramloop.evaluate.slurm import run_missing
from gramloop.evaluate.store import Store, open_folder
from gramloop.util import files
from small_runs import job_of, runner_of, small_plan, write_model


@pytest.fixture
def model(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


@pytest.fixture
def scenes(scene_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scene_folder, tmp_path / "set"))


@pytest.fixture
def begun(model: Path, scenes: Path, tmp_path: Path) -> Path:
    """An evaluation with one of its units missing."""
    plan = small_plan(model, scenes, conditions=["fog"], methods=["baseline"])
    evaluate(plan, tmp_path / "out", workers=1)
    Store(tmp_path / "out", plan).path(plan.units[1]).unlink()
    return tmp_path / "out"


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Going on is refused with one sentence, and nothing in the folder is touched."""
    before = everything(folder)
    assert main(["evaluate", "--out", str(folder), "--workers", "1"]) == 2
    assert everything(folder) == before
    return capsys.readouterr().err


def same_size(path: Path, change: bytes) -> None:
    """Other bytes of the same number and, as far as a user can set them, the same times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-len(change) :] = change
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_another_head_is_refused_by_the_folder_alone(begun: Path, model: Path, tmp_path: Path, capsys):
    other = write_model(tmp_path / "other", seed=7)
    capsys.readouterr()
    shutil.copy(other / "segment.safetensors", model / "segment.safetensors")
    said = refused(begun, capsys)
    assert f"{model / 'segment.safetensors'} changed since the evaluation was planned: it is sha256 " in said
    assert said.count("\n") == 2  # what was asked for, and why not


def test_another_version_is_refused_by_the_folder_alone(begun: Path, monkeypatch, capsys):
    now = dict(read_plan(begun / "plan.json").versions)
    monkeypatch.setattr(provenance, "origin_versions", lambda: {**now, "torch": "9.9"})
    said = refused(begun, capsys)
    changed = "the version of torch changed since the evaluation was planned"
    assert f"{changed}: it is 9.9, and was {now['torch']};" in said


@pytest.mark.parametrize("part", ["images", "annotations"])
def test_turned_files_of_equal_size_are_refused_by_name(begun: Path, scenes: Path, capsys, part: str):
    victims = sorted((scenes / part / "validation").glob("*.png"))
    sizes = [path.stat().st_size for path in victims]
    for path in victims:
        same_size(path, b"\0\0\0\0IEND\xaeB`\x83")  # another end, which decoders pass over
    assert [path.stat().st_size for path in victims] == sizes
    said = refused(begun, capsys)
    assert f"{victims[0]} changed since the evaluation was planned; put it back" in said


def test_labels_turned_by_180_degrees_are_refused(begun: Path, scenes: Path, capsys):
    path = scenes / "annotations" / "validation" / "00000000.png"
    before = path.stat()
    labels = np.asarray(Image.open(path))
    for level in range(10):  # some way to pack the turned labels is no longer than the file
        Image.fromarray(np.ascontiguousarray(labels[::-1, ::-1])).save(path, compress_level=level)
        if path.stat().st_size <= before.st_size:
            break
    path.write_bytes(path.read_bytes().ljust(before.st_size, b"\0"))
    assert path.stat().st_size == before.st_size
    assert np.array_equal(np.asarray(Image.open(path)), labels[::-1, ::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "changed since the evaluation was planned" in refused(begun, capsys)


def test_other_numbers_for_the_classes_are_refused(begun: Path, scenes: Path, capsys):
    names = (scenes / "classes.txt").read_text().splitlines()
    numbered = [f"{len(names) - number} {name}" for number, name in enumerate(names)]
    (scenes / "classes.txt").write_text("\n".join(numbered) + "\n")
    assert "changed since the evaluation was planned" in refused(begun, capsys)


def changed_beneath(plan: Plan, folder: Path) -> None:
    """What is checked at the start is changed after it: workers look for themselves."""
    open_folder(folder, plan)
    head = Path(plan.model.files["folder"]) / "segment.safetensors"
    same_size(head, b"\1\2\3\4")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_local_worker_looks_for_itself(model: Path, scenes: Path, tmp_path: Path, workers: int):
    plan = small_plan(model, scenes, conditions=["fog"], methods=["baseline"])
    changed_beneath(plan, tmp_path / "out")
    with pytest.raises(GramLoopError, match=r"segment\.safetensors changed since the evaluation was planned"):
        list(run_local(job_of(plan, tmp_path / "out"), workers))
    assert not list((tmp_path / "out").glob("units/*/*/*"))


def test_every_job_of_slurm_and_task_of_ray_looks_for_itself(model: Path, scenes: Path, tmp_path: Path):
    plan = small_plan(model, scenes, conditions=["fog"], methods=["baseline"])
    changed_beneath(plan, tmp_path / "out")
    job = job_of(plan, tmp_path / "out")
    sentence = r"segment\.safetensors changed since the evaluation was planned"
    with pytest.raises(GramLoopError, match=sentence):
        run_missing((job.workload, job.store, plan.parts, 0))
    with pytest.raises(GramLoopError, match=sentence):
        _run_part((job.workload, job.store, 0), plan.parts[0])


def test_an_image_that_changes_while_the_run_goes_on_is_refused(model: Path, scenes: Path):
    plan = small_plan(model, scenes, conditions=["fog"], methods=["baseline"], shards=1)
    runner = runner_of(plan)
    same_size(scenes / "images" / "validation" / "00000004.png", b"\0\0\0\0")
    with pytest.raises(ChangedFileError, match=r"00000004\.png changed since the run was planned"):
        runner.run_one(plan.parts[0])
    (scenes / "images" / "validation" / "00000004.png").unlink()
    with pytest.raises(ChangedFileError, match=r"00000004\.png is gone"):
        runner.run_one(plan.parts[0])


def test_code_of_ones_own_that_changed_is_refused(scenes: Path, tmp_path: Path, capsys):
    code = tmp_path / "mine.py"
    lines = [
        "import numpy as np",
        "def make():",
        "    def predict(pixels):",
        "        return np.zeros(pixels.shape[:2], np.int32)",
        "    predict.task = 'semantic'",
        "    return predict",
    ]
    code.write_text("\n".join(lines))
    out = tmp_path / "out"
    arguments = [
        "evaluate",
        "--suite",
        "scenes-c",
        "--data",
        str(scenes),
        "--model",
        f"{code}:make",
        "--workers",
        "1",
    ]
    arguments += ["--condition", "fog", "--severity", "3", "--shards", "2", "--out", str(out)]
    assert main(arguments) == 0
    next(out.glob("units/fog-3/*/*.parquet")).unlink()
    code.write_text("\n".join(lines).replace("zeros", "ones"))
    assert main(["evaluate", "--out", str(out), "--workers", "1"]) == 2
    assert f"of {code}:make changed since the evaluation was planned" in capsys.readouterr().err


def test_what_is_known_of_files_spares_reading_them(begun: Path, scenes: Path, monkeypatch):
    remembered = json.loads((begun / files.CHECKSUM_CACHE).read_text())
    assert len([name for name in remembered if name.startswith(str(scenes))]) == 22
    for path in (
        *scenes.rglob("*.png"),
        *Path(read_plan(begun / "plan.json").model.files["folder"]).rglob("*"),
    ):
        if path.is_file():
            long_ago = path.stat().st_mtime_ns - 10**12
            os.utime(path, ns=(long_ago, long_ago))
    monkeypatch.setattr(files, "_SETTLED", -(10**18))  # these files were made a moment ago
    files._known.clear()
    evaluate(read_plan(begun / "plan.json"), begun, workers=1)
    files._known.clear()
    read: list[str] = []
    original = files.hashlib.file_digest
    monkeypatch.setattr(
        files.hashlib,
        "file_digest",
        lambda stream, kind: read.append(stream.name) or original(stream, kind),
    )
    files.load_checksums(begun)
    runner_of(read_plan(begun / "plan.json"), begun)
    assert read == []
    same_size(scenes / "images" / "validation" / "00000002.png", b"\0\0\0\0")
    with pytest.raises(GramLoopError, match="changed since"):
        runner_of(read_plan(begun / "plan.json"), begun)


def test_a_file_must_have_the_digest_that_its_name_ends_in(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()[:8]
    right, wrong, dated = (tmp_path / f"head-{end}.pth" for end in (digest, "00000000", "20260101"))
    for file in (right, wrong, dated):
        file.write_bytes(b"weights")
    assert file_checksums({"head": str(right)}) == file_checksums({"head": str(dated)})
    with pytest.raises(GramLoopError, match=f"begins with {digest}, its name says 00000000"):
        file_checksums({"head": str(wrong)})
