"""All figures of real, small evaluations: which there are, what they show, and what is said of those left out."""

import shutil

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import BASELINE
from gramloop.metrics.miou import class_iou
from gramloop.report.costs import work_of
from gramloop.report.figures.drawing import SECTIONS, draw_figures, main_method
from gramloop.report.figures.kept import Images, kept_images
from gramloop.report.figures.showing import severities_of_one_image
from gramloop.report.load import load_runs
from small_runs import counts_of, small_plan, write_model, write_scene_set

METHODS = ("baseline", "gramloop", "loop-loop")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    model, scenes = write_model(folder / "model"), write_scene_set(folder / "scenes", 3)
    for task in ("semantic", "detection"):
        plan = small_plan(
            model,
            scenes,
            task,
            conditions=["fog", "impulse_noise"],
            severities=[1, 3],
            methods=METHODS,
            diagnostics=True,
            pictures=2,
            shards=2,
        )
        evaluate(plan, folder / "results" / task, workers=1)
    return folder


@pytest.fixture(scope="module")
def loaded(evaluated):
    return load_runs([evaluated / "results"])


@pytest.fixture(scope="module")
def only_boxes(evaluated):
    return load_runs([evaluated / "results" / "detection"])


@pytest.fixture(scope="module")
def drawn(loaded):
    return draw_figures(loaded, pdf=False)


def test_every_run_gets_its_figures(loaded, drawn):
    assert not drawn.remarks
    keys = [figure.key for figure in drawn.figures]
    assert len(set(keys)) == len(keys)
    for run in loaded.runs:
        own = {figure.section for figure in drawn.figures if figure.key.startswith(run.key)}
        assert own == set(SECTIONS)
    assert keys[0].startswith("suites-severity")
    for figure in drawn.figures:
        assert figure.png.startswith(b"\x89PNG")
        assert figure.pdf is None
        assert figure.caption.endswith(".")
        assert len(figure.alt) > len(figure.caption)


def test_the_same_results_give_the_same_bytes(only_boxes, drawn):
    before = {figure.title: figure.png for figure in drawn.figures}
    for figure in draw_figures(only_boxes, pdf=False).figures:
        named = figure.title.replace(only_boxes.runs[0].name, "scenes-c detection")
        assert before[named] == figure.png


def test_kept_images_have_their_own_scores(loaded):
    run = next(each for each in loaded.runs if each.plan.task == "semantic")
    kept = kept_images(run, "gramloop")
    assert [(image.condition.key, image.position) for image in kept] == [
        (key, position) for key in run.plan.conditions for position in (0, 1)
    ]
    for image in kept:
        counts = counts_of(run.stored(image.condition.key).methods[BASELINE])[image.position]
        expected = class_iou(counts)[counts[2] > 0].mean()
        assert image.score("semantic", BASELINE) == pytest.approx(expected, rel=1e-12)


def test_label_maps_of_a_row_are_those_that_were_counted(loaded):
    run = next(each for each in loaded.runs if each.plan.task == "semantic")
    images = Images(run)
    for image in kept_images(run, "gramloop")[:3]:
        row = images.row(image, "gramloop", "because")
        for version, method in ((row.baseline, BASELINE), (row.method, "gramloop")):
            intersection = counts_of(run.stored(image.condition.key).methods[method])[image.position, 0]
            right = (version == row.truth) & row.valid
            assert int(right.sum()) == int(intersection.sum())


def test_the_diagnostic_shows_the_first_image_under_impulse_noise(loaded):
    kept = kept_images(loaded.runs[0], "gramloop")
    rows = severities_of_one_image(kept, "gramloop")
    assert [(row.condition.key, row.position) for row in rows] == [
        ("impulse_noise/1", 0),
        ("impulse_noise/3", 0),
    ]
    maps = rows[0].maps("gramloop")
    assert maps.last_drift.shape == maps.last_gate.shape == maps.post_drift.shape
    assert np.isfinite(maps.post_drift).all()


def test_the_method_shown_and_its_cost(loaded):
    run = loaded.runs[0]
    assert main_method(run) == "gramloop"
    window = next(each.replay.window for each in run.plan.methods if each.name == "gramloop")
    width, suffix = window[1] - window[0] + 1, 5 - window[1]
    assert work_of(run, "gramloop") == (6 + 2 * (width + suffix) + suffix) / 6
    assert work_of(run, BASELINE) == 1.0


def test_images_that_the_reader_names(only_boxes):
    found = draw_figures(only_boxes, ["fog/3:1"], pdf=False).figures
    figures = {figure.key: figure for figure in found}
    shown = [figure for key, figure in figures.items() if "predictions" in key]
    assert all("chosen by the reader" in figure.alt for figure in shown)
    assert any(key.endswith("diagnostic-chosen-1") for key in figures)
    with pytest.raises(GramLoopError, match=r"image 99 under fog/3; evaluate keeps"):
        draw_figures(only_boxes, ["fog/3:99"], pdf=False)


def test_without_the_images_a_sentence_stands_for_their_figures(evaluated, tmp_path):
    moved = evaluated / "elsewhere"
    shutil.move(evaluated / "scenes", moved)
    try:
        result = draw_figures(load_runs([evaluated / "results" / "semantic"]), pdf=False)
    finally:
        shutil.move(moved, evaluated / "scenes")
    assert {figure.section for figure in result.figures} == {"severity", "tradeoff", "consistency"}
    (said,) = result.remarks
    assert said.startswith("Figures with images of scenes-c are left out: ")
    assert "does not exist" in said
