"""Corruptions under the names that others know, and as a step of a pipeline."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from gramloop import GramLoopError
from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, Corrupt, corrupt, corruption_names
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
        ({}, "once; 0 are given"),
        ({"name": "fog", "corruption_number": 3}, "once; 2 are given"),
        ({"corruption_number": 19}, "they are 0 to 18"),
        ({"corruption_name": "smog"}, "no corruption 'smog'"),
        ({"name": "fog", "seed": 1, "rng": np.random.default_rng(1)}, "both given"),
    ],
)
def test_slips_are_told(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence):
        corrupt(PIXELS, **given)


def test_a_step_of_a_pipeline_keeps_the_kind_of_image() -> None:
    expected = Corrupt("fog", 3, seed=1)(PIXELS)
    assert not np.array_equal(expected, PIXELS)
    picture = Corrupt("fog", 3, seed=1)(Image.fromarray(PIXELS))
    assert np.array_equal(np.asarray(picture), expected)
    tensor = Corrupt("fog", 3, seed=1)(torch.from_numpy(PIXELS).permute(2, 0, 1))
    assert np.array_equal(tensor.permute(1, 2, 0).numpy(), expected)
    assert np.array_equal(Corrupt("fog", 3, seed=1)(PIXELS, extra="as albumentations calls it"), expected)


def test_draws() -> None:
    assert Corrupt("noise", p=0.0)(PIXELS) is PIXELS
    half = Corrupt("contrast", 1, p=0.5, seed=3)
    changed = sum(half(PIXELS) is not PIXELS for _ in range(200))
    assert 70 < changed < 130, "six standard deviations around 100 are 58 to 142"
    with pytest.raises(GramLoopError, match="no group of corruptions 'smog'"):
        Corrupt("smog")
    with pytest.raises(GramLoopError, match="no corruption 'smog'"):
        Corrupt(["fog", "smog"])


def test_torch_is_not_imported() -> None:
    code = "import sys; from gramloop.shifts import Corrupt, corrupt; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
