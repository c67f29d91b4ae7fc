"""Corruptions under the names that others know."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gramloop import GramLoopError
from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, corruption_names
from reference_packages import import_reference

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)


def test_names_and_numbers_are_those_that_people_know() -> None:
    theirs = import_reference("imagecorruptions")
    for subset in ("common", "validation", "all", "noise", "blur", "weather", "digital"):
        assert corruption_names(subset) == theirs.get_corruption_names(subset)
    for number, name in enumerate(CORRUPTIONS + EXTRA_CORRUPTIONS):
        if name in ("contrast", "pixelate", "brightness"):
            ours = corrupt(PIXELS, corruption_number=number, severity=3)
            assert np.array_equal(ours, corrupt(PIXELS, corruption_name=name, severity=3))
            # without randomness, theirs and ours differ by rounding at most
            other = theirs.corrupt(PIXELS, corruption_number=number, severity=3).astype(int)
            assert np.abs(other - ours).max() <= 1


def test_a_seed_gives_the_same_pixels() -> None:
    one = corrupt(PIXELS, corruption_name="gaussian_noise", severity=2, seed=7)
    assert np.array_equal(one, corrupt(PIXELS, "gaussian_noise", 2, np.random.default_rng(7)))
    assert not np.array_equal(one, corrupt(PIXELS, "gaussian_noise", 2, seed=8))
    assert not np.array_equal(corrupt(PIXELS, "gaussian_noise", 2), corrupt(PIXELS, "gaussian_noise", 2))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "no corruption is given"),
        ({"corruption_number": -1}, "no corruption is given"),
        ({"name": "fog", "corruption_name": "snow"}, "given twice"),
        (
            {"name": "fog", "severity": 3, "rng": 11},
            "rng is 11; a numpy Generator is expected, or a number as seed",
        ),
        ({"corruption_number": 19}, "they are 0 to 18"),
        ({"corruption_name": "smog"}, "no corruption 'smog'"),
        ({"name": "fog", "seed": 1, "rng": np.random.default_rng(1)}, "both given"),
    ],
)
def test_slips_are_told(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        corrupt(PIXELS, **given)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, numpy as np; from gramloop.shifts import corrupt, get_corruption_names\n"
        "image = np.full((40, 48, 3), 90, np.uint8)\n"
        "for name in get_corruption_names('all'): corrupt(image, corruption_name=name, severity=2, seed=0)\n"
        "print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_a_call_as_others_write_it_needs_no_change() -> None:
    """Every way in which the package's own signature can be called, with the order of its arguments."""
    theirs = import_reference("imagecorruptions")
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((3, "contrast"), {}),
        ((3, "contrast"), {"corruption_number": -1}),
        ((3, "contrast", -1), {}),
        ((3, "contrast", 2), {}),
        ((3, None, 11), {}),
        ((3,), {"corruption_name": "contrast", "corruption_number": 2}),
        ((3,), {"corruption_name": "contrast"}),
        ((3,), {"corruption_number": 11}),
        ((), {"severity": 3, "corruption_number": 11}),
    ]
    for words, named in calls:
        other = theirs.corrupt(PIXELS, *words, **named).astype(int)
        assert np.abs(other - corrupt(PIXELS, *words, **named)).max() <= 1, "rounding"
    assert corrupt(PIXELS, corruption_name="contrast").shape == theirs.corrupt(PIXELS, 1, "contrast").shape
    with pytest.raises(GramLoopError, match="severity 'contrast' of fog: a whole number"):
        corrupt(PIXELS, "fog", "contrast")


def test_without_a_seed_the_global_generator_of_numpy_decides() -> None:
    def drawn(name: str) -> tuple[bytes, float]:
        np.random.seed(3)  # noqa: NPY002
        return corrupt(PIXELS, 2, name).tobytes(), np.random.random()  # noqa: NPY002

    for name in ("gaussian_noise", "snow", "contrast"):
        assert drawn(name) == drawn(name)
    untouched = np.random.RandomState(3).random()
    assert drawn("contrast")[1] == untouched, "a corruption without randomness draws nothing"
    assert drawn("snow")[1] != untouched
    assert corrupt(PIXELS, 2, "snow").tobytes() != drawn("snow")[0]


@pytest.mark.parametrize("name", ["fog", "frost", "saturate", "glass_blur", "jpeg_compression"])
def test_one_channel_stays_one_channel(name: str) -> None:
    grey = PIXELS[..., :1]
    found = corrupt(grey, name, 3, seed=1)
    assert found.shape == grey.shape
    assert np.array_equal(found[..., 0], corrupt(grey[..., 0], name, 3, seed=1))


def test_more_than_8_bits_are_refused() -> None:
    with pytest.raises(GramLoopError, match="type int32: a uint8 array"):
        corrupt(np.full((40, 48), 300, np.int32), "fog", 3)


def test_a_group_that_does_not_exist_is_named() -> None:
    with pytest.raises(GramLoopError, match="no group of corruptions 'smog'"):
        corruption_names("smog")
