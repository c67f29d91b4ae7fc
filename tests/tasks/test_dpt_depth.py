"""Meta's depth model from images on, and the protocol in which it was evaluated on NYU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from golden import load_golden, write_golden_depther
from gramloop import GramLoopError, ReplayConfig
from gramloop.data.folders import NYU
from gramloop.metrics import aligned_depth, depth_scores
from gramloop.tasks import DptDepthConfig, DptDepthEstimator
from gramloop.tasks.loading import load_head

DEPTH = 2e-4  # stated with the numbers, at a depth of 63
REPLAY = ReplayConfig(window=(3, 4))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_golden_depther(tmp_path_factory.mktemp("depther"))


@pytest.fixture(scope="module")
def values():
    return load_golden("depther").values


def estimator(files, **settings):
    return load_head(*files, **vars(DptDepthConfig(64, **settings)))


@pytest.mark.parametrize("name", ["small", "large"])
def test_an_image_is_shown_as_in_the_reference(name, files, values):
    found = estimator(files, padded=True).resized(values[f"pre.{name}.image"].numpy())
    assert found[0].shape == values[f"pre.{name}.x"].shape
    assert (found[0] - values[f"pre.{name}.x"]).abs().max() <= 2e-6  # one rounding of a value up to 2.6


class Given(DptDepthEstimator):
    """Shows the model a tensor of the reference in place of any image."""

    given: torch.Tensor

    def resized(self, pixels):
        return self.given


def looked_at(files, given, **settings):
    made = estimator(files, padded=True, **settings)
    made.__class__ = Given
    made.given = given
    return made


def test_depth_plain_replayed_paired_odd_and_flipped_is_the_reference(files, values):
    image = np.zeros((96, 128, 3), np.uint8)  # of the reference's size; the tensor stands in for its pixels
    plain = looked_at(files, values["x"])
    pair = plain.predict(image, REPLAY, paired=True)
    assert np.abs(pair.baseline.values - values["depth"][0, 0].numpy()).max() <= DEPTH
    assert np.abs(pair.replayed.values - values["gramloop.depth"][0, 0].numpy()).max() <= DEPTH
    assert pair.blocks == 8 + 2 * (2 + 3) + 3
    gates = pair.replayed.trace.gate[:, ::16, ::16].reshape(2, -1)
    assert np.abs(gates - np.stack([values[f"gramloop.gate.{k}"][0].numpy() for k in (1, 2)])).max() <= 1e-5
    assert np.array_equal(plain.predict(image).values, pair.baseline.values)
    assert np.array_equal(plain.predict(image, REPLAY).values, pair.replayed.values)
    odd = looked_at(files, values["odd.x"]).predict(image)
    assert np.abs(odd.values - values["odd.depth"][0, 0].numpy()).max() <= DEPTH
    flipped = looked_at(files, values["x"], flip=True)
    assert np.abs(flipped.predict(image).values - values["flip.depth"][0, 0].numpy()).max() <= DEPTH
    replayed = flipped.predict(image, REPLAY, paired=True)
    assert np.array_equal(replayed.baseline.values, flipped.predict(image).values)
    assert not np.array_equal(replayed.baseline.values, replayed.replayed.values)


def test_the_protocol_of_nyu_gives_the_reference_scores(files, values, tmp_path):
    expected = load_golden("depther").config["eval"]
    image = np.zeros((60, 80, 3), np.uint8)
    found = looked_at(files, values["x"], flip=True).predict(image)
    assert np.abs(found.values - values["eval.resized"][0, 0].numpy()).max() <= DEPTH
    np.save(tmp_path / "gt.npy", values["eval.gt"][0, 0].numpy() * NYU.scale)
    truth = NYU.read(tmp_path / "gt.npy")
    assert truth.known.sum() == expected["valid_pixels"]
    assert np.array_equal(truth.known, values["eval.mask"][0, 0].numpy())
    aligned = aligned_depth(found.values, truth, "scale-shift")
    near, far = expected["min_depth"], expected["max_depth"]
    wanted = values["eval.aligned"][0, 0].numpy().clip(near, far)
    assert np.abs(aligned - wanted).max() <= 1e-4  # the reference fits its line in float32
    scores, metrics = depth_scores(aligned, truth), expected["metrics"]
    for name, value in (("delta1", "a1"), ("delta2", "a2"), ("delta3", "a3")):
        assert getattr(scores, name) == pytest.approx(100 * metrics[value], abs=0.05)
    for name, value in (("abs_rel", "abs_rel"), ("rmse", "rmse"), ("log10", "log_10"), ("silog", "silog")):
        assert getattr(scores, name) == pytest.approx(metrics[value], rel=1e-3)
    plain = depth_scores(aligned_depth(found.values, truth, "none"), truth)
    assert plain.abs_rel == pytest.approx(expected["metrics_unaligned"]["abs_rel"], rel=1e-4)


@pytest.mark.parametrize("size", [(40, 52), (120, 90), (33, 100)])
@pytest.mark.parametrize("padded", [True, False])
def test_depth_has_the_size_of_the_image(files, size, padded):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    made = estimator(files, padded=padded)
    pair = made.predict(image, REPLAY, paired=True)
    assert pair.baseline.values.shape == pair.replayed.values.shape == size
    assert made.resized(image).shape[-2:] != size
    if not padded:
        assert all(side % 32 == 0 for side in made.resized(image).shape[-2:])


def test_sides_that_the_head_does_not_give_back_are_refused(files):
    with pytest.raises(GramLoopError, match="multiples of 32, not 48"):
        load_head(*files, **vars(DptDepthConfig(48)))
