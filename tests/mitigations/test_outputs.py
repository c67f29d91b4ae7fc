"""Several views of an image: mirrored, resized, merged, in the size of the image."""

import numpy as np
import pytest

from dense_folders import save_model
from gramloop.errors import GramLoopError
from gramloop.mitigations import apply
from gramloop.tasks import as_predictor
from gramloop.tasks.detection import Detection
from gramloop.tasks.loading import open_model
from gramloop.tasks.semantic import Segmentation
from small_components import instances, panoptic


def test_flipping_commutes_with_the_mirror(segmenter, images):
    flip = apply("flip", segmenter)
    straight = flip.predict(images[3]).labels
    turned = flip.predict(np.ascontiguousarray(images[3][:, ::-1])).labels
    assert (straight == turned[:, ::-1]).mean() > 0.9999  # sums of two numbers, but ties may fall either way


@pytest.mark.parametrize("name", ["Segformer", "UperNet on Dinov2", "Yolos", "DPT depth"])
def test_the_input_of_a_folder_grows_and_predictions_keep_the_size(tmp_path, images, name):
    predictor = open_model(f"hf:{save_model(name, tmp_path / 'm')}")
    shown = []
    hook = predictor.model.register_forward_pre_hook(
        lambda module, args, given: shown.append(given["pixel_values"].shape[-1]), with_kwargs=True
    )
    plain = predictor.predict(images[0])
    for text in ("resize:1.5", "scales:1,2"):
        found = apply(text, predictor).predict(images[0])
        assert type(found) is type(plain)
        if not isinstance(plain, Detection):
            field = "labels" if isinstance(plain, Segmentation) else "values"
            assert getattr(found, field).shape == images[0].shape[:2]
    hook.remove()
    usual = shown[0]
    # 84 of 56 pixels in patches of 14, 96 of 64 in patches of 16, both a half more
    assert shown == [usual, usual * 3 // 2, usual, usual * 2]
    if predictor.host is not None:  # without patches every size is another one
        with pytest.raises(GramLoopError, match="changes nothing"):
            apply("resize:1.01", predictor)


def test_a_model_of_one_size_is_refused_when_it_fails(tmp_path, images):
    predictor = open_model(f"hf:{save_model('Eomt', tmp_path / 'm')}")
    with pytest.raises(GramLoopError, match=r"fails at 1\.5 times its usual input size"):
        apply("resize:1.5", predictor).predict(images[0])


@pytest.mark.parametrize("kind", ["function", "module"])
def test_custom_code_is_given_the_resized_image(request, kind, images):
    predictor = request.getfixturevalue(kind)
    found = apply("resize:2", predictor).predict(images[0])
    assert found.values.shape == images[0].shape[:2]
    if kind == "function":  # twice resized, brightness is nearly what it was
        plain = predictor.predict(images[0]).values
        assert np.abs(found.values - plain).mean() < 5
    both = apply("scales:1,2", predictor).predict(images[0]).values
    np.testing.assert_allclose(both, (predictor.predict(images[0]).values + found.values) / 2, rtol=1e-5)


@pytest.mark.parametrize("make", [panoptic, instances])
def test_masks_come_back_in_the_size_of_the_image(make, images):
    predictor = make()
    found, plain = (apply(text, predictor).predict(images[0]) for text in ("resize:1.5", "median:1"))
    if hasattr(found, "segments"):
        assert found.segments.shape == plain.segments.shape
        same = (found.segments > 0) == (plain.segments > 0)
        assert same.mean() > 0.9
    else:
        assert found.size == plain.size
        assert all(found.mask(index).shape == plain.size for index in range(len(found.masks)))


def test_boxes_come_back_in_pixels_of_the_image():
    def largest_pixel(pixels):
        top, left = np.unravel_index(pixels.sum(2).argmax(), pixels.shape[:2])
        return np.array([[left, top, left + 1, top + 1]]), np.array([0.9]), np.array([1])

    image = np.zeros((40, 60, 3), np.uint8)
    image[10:14, 30:34] = 200
    found = apply("resize:2", as_predictor(largest_pixel, "detection")).predict(image)
    assert np.abs(found.boxes[0, :2] - [30, 10]).max() <= 1.5


def test_labels_without_scores_are_not_merged(images):
    labels = as_predictor(lambda pixels: Segmentation(np.zeros(pixels.shape[:2], np.int32)), "semantic")
    with pytest.raises(GramLoopError, match="labels without scores, and only scores can be averaged"):
        apply("flip", labels).predict(images[0])


@pytest.mark.parametrize("text", ["flip", "scales:0.75,1", "gramloop+pair"])
@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_masks_of_several_views_are_not_merged(segmenter, text, task):
    from copy import copy

    other = copy(segmenter)
    other.task = task
    with pytest.raises(GramLoopError, match=f"not possible with {task} masks"):
        apply(text, other)
