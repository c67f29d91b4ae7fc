import json
import random
import subprocess
import sys

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts import geometry
from gramloop.shifts.common import generator, signs
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.perturbations import GEOMETRIC, PERTURBATIONS, perturb

SHAPES = [(32, 32, 3), (375, 500, 3), (97, 61, 3), (32, 32), (45, 133)]


def shifted(image, name, severity, image_id=0):
    rng = generator("test-p", name, severity, image_id)
    return perturb(image, name, severity, rng, signs=signs(image_id) if name in GEOMETRIC else None)


def check_image(image, name, severity):
    before = image.copy()
    result = shifted(image, name, severity)
    assert (result.dtype, result.shape) == (np.uint8, image.shape)
    assert np.array_equal(image, before), "the input was written to"
    assert not np.array_equal(result, image)


def test_there_are_seventeen_of_which_three_move_things():
    assert len(set(PERTURBATIONS)) == 17
    assert GEOMETRIC == ("rotate", "translate", "shear") == PERTURBATIONS[-3:]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_bytes_in_bytes_out_same_shape(name, shape, photo):
    image = photo(0, *shape[:2])
    for severity in range(1, 6):
        check_image(image if len(shape) == 3 else image[..., 1], name, severity)


@pytest.mark.slow
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_large_images(name, photo):
    image = photo(0, 1536, 2048)
    for severity in range(1, 6):
        check_image(image, name, severity)


DIGESTS = """
import hashlib, json, sys
import numpy as np
from gramloop.shifts.perturbations import perturb
from gramloop.shifts.common import signs
from gramloop.shifts.common import generator
y, x = np.mgrid[:61, :75]
image = np.stack([(x * 3 + y) % 256, (x * y) % 256, (y * 4) % 256], axis=2).astype(np.uint8)
def digest(n, s):
    return hashlib.sha256(perturb(image, n, s, generator("p", n, s, 5), signs=signs(5)).tobytes()).hexdigest()
def digests(order):
    return {f"{n} {s}": digest(n, s) for n, s in order}
"""
PRINT = "print(json.dumps(digests(json.loads(sys.argv[1]))))"


def test_pixels_do_not_depend_on_run_order_or_process():
    here: dict = {}
    exec(DIGESTS, here)
    conditions = [(name, severity) for name in PERTURBATIONS for severity in range(1, 6)]
    first = here["digests"](conditions)
    again = here["digests"](random.Random(1).sample(conditions, len(conditions)))
    elsewhere = subprocess.run(
        [sys.executable, "-c", DIGESTS + PRINT, json.dumps(conditions[::-1])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert first == again == json.loads(elsewhere.stdout)


FALLS_AFTER = {
    "snow": {2},  # many small flakes, then few large ones
    "fog": {3},  # the same strength in smaller banks
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_change_from_clean_grows_with_severity(name, photo):
    """Mean over images; one generator per image for all severities, so that only the severity differs."""
    images = [photo(index, 240, 320) for index in range(8)]
    changes = []
    for severity in range(1, 6):
        results = [
            perturb(image, name, severity, generator("m", name, 0, i), signs=signs(i))
            for i, image in enumerate(images)
        ]
        changes.append(
            np.mean([np.abs(r.astype(int) - i).mean() for r, i in zip(results, images, strict=True)])
        )
    fell = {s for s in range(1, 5) if changes[s] <= changes[s - 1]}
    assert fell <= FALLS_AFTER.get(name, set()), np.round(changes, 2)


def test_signs_belong_to_the_image_alone():
    assert signs(139) == signs("139")
    drawn = [signs(i) for i in range(4000)]
    counts = {pair: drawn.count(pair) for pair in set(drawn)}
    assert set(counts) == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    assert max(abs(n - 1000) for n in counts.values()) < 5 * np.sqrt(4000 * 0.25 * 0.75)


def test_signs_differ_between_suites():
    assert [signs(i, "coco-p") for i in range(64)] != [signs(i, "ade20k-p") for i in range(64)]


@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_ones_move_as_the_labels_do(name, photo):
    image, directions = photo(0, 90, 120), signs("some-image")
    affine = geometry.affine_matrix(name, 2, 90, 120, directions)
    result = perturb(image, name, 2, generator("t", name, 2, 0), signs=directions)
    assert np.array_equal(result, geometry.warp_image(image, affine))


def test_geometric_ones_need_their_signs(photo):
    with pytest.raises(GramLoopError, match="rotate needs signs"):
        perturb(photo(0, 40, 40), "rotate", 1, generator("t", "rotate", 1, 0))


@pytest.mark.parametrize(
    ("name", "corruption"),
    [("brightness", "brightness"), ("pixelate", "pixelate"), ("fog", "fog"), ("snow", "snow")],
)
def test_shared_conditions_are_the_corruptions(name, corruption, photo):
    image = photo(0, 60, 80)
    for severity in (1, 5):
        ours = perturb(image, name, severity, np.random.default_rng(3))
        assert np.array_equal(ours, corrupt(image, corruption, severity, np.random.default_rng(3)))


@pytest.mark.parametrize("severity", range(1, 6))
def test_contrast_is_raised_and_darkness_is_pillows(severity, photo):
    image = photo(0, 60, 80)
    picture = PIL.Image.fromarray(image)
    higher = PIL.ImageEnhance.Contrast(picture).enhance(1 + 0.2 * severity)
    darker = PIL.ImageEnhance.Brightness(picture).enhance(1 - 0.1 * severity)
    for name, expected in (("contrast", higher), ("darkness", darker)):
        ours = shifted(image, name, severity).astype(int)
        assert np.abs(ours - np.array(expected)).max() <= 1  # 0.7 and 1 - 0.3 differ in the last bit
    assert shifted(image, "contrast", severity).std() > image.std()


def test_shot_noise_is_milder_than_the_corruption(photo):
    image = photo(0, 60, 80).astype(int)
    mild = np.abs(shifted(image.astype(np.uint8), "shot", 5) - image).mean()
    strong = np.abs(corrupt(image.astype(np.uint8), "shot_noise", 5, generator("t", "", 5, 0)) - image).mean()
    # Deviations go with the root of the rates, 15 against 3; white cuts the strong ones.
    assert 1.5 < strong / mild < np.sqrt(5)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(GramLoopError, match=r"'dropout'.*gaussian.*shear"):
        perturb(np.zeros((40, 40), np.uint8), "dropout", 1, generator("t", "", 1, 0))
