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
    code = (
        "import sys, numpy as np; from gramloop.shifts import Corrupt, corrupt, get_corruption_names\n"
        "image = np.full((40, 48, 3), 90, np.uint8)\n"
        "for name in get_corruption_names('all'): corrupt(image, corruption_name=name, severity=2, seed=0)\n"
        "Corrupt('noise')(image); print('torch' in sys.modules)"
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


def test_grey_images_stay_grey() -> None:
    grey = PIXELS[..., 0]
    expected = Corrupt("fog", 3, seed=1)(grey)
    assert expected.shape == grey.shape
    picture = Corrupt("fog", 3, seed=1)(Image.fromarray(grey))
    assert picture.mode == "L"
    assert np.array_equal(np.asarray(picture), expected)
    assert np.array_equal(Corrupt("fog", 3, seed=1)(torch.from_numpy(grey)[None])[0].numpy(), expected)
    assert Corrupt("fog", 3)(Image.fromarray(PIXELS).convert("RGBA")).mode == "RGB"


def test_what_comes_with_an_image_passes() -> None:
    target = {"boxes": [1, 2, 3, 4]}
    image, passed = Corrupt("fog", 3, seed=1)(PIXELS, target)
    assert passed is target
    assert np.array_equal(image, Corrupt("fog", 3, seed=1)(PIXELS))
    with pytest.raises(GramLoopError, match=r"a tensor of shape \(2, 3, 40, 48\)"):
        Corrupt("fog", 3)(torch.zeros(2, 3, 40, 48, dtype=torch.uint8))
    with pytest.raises(GramLoopError, match="severity 0 of Corrupt"):
        Corrupt("fog", [1, 0])


def test_in_a_pipeline_of_torchvision() -> None:
    import_reference("timm")  # it brings torchvision along, which alone may fail beside this torch
    v2 = pytest.importorskip("torchvision.transforms.v2")
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    steps = v2.Compose([Corrupt("fog", 3, seed=1), v2.RandomHorizontalFlip(1.0)])
    image = tv_tensors.Image(torch.from_numpy(PIXELS).permute(2, 0, 1))
    boxes = tv_tensors.BoundingBoxes([[0, 0, 10, 10]], format="XYXY", canvas_size=(40, 48))
    flipped, moved = steps(image, boxes)
    assert isinstance(flipped, tv_tensors.Image), "or the next step would not know what it is"
    assert np.array_equal(flipped.permute(1, 2, 0).numpy()[:, ::-1], Corrupt("fog", 3, seed=1)(PIXELS))
    assert moved.tolist() == [[38, 0, 48, 10]]
    sample = steps({"image": image, "boxes": boxes, "labels": torch.tensor([3])})
    assert isinstance(sample["image"], tv_tensors.Image)
    assert (sample["boxes"].tolist(), sample["labels"].tolist()) == ([[38, 0, 48, 10]], [3])
    assert sample["image"].shape == image.shape


def test_dict_samples() -> None:
    expected = Corrupt("fog", 3, seed=1)(PIXELS)
    mask = np.zeros((40, 48), np.uint8)
    sample = {"image": PIXELS, "mask": mask, "id": 7}
    found = Corrupt("fog", 3, seed=1)(sample)
    assert np.array_equal(found["image"], expected)
    assert found["mask"] is mask
    assert found["id"] == 7
    assert sample["image"] is PIXELS
    named = Corrupt("fog", 3, seed=1)({"picture": Image.fromarray(PIXELS), "target": {"boxes": []}})
    assert np.array_equal(np.asarray(named["picture"]), expected)
    with pytest.raises(GramLoopError, match=r'a sample of photo, mask has no PIL image.* no "image"'):
        Corrupt("fog", 3)({"photo": PIXELS, "mask": mask})


def test_more_than_8_bits_are_refused() -> None:
    wide = np.full((40, 48), 300, np.int32)
    with pytest.raises(GramLoopError, match="mode I: 8 bits"):
        Corrupt("fog", 3)(Image.fromarray(wide))
    with pytest.raises(GramLoopError, match="type int32: a uint8 array"):
        Corrupt("fog", 3)(wide)


LOADER = """
import torch
from gramloop.shifts import Corrupt

class Constant(torch.utils.data.Dataset):
    def __init__(self, step): self.step = step
    def __len__(self): return 4
    def __getitem__(self, index): return self.step(torch.full((3, 40, 48), 128, dtype=torch.uint8))

def images():
    loader = torch.utils.data.DataLoader(Constant(Corrupt("gaussian_noise", 3, seed=SEED)), num_workers=2)
    return [batch.numpy().tobytes() for batch in loader]

first, second = images(), images()
print(len(set(first)), first == second)
"""


@pytest.mark.parametrize("seed", [None, 5])
def test_workers_of_a_loader_draw_differently(seed: int | None) -> None:
    """In a process of its own: a loader forks, which other libraries that this one has loaded do not bear."""
    code = LOADER.replace("SEED", str(seed))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    different, repeated = said.split()
    assert different == "4", "a copied generator would draw the same in both workers"
    assert repeated == str(seed is not None)
