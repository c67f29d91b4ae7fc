"""``gramloop predict`` and ``calibrate``."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from golden import load_golden, make_weight
from gramloop import ReplayConfig
from gramloop.cli import main
from gramloop.data.scenes import scene
from gramloop.mitigations import CalibrationStats
from gramloop.models.backbone import BackboneShape
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.models.dino import dinov3_file_shapes, meta_backbone
from gramloop.tasks.loading import load_head
from gramloop.tasks.released import DetectConfig
from gramloop.tasks.semantic import SegmentConfig

WINDOW = ["--method", "replay:window=3-4"]
SMALL = ["--short-side", "64", "--crop", "64", "--stride", "48"]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    weights = load_golden("detector").weights
    inner = {
        name.removeprefix(DETECTOR_BACKBONE): value
        for name, value in weights.items()
        if name.startswith(DETECTOR_BACKBONE)
    }
    torch.save(inner, folder / "backbone.pth")
    head = {name: value for name, value in weights.items() if not name.startswith(DETECTOR_BACKBONE)}
    torch.save({"model": head}, folder / "detector.pth")
    torch.save(load_golden("segmentor").weights, folder / "segmentor.pth")
    torch.save(dict(list(inner.items())[:-9]), folder / "part.pth")
    narrow = dinov3_file_shapes(meta_backbone(BackboneShape(depth=4, width=32, head_dim=16)))
    torch.save(
        {name: make_weight(name, shape, 0, 16) for name, shape in narrow.items()}, folder / "narrow.pth"
    )
    (folder / "truncated.pth").write_bytes((folder / "detector.pth").read_bytes()[:100_000])
    return folder


@pytest.fixture
def photo():
    coarse = np.random.default_rng(3).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((70, 50), Image.Resampling.BICUBIC)


@pytest.fixture
def detect(models, tmp_path):
    def run(*arguments):
        files = ["--backbone", str(models / "backbone.pth"), "--head", str(models / "detector.pth")]
        size = ["--short-side", "96", "--out", str(tmp_path / "out")]
        return main(["predict", "--task", "detection", *files, *size, *WINDOW, *map(str, arguments)])

    return run


def results(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_detections_of_a_folder(detect, models, photo, tmp_path, capsys):
    (tmp_path / "in" / "inner").mkdir(parents=True)
    photo.save(tmp_path / "in" / "000042.png")
    photo.rotate(180).save(tmp_path / "in" / "inner" / "cat.png")
    assert detect(tmp_path / "in") == 0
    assert results(tmp_path / "out") == [
        f"{name}.{kind}"
        for name in ("000042", "inner/cat")
        for kind in ("baseline.json", "mitigated.json", "picture.png")
    ]
    files = models / "backbone.pth", models / "detector.pth"
    detector = load_head(*files, **vars(DetectConfig(short_side=96)))
    pair = detector.predict(photo, ReplayConfig(window=(3, 4)), paired=True)
    for version, expected in (("baseline", pair.baseline), ("mitigated", pair.replayed)):
        rows = json.loads((tmp_path / "out" / f"000042.{version}.json").read_text())
        assert {row["image_id"] for row in rows} == {42}
        assert [row["category_id"] for row in rows] == expected.labels.tolist()
        np.testing.assert_allclose([row["score"] for row in rows], expected.scores, atol=1e-6)
        found = np.array([row["bbox"] for row in rows])
        found[:, 2:] += found[:, :2]
        np.testing.assert_allclose(found, expected.boxes, atol=2e-3)  # stored with three decimals
    assert Image.open(tmp_path / "out" / "000042.picture.png").width > 1000
    assert "2 images done" in capsys.readouterr().out


def test_labels_of_a_glob(models, photo, tmp_path):
    photo.save(tmp_path / "a.png")
    photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "b.png")
    out = tmp_path / "out"
    head = models / "segmentor.pth"
    arguments = ["--task", "semantic", "--head", str(head), "--out", str(out), *SMALL, *WINDOW]
    assert main(["predict", str(tmp_path / "?.png"), *arguments]) == 0
    assert results(out) == [f"{n}.{kind}.png" for n in "ab" for kind in ("baseline", "mitigated", "picture")]
    segmenter = load_head(None, head, "semantic", **vars(SegmentConfig(short_side=64, crop=64, stride=48)))
    pair = segmenter.predict(photo, ReplayConfig(window=(3, 4)), paired=True)
    for version, expected in (("baseline", pair.baseline), ("mitigated", pair.replayed)):
        stored = np.asarray(Image.open(out / f"a.{version}.png"))
        assert np.array_equal(stored, expected.labels)


def test_without_replay_and_picture_there_is_one_result(detect, photo, tmp_path):
    photo.save(tmp_path / "a.png")
    assert detect(tmp_path / "a.png", "--method", "baseline", "--no-picture") == 0
    assert results(tmp_path / "out") == ["a.baseline.json"]


def test_bad_images_cost_a_sentence_each_and_the_others_are_done(detect, photo, tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    photo.save(folder / "good.png")
    (folder / "text.jpg").write_text("no image")
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:300])
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    photo.save(folder / "last.png")
    assert detect(folder, folder / "missing.png", "--no-picture") == 1
    assert results(tmp_path / "out") == [
        f"{name}.{version}.json" for name in ("good", "last") for version in ("baseline", "mitigated")
    ]
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    for name in ("text.jpg", "empty.png", "cut.png", "dot.png", "missing.png"):
        assert sum(str(folder / name) in line for line in lines) == 1, name
    assert len(lines) == 6
    assert lines[-1] == "5 of 7 images failed"
    assert "2 images done" in captured.out


def test_unusual_images_are_handled(detect, photo, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    photo.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257).save(folder / "sixteen.png")
    photo.putalpha(128)
    photo.save(folder / "alpha.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    photo.convert("RGB").save(folder / "turned.jpg", exif=exif)
    Image.new("RGB", (2, 2), "red").save(folder / "tiny.png")
    assert detect(folder, "--no-picture", "--method", "baseline") == 0
    rows = json.loads((tmp_path / "out" / "turned.baseline.json").read_text())
    assert max(box[1] + box[3] for box in (row["bbox"] for row in rows)) > 50  # 70 pixels high now


MISUSES = {
    "no head": (["--backbone", "{}/backbone.pth"], "--head FILE is missing"),
    "head alone": (["--head", "{}/detector.pth"], "detector.pth holds only the head"),
    "backbone of another size": (
        ["--backbone", "{}/narrow.pth", "--head", "{}/detector.pth"],
        "detector.pth was made for a backbone of width 64, the backbone given has 32",
    ),
    "incomplete backbone": (
        ["--backbone", "{}/part.pth", "--head", "{}/detector.pth"],
        "part.pth does not fit",
    ),
    "head of another task": (
        ["--backbone", "{}/backbone.pth", "--head", "{}/segmentor.pth"],
        "segmentor.pth is Meta's Mask2Former head, for the task semantic, not for detection",
    ),
    "truncated head": (
        ["--backbone", "{}/backbone.pth", "--head", "{}/truncated.pth"],
        "truncated.pth cannot be read",
    ),
    "missing file": (["--backbone", "{}/none.pth", "--head", "{}/detector.pth"], "none.pth does not exist"),
    "window past the end": (["--method", "replay:window=6-9"], "window [6, 9] reaches past the last block"),
    "strength": (["--method", "replay:strength=much"], "strength is 'much'; it is "),
    "replays": (["--method", "replay:replays=-1"], "replays is -1"),
    "threshold": (["--threshold", "7"], "--threshold is a score from 0 to 1"),
    "device": (["--device", "abacus"], "--device abacus is not on this machine"),
    "short side": (["--short-side", "0"], "must be positive"),
    "crop": (["--crop", "64"], "--crop belongs to --task semantic"),
}


@pytest.mark.parametrize(("arguments", "said"), MISUSES.values(), ids=MISUSES)
def test_misuse_is_one_sentence_and_writes_nothing(models, photo, tmp_path, capsys, arguments, said):
    photo.save(tmp_path / "a.png")
    given = [each.format(models) for each in arguments]
    if "--head" not in given and "--backbone" not in given:
        given += ["--backbone", str(models / "backbone.pth"), "--head", str(models / "detector.pth")]
    out = tmp_path / "out"
    assert main(["predict", str(tmp_path / "a.png"), "--task", "detection", "--out", str(out), *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_an_output_folder_that_is_a_file_is_refused(detect, photo, tmp_path, capsys):
    photo.save(tmp_path / "a.png")
    (tmp_path / "out").write_text("in the way")
    assert detect(tmp_path / "a.png") == 2
    assert "cannot write to the folder" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "in the way"


def test_a_folder_of_images_becomes_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(8):
        Image.fromarray(scene(index, 64, "calibrate").image).save(tmp_path / f"{index}.png")
    out = tmp_path / "stats.safetensors"
    assert main(["calibrate", str(tmp_path), "--out", str(out), "--short-side", "64"]) == 0
    assert capsys.readouterr().out.startswith("8 images, features after blocks 2, 5, 8, 11, noise below ")
    assert CalibrationStats.read(out).images == 8
    assert main(["calibrate", str(tmp_path / "0.png"), "--out", str(out)]) == 2
    assert "at least 8 in-distribution images" in capsys.readouterr().err
