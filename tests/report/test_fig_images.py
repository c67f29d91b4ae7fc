"""The figures with images: panels they claim to have, scales that are shared, outlines of what changed."""

import numpy as np
import pytest
from gramloop.report.figures.boxes import DetectionRow
from gramloop.report.figures.matching import Annotated
from matplotlib.colors import to_hex

from gramloop.errors import GramLoopError
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic, drift_scale
from gramloop.report.figures.qualitative import SegmentationRow, class_colours, qualitative
from gramloop.tasks.detection import Detection
from gramloop.util.plotting import GREEN, PLUM, RED


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


def test_one_image_makes_two_by_two_in_reading_order():
    row = diagnosed("fog 3", 2e-4)
    drawn = diagnostic([row])
    found = panels(drawn.figure)
    assert [axes.get_title(loc="left").split(" ", 1)[1].rsplit(" ", 1)[0] for axes in found[1:]] == [
        "proposal drift",
        "gate",
        "post-gating drift",
    ]
    np.testing.assert_array_equal(found[0].get_images()[0].get_array(), row.image)
    for axes, values in zip(found[1:], (row.drift, row.gate, row.post), strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), values)
    assert limits(found[1]) == limits(found[3]) == (0.0, drift_scale([row]))
    assert limits(found[2]) == (0.0, 1.0)
    bottoms = [round(axes.get_position().y0, 6) for axes in found]
    assert bottoms[0] == bottoms[1]
    assert bottoms[2] == bottoms[3]


def test_all_severities_share_one_drift_scale():
    rows = [diagnosed(f"severity {s}", s * 1e-4) for s in (1, 3, 5)]
    found = panels(diagnostic(rows).figure)
    assert len(found) == 12
    high = drift_scale(rows)
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
    assert any(text.get_text() == "not measured" for axes in drawn.figure.axes for text in axes.texts)
    still = Diagnosed("none", np.zeros((8, 8, 3), np.uint8), *[np.zeros((2, 2))] * 3)
    assert len(diagnostic([still]).png()) > 1000
    with pytest.raises(GramLoopError, match="at least one image"):
        diagnostic([])


def segmented():
    truth = np.zeros((40, 60), np.uint8)
    truth[:, 30:] = 1
    truth[:4] = 255
    baseline = truth.copy()
    baseline[baseline == 255] = 0
    method = baseline.copy()
    baseline[10:20, 5:15] = 1  # wrong in the baseline alone: gained
    method[30:35, 40:45] = 2  # wrong in the method alone: lost
    baseline[:4], method[:4] = 2, 1  # not scored
    image = np.full((40, 60, 3), 90, np.uint8)
    return SegmentationRow("row", image, truth, baseline, method, {0: "sky", 1: "grass"})


def test_gained_and_lost_pixels_are_those_of_one_method_alone():
    row = segmented()
    assert int(row.gained.sum()) == 100
    assert int(row.lost.sum()) == 25
    drawn = qualitative([row])
    found = panels(drawn.figure)
    assert len(found) == 4
    assert all(len(axes.collections) == 0 for axes in found[:3])
    # an outline of each, black beneath
    assert len(found[3].collections) == 4
    outlines = [path.get_extents() for each in found[3].collections for path in each.get_paths()]
    np.testing.assert_allclose(outlines[2].get_points(), [[5, 10], [15, 20]], atol=0.5)  # half a pixel
    valid = (row.truth != 255).sum()
    assert f"{100 / valid:.1%} of pixels gained, {25 / valid:.1%} lost" in drawn.alt
    legend = [text.get_text() for each in drawn.figure.legends for text in each.get_texts()]
    assert legend[:3] == ["grass", "sky", "class 2"]


def test_unscored_pixels_are_white_in_the_annotation():
    shown = panels(qualitative([segmented()]).figure)[1].get_images()[0].get_array()
    assert (shown[:4] == 255).all()
    assert not (shown[4:] == 255).all(axis=-1).any()


def test_a_class_keeps_its_colour_from_row_to_row():
    rng = np.random.default_rng(0)
    maps = [
        rng.integers(0, 12, (9, 20, 20)).astype(np.uint8),
        rng.integers(5, 17, (9, 20, 20)).astype(np.uint8),
    ]
    rows = [SegmentationRow("r", np.zeros((20, 20, 3), np.uint8), each[0], each[1], each[2]) for each in maps]
    first, second = class_colours([rows[0], rows[0]])
    assert first == second
    for own in class_colours(rows):
        assert len(set(own.values())) == len(own) == 8


def test_label_maps_of_another_size_are_refused():
    with pytest.raises(GramLoopError, match=r"unlike its image \(4, 4\)"):
        SegmentationRow("r", np.zeros((4, 4, 3), np.uint8), *[np.zeros((4, 5), np.uint8)] * 3)


def detected():
    boxes = np.array([[5, 5, 25, 25], [40, 5, 60, 25], [70, 30, 90, 50]], float)
    false = np.array([[5, 40, 15, 50]], float)
    truth = Annotated(boxes, np.array([1, 1, 2]))
    baseline = Detection(np.concatenate([boxes[:2], false]), np.array([0.9, 0.8, 0.5]), np.array([1, 1, 2]))
    method = Detection(boxes[[0, 2]], np.array([0.9, 0.7]), np.array([1, 2]))
    return DetectionRow(
        "row", np.zeros((60, 100, 3), np.uint8), truth, baseline, method, {1: "cat", 2: "dog"}
    )


def edges(axes):
    return [to_hex(each.get_edgecolor()).upper() for each in axes.patches[1::2]]  # each lies on a white one


def test_boxes_wear_what_they_change():
    drawn = qualitative([detected()])
    found = panels(drawn.figure)
    assert edges(found[0]) == []
    assert edges(found[1]) == [GREEN] * 3
    assert all(each.get_linestyle() != "solid" for each in found[1].patches[1::2])
    assert edges(found[2]).count(RED) == 1
    assert edges(found[2]).count(PLUM) == 1
    assert edges(found[3]).count(GREEN) == 1
    assert sorted(text.get_text() for text in found[3].texts) == ["cat 0.90", "dog 0.70"]
    assert (
        "of 3 annotated objects 1 gained and 1 lost; 1 false boxes of the baseline gone, 0 new" in drawn.alt
    )


def test_all_four_panels_show_the_same_crop():
    row = detected()
    cropped = DetectionRow(
        row.title, row.image, row.truth, row.baseline, row.method, row.names, crop=(0, 0, 50, 30)
    )
    found = panels(qualitative([cropped]).figure)
    assert {(axes.get_xlim(), axes.get_ylim()) for axes in found} == {((0.0, 50.0), (30.0, 0.0))}
    assert len(cropped.annotations()) == 2
    assert [len(each.scores) for each in cropped.predictions()] == [2, 1]


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_the_same_images_have_the_same_bytes(kind):
    def once():
        drawn = qualitative([segmented(), detected()]), diagnostic([diagnosed("fog 3", 1e-4)])
        return [getattr(each, kind)() for each in drawn]

    assert once() == once()
