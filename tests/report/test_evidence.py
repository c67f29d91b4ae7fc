"""Methods against each other, how gains add, and which to take in words: from stores whose answers are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gramloop.report.costs import time_of
from gramloop.report.evidence import evidence_of
from gramloop.report.formats import csv, latex, markdown
from gramloop.report.stacking import stacks_of
from gramloop.report.statistics import gains_of, verdicts_of
from gramloop.report.tables.table import OPEN

from gramloop.cli import main
from gramloop.metrics.bootstrap import cluster_bootstrap
from gramloop.report.answers import answers_of
from gramloop.report.load import load_runs
from gramloop.report.stats import Evidence, parts_of
from gramloop.report.tables.main import matrix_table, pairs_table, stacking_table
from gramloop.util.table import BETTER, WORSE
from small_stores import make_plan, write_store

FAMILIES = ("fog", "snow", "pixelate", "contrast", "brightness", "impulse_noise")
PIXELS = 100_000
EFFECTS = {  # points of mIoU, in every family give or take a little
    "baseline": 0.0,
    "gramloop": 0.2,
    "median": 3.0,
    "recentre-0.3": 3.02,
    "both": 6.0,
    "denoise": -2.0,
    "all": 6.4,
}
METHODS = [
    "baseline", "gramloop", "median", "recentre:0.3", "both=median+recentre:0.3", "denoise",
    "all=median+recentre:0.3+replay:window=3-4",
]  # fmt: skip


def known(condition: str, method: str, position: int) -> dict[str, Any]:
    """One class, hit as often as the effect says; IoU is then the share of pixels that are hit."""
    noise = np.random.default_rng([position, *map(ord, condition), *map(ord, method)]).normal(0, 0.05)
    hits = round(PIXELS * (50 + EFFECTS[method] + noise) / 100)
    return {
        "intersection": [hits, 0, 0],
        "prediction": [hits, 0, 0],
        "label": [PIXELS, 0, 0],
        "drift": [],
        "gate": [],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("evidence")
    plan = make_plan(methods=METHODS, conditions=[f"{name}/3" for name in FAMILIES])
    write_store(made / "shifted", plan, known)
    write_store(made / "clean", make_plan("scenes", methods=METHODS, conditions=["clean"]), known)
    return made


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    (found,) = evidence_of(gains_of(load_runs([folder / "shifted"]).runs))
    return found


def test_every_pair_has_the_interval_of_its_own_gains(evidence: Evidence) -> None:
    assert evidence.ranked[:2] == ("all", "both")
    assert len(evidence.pairs) == 7 * 6 / 2
    scores = {name: evidence.run.scores(name) for name in evidence.run.methods}
    for (better, worse), (found,) in evidence.pairs.items():
        gains = {each.name: [scores[better][each] - scores[worse][each]] for each in evidence.run.shifted}
        alone = cluster_bootstrap(gains)
        assert (found.interval.low, found.interval.high) == pytest.approx((alone.low, alone.high), abs=1e-9)
        assert evidence.gain(better, worse) == pytest.approx(alone.estimate, abs=1e-9)
        assert evidence.gain(better, worse) >= 0
        assert found.joint.low < found.corrected.low < found.corrected.high < found.joint.high


def test_marks_say_what_is_told_apart(evidence: Evidence) -> None:
    assert evidence.told_apart("all", "both")
    assert not evidence.told_apart(*sorted(("median", "recentre-0.3"), key=evidence.ranked.index))
    table = matrix_table(evidence)
    marks = np.array([row[3:] for row in table.rows])
    assert marks.shape == (7, 7)
    assert (np.diag(marks) == "").all()
    for row, column in zip(*np.triu_indices(7, 1), strict=True):
        assert (marks[row, column], marks[column, row]) in {(BETTER, WORSE), (OPEN, OPEN)}
    assert list(marks[-1, :-1]) == [WORSE] * 6  # denoise loses to everything
    names = [row[1] for row in table.rows]
    pair = [names.index("median"), names.index("recentre-0.3")]
    assert marks[pair[0], pair[1]] == marks[pair[1], pair[0]] == OPEN


def test_pairs_in_every_format(evidence: Evidence) -> None:
    table = pairs_table(evidence)
    lines = csv(table).splitlines()
    assert len(lines) == 1 + 21
    assert lines[0].startswith("better,worse,gain,interval estimate,interval low,interval high")
    first = lines[1].split(",")
    assert first[:2] == ["all", "both"]
    assert float(first[2]) == evidence.gain("all", "both")
    assert f"| all | both | {evidence.gain('all', 'both'):+.3f} | [+0." in markdown(table)
    assert r"$\cdot$" in latex(matrix_table(evidence))


def test_gains_of_a_stack_beside_the_sum_of_its_parts(evidence: Evidence) -> None:
    methods = {method.name: method for method in evidence.run.plan.methods}
    assert len(parts_of(methods["all"])) == 3
    assert parts_of(methods["gramloop"]) < parts_of(methods["all"])
    found = {(each.whole, each.parts): each for each in stacks_of(evidence)}
    assert set(found) == {
        ("both", ("median", "recentre-0.3")),
        ("all", ("gramloop", "both")),
    }  # no method is median with the replay, so the other ways to split it are not there
    both = found["both", ("median", "recentre-0.3")]
    expected = evidence.gain("both") - evidence.gain("median") - evidence.gain("recentre-0.3")
    assert both.excess[0].interval.estimate == pytest.approx(expected, abs=1e-9)
    assert both.words == "not told from the sum"
    more = found["all", ("gramloop", "both")]
    assert more.excess[0].interval.estimate == pytest.approx(0.2, abs=0.05)
    assert more.words == "more than the sum"
    rows = stacking_table(evidence, list(found.values())).rows
    assert rows[0][5] == pytest.approx(evidence.gain("median") + evidence.gain("recentre-0.3"))


def test_words_begin_with_the_rival_that_beats_replay(folder: Path) -> None:
    gains = [gain for over in ("families", "images") for gain in gains_of(load_runs([folder]).runs, over)]  # type: ignore[arg-type]
    found = evidence_of(gains)
    (answer,) = answers_of(found, gains)
    first, free, more = answer.sentences
    assert re.match(r"both gains more than replay: \+6\.\d\d points at 1\.00× the work", first)
    assert "does not tell them apart" not in first
    assert free.startswith("At no extra work: take both, +6.")
    assert "over 6 shift families; " in free
    assert "over 12 images" in free
    assert "on clean images +5.9" in free or "on clean images +6.0" in free
    assert "; told apart from the next, " in free
    assert more.startswith("Below 2.4 times the work: take all, +6.4")
    assert "told apart from the next, both (+6.0" in more


def test_nothing_helps_where_nothing_does(tmp_path: Path) -> None:
    def luck(condition: str, method: str, position: int) -> dict[str, Any]:
        """In a family a method gains or loses by chance; of twenty such seeds one would be told to help."""
        row = known(condition, "baseline", position)
        if method != "baseline":
            shift = np.random.default_rng([1, *map(ord, condition + method)]).normal(0, 1)
            row["intersection"] = row["prediction"] = [row["intersection"][0] + round(1000 * shift), 0, 0]
        return row

    write_store(
        tmp_path / "r", make_plan(methods=METHODS, conditions=[f"{name}/3" for name in FAMILIES]), luck
    )
    gains = gains_of(load_runs([tmp_path / "r"]).runs)
    (answer,) = answers_of(evidence_of(gains), gains)
    assert not any(": take " in sentence for sentence in answer.sentences)
    assert any("nothing is shown to help" in sentence for sentence in answer.sentences)


def test_over_both_a_verdict_needs_both(folder: Path) -> None:
    runs = load_runs([folder / "shifted"]).runs
    gains = [*gains_of(runs), *gains_of(runs, "images", replicates=500)]
    said = {each.method: each for each in verdicts_of(gains)}
    assert len(said) == 6
    assert said["median"].words == "helps"
    assert "over 6 shift families" in said["median"].sentence
    assert "Over 12 images it is +" in said["median"].sentence


def test_the_command_says_which_to_take_and_writes_all_of_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert main(["report", str(folder), "--out", str(out), "--bootstrap", "both", "--no-pdf"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("scenes-c: both gains more than replay")
    text = (out / "report.md").read_text()
    assert text.index("## Which to take") < text.index("## Verdict")
    page = (out / "index.html").read_text()
    assert '<section id="answers"' in page
    for name in ("matrix", "pairs", "stacking"):
        for ending in ("md", "csv", "tex"):
            assert (out / "tables" / f"scenes-c-{name}.{ending}").is_file()
    assert (out / "figures" / "scenes-c-cost.png").is_file()


def test_without_a_time_of_its_own_the_pair_has_none(evidence: Evidence) -> None:
    """These stores were written without times of single methods: only the work is told."""
    assert time_of(evidence.run, "median") is None


def test_what_costs_more_and_is_not_told_apart_is_not_taken(tmp_path: Path) -> None:
    """The stack with a replay gains a hair more than the free one of its parts."""
    methods = ["baseline", "median", "gramloop", "all=median+replay:window=3-4"]
    levels = {"baseline": "baseline", "median": "median", "gramloop": "gramloop", "all": "recentre-0.3"}
    write_store(
        tmp_path / "r",
        make_plan(methods=methods, conditions=[f"{name}/3" for name in FAMILIES]),
        lambda condition, method, place: known(condition, levels[method], place),
    )
    gains = gains_of(load_runs([tmp_path / "r"]).runs)
    (evidence,) = evidence_of(gains)
    assert evidence.ranked[0] == "all"
    (answer,) = answers_of([evidence], gains)
    assert answer.sentences[-2].startswith("At no extra work: take median, +3.0")
    assert answer.sentences[-1].startswith("Below 2.4 times the work: keep median. all gains most, +3.0")
