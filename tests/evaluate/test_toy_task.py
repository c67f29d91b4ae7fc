"""A sixth task, counting objects, defined in a user's file next to the model: it runs through everything unedited."""

from __future__ import annotations

import csv
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import gramloop
from gramloop.cli import main
from gramloop.evaluate.store import Store, plan_in, read_condition
from small_runs import write_scene_set

CODE = '''
    """Counting: the number of objects in an image, scored by the share of images whose count is off by one at most."""

    from dataclasses import dataclass

    import numpy as np

    from gramloop.tasks.base import Task, register_task
    from gramloop.tasks.prediction import Prediction


    @dataclass(frozen=True)
    class Count(Prediction):
        number: float


    class Counting(Task):
        name = "counting"
        metrics = ("within1", "error")
        columns = {"within1": "float64", "error": "float64"}
        picture_columns = {"number": "float64"}
        prediction = Count
        annotations = "detection"  # it counts the boxes of a COCO file
        has_classes = False

        def read_truth(self, record):
            return float(len(record.instances()))

        def as_truth(self, prediction, threshold):
            return prediction.number

        def statistics(self, prediction, truth, categories):
            off = abs(prediction.number - truth)
            return {"within1": 100.0 * (off <= 1), "error": off}

        def score(self, rows, categories):
            return {name: float(rows.values[name].mean()) for name in self.metrics}

        def scorer(self, rows, categories):
            values = rows.values["within1"]
            return lambda weights: weights @ values / weights.sum(axis=1)

        def encode(self, prediction):
            return {"number": prediction.number}

        def as_prediction(self, truth):
            return Count(truth)


    register_task(Counting())


    def make():
        def predict(image):
            edges = np.abs(np.diff(image.astype(float).mean(axis=2), axis=1)).mean()
            return Count(float(np.round(edges / 3)))

        predict.task = "counting"
        return predict
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("toy") / "counting.py"
    file.write_text(textwrap.dedent(CODE))
    return f"{file}:make"


@pytest.fixture(scope="module")
def evaluated(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    write_scene_set(folder / "scenes", 9)
    gramloop.evaluate(
        model,
        folder / "scenes",
        suite="scenes-c",
        out=folder / "out",
        conditions=["fog", "gaussian_noise"],
        severities=[3],
        methods=["baseline", "median"],
        workers=2,  # processes that never saw the task, unless by importing the model's file
        prepare=1,
    )
    return folder / "out"


def test_it_is_evaluated_like_those_built_in(evaluated: Path) -> None:
    plan = plan_in(evaluated)
    assert plan.task == "counting"
    rows = list(csv.DictReader((evaluated / "results.csv").read_text().splitlines()))
    assert [row["method"] for row in rows if row["condition"] == "fog/3"] == ["baseline", "median"]
    stored = read_condition(Store(evaluated, plan), "fog/3")
    assert stored is not None
    for name, found in stored.methods.items():
        row = next(row for row in rows if (row["condition"], row["method"]) == ("fog/3", name))
        assert float(row["within1"]) == np.mean(found.rows.values["within1"])
        assert float(row["error"]) == np.mean(found.rows.values["error"])
        assert all(isinstance(each["number"], float) for each in found.first(plan.pictures))
    assert next(row["within1 gain"] for row in rows if row["condition"] == "mean") == ""


def test_a_command_knows_it_by_its_folder_alone(evaluated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--out", str(evaluated), "--status"]) == 0
    assert "4 of 4 units are stored" in capsys.readouterr().out


def test_clean_predictions_take_the_place_of_labels(model: str, evaluated: Path, tmp_path: Path) -> None:
    found = gramloop.evaluate(
        model,
        evaluated.parent / "scenes" / "images" / "validation",
        suite="photos-c",
        out=tmp_path,
        truth="clean",
        conditions=["fog"],
        severities=[5],
        workers=1,
    )
    assert found.metric == "agreement within1"
    stored = read_condition(Store(tmp_path, found.plan), "fog/5")
    assert stored is not None
    assert {"number", "clean_number"} <= set(stored.methods["baseline"].first(1)[0])


def test_a_process_that_never_saw_it_reports_it(evaluated: Path, tmp_path: Path) -> None:
    command = ["report", str(evaluated), "--out", str(tmp_path / "report")]
    code = f"import sys; from gramloop.cli import main; sys.exit(main({command!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout
    page = (tmp_path / "report" / "index.html").read_text()
    assert "within1" in page
    assert "counting" in page


def test_it_is_tuned(model: str, tmp_path: Path) -> None:
    """Candidates on pixels are compared by its main metric; those that need to mirror or resize it are left out."""
    data = write_scene_set(tmp_path / "scenes", 20)
    found = gramloop.tune(
        model,
        data,
        suite="scenes-c",
        out=tmp_path / "out",
        budget=200,
        workers=1,
        conditions=["fog", "gaussian_noise", "snow"],
    )
    names = {stack[0].name for stack in found.search.candidates}
    assert {"median", "levels", "sharpen"} <= names
    assert "counting predictions cannot be mirrored" in dict(found.outcome.refused)["flip"]
    assert (tmp_path / "out" / "best.json").is_file()
    assert found.outcome.predictions <= 200
