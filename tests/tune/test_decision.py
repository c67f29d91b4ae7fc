"""The decision between finalists and nothing: exact where it can be counted, and at its level under noise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gramloop.metrics.bootstrap import mean_score
from gramloop.tasks.base import Categories, Rows, Task, get_task
from gramloop.tune.evidence import DecisionTest, Measured, Scoring, weigh_finalists
from gramloop.tune.schedule import Sample


class Mean(Task):
    name, metrics, columns = "mean", ("mean",), {"value": "float64"}

    def scorer(self, rows, categories):
        return mean_score(rows.values["value"])


SCORING = Scoring(Mean(), Categories({}))


def measured(gains):  # of (images, families)
    return {
        f"family{number}/3": Measured(
            [Sample(place, str(place), place) for place in range(len(column))],
            Rows(len(column), {"value": np.ones(len(column))}),
            Rows(len(column), {"value": 1.0 + column}),
        )
        for number, column in enumerate(np.asarray(gains).T)
    }


def counted(values):
    """The share of all sign patterns whose mean is as large as without flips."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    return float(np.mean(signs @ values >= np.sum(values) - 1e-9))


def test_one_finalist_against_all_swaps():
    gains = np.random.default_rng(0).normal(0.5, 1, (6, 4))
    [found] = weigh_finalists(SCORING, [measured(gains)])
    assert found.images == pytest.approx(counted(gains.mean(axis=1)))
    assert found.families == pytest.approx(counted(gains.mean(axis=0)))
    assert found.least_families == 1 / 16


def test_a_twin_costs_nothing_and_a_stranger_something():
    rng = np.random.default_rng(1)
    one, other = measured(rng.normal(0.4, 1, (8, 5))), measured(rng.normal(0.4, 1, (8, 5)))
    [alone] = weigh_finalists(SCORING, [one])
    assert weigh_finalists(SCORING, [one, one])[0] == alone
    assert weigh_finalists(SCORING, [one, other])[0].images >= alone.images


def test_swaps_leave_a_candidate_that_changes_nothing():
    [found] = weigh_finalists(SCORING, [measured(np.zeros((6, 3)))])
    assert (found.images, found.families) == (1.0, 1.0)


def test_scores_that_are_no_means_are_swapped_by_their_images():
    rng = np.random.default_rng(2)
    scoring = Scoring(get_task("semantic"), Categories({0: "a", 1: "b"}))
    columns = scoring.task.columns

    def row():
        right = rng.integers(5, 20, 2)
        return dict(zip(columns, (right, right + 9, right + rng.integers(0, 30, 2)), strict=True))

    pairs = [(row(), row()) for _ in range(4)]
    samples = [Sample(n, str(n), n) for n in range(4)]
    measured = Measured(samples, *(Rows.of(rows) for rows in zip(*pairs, strict=True)))
    [found] = weigh_finalists(scoring, [{"fog/3": measured}])

    def gain(swapped):
        both = [pair[::-1] if swap else pair for pair, swap in zip(pairs, swapped, strict=True)]
        baseline, candidate = (scoring.score(Rows.of(rows)) for rows in zip(*both, strict=True))
        return candidate - baseline

    gains = [gain(swapped) for swapped in itertools.product((False, True), repeat=4)]
    assert found.images == pytest.approx(np.mean(np.array(gains) >= gains[0] - 1e-9))


@pytest.mark.parametrize(
    ("evidence", "beats"),
    [
        (DecisionTest(0.01, 0.01, 0.001), True),
        (DecisionTest(0.06, 0.01, 0.001), False),
        (DecisionTest(0.01, 0.06, 0.001), False),
        (DecisionTest(0.01, 0.125, 0.125), True),  # three families, which agree all
        (DecisionTest(0.01, 0.25, 0.125), False),
        (DecisionTest(0.125, 0.01, 0.001), False),  # three images
    ],
)
def test_both_tests_have_to_agree(evidence, beats):
    assert evidence.beats_nothing(0.95) == beats


def test_of_noise_one_in_twenty_is_chosen_at_most():
    rng, chosen = np.random.default_rng(3), 0
    for _ in range(300):
        shared, own = rng.standard_t(5, (10, 1)), rng.standard_t(5, (3, 10, 6))  # images differ, too
        found = weigh_finalists(SCORING, [measured(shared + each) for each in own])
        chosen += any(each.beats_nothing(0.95) for each in found)
    assert chosen <= 25  # 15 are expected at most, and more than 25 in 1 of 100 tests


def test_what_helps_few_families_much_is_found():
    rng = np.random.default_rng(4)
    gains = np.array([21, 21, 11, 2, 0.5, 0.4, 0.3, 0.3, 0.2, 0.1])
    cells = [measured(gains + 5 * rng.standard_normal((13, 10)) * (gains > 1)) for _ in range(3)]
    assert all(each.beats_nothing(0.95) for each in weigh_finalists(SCORING, cells))
