import hashlib
import json
import random
import subprocess
import sys

import cv2
import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts.common import generator
from gramloop.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
SHAPES = [(32, 32, 3), (375, 500, 3), (97, 61, 3), (32, 32), (45, 133)]


def shifted(image, name, severity, image_id=0):
    return corrupt(image, name, severity, generator("test-c", name, severity, image_id))


def test_the_benchmark_has_fifteen_and_four():
    assert (len(CORRUPTIONS), len(EXTRA_CORRUPTIONS), len(set(ALL))) == (15, 4, 19)


def check_image(image, name, severity):
    before = image.copy()
    result = shifted(image, name, severity)
    assert (result.dtype, result.shape) == (np.uint8, image.shape)
    assert np.array_equal(image, before), "the input was written to"
    assert not np.shares_memory(result, image)
    # A grey image has no saturation to change, and no two pixels of a small one may lie under a drop of water.
    if name != "saturate" or image.ndim == 3:
        assert name == "spatter" or not np.array_equal(result, image)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_bytes_in_bytes_out_same_shape(name, shape, photo):
    image = photo(0, *shape[:2])
    for severity in range(1, 6):
        check_image(image if len(shape) == 3 else image[..., 1], name, severity)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_large_images(name, photo):
    image = photo(0, 1536, 2048)
    for severity in range(1, 6):
        check_image(image, name, severity)


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize("name", ALL)
def test_black_and_white_images_are_no_special_case(name, level):
    image = np.full((40, 40, 3), level, np.uint8)
    with np.errstate(all="raise"):
        for severity in (1, 5):
            assert shifted(image, name, severity).shape == image.shape


# Digests of every condition, made in the order given on the command line; the image is made without randomness.
DIGESTS = """
import hashlib, json, sys
import numpy as np
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.common import generator
y, x = np.mgrid[:61, :75]
image = np.stack([(x * 3 + y) % 256, (x * y) % 256, (y * 4) % 256], axis=2).astype(np.uint8)
print(json.dumps({f"{n} {s}": hashlib.sha256(corrupt(image, n, s, generator("c", n, s, 5)).tobytes()).hexdigest()
                  for n, s in json.loads(sys.argv[1])}))
"""


def test_pixels_do_not_depend_on_run_order_or_process():
    y, x = np.mgrid[:61, :75]
    image = np.stack([(x * 3 + y) % 256, (x * y) % 256, (y * 4) % 256], axis=2).astype(np.uint8)
    conditions = [(name, severity) for name in ALL for severity in range(1, 6)]

    def digests(order):
        return {
            f"{n} {s}": hashlib.sha256(corrupt(image, n, s, generator("c", n, s, 5)).tobytes()).hexdigest()
            for n, s in order
        }

    first = digests(conditions)
    again = digests(random.Random(1).sample(conditions, len(conditions)))
    backwards = json.dumps(conditions[::-1])
    elsewhere = subprocess.run(
        [sys.executable, "-c", DIGESTS, backwards], capture_output=True, text=True, check=True
    )
    assert first == again == json.loads(elsewhere.stdout)
    assert len(set(first.values())) == len(conditions)


@pytest.mark.parametrize("name", ALL)
def test_one_thread_makes_the_same_pixels_as_many(name, photo):
    image, threads = photo(3, 200, 210), cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        alone = shifted(image, name, 3)
        cv2.setNumThreads(4)
        assert np.array_equal(alone, shifted(image, name, 3))
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


@pytest.mark.parametrize("name", ALL)
def test_only_random_corruptions_follow_the_generator(name, photo):
    image = photo(0, 64, 64)
    equal = np.array_equal(shifted(image, name, 3, "a"), shifted(image, name, 3, "b"))
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


@pytest.mark.parametrize("name", ALL)
def test_change_from_clean_grows_with_severity(name, photo):
    """Mean over images; one generator per image for all severities, so that only the severity differs."""
    images = [photo(index, 150, 200) for index in range(8)]
    changes = [
        np.mean(
            [
                np.abs(corrupt(image, name, s, generator("m", name, 0, i)).astype(int) - image).mean()
                for i, image in enumerate(images)
            ]
        )
        for s in range(1, 6)
    ]
    fell = {s for s in range(1, 5) if changes[s] <= changes[s - 1]}
    assert fell <= FALLS_AFTER.get(name, set()), np.round(changes, 2)
    assert changes[4] > changes[0]


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


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(GramLoopError, match=r"'mist'.*gaussian_noise.*saturate"):
        corrupt(np.zeros((40, 40), np.uint8), "mist", 1, generator("t", "mist", 1, 0))
