import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gramloop.shifts import seeds
from gramloop.shifts.seeds import generator

fields = st.tuples(st.text(max_size=4), st.text(max_size=4), st.integers(0, 12), st.text(max_size=4))


def first_draws(*fields) -> tuple[int, ...]:
    return tuple(generator(*fields).integers(0, 1 << 62, 4).tolist())


def test_the_stream_is_pcg64_from_the_sha256_of_the_fields():
    text = f'[{seeds.RECIPE_VERSION}, "coco-c", "fog", 3, "000000000139"]'
    expected = np.random.PCG64(int(hashlib.sha256(text.encode()).hexdigest(), 16))
    ours = generator("coco-c", "fog", 3, "000000000139").bit_generator
    assert ours.state == expected.state


def test_the_stream_of_recipe_1_does_not_change():
    """Published numbers depend on these: a change of the scheme must come with a new recipe version."""
    if seeds.RECIPE_VERSION == 1:
        assert generator("ade20k-c", "snow", 5, 7).integers(0, 1000, 6).tolist() == GOLDEN


GOLDEN = [838, 260, 760, 899, 22, 377]


@given(fields, fields)
def test_different_fields_give_different_streams(one, other):
    assert (first_draws(*one) == first_draws(*other)) == (one == other)


def test_fields_do_not_run_into_each_other():
    assert first_draws("coco", "c-fog", 1, "2") != first_draws("coco-c", "fog", 1, "2")
    assert first_draws('a", "b', "c", 1, "2") != first_draws("a", 'b", "c', 1, "2")


def test_an_id_is_the_same_as_a_number_and_as_text():
    assert first_draws("coco-c", "fog", 1, 139) == first_draws("coco-c", "fog", 1, "139")


def test_global_state_has_no_influence_and_is_not_touched():
    np.random.seed(3)  # noqa: NPY002
    before = first_draws("s", "c", 1, "i")
    assert np.random.random() == np.random.RandomState(3).random()  # noqa: NPY002
    assert first_draws("s", "c", 1, "i") == before


def test_the_recipe_version_changes_every_stream(monkeypatch):
    before = first_draws("s", "c", 1, "i")
    monkeypatch.setattr(seeds, "RECIPE_VERSION", seeds.RECIPE_VERSION + 1)
    assert first_draws("s", "c", 1, "i") != before
