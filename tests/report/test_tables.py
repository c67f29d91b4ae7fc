from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gramloop.data.suites import Condition, find_suite
from gramloop.report.load import load_runs
from gramloop.report.run import Run, RunCost
from gramloop.report.tables.checks import class_tables, partition_table, placements_table
from gramloop.report.tables.conditions import (
    cost_table,
    every_condition,
    every_metric,
    family_means,
    group_means,
)
from gramloop.report.tables.main import main_results
from paper_runs import cell, plan
from small_stores import make_plan, write_store


def test_gains_are_taken_before_rounding() -> None:
    scores = {"baseline": 50.0004, "gramloop": 50.0016}  # shown, 50.000 and 50.002
    cells = tuple(cell(each, scores, "mIoU") for each in find_suite("ade20k-c").conditions)
    table = family_means(Run("ade20k-c", Path("r"), plan("ade20k-c"), cells))
    assert [table.cell_text(0, place) for place in (1, 2, 3)] == ["50.000", "50.002", "+0.001"]


def test_means_by_family_and_kind() -> None:
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
    kinds = group_means(run)
    assert kinds is not None
    for row in kinds.rows[:-1]:
        members = [place for place, each in enumerate(conditions) if each.group == str(row[0]).lower()]
        assert row[1] == pytest.approx(np.mean(members))
    assert kinds.rows[-1][1] == 37.0


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
    assert partition_table(run) is None
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


def test_a_pair_that_was_not_timed_alone_has_blocks_and_no_time(tmp_path: Path) -> None:
    write_store(tmp_path / "pair", make_plan())
    (run,) = load_runs([tmp_path / "pair"]).runs
    table = cost_table(run)
    assert table is not None
    assert [row[3] for row in table.rows] == [None, None]
    assert any("not timed alone" in note for note in table.notes)
    assert [row[1] for row in table.rows] == [6, 11]  # as counted
    # by the formula: 2 replays of 2, 3 probes of 1
    assert table.rows[1][2] == pytest.approx((6 + 2 * 2 + 3 * 1) / 6)


def test_work_counts_blocks_by_their_area_and_time_is_that_of_each_alone() -> None:
    """100 images of 6 blocks; baseline and replay were predicted together, and all methods timed alone."""
    blocks = {"baseline": 600, "gramloop": 1300, "median": 600, "resize-1.5": 600, "flip": 1200}
    calls = {"baseline+gramloop": 400.0, "median": 150.0, "resize-1.5": 210.0, "flip": 200.0}
    alone = {"baseline": 1.0, "gramloop": 3.0, "median": 1.5, "resize-1.5": 2.1, "flip": 2.0}  # seconds
    cost = RunCost(100, 1000.0, calls, 0, blocks)
    results = (cell(Condition("clean"), dict.fromkeys(blocks, 50.0), "mIoU", cost=cost),)
    methods = ["baseline", "gramloop", "median", "resize:1.5", "flip"]
    run = Run("r", Path("r"), make_plan("scenes", methods=methods, conditions=["clean"]), results, {}, alone)
    works = {"baseline": 1, "gramloop": 13 / 6, "median": 1, "resize-1.5": 2.25, "flip": 2}
    assert {name: run.work(name) for name in run.methods} == pytest.approx(works)
    times = {"baseline": 1, "gramloop": 3, "median": 1.5, "resize-1.5": 2.1, "flip": 2}
    assert {name: run.time(name) for name in run.methods} == pytest.approx(times)
    # 40 s went into images; a method's device time has its own seconds and all of these
    assert run.seconds("baseline") == pytest.approx((100 + 40) / 100)
