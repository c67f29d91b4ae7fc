from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.replay.config import Adaptive
from gramloop.tune.search.adapting import best_rule, is_on, rules, switched
from gramloop.tune.search.split import Sample
from gramloop.tune.search.worth import PairedStatistics

END = 1


def cell(number: int, right: int, replayed: int, length: float, spread: float = 0.5) -> PairedStatistics:
    """An image of 100 pixels of two classes, of which so many are labelled right."""

    def counts(correct: int) -> dict[str, list[list[int]]]:
        return {"counts": [[correct // 2] * 2, [50, 50], [50, 50]]}

    signals = {"length": [9.0, length], "spread": [9.0, spread]}
    return PairedStatistics(
        Sample(number, str(number), number), counts(right), counts(replayed), None, 13, signals
    )


def noisy_and_clean() -> dict[str, list[PairedStatistics]]:
    """Replay gains where patches are long, and loses elsewhere, clean images among them."""
    return {
        "clean": [cell(i, 80, 70, 1.0 + 0.01 * i) for i in range(6)],
        "noise/3": [cell(i, 40, 50, 2.0 + 0.01 * i) for i in range(6)],
        "blur/3": [cell(i, 40, 36, 0.5 + 0.01 * i) for i in range(6)],
    }


def test_the_rule_that_separates_is_found() -> None:
    found = best_rule("semantic", (0, 1), noisy_and_clean(), END, tolerance=0.1, caution=0.0)
    assert found is not None
    rule, worth = found
    assert rule.signal == "length"
    assert rule.off == rule.full  # on above
    assert 1.05 <= rule.off < 2.05
    assert worth.clean == pytest.approx(0.0)
    after = switched(noisy_and_clean(), rule, END)
    assert all(one.mitigated is one.ordinary for key in ("clean", "blur/3") for one in after[key])


def test_a_signal_that_falls_under_shift() -> None:
    cells = {
        "clean": [cell(i, 80, 70, 1.0, 0.9) for i in range(6)],
        "fog/3": [cell(i, 40, 50, 1.0, 0.1 + 0.001 * i) for i in range(6)],
    }
    found = best_rule("semantic", (0, 1), cells, END, tolerance=0.1, caution=0.0)
    assert found is not None
    assert found[0].signal == "spread"
    assert found[0].full < found[0].off
    assert all(is_on(found[0], one.signals["spread"][END]) for one in cells["fog/3"])


def test_no_rule_where_replay_only_loses_or_signals_are_not_known() -> None:
    losing = {"fog/3": [cell(i, 40, 36, float(i)) for i in range(6)]}
    assert best_rule("semantic", (0, 1), losing, END, 0.1, 0.0) is None
    unknown = [PairedStatistics(Sample(0, "0", 0), {}, {}, None, 13)]
    assert rules({"fog/3": unknown}, END) == []


@given(st.floats(0.1, 10), st.lists(st.floats(0.1, 10), min_size=1, max_size=20))
def test_a_rule_decides_as_the_replay_would(level: float, values: list[float]) -> None:
    import torch

    from gramloop.replay.adaptive import share

    for rule in (Adaptive("length", level, level), Adaptive("length", level, level * (1 - 1e-4))):
        got = share(rule, torch.tensor(values, dtype=torch.float64)).numpy() > 0
        assert got.tolist() == [is_on(rule, value) for value in values]


def test_the_signal_of_the_windows_end_counts() -> None:
    assert np.unique([rule.off for rule in rules(noisy_and_clean(), 0)]).tolist() == [9.0]
