"""Models and finished evaluations compared, on a set whose scores are known in closed form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.special import ndtri, stdtrit

import gramloop
from gramloop import GramLoopError
from gramloop.cli import main
from gramloop.compare import compare_folders, parse_gate

IMAGES = 4
FEW = ["--suite", "my-set-c", "--condition", "contrast", "--severity", "1", "--workers", "1"]
MODELS = """
from pathlib import Path
import numpy as np

def counted(predict):
    def model(image):
        with open(Path(__file__).with_name("calls.txt"), "a") as calls:
            calls.write("x")
        return predict(image)
    return model

def right():
    return counted(lambda image: (image.mean(2) > image.mean()).astype(int))

def wrong():
    return counted(lambda image: (image.mean(2) <= image.mean()).astype(int))

def dark():
    return counted(lambda image: np.zeros(image.shape[:2], int))

def mostly():  # wrong on the one image whose left edge is grey
    def predict(image):
        found = (image.mean(2) > image.mean()).astype(int)
        return 1 - found if len(np.unique(image[:, 0])) == 1 else found
    return counted(predict)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright blocks are of the second class; the first image has a uniform left edge, which is ignored."""
    root = tmp_path_factory.mktemp("set")
    for folder in ("images", "annotations"):
        (root / folder / "validation").mkdir(parents=True)
    for number in range(IMAGES):
        blocks = np.random.default_rng(number).permutation(np.repeat([0, 1], 24)).reshape(6, 8)
        bright = np.kron(blocks, np.ones((16, 16), dtype=np.uint8)).astype(np.uint8)
        labels, pixels = bright + 1, 60 + 120 * bright
        if number == 0:
            pixels[:, :16], labels[:, :16] = 120, 0
        Image.fromarray(np.dstack([pixels] * 3)).save(root / f"images/validation/{number}.png")
        Image.fromarray(labels).save(root / f"annotations/validation/{number}.png")
    (root / "classes.txt").write_text("dark\nbright\n")
    return root


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "few_models.py"
    path.write_text(MODELS)
    return path


def compare(file: Path, data: Path, out: Path, *names: str, more: tuple[str, ...] = ()) -> int:
    models = [f"{file}:{name}" for name in names]
    return main(["compare", *models, *FEW, "--data", str(data), "--out", str(out), *more])


def labels_of(data: Path) -> np.ndarray:
    paths = sorted((data / "annotations" / "validation").glob("*.png"))
    return np.stack([np.asarray(Image.open(path)) for path in paths])


def labels_as_drawn(data: Path) -> np.ndarray:
    """What the model that is right predicts, the ignored edge of the first image included."""
    paths = sorted((data / "images" / "validation").glob("*.png"))
    return np.stack(
        [1 + (np.asarray(Image.open(path)).mean(2) > np.asarray(Image.open(path)).mean()) for path in paths]
    )


def test_a_model_with_itself_is_equivalent_with_no_difference(tmp_path: Path) -> None:
    given = {"conditions": ["fog", "contrast"], "severities": [3], "images": 3, "workers": 1}
    found = gramloop.compare("tiny", "tiny", suite="scenes-c", out=tmp_path, margin=0.0, **given)
    assert found.scopes == ("clean", "shift", "fog", "contrast")
    for row in found.rows:
        assert row.verdict == "equivalent"
        assert (row.images.estimate, row.images.low, row.images.high) == (0, 0, 0)
        assert row.agreement == 100
    assert (found.row("shift").families.low, found.row("shift").families.high) == (0, 0)
    assert "equivalent under shift" in str(found)


def test_a_known_difference(
    tmp_path: Path, data: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(file, data, tmp_path, "right", "dark", more=("--json",)) == 0
    said = json.loads(capsys.readouterr().out)
    labels = labels_of(data)
    share = (labels == 1).sum() / (labels > 0).sum()  # IoU of the first class; the second has none
    row = next(row for row in said["rows"] if row["scope"] == "clean")
    assert row["scores"] == pytest.approx([100, 50 * share])
    assert row["images"]["estimate"] == pytest.approx(50 * share - 100)
    assert row["verdict"] == "worse"
    counts = [((one == 1).sum(), (one > 0).sum()) for one in labels]  # all images but the first are alike

    def drawn(first: int) -> float:
        """The difference on a draw that holds the first image so often."""
        dark, every = (first * counts[0][i] + (IMAGES - first) * counts[1][i] for i in (0, 1))
        return 50 * dark / every - 100

    # of draws, 32% hold it never, 5.1% three times or more, 0.4% four times
    reach = stdtrit(IMAGES - 1, 0.975) / ndtri(0.975) * (IMAGES / (IMAGES - 1)) ** 0.5  # for few images
    middle = row["images"]["estimate"]
    for end, first in (("low", 0), ("high", 3)):
        assert row["images"][end] == pytest.approx(middle + reach * (drawn(first) - middle), rel=1e-12)
    assert row["agreement"] == pytest.approx(50 * np.mean(labels_as_drawn(data) == 1), rel=1e-6)
    assert "dark" in (tmp_path / "compare.md").read_text()
    page = (tmp_path / "index.html").read_text()
    assert "few_models-dark against few_models-right" in page
    assert "worse" in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert (
        (tmp_path / "compare.csv").read_text().startswith("model,on,first,score,images estimate,images low")
    )


@pytest.mark.parametrize(("other", "code"), [("right", 0), ("wrong", 1), ("mostly", 3)])
def test_the_gates_exit_codes(tmp_path: Path, data: Path, file: Path, other: str, code: int) -> None:
    gate = ("--gate", "clean -0.5, shift -1")
    assert compare(file, data, tmp_path, "right", other, more=gate) == code


def test_finished_folders_are_compared_without_a_prediction(tmp_path: Path, data: Path, file: Path) -> None:
    assert compare(file, data, tmp_path / "run", "right", "wrong") == 0
    calls = file.with_name("calls.txt")
    before = len(calls.read_text())
    folders = [str(tmp_path / "run" / f"few_models-{name}") for name in ("right", "wrong")]
    assert main(["compare", *folders, "--out", str(tmp_path / "again")]) == 0
    assert len(calls.read_text()) == before > 0
    tables = [(tmp_path / each / "compare.csv").read_bytes() for each in ("run", "again")]
    assert tables[0] == tables[1]


def test_other_images_are_refused_by_name(tmp_path: Path, data: Path, file: Path) -> None:
    folders = {}
    for name, images in (("all", IMAGES), ("few", 3)):
        folders[name] = [tmp_path / name]
        options = {"conditions": ["contrast"], "severities": [1], "images": images, "workers": 1}
        gramloop.evaluate(f"{file}:right", data, suite="my-set-c", out=tmp_path / name, **options)
    with pytest.raises(GramLoopError, match="all and few cannot be compared: contrast/1 has 4 images and 3"):
        compare_folders(folders)
    with pytest.raises(GramLoopError, match=r"my\.onnx is no finished evaluation, and the suite"):
        gramloop.compare(tmp_path / "all", "my.onnx", out=tmp_path / "out")


def test_a_folder_with_evaluations_of_two_models_is_refused(tmp_path: Path, data: Path, file: Path) -> None:
    assert compare(file, data, tmp_path / "run", "right", "wrong") == 0
    clean, shifted = (tmp_path / "run" / f"few_models-{name}" for name in ("right", "wrong"))
    mixed = {
        "mixed": [clean / "my-set", shifted / "my-set-c"],
        "same": [clean / "my-set", clean / "my-set-c"],
    }
    with pytest.raises(GramLoopError, match="not of one model"):
        compare_folders(mixed)


@pytest.mark.parametrize("text", ["", "fog -1", "clean", "clean 1", "clean -1, clean -2", "clean=-1"])
def test_a_gate_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GramLoopError, match="cannot be read"):
        parse_gate(text)
