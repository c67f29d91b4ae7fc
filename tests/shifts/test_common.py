import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts.common import Scale, Steps
from gramloop.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from gramloop.shifts.perturbations import PERTURBATIONS, perturb
from gramloop.shifts.seeds import generator

CORRUPTIONS_BEYOND = {  # the last severity that a rule reaches; 20 stands for without end
    "gaussian_noise": 20,
    "shot_noise": 20,
    "impulse_noise": 12,
    "defocus_blur": 20,
    "brightness": 10,
    "contrast": 20,
    "elastic_transform": 20,
    "pixelate": 20,
    "jpeg_compression": 7,
    "speckle_noise": 20,
    "gaussian_blur": 20,
}


def test_published_values_come_as_they_are():
    scale = Scale((60, 25, 12, 5, 3), "multiply")
    assert [scale.at("shot", s) for s in range(1, 6)] == [60, 25, 12, 5, 3]


def test_impulse_noise_goes_on_by_its_last_step():
    scale = Scale((0.03, 0.06, 0.09, 0.17, 0.27), "add", most=1)
    assert [scale.at("impulse_noise", s) for s in (6, 10)] == pytest.approx([0.37, 0.77], abs=1e-12)


def test_rates_go_on_by_their_last_ratio():
    assert Scale((60, 25, 12, 5, 3), "multiply").at("shot_noise", 7) == pytest.approx(3 * 0.6**2, abs=1e-9)


def test_a_parameter_ends_where_its_range_ends():
    scale = Scale((25, 18, 15, 10, 7), "add", least=1)
    assert scale.at("jpeg_compression", 7) == 1
    with pytest.raises(GramLoopError, match=r"severity 8 of jpeg_compression: .* -2, outside \[1, inf\]"):
        scale.at("jpeg_compression", 8)


def test_settings_without_a_rule_end_at_five():
    steps = Steps(((1, 2), (2, 2), (3, 1), (1, 1), (5, 5)))
    assert steps.at("glass_blur", 5) == (5, 5)
    with pytest.raises(GramLoopError, match=r"severity 6 of glass_blur: .* no rule"):
        steps.at("glass_blur", 6)


@pytest.mark.parametrize("severity", [0, -1, 1.5, True, "3", None])
def test_a_severity_is_a_whole_number_from_one(severity):
    with pytest.raises(GramLoopError, match="whole number from 1"):
        Steps((1, 2, 3, 4, 5)).at("fog", severity)


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_corruptions_reach_as_far_as_documented(name, photo):
    image = photo(0, 64, 64)
    last = CORRUPTIONS_BEYOND.get(name, 5)
    assert corrupt(image, name, last, generator("t", name, last, 0)).shape == image.shape
    if last < 20:
        with pytest.raises(GramLoopError, match=f"severity {last + 1} of {name}"):
            corrupt(image, name, last + 1, generator("t", name, last + 1, 0))


def test_impulse_noise_at_ten_replaces_77_of_a_hundred_values():
    image = np.full((300, 300, 3), 100, np.uint8)
    replaced = (corrupt(image, "impulse_noise", 10, generator("t", "impulse_noise", 10, 0)) != image).mean()
    assert replaced == pytest.approx(0.77, abs=5 * np.sqrt(0.77 * 0.23 / image.size))


@pytest.mark.parametrize(
    "name", ["gaussian", "shot", "impulse", "speckle", "motion", "contrast", "darkness", "shear"]
)
def test_perturbations_of_one_parameter_go_on(name, photo):
    image = photo(1, 64, 80)
    five, seven = (perturb(image, name, s, generator("t", name, 0, 0), signs=(1, 1)) for s in (5, 7))
    change = [np.abs(shifted.astype(int) - image).mean() for shifted in (five, seven)]
    assert change[0] < change[1]


def test_the_zoom_perturbation_has_no_rule(photo):
    assert "zoom" in PERTURBATIONS
    with pytest.raises(GramLoopError, match="severity 6 of zoom"):
        perturb(photo(0, 64, 64), "zoom", 6, generator("t", "zoom", 6, 0))
