"""Predictors on the stand-in for a GPU: plain, replayed, paired, traced, and batched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from device_models import EMBEDDED, FOLDERS, RELEASED, Load
from gramloop.mitigations import apply, calibrate
from gramloop.mitigations.calibration import CalibrationStats
from stand_in_audit import PIXELS, alike, audit_determined, audit_float32, in_float32, parts
from stand_in_gpu import stand_in_gpu

Loaders = Callable[[str], Load]
# of values up to 1, and of pixels: group norms of the segmentor sum in another order on a GPU; the detector amplifies the
# last digit of a sum, which depends on where its weights lie in memory; labels are whole numbers, and equal
APART = {"segmenter": 2e-2, "detector": 2e-2}


@pytest.mark.parametrize("name", [*EMBEDDED, *RELEASED, *FOLDERS])
def test_in_float32_equal_to_the_bit(name: str, load_of: Loaders) -> None:
    audit_float32(load_of(name), apart=APART.get(name, 0.0))


@pytest.mark.parametrize("name", [*EMBEDDED, *RELEASED, *FOLDERS])
def test_under_autocast_with_deterministic_kernels(name: str, load_of: Loaders) -> None:
    audit_determined(load_of(name))


TEXTS = ["flip", "denoise", "scales:0.75,1", "replay:window=3-4+pair"]
CASES = [("semantic", text) for text in TEXTS]
MORE = [pytest.param(task, text, marks=pytest.mark.slow) for task in ("detection", "depth") for text in TEXTS]


@pytest.mark.parametrize(("task", "text"), [*CASES, *MORE, ("semantic", "recentre:0.3")])
def test_mitigations(task: str, text: str, load_of: Loaders) -> None:
    expected = parts(apply(text, load_of(task)("cpu")).predict(PIXELS))
    with stand_in_gpu():
        found = parts(apply(text, in_float32(load_of(task)("cuda:0"))).predict(PIXELS))
    alike(found, expected)


def same(found: CalibrationStats, expected: CalibrationStats) -> None:
    assert (found.images, found.noise, found.input_noise) == (
        expected.images,
        expected.noise,
        expected.input_noise,
    )
    assert found.means.keys() == expected.means.keys()
    for tap, mean in expected.means.items():
        np.testing.assert_array_equal(found.means[tap], mean)


@pytest.mark.parametrize(
    "name", ["panoptic", *(pytest.param(name, marks=pytest.mark.slow) for name in (*EMBEDDED, "depther"))]
)
def test_calibration_and_recentring_with_what_it_found(name: str, load_of: Loaders) -> None:
    images = [PIXELS // number for number in range(1, 9)]
    here = load_of(name)("cpu")
    source = calibrate(here, images)
    text = "recentre:c=0.5"
    expected = parts(apply(text, here, source).predict(PIXELS))
    with stand_in_gpu():
        there = in_float32(load_of(name)("cuda:0"))
        same(calibrate(there, images), source)
        alike(parts(apply(text, there, source).predict(PIXELS)), expected)
