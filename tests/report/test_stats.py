"""Intervals of gains, methods against each other, and which to take: from stores whose answers are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gramloop.cli import main
from gramloop.evaluate.answer import Answer, MethodGain
from gramloop.evaluate.store import Store, StoredCondition, read_condition
from gramloop.metrics.bootstrap import (
    UNDECIDED,
    Interval,
    cluster_bootstrap,
    image_bootstrap,
    miou_score,
    paired_delta,
    verdict,
)
from gramloop.mitigations.stack import read_mitigations, stack_text
from gramloop.report.answers import answers_of, method_gain
from gramloop.report.load import load_runs
from gramloop.report.run import Run
from gramloop.report.stats import (
    Difference,
    Evidence,
    Resampled,
    compare_methods,
    deciding,
    decision,
)
from gramloop.report.tables import gains_table, matrix_table, pairs_table
from html_tables import HOSTILE, Reader
from small_runs import counts_of
from small_stores import CONDITIONS, make_plan, pixels, write_store

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


def one_run(folder: Path, **changes: object) -> Run:
    write_store(folder, make_plan(**changes))  # type: ignore[arg-type]
    return load_runs([folder]).runs[0]


def gain_of(run: Run, *over: Any, **options: Any) -> Difference:
    """The gain of the one method of a run."""
    (evidence,) = compare_methods([run], over or ("families",), **options)
    ((gain,),) = evidence.gains.values()
    return gain


def test_over_families_with_all_their_severities(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r")
    gain = gain_of(run)
    ours, theirs = run.scores("gramloop"), run.scores("baseline")
    gains: dict[str, list[float]] = {}
    for condition in run.shifted:
        gains.setdefault(condition.name, []).append(ours[condition] - theirs[condition])
    alone = cluster_bootstrap(gains)
    assert gain.interval.units == alone.units == 3
    assert [gain.interval.low, gain.interval.high] == pytest.approx([alone.low, alone.high], abs=1e-9)
    assert run.gain("gramloop") == pytest.approx(gain.interval.estimate, abs=1e-9)


def test_over_images_with_all_their_shifted_versions(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r")
    gain = gain_of(run, "images", replicates=500)
    stacks = [
        np.stack([counts_of(stored(run, key).methods[method]) for key in CONDITIONS])
        for method in ("baseline", "gramloop")
    ]
    together = image_bootstrap(paired_delta(*map(miou_score, stacks)), 12, replicates=500)
    found = gain.interval
    assert [found.estimate, found.low, found.high] == pytest.approx(
        [together.estimate, together.low, together.high], abs=1e-9
    )
    assert run.gain("gramloop") == pytest.approx(together.estimate, abs=1e-9)


def stored(run: Run, key: str) -> StoredCondition:
    found = read_condition(Store(run.folder, run.plan), key)
    assert found is not None
    return found


def test_an_image_that_failed_once_is_drawn_nowhere(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), lost={"fog/1": [3]})
    assert gain_of(load_runs([tmp_path / "r"]).runs[0], "images", replicates=50).interval.units == 11


def test_over_images_of_detections(tmp_path: Path) -> None:
    """The baseline misses a third of the cats and no dog, in every condition alike."""
    run = one_run(tmp_path / "r", task="detection")
    (evidence,) = compare_methods([run], ("images",), replicates=200)
    assert evidence.helps("gramloop")
    ((gain,),) = evidence.gains.values()
    assert gain.interval.estimate == pytest.approx(run.gain("gramloop"), abs=1e-9)


def test_domains_are_drawn_each_for_itself(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r", suite="coco-o", task="detection", conditions=["sketch", "weather"])
    (evidence,) = compare_methods([run], ("images",), replicates=50)
    assert evidence.drawn[0].units == 24
    (answer,) = answers_of([run], [evidence])
    assert "Intervals are over 24 images." in answer.notes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"conditions": ["fog/1", "fog/3"]},
            "fog is the only shift family, and one family says nothing of others",
        ),
        ({"suite": "scenes", "conditions": ["clean"]}, "clean images are no shift"),
    ],
    ids=["one family", "clean images"],
)
def test_without_an_interval_there_is_a_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    run = one_run(tmp_path / "r", **changes)
    (evidence,) = compare_methods([run])
    (answer,) = answers_of([run], [evidence])
    (found,) = answer.gains
    assert (found.verdict, found.interval, answer.method) == (UNDECIDED, None, "")
    assert reason in answer.notes[0]
    assert run.gain("gramloop") is not None
    assert any(reason in note for note in gains_table([evidence]).notes)


def test_missing_conditions_have_no_gain_and_say_why(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), skip=["fog/1"])
    for over in ("families", "images"):
        (evidence,) = compare_methods(load_runs([tmp_path / "r"]).runs, (over,))  # type: ignore[arg-type]
        assert evidence.gains == {}
        (answer,) = answers_of([evidence.run], [evidence])
        assert answer.sentence == "No answer: 1 of 6 conditions without a score."


def test_equal_methods_do_not_differ(tmp_path: Path) -> None:
    write_store(
        tmp_path / "r", make_plan(), lambda condition, method, place: pixels(condition, "same", place)
    )
    (run,) = load_runs([tmp_path / "r"]).runs
    (evidence,) = compare_methods([run])
    assert (run.gain("gramloop"), decision(evidence.gains["gramloop"])) == (0, UNDECIDED)


def test_a_decision_needs_everything_that_was_drawn(tmp_path: Path) -> None:
    drawn = Resampled(one_run(tmp_path / "r"), "families")
    ends = {"helps": (0.1, 0.5), "hurts": (-0.5, -0.1), UNDECIDED: (-0.1, 0.5)}
    each = {
        words: Difference(drawn, Interval(0.0, 0.0, 0.0), Interval(sum(span) / 2, *span, units=15))
        for words, span in ends.items()
    }
    for words, one in each.items():
        assert decision((one,)) == decision((one, one)) == words
        assert decision((one, each[UNDECIDED])) == UNDECIDED
    assert decision(()) == UNDECIDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("evidence")
    plan = make_plan(methods=METHODS, conditions=[f"{name}/3" for name in FAMILIES])
    write_store(made / "shifted", plan, known)
    write_store(made / "clean", make_plan("scenes", methods=METHODS, conditions=["clean"]), known)
    return made


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    (found,) = compare_methods(load_runs([folder / "shifted"]).runs)
    return found


@pytest.fixture(scope="module")
def over_both(folder: Path) -> list[Evidence]:
    return compare_methods(load_runs([folder]).runs, ("families", "images"), replicates=2000)


def test_cards_and_tables_never_contradict_each_other(over_both: list[Evidence]) -> None:
    """A verdict is that of the interval beside it, in the table of gains and on the card."""
    rows = {(row[0], row[1]): row[-1] for row in gains_table(over_both).rows}
    for found in over_both:
        for method in found.run.compared:
            said = method_gain(found, method)
            assert said.interval is not None
            assert said.verdict == verdict(said.interval) == rows[found.run.name, method]
            first, second = sorted((method, "baseline"), key=found.ranked.index)
            assert found.differ(first, second) == (said.verdict != UNDECIDED)
            assert found.helps(method) == (said.verdict == "helps")
        matrix = matrix_table(found)
        names = [row[1] for row in matrix.rows]
        for method in found.run.compared:
            mark = matrix.rows[names.index(method)][3 + names.index("baseline")]
            words = {"+": "helps", "−": "hurts", "·": UNDECIDED}
            assert words[str(mark)] == method_gain(found, method).verdict
        tables = [gains_table([found]), pairs_table(found)]
        for table in tables:  # what a table shows next to an interval is what the interval says
            place = table.column("deciding")
            for row in table.rows:
                assert (verdict(row[place]) == UNDECIDED) == (row[-1] in (UNDECIDED, "no"))


def test_the_interval_of_one_method_is_that_corrected_for_few_units(tmp_path: Path) -> None:
    (found,) = compare_methods([one_run(tmp_path / "r")])
    ((gain,),) = found.gains.values()
    assert deciding(found.gains["gramloop"]) == gain.joint == gain.corrected
    assert gain.corrected.low < gain.interval.low


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


def test_pairs_say_what_differs(evidence: Evidence) -> None:
    assert evidence.differ("all", "both")
    assert not evidence.differ(*sorted(("median", "recentre-0.3"), key=evidence.ranked.index))
    worst = [row[-1] for row in pairs_table(evidence).rows if row[1] == evidence.ranked[-1]]
    assert worst == ["yes"] * 6  # denoise loses to everything
    table = matrix_table(evidence)
    marks = np.array([row[3:] for row in table.rows])
    assert marks.shape == (7, 7)
    assert (np.diag(marks) == "").all()
    for row, column in zip(*np.triu_indices(7, 1), strict=True):
        assert (marks[row, column], marks[column, row]) in {("+", "−"), ("·", "·")}
    assert list(marks[-1, :-1]) == ["−"] * 6
    assert r"$\cdot$" in table.latex()


def test_pairs_in_every_format(evidence: Evidence) -> None:
    table = pairs_table(evidence)
    lines = table.csv().splitlines()
    assert len(lines) == 1 + 21
    assert lines[0].startswith("better,worse,gain,interval estimate,interval low,interval high")
    first = lines[1].split(",")
    assert first[:2] == ["all", "both"]
    assert float(first[2]) == evidence.gain("all", "both")
    assert f"| all | both | {evidence.gain('all', 'both'):+.3f} | 6 families | [+0." in table.markdown()


def test_the_answer_names_method_gain_interval_cost_and_clean_score(over_both: list[Evidence]) -> None:
    (answer,) = answers_of([each.run for each in over_both], over_both)
    found = next(each for each in over_both if each.run.shifted)
    best = next(each for each in answer.gains if each.method == "all")
    assert answer.method == "all"
    interval = deciding(found.gains["all"])
    assert interval == best.interval
    low, high = f"{interval.low:+.2f}", f"{interval.high:+.2f}"
    assert re.match(
        r"Use all: mIoU under shift rises from 50\.\d\d to 56\.\d\d \(\+6\.\d\d points", answer.sentence
    )
    assert (
        f"95% interval [{low}, {high}]), at {found.run.work('all'):.2f}× the work of the baseline"
        in answer.sentence
    )
    assert re.search(r"; clean (49|50)\.\d\d → 56\.\d\d\.$", answer.sentence)
    assert [each.method for each in answer.gains] == [name for name in found.ranked if name != "baseline"]
    assert answer.notes[0].startswith(
        "Intervals are over 6 shift families and 12 images, and hold for all 6 methods"
    )


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
    runs = load_runs([tmp_path / "r"]).runs
    (answer,) = answers_of(runs, compare_methods(runs))
    assert (answer.method, answer.deploy) == ("", ())
    assert answer.sentence.startswith("Use the model as it is: none of 6 methods significantly improves mIoU")


def test_the_command_says_which_to_take_and_writes_all_of_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert main(["report", str(folder), "--out", str(out), "--bootstrap", "both", "--no-pdf"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("scenes-c\nUse all: mIoU under shift rises")
    assert "gramloop predict photos" in said
    *lines, page = said.splitlines()
    assert page == str(out / "index.html")
    assert all(len(line) <= 80 for line in lines if not line.startswith("  "))
    assert "Use all: mIoU under shift rises" in (out / "report.md").read_text()
    assert '<p class="sentence">Use all: ' in (out / "index.html").read_text()
    stored = read_mitigations(out / "best.json")[0]
    assert stack_text(stored) == "median+replay:window=3-4+recentre:0.3"
    for name in ("matrix", "pairs"):
        for ending in ("md", "csv", "tex"):
            assert (out / "tables" / f"scenes-c-{name}.{ending}").is_file()
    assert (out / "figures" / "scenes-c-gains.png").is_file()


def test_what_costs_more_and_does_not_differ_is_not_taken(tmp_path: Path) -> None:
    """The stack with a replay gains a hair more than the free one of its parts."""
    methods = ["baseline", "median", "gramloop", "all=median+replay:window=3-4"]
    levels = {"baseline": "baseline", "median": "median", "gramloop": "gramloop", "all": "recentre-0.3"}
    write_store(
        tmp_path / "r",
        make_plan(methods=methods, conditions=[f"{name}/3" for name in FAMILIES]),
        lambda condition, method, place: known(condition, levels[method], place),
    )
    (evidence,) = compare_methods(load_runs([tmp_path / "r"]).runs)
    assert evidence.run.time("median") is None  # only the work is known of these stores
    assert evidence.ranked[0] == "all"
    (answer,) = answers_of([evidence.run], [evidence])
    assert answer.method == "median"
    assert "all gains more, but not significantly, and costs more." in answer.notes


INTERVAL = Interval(1.25, 0.5, 2.0, units=15)


def test_an_answer_is_a_table_in_notebooks() -> None:
    gains = (MethodGain(HOSTILE, 51.25, 50.0, INTERVAL, 2.0, 1.5), MethodGain("m", 50.0, 50.0))
    answer = Answer("coco-c", "Use it.", "AP", HOSTILE, gains, (), (f"about {HOSTILE}",))
    read = Reader(answer._repr_html_())
    assert read.rows[1:] == [
        [f"{HOSTILE} ←", "+1.25", "[+0.50, +2.00]", "helps", "1.50×"],
        ["m", "+0.00", "–", "n.s.", "–"],
    ]
    assert f"about {HOSTILE}" in read.notes
    assert "script" not in read.tags
