"""Gram consistency: one computation, of which the table and the figure say the same or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gramloop.report.breakdowns import consistency_tables, gram_consistency, ratios
from gramloop.report.document import Document, report_document
from gramloop.report.figures import draw_figures
from gramloop.report.figures.charts import consistency_figure
from gramloop.report.load import load_runs
from small_stores import CONDITIONS, make_plan, pixels, write_store

METHODS = ("baseline", "gramloop", "gramloop-raw", "gramloop-matched")
TRAJECTORIES = ("gramloop-raw", "gramloop-matched", "gramloop")
Drift = Callable[[str, str, int], float]  # condition, method, position


def random_drift(condition: str, method: str, position: int) -> float:
    seed = [position, *map(ord, condition), *map(ord, method)]
    return float(np.float32(np.random.default_rng(seed).uniform(0.1, 1)))


def write(folder: Path, drift: Drift = random_drift, **options: Any) -> None:
    def statistics(condition: str, method: str, position: int) -> dict[str, Any]:
        known = drift(condition, method, position) if method in TRAJECTORIES else None
        return {**pixels(condition, method, position), "post_drift": known}

    write_store(folder, make_plan(methods=METHODS, diagnostics=True), statistics, **options)


def report(folder: Path) -> Document:
    loaded = load_runs([folder])
    drawn = draw_figures(loaded, pdf=False)
    return report_document(loaded, [], drawn.figures, drawn.remarks)


def test_r_divides_sums_over_severities_and_images(tmp_path: Path) -> None:
    write(tmp_path)
    (run,) = load_runs([tmp_path]).runs
    (found,) = gram_consistency(run)
    sums: Mapping[str, list[float]] = {
        family: [
            sum(random_drift(key, m, i) for key in CONDITIONS if key.startswith(family) for i in range(12))
            for m in TRAJECTORIES
        ]
        for family in ("fog", "snow", "pixelate")
    }
    (table,) = consistency_tables(run)
    for row, (family, (raw, uniform, gated)) in zip(table.rows[:-1], sums.items(), strict=True):
        assert row[0] == family.capitalize()
        assert row[1] == 24
        assert row[2:] == pytest.approx((uniform / raw, gated / raw, (gated - uniform) / raw), rel=1e-12)
    whole = np.sum(list(sums.values()), axis=0)
    assert table.rows[-1][2:4] == pytest.approx(whole[1:] / whole[0], rel=1e-12)
    nearer = sum(gated < uniform for _, uniform, gated in sums.values())
    assert found.families_below == nearer
    by_condition = [
        [sum(random_drift(key, m, i) for i in range(12)) for m in TRAJECTORIES] for key in CONDITIONS
    ]
    assert found.conditions_below == sum(gated < uniform for _, uniform, gated in by_condition)


def test_the_figure_marks_what_the_table_prints(tmp_path: Path) -> None:
    write(tmp_path)
    (run,) = load_runs([tmp_path]).runs
    (found,) = gram_consistency(run)
    (axes,) = consistency_figure(found).figure.axes
    marks = {line.get_label(): line.get_xdata() for line in axes.get_lines()}
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    shown = dict(zip(labels, zip(marks["uniform, matched"], marks["Gram-gated"], strict=True), strict=True))
    (table,) = consistency_tables(run)
    rows = table.rows[:-1]
    assert {row[0].lower(): row[2:4] for row in rows} == shown  # type: ignore[union-attr]
    assert list(marks["Gram-gated"]) == sorted(marks["Gram-gated"])
    assert list(marks["ungated (= 1)"]) == [1.0, 1.0]


def test_the_nearer_trajectory_is_marked(tmp_path: Path) -> None:
    write(
        tmp_path,
        lambda condition, method, position: {"gramloop": 1.0, "gramloop-matched": 2.0}.get(method, 4.0),
    )
    (run,) = load_runs([tmp_path]).runs
    (table,) = consistency_tables(run)
    assert table.rows[0] == ("Fog", 24, 0.5, 0.25, -0.25)
    assert {place for _, place in table.best} == {table.column("gated")}
    assert "3 of 3 shifts and 6 of 6 conditions" in table.notes[0]


@pytest.mark.parametrize("gone", ["a unit", "a condition", "drift of an image", "nothing", "an image"])
def test_table_and_figure_say_the_same_or_are_both_absent(gone: str, tmp_path: Path) -> None:
    def some(condition: str, method: str, position: int) -> Any:
        missing = gone == "drift of an image" and (condition, method, position) == ("fog/3", "gramloop", 5)
        return None if missing else random_drift(condition, method, position)

    lost = {"fog/1": [3]} if gone == "an image" else {}
    write(tmp_path, some, skip=["snow/3"] if gone == "a condition" else [], lost=lost)
    if gone == "a unit":
        next((tmp_path / "units" / "snow-3").glob("*/*")).unlink()
    sections = {section.key: section for section in report(tmp_path).sections}
    if gone not in ("nothing", "an image"):
        assert "consistency" not in sections
        return
    (table,), (figure,) = sections["consistency"].tables, sections["consistency"].figures
    said = re.search(r"in (\d+ of 3) shifts and (\d+ of 6) conditions", table.notes[0])
    drawn = re.search(r"in (\d+ of 3) shifts and (\d+ of 6) conditions \((\d+) paired images", figure.caption)
    assert said is not None
    assert drawn is not None
    assert said.groups() == drawn.groups()[:2]
    assert table.rows[-1][1] == int(drawn.group(3)) == 72 - (gone == "an image")


def test_without_ungated_drift_there_is_no_ratio_and_a_sentence_says_so(tmp_path: Path) -> None:
    write(tmp_path, lambda condition, method, position: 0.0 if condition.startswith("fog") else 1.0)
    document = report(tmp_path)
    (section,) = (section for section in document.sections if section.key == "consistency")
    (table,) = section.tables
    assert table.rows[0] == ("Fog", 24, None, None, None)
    assert table.rows[1] == ("Snow", 24, 1.0, 1.0, 0.0)
    assert not section.figures
    assert "A figure of scenes-c is left out: the ungated replay of fog does not drift" in " ".join(
        document.warnings
    )


def test_a_condition_counts_by_how_far_its_ungated_replay_drifts() -> None:
    sums = np.array([[1.0, 0.9, 0.8], [9.0, 1.0, 2.0]])
    assert ratios(sums.sum(axis=0)) == pytest.approx((1.9 / 10, 2.8 / 10))
    assert ratios(sums)[1] == pytest.approx((1 / 9, 2 / 9))
