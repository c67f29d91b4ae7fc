"""The figures of numbers: heat map, gain against cost, and which images are chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.cli.settings_file import parse
from gramloop.core.signals import spread
from gramloop.errors import GramLoopError
from gramloop.report.figures.cost import MethodPoint, front, gain_against_cost
from gramloop.report.figures.heat import Gains, severity_heat
from gramloop.report.figures.images import choose
from gramloop.report.stats import signed

RNG = np.random.default_rng(5)
TABLE = {(name, s): float(RNG.normal()) for name in ("fog", "gaussian_noise", "jpeg") for s in (1, 3, 5)}


def words_in(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_heat_map_prints_every_cell_its_means_and_its_scale():
    drawn = severity_heat(Gains.of(TABLE, "mIoU", "gramloop"))
    values = np.array(list(TABLE.values())).reshape(3, 3)
    expected = [*values.ravel(), *values.mean(axis=1), *values.mean(axis=0), values.mean()]
    printed = [word for word in words_in(drawn.figure) if word != "severity"]
    assert sorted(printed) == sorted(signed(each, 2) for each in expected)
    axes, bar = drawn.figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["fog", "gaussian noise", "JPEG", "mean"]
    low, high = bar.get_xlim()
    assert low == -high == -np.abs(values).max()
    assert f"{signed(values.max(), 3)}" in drawn.alt
    assert f"{(values > 0).sum()} of 9 conditions gain" in drawn.caption


def test_cells_without_a_result_are_hatched_and_leave_no_mean():
    drawn = severity_heat(Gains.of({**TABLE, ("fog", 3): float("nan")}, "AP", "gramloop"))
    hatched = [patch for patch in drawn.figure.axes[0].patches if patch.get_hatch()]
    assert len(hatched) == 4  # the cell, the means of its row and column, and the mean of all
    assert "1 of 9 cells have no result yet" in drawn.caption
    assert "mean over all" not in drawn.caption


def test_domains_have_one_column():
    drawn = severity_heat(Gains.of({("sketch", 0): 1.0, ("tattoo", 0): -2.0}, "AP", "gramloop"))
    assert sorted(words_in(drawn.figure)) == ["+1.00", "−0.50", "−2.00"]
    assert "severity" not in drawn.caption


def test_a_heat_map_before_any_result():
    drawn = severity_heat(Gains.of({("fog", 1): float("nan")}, "AP", "gramloop"))
    assert "No condition is complete yet" in drawn.caption
    with pytest.raises(GramLoopError, match=r"\(2, 1\) values"):
        Gains(["a", "b"], [1], np.zeros((1, 1)), "AP", "gramloop")


@pytest.mark.parametrize(
    ("value", "said"), [(-0.004, "0.00"), (0.0, "0.00"), (-0.006, "−0.01"), (2, "+2.00")]
)
def test_signed(value, said):
    assert signed(value, 2) == said


FIFTEEN = [
    MethodPoint(
        f"method-{index}",
        (1.0, 1.0, 1.0, 1.2, 1.92)[index % 5],
        gain,
        gain - 0.5,
        gain + 0.7,
        1.0 + index / 20,
    )
    for index, gain in enumerate(np.random.default_rng(2).normal(1, 1, 15).tolist())
]


def numbered(panel):
    """Number and place of each badge."""
    return {int(text.get_text()): text.xy for text in panel.texts if text.get_text().isdecimal()}


def test_cost_shows_points_with_their_intervals_and_the_front():
    points = [
        MethodPoint("gramloop", 2.35, 0.06, 0.04, 0.08),
        MethodPoint("matched", 2.35, -0.01),
        MethodPoint("loop", 1.15, 0.03, -0.01, 0.07),
    ]
    drawn = gain_against_cost(points, "mIoU")
    panel, names = drawn.figure.axes  # no times, so one panel
    assert [numbered(panel)[number][1] for number in (1, 2, 3)] == [0.06, 0.03, -0.01]
    spans = [
        tuple(line.get_ydata())
        for line in panel.lines
        if len(set(line.get_xdata())) == 1 < len(line.get_ydata())
    ]
    assert {(0.04, 0.08), (-0.01, 0.07)} <= set(spans)
    assert "Not beaten by anything of less work: gramloop, loop (blue" in drawn.caption
    assert "matched: −0.01, work 2.35×" in drawn.alt
    assert [text.get_text() for text in names.texts if text.get_fontsize() == 6.2] == [
        "gramloop", "loop", "matched", "baseline"
    ]  # fmt: skip
    with pytest.raises(GramLoopError, match="at least one method"):
        gain_against_cost([], "mIoU")


def test_no_badge_and_no_label_of_fifteen_methods_hides_another():
    drawn = gain_against_cost(FIFTEEN, "mIoU")
    work, time, names = drawn.figure.axes
    for panel in (work, time):
        places = sorted(x for x, _ in numbered(panel).values())
        assert len(places) == 15
        assert min(np.diff(places)) > 0.1  # inches; a badge is 0.12 across
        assert places[0] > 0
        assert places[-1] < 3.75
    drawn.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in names.texts if not text.get_text().isdecimal()]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        assert box.x1 <= drawn.figure.bbox.x1


def test_the_front_is_what_nothing_cheaper_or_equal_matches():
    costs, gains = [1.0, 1.0, 1.5, 2.0, 2.0, 3.0], [1.0, 0.5, 0.8, 2.0, 2.0, 1.9]
    assert front(costs, gains) == [True, False, False, True, True, False]
    assert front([1.0, 2.0], [-0.1, 0.0]) == [False, False]  # doing nothing is as good
    assert front([1.0, 1.05, 1.06], [1.0, 2.0, 3.0]) == [False, True, True]  # no cost is told from 1.05


@given(st.lists(st.floats(0, 4), min_size=1, max_size=12).map(sorted), st.floats(0.01, 0.3))
def test_places_are_apart_in_order_and_near(wanted, gap):
    found = spread(np.array(wanted), gap, -100.0, 100.0)
    assert (np.diff(found) >= gap - 1e-9).all()
    assert found.mean() == pytest.approx(np.mean(wanted), abs=1e-9)  # least squares moves no centre
    if len(wanted) == 1 or (np.diff(wanted) > gap).all():
        assert found == pytest.approx(np.array(wanted))


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
    assert parse("fog/3:scene:7") == ("fog/3", "scene:7")
    with pytest.raises(GramLoopError, match="CONDITION:IMAGE"):
        parse("fog/3")


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_the_same_figure_has_the_same_bytes(kind):
    def once():
        return getattr(severity_heat(Gains.of(TABLE, "mIoU", "gramloop")), kind)()

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
        other = severity_heat(Gains.of(TABLE, "mIoU", "gramloop")).png()
        assert dict(matplotlib.rcParams) == before
    assert other == severity_heat(Gains.of(TABLE, "mIoU", "gramloop")).png()
