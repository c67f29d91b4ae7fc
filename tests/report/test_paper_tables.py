"""The report's tables of the paper's numbers are the paper's tables."""

from __future__ import annotations

import pytest

from gramloop.report.answers import method_gain
from gramloop.report.breakdowns import cost_table, placements_table
from gramloop.report.stats import compare_methods
from gramloop.report.tables import gains_table, main_results
from gramloop.util.table import Table
from paper_runs import PAPER, PLACES, coco_o_runs, counted_run, family_run

SUITES = ("ade20k-c", "coco-p")
# The printed rows lie up to half a unit of the third decimal off, so a mean of them may show one unit more or less.
UNIT = 0.001 + 1e-9


def shown(table: Table, row: int) -> list[str]:
    return [table.cell_text(row, place) for place in range(len(table.columns))]


def test_main_results_with_effective_robustness() -> None:
    shifted, clean = coco_o_runs()
    table = main_results((shifted, clean, family_run("coco-p")))
    rows = {(row[0], row[1]): row for row in (shown(table, place) for place in range(len(table.rows)))}
    gain = table.column("gramloop gain")
    ours = table.column("gramloop")
    assert rows["coco-o", "mAP"][2] == "66.264"
    assert (rows["coco-o", "mAP"][ours], rows["coco-o", "mAP"][gain]) == ("66.516", "+0.252")
    assert (rows["coco-o", "ER"][2], rows["coco-o", "ER"][ours]) == ("36.746", "36.996")
    assert rows["coco-o", "ER"][gain] == "+0.250"
    assert rows["coco", "AP"][2] == "65.596"
    assert float(rows["coco-p", "mPC (AP)"][2]) == pytest.approx(59.146, abs=UNIT)
    assert rows["coco-p", "mPC (AP)"][table.column("loop-loop")] == "–"  # was not run there
    marked = {(table.rows[row][0], table.rows[row][1], table.columns[place].key) for row, place in table.best}
    assert {key for suite, metric, key in marked if (suite, metric) == ("coco-o", "ER")} == {"gramloop"}


def test_without_clean_coco_there_is_no_effective_robustness() -> None:
    table = main_results((coco_o_runs()[0],))
    assert [row[1] for row in table.rows] == ["mAP"]


def test_placement() -> None:
    shifted, clean = coco_o_runs()
    table = placements_table(shifted, (shifted, clean))
    assert table is not None
    rows = {row[2]: row for row in (shown(table, place) for place in range(len(table.rows)))}
    for name, place in PLACES.items():
        assert [rows[name][3], rows[name][5]] == [f"{value:.3f}" for value in PAPER["placement"][place]]
    assert rows["loop-loop"][:2] == ["Loop end", "Loop end"]
    assert rows["final-final"][:2] == ["Final layer", "Final layer"]
    assert rows["gramloop"][:2] == ["Final layer", "Loop end"]


@pytest.mark.parametrize("suite", SUITES)
def test_intervals_and_verdicts(suite: str) -> None:
    """The stream of the paper's bootstrap is not known, hence two thousandths."""
    (evidence,) = compare_methods((family_run(suite),))
    ((gain,),) = evidence.gains.values()
    estimate, low, high = PAPER["intervals"][suite]
    assert evidence.gain("gramloop") == pytest.approx(estimate, abs=UNIT)
    assert [gain.interval.low, gain.interval.high] == pytest.approx([low, high], abs=0.002)
    assert gain.interval.replicates == 10_000
    verdict = method_gain(evidence, "gramloop")
    assert verdict.verdict == "helps"
    assert evidence.drawn[0].drawn_from == f"{len(PAPER['families'][suite])} shift families"
    row = gains_table([evidence]).rows[0]
    assert row[4] == row[7] == verdict.interval  # corrected for few families, it still helps
    assert 0 < gain.corrected.low < gain.interval.low < gain.interval.high < gain.corrected.high
    assert row[6] == pytest.approx(92, abs=0.7)  # percent that the interval of percentiles covers


def test_compute_cost() -> None:
    for name, place in PLACES.items():
        table = cost_table(counted_run(name))
        assert table is not None
        blocks, analytic, *_ = PAPER["cost"][place]
        assert shown(table, 0)[1:3] == [str(blocks), f"{analytic:.2f}×"]
