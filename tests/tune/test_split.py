import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.tune.schedule import SHARES, split_data

PARTS = tuple(SHARES)


def conditions(images: int, *names: str) -> dict[str, list[str]]:
    ids = [f"frame-{number:04d}" for number in range(images)]
    return dict.fromkeys(("clean", *names), ids)


@settings(deadline=None)  # the machine may be busy
@given(
    images=st.integers(11, 300),
    families=st.integers(1, 15),
    block=st.integers(1, 8),
    seed=st.integers(0, 5),
)
def test_no_image_and_no_family_is_on_both_sides(images, families, block, seed):
    names = [f"shift{number}/{severity}" for number in range(families) for severity in (2, 4)]
    if -(-images // block) < 11:
        return
    found = split_data(conditions(images, *names), block=block, seed=seed)
    for key in ("clean", *names):
        parts = [{one.image_id for one in found.images[part][key]} for part in PARTS]
        assert sum(map(len, parts)) == images == len(set.union(*parts))
        blocks = [{one.position // block for one in found.images[part][key]} for part in PARTS]
        assert sum(map(len, blocks)) == len(set.union(*blocks))  # no block on two sides
        assert found.images["verdict"][key] == found.images["verdict"]["clean"]  # shared ids, shared split
    assert not set(found.seen) & set(found.unseen)
    assert len(found.seen) + len(found.unseen) == families
    assert len(found.unseen) == families // 3


def test_images_of_one_block_have_one_unit_and_the_first_few_are_of_many_blocks():
    found = split_data(conditions(120, "fog/3"), block=10).images["search"]["fog/3"]
    assert len({one.unit for one in found[:5]}) == 5
    for unit in {one.unit for one in found}:
        assert len({one.position // 10 for one in found if one.unit == unit}) == 1


def test_the_order_of_files_decides_nothing_but_the_seed_does():
    straight, turned = (
        conditions(40, "fog/3"),
        {key: ids[::-1] for key, ids in conditions(40, "fog/3").items()},
    )
    sides = [
        {one.image_id for one in split_data(each).images["verdict"]["fog/3"]} for each in (straight, turned)
    ]
    assert sides[0] == sides[1]
    other = {one.image_id for one in split_data(straight, seed=1).images["verdict"]["fog/3"]}
    assert other != sides[0]


def test_families_can_be_named():
    found = split_data(conditions(20, "fog/3", "fog/5", "snow/3"), unseen=["fog"])
    assert (found.seen, found.unseen) == (("snow",), ("fog",))
    with pytest.raises(GramLoopError, match="no family 'rain'"):
        split_data(conditions(20, "fog/3"), unseen=["rain"])
    with pytest.raises(GramLoopError, match="every family is kept"):
        split_data(conditions(20, "fog/3"), unseen=["fog"])


def test_too_few_images():
    fewest = next(many for many in range(1, 50) if _splits(many))
    assert fewest == 11
    with pytest.raises(GramLoopError, match=f"has 9 images, too few .* at least {fewest}"):
        split_data(conditions(9, "fog/3"))
    with pytest.raises(GramLoopError, match="blocks of 5 images"):
        split_data(conditions(30, "fog/3"), block=5)


def _splits(images: int) -> bool:
    try:
        split_data(conditions(images, "fog/3"))
    except GramLoopError:
        return False
    return True


def test_nothing_to_gain_or_to_tell_apart():
    with pytest.raises(GramLoopError, match="needs shifted images"):
        split_data({"clean": ["a", "b"]})
    with pytest.raises(GramLoopError, match="two images of fog/3 have one id"):
        split_data({"fog/3": ["a"] * 20})


@settings(deadline=None)
@given(here=st.integers(6, 80), there=st.integers(3, 40), block=st.integers(1, 3), seed=st.integers(0, 3))
def test_a_pattern_keeps_images_for_the_verdict_and_the_verdict_to_them(here, there, block, seed):
    ids = [f"town_{number}" for number in range(here)] + [f"coast_{number}" for number in range(there)]
    images = dict.fromkeys(("clean", "fog/3"), ids)
    if -(-here // block) < 8 or -(-there // block) < 3:
        return
    found = split_data(images, block=block, judge_on="coast_*", seed=seed).images
    for key in images:
        assert {one.image_id for one in found["verdict"][key]} == set(ids[here:])
        others = [{one.image_id for one in found[part][key]} for part in ("search", "decide")]
        assert not others[0] & others[1]
        assert others[0] | others[1] == set(ids[:here])
        for part in PARTS:
            assert all(ids[one.position] == one.image_id for one in found[part][key])


def test_a_pattern_that_keeps_too_few_or_too_many_is_refused():
    images = conditions(20, "fog/3")
    with pytest.raises(
        GramLoopError, match=r"clean has 1 images that frame-0001 keeps .* at least 3 are needed"
    ):
        split_data(images, judge_on="frame-0001")
    with pytest.raises(
        GramLoopError, match=r"without those that frame-00\* keeps .* too few for search, decide"
    ):
        split_data(images, judge_on="frame-00*")
