from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gramloop.data.suites import Condition, find_suite
from gramloop.report.breakdowns import (
    class_tables,
    cost_table,
    every_condition,
    every_metric,
    family_means,
    placements_table,
)
from gramloop.report.load import load_runs
from gramloop.report.run import Run
from gramloop.report.tables import main_results
from paper_runs import cell, plan
from small_stores import make_plan, write_store


def test_gains_are_taken_before_rounding() -> None:
    scores = {"baseline": 50.0004, "gramloop": 50.0016}  # shown, 50.000 and 50.002
    cells = tuple(cell(each, scores, "mIoU") for each in find_suite("ade20k-c").conditions)
    table = family_means(Run("ade20k-c", Path("r"), plan("ade20k-c"), cells))
    assert [table.cell_text(0, place) for place in (1, 2, 3)] == ["50.000", "50.002", "+0.001"]


def test_means_by_family() -> None:
    """Scores that are the place of a condition, so that every mean is known."""
    conditions = find_suite("ade20k-c").conditions
    cells = tuple(
        cell(each, {"baseline": float(place), "gramloop": place + 1.0}, "mIoU")
        for place, each in enumerate(conditions)
    )
    run = Run("ade20k-c", Path("r"), plan("ade20k-c"), cells)
    families = family_means(run)
    assert [row[1] for row in families.rows[:-1]] == [5 * place + 2.0 for place in range(15)]
    assert families.rows[-1][:3] == ("Macro mean", 37.0, 38.0)


def test_a_missing_condition_empties_its_means_and_no_others(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), skip=["snow/3"])
    (run,) = load_runs([tmp_path / "r"]).runs
    table = family_means(run)
    empty = {row[0]: row[1] is None for row in table.rows}
    assert empty == {"Fog": False, "Snow": True, "Pixelate": False, "Macro mean": True}
    full = every_condition(run)
    missing = next(row for row in full.rows if row[0] == "snow/3")
    assert missing[1:] == (None,) * 5
    assert full.notes == ("snow/3: 0 of 4 units are stored.",)
    assert main_results([run]).rows[0][2:] == (None, None, None)
    assert class_tables(run, "gramloop") == ()


def test_every_metric_of_detections(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(task="detection"))
    (run,) = load_runs([tmp_path / "r"]).runs
    table = every_metric(run)
    assert table is not None
    assert [column.key for column in table.columns[2:]] == ["AP", "AP50", "AP75", "APs", "APm", "APl"]
    assert len(table.rows) == 12
    assert table.cell_text(1, 2) == "100.000"
    assert table.cell_text(1, 4 + 1) == "–"  # no small object in the truth


def test_a_class_in_some_labels_only_is_counted_and_left_out() -> None:
    run = Run(
        "x",
        Path("r"),
        plan("ade20k", categories={0: "a", 1: "b"}, conditions={"fog/1": 3, "fog/3": 3}),
        tuple(
            cell(
                Condition("fog", severity),
                {"baseline": 1.0, "gramloop": 2.0},
                "mIoU",
                classes={"baseline": np.array([10.0, 20.0]), "gramloop": np.array([11.0, 20.0])},
                labelled=np.array([True, severity == 3]),
            )
            for severity in (1, 3)
        ),
    )
    (table,) = class_tables(run, "gramloop")
    assert [row[1] for row in table.rows] == ["a"]
    assert table.notes == (
        "Of 1 classes 1 improve under gramloop and 0 lose.",
        "1 classes are in the labels of some conditions only, and not in this table.",
    )


def test_placement_over_two_folders(tmp_path: Path) -> None:
    write_store(tmp_path / "a", make_plan())
    write_store(tmp_path / "b", make_plan(methods=["baseline", "loop-loop"]))
    (group,) = load_runs([tmp_path]).groups
    table = placements_table(group[0], group)
    assert table is not None
    assert [row[:3] for row in table.rows] == [
        ("–", "–", "baseline"),
        ("Final layer", "Loop end", "gramloop"),
        ("Loop end", "Loop end", "loop-loop"),
    ]
    assert placements_table(group[0], group[:1]) is None  # one placement compares with nothing


def test_without_times_alone_there_are_blocks_and_no_time(tmp_path: Path) -> None:
    write_store(tmp_path / "pair", make_plan())
    (run,) = load_runs([tmp_path / "pair"]).runs
    table = cost_table(run)
    assert table is not None
    assert [row[4:] for row in table.rows] == [(None, None)] * 2
    assert [row[1] for row in table.rows] == [6, 11]  # as counted
    # by the formula: 2 replays of 2, 3 probes of 1
    assert table.rows[1][2] == pytest.approx((6 + 2 * 2 + 3 * 1) / 6)


def test_work_counts_blocks_by_their_area_and_time_is_that_of_each_alone() -> None:
    """2000 images of 6 blocks, and methods that were timed alone."""
    each = {"baseline": 6, "gramloop": 13, "median": 6, "resize-1.5": 6, "flip": 12}
    alone = {"baseline": 1.0, "gramloop": 3.0, "median": 1.5, "resize-1.5": 2.1, "flip": 2.0}  # seconds
    blocks = {name: 2000 * count for name, count in each.items()}
    results = (cell(Condition("clean"), dict.fromkeys(blocks, 50.0), "mIoU", blocks=blocks),)
    methods = ["baseline", "gramloop", "median", "resize:1.5", "flip"]
    run = Run("r", Path("r"), make_plan("scenes", methods=methods, conditions=["clean"]), results, {}, alone)
    works = {"baseline": 1, "gramloop": 13 / 6, "median": 1, "resize-1.5": 2.25, "flip": 2}
    assert {name: run.work(name) for name in run.methods} == pytest.approx(works)
    times = {"baseline": 1, "gramloop": 3, "median": 1.5, "resize-1.5": 2.1, "flip": 2}
    assert {name: run.time(name) for name in run.methods} == pytest.approx(times)
    table = cost_table(run)
    assert table is not None
    assert [row[4] for row in table.rows] == list(alone.values())
