"""Segments and instance masks from image to report: stored numbers, kills, clean predictions as truth, intervals, figures."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hotcoco.panoptic import PanopticEval
from numpy.typing import NDArray

from browser import PATIENCE, started_browser
from gramloop.data.scenes import SceneFiles, write_scenes
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource, Plan, read_plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.store import PLAN, Store, read_condition
from gramloop.metrics.segmentation import STATISTICS, mean_quality, panoptic_statistics
from gramloop.report.document import report_document
from gramloop.report.figures import draw_figures
from gramloop.report.load import load_runs
from gramloop.report.page import render
from gramloop.report.stats import compare_methods
from gramloop.tasks.base import get_task
from gramloop.tasks.segments import InstanceMasks, segment_map
from small_runs import runner_of

MODELS = Path(__file__).parents[1] / "support" / "small_components.py"
SIDE = 96


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments") / "set"
    write_scenes(folder, SceneFiles(5, size=SIDE), workers=1)
    return folder


def planned(scenes: Path, task: str, **changes: object) -> Plan:
    wanted: dict[str, object] = {
        "suite": "scenes-c",
        "task": task,
        "files": {"make": f"{MODELS}:{task if task == 'panoptic' else 'instances'}"},
        "data": DataSource(str(scenes)),
        "methods": ["baseline", "gramloop"],
        "conditions": ["gaussian_noise", "pixelate"],
        "severities": [3],
        "shards": 3,
    }
    return make_plan(Request(**{**wanted, **changes}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def panoptic_run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("panoptic") / "out"
    evaluate(planned(scenes, "panoptic"), folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def instance_run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("instance") / "out"
    evaluate(planned(scenes, "instance"), folder, workers=1)
    return folder


def stored_rows(folder: Path, key: str, method: str = "baseline") -> tuple[Plan, MethodRows]:
    plan = read_plan(folder / PLAN)
    stored = read_condition(Store(folder, plan), key)
    assert stored is not None
    return plan, stored.methods[method]


def qualities(rows: MethodRows) -> NDArray[np.float64]:  # → (images, 4, categories)
    return np.stack([rows.rows.matrix(name) for name in STATISTICS], axis=1)


def test_stored_rows_are_the_statistics_of_their_images(panoptic_run: Path) -> None:
    plan, stored = stored_rows(panoptic_run, "pixelate/3")
    runner = runner_of(plan)
    [record] = runner.images.records("pixelate/3", range(2, 3))
    found = segment_map(runner.predictor.predict(record.image()))  # type: ignore[arg-type, union-attr]
    expected = panoptic_statistics(found, record.segments(), list(plan.categories))  # type: ignore[union-attr]
    np.testing.assert_array_equal(qualities(stored)[2], expected)
    kept = segment_map(get_task("panoptic").decode(stored.first(4)[2]))  # type: ignore[arg-type]
    assert np.array_equal(kept.ids, found.places())
    assert np.array_equal(kept.categories, found.categories)
    with (panoptic_run / "results.csv").open() as stream:
        row = next(each for each in csv.DictReader(stream) if each["condition"] == "pixelate/3")
    total = qualities(stored).sum(axis=0)
    assert [float(row[name]) for name in ("PQ", "SQ", "RQ")] == mean_quality(total).tolist()
    things = np.isin(list(plan.categories), plan.things)
    assert float(row["PQth"]) == mean_quality(total, things)[0]
    assert float(row["PQst"]) == mean_quality(total, ~things)[0]
    assert 30 < float(row["PQ"]) < 100  # a sensible model


def test_the_scores_are_those_of_another_evaluator_on_written_predictions(
    panoptic_run: Path, tmp_path: Path
) -> None:
    """Every prediction is written as COCO's PNG and JSON, and hotcoco scores the files against the scenes' own."""
    plan, _ = stored_rows(panoptic_run, "pixelate/3")
    runner = runner_of(plan)
    entries, images = [], []
    (tmp_path / "found").mkdir()
    for record in runner.images.records("pixelate/3", range(5)):
        found = runner.predictor.predict(record.image())  # type: ignore[union-attr]
        files = get_task("panoptic").files(found, Path("image.png"), str(record.image_id), {})
        (tmp_path / "found" / f"{record.image_id}.png").write_bytes(files[".png"])
        [entry] = json.loads(files[".json"])["annotations"]
        entries.append({**entry, "image_id": record.image_id})
        images.append({"id": record.image_id})
    categories = [
        {"id": number, "name": name, "isthing": int(number in plan.things)}
        for number, name in plan.categories.items()
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = PanopticEval(
            str(Path(plan.data.root) / "annotations" / "panoptic_val.json"),
            {"images": images, "annotations": entries, "categories": categories},
            pred_folder=str(tmp_path / "found"),
        )
        evaluation.run()
    theirs = evaluation.results()
    with (panoptic_run / "results.csv").open() as stream:
        row = next(each for each in csv.DictReader(stream) if each["condition"] == "pixelate/3")
    for group, ending in (("All", ""), ("Things", "th"), ("Stuff", "st")):
        for name in ("pq", "sq", "rq"):
            ours = float(row[f"{name.upper()}{ending}"])
            assert ours == pytest.approx(100 * theirs[group][name], abs=1e-9)


def test_stored_matches_are_those_of_their_images(instance_run: Path) -> None:
    plan, stored = stored_rows(instance_run, "pixelate/3")
    runner, task = runner_of(plan), get_task("instance")
    [record] = runner.images.records("pixelate/3", range(1, 2))
    found = runner.predictor.predict(record.image())  # type: ignore[union-attr]
    expected = task.statistics(found, record.object_masks(), plan.classes)  # type: ignore[union-attr]
    assert stored.rows.images == 5
    row = stored.first(4)[1]
    for name in task.columns:
        np.testing.assert_array_equal(row[name], expected[name])
    assert get_task("instance").decode(row) is not None
    header, row, *_ = (instance_run / "results.csv").read_text().splitlines()
    assert header == "condition,method,images,excluded,AP,AP50,AP75,APs,APm,APl,AP gain"
    assert 10 < float(row.split(",")[4]) < 100


@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_a_clean_prediction_takes_the_place_of_labels(task: str, scenes: Path, tmp_path: Path) -> None:
    changes = {"suite": "scenes-p", "conditions": ["translate"], "severities": [1], "truth": "clean"}
    photos = scenes / "images" / "validation"  # no labels at all
    plan = planned(scenes, task, data=DataSource(str(photos)), shards=1, images=2, **changes)
    assert task == "instance" or plan.things == tuple(range(1, 9))
    evaluate(plan, tmp_path, workers=1)
    _, stored = stored_rows(tmp_path, "translate/1")
    row, runner = stored.first(1)[0], runner_of(plan)
    [record] = runner.images.records("translate/1", range(1))
    [origin] = runner.images.clean_records("translate/1", range(1))
    clean = runner.predictor.predict(origin.image())  # type: ignore[union-attr]
    header = (tmp_path / "results.csv").read_text().splitlines()[0]
    if task == "panoptic":
        moved = segment_map(clean).moved(record.shift.affine(record))  # type: ignore[attr-defined, arg-type]
        kept = segment_map(get_task("panoptic").decode(row, "clean_picture"))  # type: ignore[arg-type]
        assert np.array_equal(kept.ids, moved.places())
        assert "agreement PQ" in header
    else:
        kept_masks = get_task("instance").decode(row, "clean_picture")
        assert isinstance(kept_masks, InstanceMasks)
        assert len(kept_masks.masks) <= len(clean.masks)  # type: ignore[attr-defined]
        assert "agreement AP" in header


def test_the_page_shows_quality_in_its_parts(panoptic_run: Path, instance_run: Path, tmp_path: Path) -> None:
    loaded = load_runs([panoptic_run, instance_run])
    evidence = compare_methods(loaded.runs, ("families", "images"), replicates=100)
    for one in evidence:
        for families, images in one.gains.values():
            assert images.interval.units == 5
            assert images.interval.estimate == pytest.approx(one.gain("gramloop"), abs=1e-9)
            assert families.interval.estimate == pytest.approx(one.gain("gramloop"), abs=1e-9)
    drawn = draw_figures(loaded, evidence, pdf=False)
    assert not drawn.remarks
    document = report_document(loaded, evidence, drawn.figures)
    captions = [
        figure.caption for figure in drawn.figures if figure.dark is not None and "predictions" in figure.key
    ]
    assert len(captions) == 2
    assert all("white lines part one segment from the next" in caption for caption in captions)
    tables = {table.key: table for section in document.sections for table in section.tables}
    assert any("Mask AP of a class" in table.caption for table in tables.values())
    assert any("PQ of a class" in table.caption for table in tables.values())
    (tmp_path / "index.html").write_text(render(document, ()), encoding="utf-8")
    with started_browser() as browser:
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.set_default_timeout(PATIENCE)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / "index.html").as_uri())
        assert "PQ under shift" in page.locator("body").inner_text()
        whole = page.eval_on_selector_all(
            "main img", "all => all.map(one => one.complete && one.naturalWidth > 100)"
        )
        assert whole
        assert all(whole)
        assert not complaints


def test_a_plan_says_which_categories_are_things(panoptic_run: Path, instance_run: Path) -> None:
    plan = read_plan(panoptic_run / PLAN)
    assert plan.things == tuple(range(1, 9))
    assert read_plan(instance_run / PLAN).things == ()


def test_a_set_of_another_task_is_refused(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(GramLoopError, match="needs annotations/panoptic_val2017"):
        planned(scenes, "panoptic", suite="own-c", data=DataSource(str(tmp_path)))
    with pytest.raises(GramLoopError, match="is a model for panoptic, not for instance"):
        planned(scenes, "instance", files={"make": f"{MODELS}:panoptic"})
