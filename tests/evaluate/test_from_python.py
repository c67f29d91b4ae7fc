"""``gramloop.evaluate`` called like a function, with a model by name or in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gramloop
from gramloop import GramLoopError
from gramloop.data.scenes import STUFF, THINGS
from gramloop.evaluate import Results, make_plan
from small_runs import write_scene_set
from small_sets import write_semantic

FEW = {"conditions": ["fog", "contrast"], "severities": [3]}


def bright(image: np.ndarray) -> np.ndarray:
    return (image.mean(2) > 128).astype(int)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_semantic(tmp_path_factory.mktemp("data"), 3)


def test_a_function_in_memory(tmp_path: Path, data: Path) -> None:
    found = gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path / "out", **FEW)
    assert isinstance(found, Results)
    assert found.plan.model.kind == "object"
    assert set(found.plan.model.sha256) == {"model", "model.code", "model.defaults"}
    assert "fog/3" in str(found)
    assert repr(found) == str(found)
    html = found._repr_html_()
    assert html.count("<tr>") == 4  # names, two conditions, their mean
    assert f"{found.mean('baseline'):.2f}" in html
    table = found.to_arrow()
    assert table.column("condition").to_pylist() == ["fog/3", "contrast/3"]
    assert table.column("mIoU").to_pylist() == [one.scores["baseline"]["mIoU"] for one in found.conditions]
    again = gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path / "out", **FEW)
    assert again.csv() == found.csv()


def test_the_same_model_by_name_and_in_memory(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "my_models.py"
    file.write_text("def make():\n    return lambda image: (image.mean(2) > 128).astype(int)\n")
    named = gramloop.evaluate(
        f"{file}:make", data, suite="my-set-c", out=tmp_path / "named", workers=1, **FEW
    )
    held = gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path / "held", **FEW)
    assert named.csv() == held.csv()
    assert callable(make_plan), "names of the room are still there"


def test_weights_in_bfloat16_are_planned_and_used(tmp_path: Path) -> None:
    given = {"suite": "scenes-c", "conditions": ["fog"], "severities": [3], "images": 2, "workers": 1}
    full, half = (
        gramloop.evaluate("tiny", out=tmp_path / dtype, dtype=dtype, **given)
        for dtype in ("float32", "bfloat16")
    )
    assert (full.plan.model.dtype, half.plan.model.dtype) == ("float32", "bfloat16")
    assert full.csv() != half.csv()


def test_slips_are_told(tmp_path: Path, data: Path) -> None:
    with pytest.raises(GramLoopError, match="cannot be sent to other processes"):
        gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path, workers=2)
    with pytest.raises(GramLoopError, match="has the precision that it was made with; bfloat16 can be asked"):
        gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path, dtype="bfloat16")
    with pytest.raises(GramLoopError, match="weights are float32 or bfloat16, not 'float16'"):
        gramloop.evaluate("tiny", suite="scenes-c", out=tmp_path, dtype="float16")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()), "nothing is drawn for a slip"
    with pytest.raises(GramLoopError, match="there is no option 'sevrities'; did you mean severities"):
        gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path, sevrities=[3])
    with pytest.raises(GramLoopError, match="--data DIR is missing: the folder of my-set-c"):
        gramloop.evaluate(bright, suite="my-set-c", out=tmp_path)


def test_pandas(tmp_path: Path, data: Path) -> None:
    found = gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path, **FEW)
    frame = found.to_pandas()
    assert list(frame["condition"]) == ["fog/3", "contrast/3"]
    assert list(frame["mIoU"]) == found.to_arrow().column("mIoU").to_pylist()


def test_without_pandas(tmp_path: Path, data: Path) -> None:
    """In a process that cannot import it, since pyarrow remembers whether it could."""
    code = f"""
import sys
class NotInstalled:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
sys.meta_path.insert(0, NotInstalled())
from pathlib import Path
from gramloop.evaluate import Store, collect, read_plan
folder = Path({str(tmp_path)!r})
try:
    collect(Store(folder, read_plan(folder / "plan.json"))).to_pandas()
except Exception as error:
    print(type(error).__name__, error)
"""
    gramloop.evaluate(bright, data, suite="my-set-c", out=tmp_path, **FEW)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "GramLoopError to_pandas needs pandas, which is not installed; to_arrow does not\n"


def test_class_numbers_of_the_set_take_the_place_of_the_models(tmp_path: Path) -> None:
    """A model that counts the same classes in another order has the same scores, also behind mitigations."""
    data, names = write_scene_set(tmp_path / "scenes", 2), [*STUFF, *THINGS]

    def usual(image):
        return image.mean(axis=2).astype(int) % len(names)

    def reversed_(image):
        return len(names) - 1 - usual(image)

    usual.classes, reversed_.classes = names, names[::-1]
    metrics = []
    for number, model in enumerate((usual, reversed_)):
        model.task = "semantic"
        options = {"conditions": ["fog"], "severities": [3], "methods": ["baseline", "median"]}
        found = gramloop.evaluate(
            model, data, suite="scenes-c", out=tmp_path / str(number), workers=1, **options
        )
        metrics.append([row[found.metric] for row in found.to_pandas().to_dict("records")])
    assert metrics[0] == metrics[1]
    assert metrics[0][0] > 0
