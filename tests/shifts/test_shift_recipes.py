"""The corruptions of the -C suites and the perturbations of the -P suites."""

import json
import random
import subprocess
import sys

import cv2
import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts import geometry
from gramloop.shifts.common import generator, signs
from gramloop.shifts.recipes import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    GEOMETRIC,
    PERTURBATIONS,
    corrupt,
    perturb,
)

ALL = [*(("c", name) for name in CORRUPTIONS + EXTRA_CORRUPTIONS), *(("p", name) for name in PERTURBATIONS)]
SHAPES = [(32, 32, 3), (375, 500, 3), (97, 61, 3), (32, 32), (45, 133)]
every_shift = pytest.mark.parametrize(("kind", "name"), ALL, ids=map("-".join, ALL))


def shifted(image, kind, name, severity, image_id=0):
    rng = generator(f"test-{kind}", name, severity, image_id)
    if kind == "c":
        return corrupt(image, name, severity, rng)
    return perturb(image, name, severity, rng, signs=signs(image_id))


def test_the_suites_have_fifteen_and_four_and_seventeen():
    assert (len(CORRUPTIONS), len(EXTRA_CORRUPTIONS), len(PERTURBATIONS), len(set(ALL))) == (15, 4, 17, 36)
    assert GEOMETRIC == ("rotate", "translate", "shear") == PERTURBATIONS[-3:]


def check_image(image, kind, name, severity):
    before = image.copy()
    result = shifted(image, kind, name, severity)
    assert (result.dtype, result.shape) == (np.uint8, image.shape)
    assert np.array_equal(image, before), "the input was written to"
    assert not np.shares_memory(result, image)
    # A grey image has no saturation to change, and no two pixels of a small one may lie under a drop of water.
    if name != "saturate" or image.ndim == 3:
        assert name == "spatter" or not np.array_equal(result, image)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_shift
def test_bytes_in_bytes_out_same_shape(kind, name, shape, photo):
    image = photo(0, *shape[:2])
    for severity in range(1, 6):
        check_image(image if len(shape) == 3 else image[..., 1], kind, name, severity)


@pytest.mark.slow
@every_shift
def test_large_images(kind, name, photo):
    image = photo(0, 1536, 2048)
    for severity in range(1, 6):
        check_image(image, kind, name, severity)


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_black_and_white_images_are_no_special_case(name, level):
    image = np.full((40, 40, 3), level, np.uint8)
    with np.errstate(all="raise"):
        for severity in (1, 5):
            assert shifted(image, "c", name, severity).shape == image.shape


# Digests of conditions, made in the order given; the image is made without randomness.
DIGESTS = """
import hashlib, json, sys
import numpy as np
from gramloop.shifts.common import generator, signs
from gramloop.shifts.recipes import corrupt, perturb
y, x = np.mgrid[:61, :75]
image = np.stack([(x * 3 + y) % 256, (x * y) % 256, (y * 4) % 256], axis=2).astype(np.uint8)
def digest(kind, n, s):
    rng = generator(kind, n, s, 5)
    pixels = corrupt(image, n, s, rng) if kind == "c" else perturb(image, n, s, rng, signs=signs(5))
    return hashlib.sha256(pixels.tobytes()).hexdigest()
def digests(order):
    return {f"{kind} {n} {s}": digest(kind, n, s) for kind, n, s in order}
"""
PRINT = "print(json.dumps(digests(json.loads(sys.argv[1]))))"


def test_pixels_do_not_depend_on_run_order_or_process():
    here: dict = {}
    exec(DIGESTS, here)
    conditions = [(*shift, severity) for shift in ALL for severity in range(1, 6)]
    first = here["digests"](conditions)
    again = here["digests"](random.Random(1).sample(conditions, len(conditions)))
    elsewhere = subprocess.run(
        [sys.executable, "-c", DIGESTS + PRINT, json.dumps(conditions[::-1])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert first == again == json.loads(elsewhere.stdout)
    corruptions = [digest for condition, digest in first.items() if condition.startswith("c ")]
    assert len(set(corruptions)) == len(corruptions)


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_one_thread_makes_the_same_pixels_as_many(name, photo):
    image, threads = photo(3, 200, 210), cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        alone = shifted(image, "c", name, 3)
        cv2.setNumThreads(4)
        assert np.array_equal(alone, shifted(image, "c", name, 3))
    finally:
        cv2.setNumThreads(threads)


WITHOUT_RANDOMNESS = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_only_random_corruptions_follow_the_generator(name, photo):
    image = photo(0, 64, 64)
    equal = np.array_equal(shifted(image, "c", name, 3, "a"), shifted(image, "c", name, 3, "b"))
    assert equal == (name in WITHOUT_RANDOMNESS)


# Where the published constants themselves do not grow: severities after which the change from clean may fall.
# test_parity.py shows that these are the published pixels, so the order is theirs.
FALLS_AFTER = {
    "glass_blur": {1, 3},  # two rounds of copying, one, three, two
    "snow": {2},  # many small flakes, then few large ones
    "frost": {3},  # the same ice on a darker image: the sum is nearer to a dark original
    "fog": {3},  # the same strength in smaller banks
    "spatter": {3},  # the last of water, then small drops of mud
    "saturate": {2},  # nearly grey, then twice as colourful
}


@every_shift
def test_change_from_clean_grows_with_severity(kind, name, photo):
    """Mean over images; one generator per image for all severities, so that only the severity differs."""
    images = [photo(index, *((150, 200) if kind == "c" else (240, 320))) for index in range(8)]

    def change(image, severity, index):
        rng = generator("m", name, 0, index)
        if kind == "c":
            result = corrupt(image, name, severity, rng)
        else:
            result = perturb(image, name, severity, rng, signs=signs(index))
        return np.abs(result.astype(int) - image).mean()

    changes = [np.mean([change(image, s, i) for i, image in enumerate(images)]) for s in range(1, 6)]
    fell = {s for s in range(1, 5) if changes[s] <= changes[s - 1]}
    assert fell <= FALLS_AFTER.get(name, set()), np.round(changes, 2)
    assert kind == "p" or changes[4] > changes[0]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((40, 40, 3)), "uint8"),
        (np.zeros((40, 40, 4), np.uint8), r"\(40, 40, 4\)"),
        (np.zeros((40, 40), np.int32), "int32"),
        (np.zeros((31, 40), np.uint8), "40 x 31: 32 pixels"),
        ([[1, 2]], "type list"),
    ],
)
def test_wrong_images_are_refused(image, message):
    with pytest.raises(GramLoopError, match=message):
        corrupt(image, "fog", 1, generator("t", "fog", 1, 0))


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
        ours = shifted(image, "p", name, severity).astype(int)
        assert np.abs(ours - np.array(expected)).max() <= 1  # 0.7 and 1 - 0.3 differ in the last bit
    assert shifted(image, "p", "contrast", severity).std() > image.std()


def test_shot_noise_is_milder_than_the_corruption(photo):
    image = photo(0, 60, 80).astype(int)
    mild = np.abs(shifted(image.astype(np.uint8), "p", "shot", 5) - image).mean()
    strong = np.abs(corrupt(image.astype(np.uint8), "shot_noise", 5, generator("t", "", 5, 0)) - image).mean()
    # Deviations go with the root of the rates, 15 against 3; white cuts the strong ones.
    assert 1.5 < strong / mild < np.sqrt(5)


def test_an_unknown_name_is_refused_with_the_known_ones():
    image, rng = np.zeros((40, 40), np.uint8), generator("t", "mist", 1, 0)
    with pytest.raises(GramLoopError, match=r"'mist'.*gaussian_noise.*saturate"):
        corrupt(image, "mist", 1, rng)
    with pytest.raises(GramLoopError, match=r"'dropout'.*gaussian.*shear"):
        perturb(image, "dropout", 1, rng)
