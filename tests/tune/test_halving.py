import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.tune.options import SearchOptions
from gramloop.tune.schedule import ETA, MIN_CELLS, MIN_STAGE_IMAGES, StageSize, plan_schedule

stages = st.builds(StageSize, st.integers(3, 60), st.integers(1, 20))


@settings(deadline=None)  # the machine may be busy
@given(
    budget=st.integers(1, 20_000),
    candidates=st.integers(1, 400),
    search=stages,
    decide=stages,
    verdict=stages,
    finalists=st.integers(1, 6),
    joining=st.sampled_from([(), (3, 2), (1,)]),
    judged=st.integers(1, 2),
    baseline=st.integers(0, 1),
    calibration=st.sampled_from([0, 8, 32]),
)
def test_a_budget_is_never_exceeded(
    budget, candidates, search, decide, verdict, finalists, joining, judged, baseline, calibration
):
    given = {"finalists": finalists, "joining": joining, "judged": judged}
    given |= {"baseline": baseline, "calibration": calibration}
    try:
        plan = plan_schedule(budget, candidates, search, decide, verdict, **given)
    except GramLoopError as error:
        least = int(re.search(r"judging the choice needs (\d+);", str(error))[1])
        assert budget < least
        assert plan_schedule(least, candidates, search, decide, verdict, **given).predictions <= least
        return
    assert plan.predictions <= budget
    assert min(finalists, candidates) <= plan.candidates <= candidates
    assert MIN_STAGE_IMAGES <= plan.decide.images <= decide.images
    assert MIN_STAGE_IMAGES <= plan.verdict.images <= verdict.images
    cells = 0
    for rung in plan.rungs:  # each goes on where the one before stopped
        assert rung.cells == cells + rung.fresh <= search.images * search.conditions
        cells = rung.cells
    carried = [rung.candidates for rung in plan.rungs[1:]] + [plan.finalists]
    for rung, after in zip(plan.rungs, carried, strict=False):
        together = rung.candidates + rung.joining
        assert min(together, -(-together // ETA)) <= after
        assert after <= max(together, finalists)
    if plan.rungs:
        assert plan.rungs[0].cells >= min(MIN_CELLS, search.images * search.conditions)


def test_enough_budget_tries_everything_on_everything():
    search, decide, verdict = StageSize(16, 5), StageSize(10, 5), StageSize(14, 7)
    plan = plan_schedule(20_000, 33, search, decide, verdict)
    assert [(rung.candidates, rung.cells) for rung in plan.rungs] == [(33, 80), (11, 80), (4, 80)]
    assert plan.predictions == 33 * 80 + 3 * 50 + 98  # later rungs have nothing new to look at


def test_a_small_budget_tries_fewer_candidates_and_spends_almost_all():
    plan = plan_schedule(2000, 200, StageSize(40, 11), StageSize(25, 11), StageSize(35, 16))
    assert plan.offered == 200
    assert plan.candidates < 200
    assert 2000 - 33 <= plan.predictions <= 2000  # less than one more image of the decision


def test_few_candidates_need_no_rung():
    plan = plan_schedule(500, 2, StageSize(10, 3), StageSize(10, 3), StageSize(10, 4))
    assert plan.rungs == ()
    assert plan.finalists == plan.candidates == 2
    assert plan.predictions == 2 * 30 + 40


def test_room_for_combinations_is_given_up_before_candidates_are():
    stages = StageSize(40, 11), StageSize(25, 11), StageSize(35, 16)
    rich = plan_schedule(2000, 18, *stages, joining=(3, 2), judged=2, baseline=1)
    assert [(rung.candidates, rung.joining) for rung in rich.rungs] == [(18, 0), (6, 3), (3, 2)]
    poor = plan_schedule(800, 18, *stages, joining=(3, 2), judged=2, baseline=1)
    assert poor.candidates == 18
    assert sum(rung.joining for rung in poor.rungs) < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"clean_tolerance": -1.0}, "clean_tolerance is -1.0"),
        ({"max_cost": 0.9}, "max_cost is 0.9; it is 1 or more"),
        ({"finalists": 0}, "finalists is 0; it is 1 or more"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(GramLoopError, match=message):
        SearchOptions(**options)
