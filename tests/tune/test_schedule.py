import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.tune.search.schedule import FEWEST_CELLS, FEWEST_IMAGES, Stage, least_budget, plan_schedule

stages = st.builds(Stage, st.integers(3, 60), st.integers(1, 20))


@settings(deadline=None)  # the machine may be busy
@given(
    budget=st.integers(1, 20_000),
    candidates=st.integers(1, 400),
    search=stages,
    decide=stages,
    verdict=stages,
    eta=st.integers(2, 5),
    finalists=st.integers(1, 6),
    stacked=st.sampled_from([(), (3, 2), (1,)]),
    judged=st.integers(1, 2),
    plain=st.integers(0, 1),
    calibration=st.sampled_from([0, 8, 32]),
)
def test_a_budget_is_never_exceeded(
    budget, candidates, search, decide, verdict, eta, finalists, stacked, judged, plain, calibration
):
    fewest = finalists if stacked else min(finalists, candidates)
    least = least_budget(fewest, decide, verdict, judged, plain) + calibration
    given = {"eta": eta, "finalists": finalists, "stacked": stacked, "judged": judged}
    given |= {"plain": plain, "calibration": calibration}
    if budget < least:
        with pytest.raises(GramLoopError, match=f"judging the choice needs {least}"):
            plan_schedule(budget, candidates, search, decide, verdict, **given)
        return
    plan = plan_schedule(budget, candidates, search, decide, verdict, **given)
    assert plan.predictions <= budget
    assert min(finalists, candidates) <= plan.candidates <= candidates
    assert FEWEST_IMAGES <= plan.decide.images <= decide.images
    assert FEWEST_IMAGES <= plan.verdict.images <= verdict.images
    cells = 0
    for rung in plan.rungs:  # each goes on where the one before stopped
        assert rung.cells == cells + rung.fresh <= search.images * search.conditions
        cells = rung.cells
    carried = [rung.candidates for rung in plan.rungs[1:]] + [plan.finalists]
    for rung, after in zip(plan.rungs, carried, strict=False):
        together = rung.candidates + rung.stacked
        assert min(together, -(-together // eta)) <= after
        assert after <= max(together, finalists)
    if plan.rungs:
        assert plan.rungs[0].cells >= min(FEWEST_CELLS, search.images * search.conditions)


def test_enough_budget_tries_everything_on_everything():
    search, decide, verdict = Stage(16, 5), Stage(10, 5), Stage(14, 7)
    plan = plan_schedule(20_000, 33, search, decide, verdict)
    assert [(rung.candidates, rung.cells) for rung in plan.rungs] == [(33, 80), (11, 80), (4, 80)]
    assert plan.predictions == 33 * 80 + 3 * 50 + 98  # later rungs have nothing new to look at


def test_a_small_budget_tries_fewer_candidates_and_spends_almost_all():
    plan = plan_schedule(2000, 200, Stage(40, 11), Stage(25, 11), Stage(35, 16))
    assert plan.offered == 200
    assert plan.candidates < 200
    assert 2000 - 33 <= plan.predictions <= 2000  # less than one more image of the decision


def test_few_candidates_need_no_rung():
    plan = plan_schedule(500, 2, Stage(10, 3), Stage(10, 3), Stage(10, 4))
    assert plan.rungs == ()
    assert plan.finalists == plan.candidates == 2
    assert plan.predictions == 2 * 30 + 40


def test_halving_needs_its_numbers():
    with pytest.raises(GramLoopError, match="an eta of 2 or more"):
        plan_schedule(500, 2, Stage(10, 3), Stage(10, 3), Stage(10, 4), eta=1)


def test_room_for_combinations_is_given_up_before_candidates_are():
    stages = Stage(40, 11), Stage(25, 11), Stage(35, 16)
    rich = plan_schedule(2000, 18, *stages, stacked=(3, 2), judged=2, plain=1)
    assert [(rung.candidates, rung.stacked) for rung in rich.rungs] == [(18, 0), (6, 3), (3, 2)]
    poor = plan_schedule(800, 18, *stages, stacked=(3, 2), judged=2, plain=1)
    assert poor.candidates == 18
    assert sum(rung.stacked for rung in poor.rungs) < 5
