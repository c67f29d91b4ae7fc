"""The figures of a report: what each shows, and all of them from real, small evaluations."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import MethodGain
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.store import Store, StoredCondition, read_condition
from gramloop.metrics.bootstrap import Interval
from gramloop.metrics.segmentation import mean_iou
from gramloop.report.figures import draw_figures
from gramloop.report.figures.charts import gain_chart, severity_heat
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic, drift_maps
from gramloop.report.figures.pictures import (
    ComparedImage,
    choose,
    kept_images,
    parse_exemplar,
    qualitative,
)
from gramloop.report.load import load_runs
from gramloop.report.run import Run
from gramloop.report.stats import compare_methods
from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import NO_CLASS, class_style
from gramloop.tasks.semantic import Segmentation
from gramloop.util.plotting import BLUE, GAINED, GREEN, LOST, drift_end, signed_difference
from small_runs import counts_of, small_plan, write_model, write_scene_set

RNG = np.random.default_rng(5)
TABLE = {(name, s): float(RNG.normal()) for name in ("fog", "gaussian_noise", "jpeg") for s in (1, 3, 5)}


def words_in(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_heat_map_prints_every_cell_its_means_and_its_scale():
    drawn = severity_heat(TABLE, "mIoU", "gramloop")
    values = np.array(list(TABLE.values())).reshape(3, 3)
    expected = [*values.ravel(), *values.mean(axis=1), *values.mean(axis=0), values.mean()]
    assert sorted(words_in(drawn.figure)) == sorted(signed_difference(each, 2) for each in expected)
    axes, bar = drawn.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["fog", "gaussian noise", "JPEG", "mean"]
    low, high = bar.get_xlim()
    assert low == -high == -np.abs(values).max()
    assert f"{signed_difference(values.max(), 3)}" in drawn.alt
    assert f"{(values > 0).sum()} of 9 conditions gain" in drawn.caption


def test_cells_without_a_result_are_dashes_and_leave_no_mean():
    drawn = severity_heat({**TABLE, ("fog", 3): float("nan")}, "AP", "gramloop")
    assert (
        words_in(drawn.figure).count("–") == 4
    )  # the cell, the means of its row and column, and that of all
    assert "1 of 9 cells have no result yet" in drawn.caption
    assert "mean over all" not in drawn.caption


def test_domains_have_one_column():
    drawn = severity_heat({("sketch", 0): 1.0, ("tattoo", 0): -2.0}, "AP", "gramloop")
    assert sorted(words_in(drawn.figure)) == ["+1.00", "−0.50", "−2.00"]
    assert "severity" not in drawn.caption


def test_a_heat_map_before_any_result():
    drawn = severity_heat({("fog", 1): float("nan")}, "AP", "gramloop")
    assert "No condition is complete yet" in drawn.caption


@pytest.mark.parametrize(
    ("value", "said"), [(-0.004, "0.00"), (0.0, "0.00"), (-0.006, "−0.01"), (2, "+2.00")]
)
def test_signed_difference(value, said):
    assert signed_difference(value, 2) == said


FIFTEEN = [
    MethodGain(
        f"method-{index}", 50 + gain, 50.0, Interval(gain, gain - 0.5, gain + 0.7), 1.0, 1.0 + index / 20
    )
    for index, gain in enumerate(np.random.default_rng(2).normal(1, 1, 15).tolist())
]


def test_the_chart_shows_gains_intervals_and_verdicts():
    gains = [
        MethodGain("matched", 49.99, 50.0),
        MethodGain("gramloop", 50.06, 50.0, Interval(0.06, 0.04, 0.08), 2.35),
        MethodGain("loop", 50.03, 50.0, Interval(0.03, -0.01, 0.07), 1.15),
    ]
    drawn = gain_chart(gains, "mIoU", "gramloop")
    (panel,) = drawn.figure.axes
    spans = {tuple(line.get_xdata()): line.get_color() for line in panel.lines if len(line.get_xdata()) == 2}
    assert spans[0.04, 0.08] == BLUE
    assert spans[-0.01, 0.07] == "#777777"  # a colour is a verdict
    words = [text.get_text() for text in drawn.figure.texts]
    assert [each for each in words if each in ("gramloop", "loop", "matched")] == [
        "gramloop",
        "loop",
        "matched",
    ]
    assert "+0.06 [+0.04, +0.08]" in words
    assert "loop: +0.03 points, 95% interval [−0.01, +0.07], not significantly different" in drawn.alt
    with pytest.raises(GramLoopError, match="at least one method"):
        gain_chart([], "mIoU")


def test_no_label_of_fifteen_methods_hides_another():
    drawn = gain_chart(FIFTEEN, "mIoU")
    drawn.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in drawn.figure.texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        assert box.x1 <= drawn.figure.bbox.x1


def test_exemplars_are_best_worst_and_median_and_say_so():
    chosen = choose({"a": -3.0, "b": 5.0, "c": 0.4, "d": float("nan"), "e": 0.1, "f": 0.0}, "points")
    assert list(chosen) == ["b", "a", "e"]
    assert chosen["b"] == "largest gain of 5 images kept, +5.0 points"
    assert chosen["a"].startswith("largest loss of 5 images kept, −3.0")
    assert chosen["e"].startswith("typical (median)")


def test_exemplars_do_not_call_a_gain_a_loss():
    assert [words.split(" of ")[0] for words in choose({1: 1.0, 2: 2.0, 3: 3.0}, "p").values()] == [
        "largest gain",
        "smallest gain",
        "typical (median)",
    ]
    assert next(iter(choose({1: -1.0, 2: -2.0}, "p").values())).startswith("smallest loss")
    assert list(choose({1: 0.5}, "p")) == [1]
    assert choose({1: float("nan")}, "p") == {}


def test_an_exemplar_is_named_by_condition_and_image():
    assert parse_exemplar("fog/3:scene:7") == ("fog/3", "scene:7")
    with pytest.raises(GramLoopError, match="CONDITION:IMAGE"):
        parse_exemplar("fog/3")


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_the_same_figure_has_the_same_bytes(kind):
    def once():
        return getattr(severity_heat(TABLE, "mIoU", "gramloop"), kind)()

    first = once()
    assert first == once()
    if kind == "pdf":
        assert b"/FontFile2" in first  # fonts are inside, as outlines
        assert b"/Type3" not in first
        assert b"CreationDate" not in first


def test_figures_leave_the_callers_matplotlib_alone():
    import matplotlib

    with matplotlib.rc_context({"font.size": 31.0, "savefig.dpi": 17}):
        before = dict(matplotlib.rcParams)
        other = severity_heat(TABLE, "mIoU", "gramloop").png()
        assert dict(matplotlib.rcParams) == before
    assert other == severity_heat(TABLE, "mIoU", "gramloop").png()


def diagnosed(label, scale, post=True):
    rng = np.random.default_rng(len(label))
    image = rng.integers(0, 255, (32, 48, 3), dtype=np.uint8)
    drift = rng.uniform(0, scale, (4, 6))
    return Diagnosed(label, image, drift, rng.uniform(0, 1, (4, 6)), drift / 5 if post else None)


def panels(figure):
    """Axes that show an image, without colour bars, in reading order."""
    shown = [axes for axes in figure.axes if axes.get_images()]
    return sorted(shown, key=lambda axes: (-round(axes.get_position().y1, 3), axes.get_position().x0))


def limits(axes):
    return axes.get_images()[0].get_clim()


def test_one_image_is_a_row_of_four_in_reading_order():
    row = diagnosed("fog 3", 2e-4)
    found = panels(diagnostic([row]).figure)
    assert [axes.get_title() for axes in found] == ["input", "proposal drift", "gate", "post-gating drift"]
    np.testing.assert_array_equal(found[0].get_images()[0].get_array(), row.image)
    for axes, values in zip(found[1:], (row.drift, row.gate, row.post), strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), values)
    assert limits(found[1]) == limits(found[3]) == (0.0, drift_end(drift_maps([row])))
    assert limits(found[2]) == (0.0, 1.0)


def test_all_severities_share_one_drift_scale():
    rows = [diagnosed(f"severity {s}", s * 1e-4) for s in (1, 3, 5)]
    found = panels(diagnostic(rows).figure)
    assert len(found) == 12
    high = drift_end(drift_maps(rows))
    assert {limits(axes) for place in (1, 3) for axes in found[place::4]} == {(0.0, high)}
    assert {limits(axes) for axes in found[2::4]} == {(0.0, 1.0)}
    assert [axes.get_ylabel() for axes in found[::4]] == ["severity 1", "severity 3", "severity 5"]
    everything = np.concatenate([values.ravel() for row in rows for values in (row.drift, row.post)])
    assert high == pytest.approx(np.percentile(everything, 99.5))


def test_words_give_the_means_and_what_is_left():
    row = diagnosed("fog 3", 2e-4)
    drawn = diagnostic([row])
    assert "20% of it" in drawn.alt
    assert f"gate mean {row.gate.mean():.2f}" in drawn.alt


def test_a_state_that_was_not_measured_is_said_and_a_drift_of_nothing_is_drawn():
    drawn = diagnostic([diagnosed("fog 3", 1e-4, post=False)])
    assert any(axes.get_xlabel() == "not measured" for axes in drawn.figure.axes)
    still = Diagnosed("none", np.zeros((8, 8, 3), np.uint8), *[np.zeros((2, 2))] * 3)
    assert len(diagnostic([still]).png()) > 1000
    with pytest.raises(GramLoopError, match="at least one image"):
        diagnostic([])


def compared(task, truth, predictions, classes, size=(40, 60)):
    return ComparedImage(
        "row", np.full((*size, 3), 90, np.uint8), get_task(task), truth, predictions, classes
    )


def segmented():
    truth = np.zeros((40, 60), np.int32)
    truth[:, 30:] = 1
    truth[:4] = NO_CLASS
    baseline = np.where(truth == NO_CLASS, 0, truth)
    method = baseline.copy()
    baseline[10:20, 5:15] = 1  # wrong in the baseline alone: gained
    method[30:35, 40:45] = 2  # wrong in the method alone: lost
    baseline[:4], method[:4] = 2, 1  # not scored
    maps = [Segmentation(each) for each in (truth, baseline, method)]
    return compared("semantic", maps[0], tuple(maps[1:]), {0: "sky", 1: "grass"})


def test_gained_and_lost_pixels_are_those_of_one_method_alone():
    row = segmented()
    (changes,) = row.changes(row.style())
    assert [int(mask.sum()) for mask, _ in changes.outlines] == [25, 100]  # lost, gained
    drawn = qualitative([row])
    found = panels(drawn.figure)
    assert len(found) == 4
    assert all(len(axes.collections) == 0 for axes in found[:3])
    # an outline of each, black beneath
    assert len(found[3].collections) == 4
    outlines = [path.get_extents() for each in found[3].collections for path in each.get_paths()]
    np.testing.assert_allclose(outlines[2].get_points(), [[5, 10], [15, 20]], atol=0.5)  # half a pixel
    valid = 36 * 60
    assert f"{100 / valid:.1%} of pixels gained, {25 / valid:.1%} lost" in drawn.alt
    assert [text.get_text() for text in drawn.figure.texts][-5:-2] == ["grass", "sky", "class 2"]


def test_unscored_pixels_are_white_in_the_annotation():
    shown = panels(qualitative([segmented()]).figure)[1].get_images()[0].get_array()
    assert (shown[:4] == 255).all()
    assert not (shown[4:] == 255).all(axis=-1).any()


def test_a_class_keeps_its_colour_from_row_to_row():
    rng = np.random.default_rng(0)
    first, second = (
        class_style([rng.integers(low, low + 12, (20, 20)) for _ in range(3)], {}, 0.5, {}) for low in (0, 5)
    )
    again = class_style([rng.integers(5, 17, (20, 20)) for _ in range(3)], {}, 0.5, first.colours)
    for style in (first, second, again):
        assert len(set(style.colours.values())) == len(style.colours) == 8
        assert style.others
    shared = set(first.colours) & set(again.colours)
    assert shared
    assert all(first.colours[label] == again.colours[label] for label in shared)


def detected():
    boxes = np.array([[5, 5, 25, 25], [40, 5, 60, 25], [70, 30, 90, 50]], np.float32)
    false = np.array([[5, 40, 15, 50]], np.float32)
    truth = Detection(boxes, np.full(3, np.nan), np.array([1, 1, 2]))
    baseline = Detection(np.concatenate([boxes[:2], false]), np.array([0.9, 0.8, 0.5]), np.array([1, 1, 2]))
    method = Detection(boxes[[0, 2]], np.array([0.9, 0.7]), np.array([1, 2]))
    return compared("detection", truth, (baseline, method), {1: "cat", 2: "dog"}, (60, 100))


def edges(axes):
    return [to_hex(each.get_edgecolor()).upper() for each in axes.patches[1::2]]  # each lies on a white one


def test_objects_that_one_method_alone_finds_are_framed():
    drawn = qualitative([detected()])
    found = panels(drawn.figure)
    assert edges(found[0]) == []
    assert edges(found[1]) == [GREEN] * 3
    assert all(each.get_linestyle() != "solid" for each in found[1].patches[1::2])
    assert edges(found[2]) == [BLUE] * 3
    assert edges(found[3]) == [BLUE, BLUE, LOST, GAINED]
    assert [text.get_text() for text in found[3].texts if text.get_text()] == ["dog 0.70", "cat 0.90"]
    assert "of 3 objects 2 are found before and 2 after" in drawn.alt


def test_several_methods_stand_in_one_row():
    row = segmented()
    both = replace(row, predictions=(*row.predictions, row.truth))
    drawn = qualitative([both], "Predictions", ("baseline", "a", "b"))
    assert len(panels(drawn.figure)) == 5
    assert " by a." in drawn.alt


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_the_same_images_have_the_same_bytes(kind):
    def once():
        drawn = qualitative([segmented(), detected()]), diagnostic([diagnosed("fog 3", 1e-4)])
        return [getattr(each, kind)() for each in drawn]

    assert once() == once()


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
    return draw_figures(loaded, compare_methods(loaded.runs), pdf=False)


def test_every_run_gets_its_figures(loaded, drawn):
    assert not drawn.remarks
    keys = [figure.key for figure in drawn.figures]
    assert len(set(keys)) == len(keys)
    for run in loaded.runs:
        own = {figure.section for figure in drawn.figures if figure.key.startswith(run.key)}
        assert own == {f"answer {run.name}", "severity", "consistency"}
    for figure in drawn.figures:
        assert figure.png.startswith(b"\x89PNG")
        assert figure.pdf is None
        assert figure.caption.endswith(".")
        assert len(figure.alt) > len(figure.caption)


def test_the_same_results_give_the_same_bytes(only_boxes, drawn):
    before = {figure.title: figure.png for figure in drawn.figures}
    for figure in draw_figures(only_boxes, compare_methods(only_boxes.runs), pdf=False).figures:
        named = figure.title.replace(only_boxes.runs[0].name, "scenes-c detection")
        assert before[named] == figure.png


def test_kept_images_have_their_own_scores(loaded):
    run = next(each for each in loaded.runs if each.plan.task == "semantic")
    kept = kept_images(run, ["gramloop"])
    assert [(image.condition.key, image.position) for image in kept] == [
        (key, position) for key in run.plan.conditions for position in (0, 1)
    ]
    for image in kept:
        counts = counts_of(stored(run, image.condition.key).methods[BASELINE])[image.position]
        expected = mean_iou(counts)
        assert run.task.image_score(image.rows[BASELINE], run.plan.classes) == pytest.approx(
            expected, rel=1e-12
        )


def stored(run: Run, key: str) -> StoredCondition:
    found = read_condition(Store(run.folder, run.plan), key)
    assert found is not None
    return found


def test_label_maps_of_a_row_are_those_that_were_counted(loaded):
    run = next(each for each in loaded.runs if each.plan.task == "semantic")
    for image in kept_images(run, ["gramloop"])[:3]:
        row = image.compared(["gramloop"], "because")
        for version, method in zip(row.predictions, (BASELINE, "gramloop"), strict=True):
            intersection = counts_of(stored(run, image.condition.key).methods[method])[image.position, 0]
            right = (version.labels == row.truth.labels) & (row.truth.labels != NO_CLASS)
            assert int(right.sum()) == int(intersection.sum())


def test_the_method_shown_and_its_cost(loaded):
    run = loaded.runs[0]
    assert run.main_replay == "gramloop"
    window = next(each.replay.window for each in run.plan.methods if each.name == "gramloop")
    width, suffix = window[1] - window[0] + 1, 5 - window[1]
    assert run.work("gramloop") == (6 + 2 * (width + suffix) + suffix) / 6
    assert run.work(BASELINE) == 1.0


def test_images_that_the_reader_names(only_boxes):
    found = draw_figures(only_boxes, (), ["fog/3:1"], pdf=False).figures
    figures = {figure.key: figure for figure in found}
    shown = [figure for key, figure in figures.items() if "predictions" in key]
    assert all("chosen by the reader" in figure.alt for figure in shown)
    with pytest.raises(GramLoopError, match=r"image 99 under fog/3; evaluate keeps"):
        draw_figures(only_boxes, (), ["fog/3:99"], pdf=False)


def test_without_the_images_a_sentence_stands_for_their_figures(evaluated, tmp_path):
    moved = evaluated / "elsewhere"
    shutil.move(evaluated / "scenes", moved)
    try:
        only = load_runs([evaluated / "results" / "semantic"])
        result = draw_figures(only, compare_methods(only.runs), pdf=False)
    finally:
        shutil.move(moved, evaluated / "scenes")
    assert {figure.section for figure in result.figures} == {"answer scenes-c", "severity", "consistency"}
    (said,) = result.remarks
    assert said.startswith("Figures with images of scenes-c are left out: ")
    assert "does not exist" in said


def test_words_are_light_on_a_dark_page_and_pictures_stay():
    row = diagnosed("fog 3", 2e-4)
    drawn = diagnostic([row])
    before = drawn.png()
    light, dark = (
        np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")) for png in (before, drawn.dark_png())
    )
    assert (light[..., 3] == 255).all()
    words = (light[..., :3] < 60).all(axis=-1) & (dark[..., :3] != light[..., :3]).any(axis=-1)
    assert words.sum() > 500
    assert (dark[words][:, :3] > 150).mean() > 0.9
    assert (dark[..., 3] == 0).mean() > 0.1
    assert drawn.png() == before
