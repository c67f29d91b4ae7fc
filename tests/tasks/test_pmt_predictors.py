"""PMT's heads from images on, against numbers of PMT's own functions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from golden import FOLDER, load_golden, write_golden_pmt
from gramloop import GramLoopError, ReplayConfig
from gramloop.models import PMT, PMTHead, PMTShape, load_pmt
from gramloop.models.backbone import BackboneShape
from gramloop.models.dino import meta_backbone
from gramloop.replay.attach import attached
from gramloop.tasks import QueryConfig, QuerySegmenter, Segmenter
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC
from gramloop.tasks.images import to_tensor
from gramloop.tasks.released import Masks, merged_segments
from gramloop.tasks.semantic import SegmentConfig, even_windows

SCORES = 2e-5  # suggested with the numbers: three times the error of a second implementation
DIFFERING = 1e-3  # share of pixels; some lie within 1e-5 of a threshold
REPLAY = ReplayConfig(window=(3, 4))
CLASSES = {number: f"class {number}" for number in range(1, 8)}
THINGS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def values():
    return load_file(FOLDER / "pmt_protocol.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    backbone, head = write_golden_pmt(tmp_path_factory.mktemp("pmt"))
    return load_pmt(head, backbone)


@pytest.fixture(scope="module")
def panoptic(model):
    found = load_golden("pmt").config["protocol"]["panoptic"]
    config = QueryConfig(64, found["mask_thresh"], found["overlap_thresh"])
    return QuerySegmenter(model, "panoptic", config, CLASSES, THINGS)


@pytest.fixture(scope="module")
def instance(model):
    keep = load_golden("pmt").config["protocol"]["instance_top_k"]
    return QuerySegmenter(model, "instance", QueryConfig(64, keep=keep), CLASSES)


def image(values, name):
    return values[name].permute(1, 2, 0).contiguous().numpy()


@pytest.mark.parametrize("index", [0, 1])
def test_semantic_windows_scores_and_labels_are_the_reference(index, model, values):
    segmenter = Segmenter(model, SegmentConfig("even", short_side=64, scores=True))
    pixels = image(values, f"semantic.image.{index}")
    prepared = segmenter.prepare(pixels)
    windows = [crop.of(prepared) for crop in even_windows(*prepared.shape[-2:])]
    own = values["semantic.origins"][:, 0] == index
    for found, crop in zip(windows, values["semantic.crops"][own], strict=True):
        assert torch.equal(found, to_tensor(crop.permute(1, 2, 0).numpy()))
    [[canvas]], _, _ = segmenter._through_crops(prepared, None, paired=False)
    scores = torch.nn.functional.interpolate(canvas.mean()[None], pixels.shape[:2], mode="bilinear")[0]
    expected = values[f"semantic.scores.{index}"]
    assert (scores - expected).abs().max() <= SCORES
    found = segmenter.predict(pixels)
    assert np.mean(found.labels != values[f"semantic.map.{index}"].numpy()) <= DIFFERING
    assert np.abs(found.scores - expected.softmax(0).numpy()).max() <= SCORES


def test_windows_end_with_the_image_also_where_floating_point_would_not():
    for long in range(512, 8 * 512):
        assert even_windows(512, long)[-1].left == long - 512
    for long in range(640, 8 * 640, 7):
        starts = [crop.top for crop in even_windows(long, 640)]
        assert starts[0] == 0
        assert starts[-1] == long - 640
        assert all(0 < after - before <= 640 for before, after in pairwise(starts))


def panoptic_as_reference(found, void=7):
    """(H, W, 2): class from 0, and segment from 0; ``void`` and -1 where there is none."""
    classes = {info.id: info.category - 1 for info in found.infos} | {0: void}
    kinds = np.vectorize(classes.get)(found.segments)
    return np.stack([kinds, found.segments - 1], axis=-1)


@pytest.mark.parametrize("index", [0, 1])
def test_a_padded_image_its_logits_and_segments_are_the_reference(index, panoptic, model, values):
    pixels = image(values, f"panoptic.image.{index}")
    square = panoptic.prepare(pixels)
    assert torch.equal(square, to_tensor(values["panoptic.padded"][index].permute(1, 2, 0).numpy()))
    with torch.no_grad():
        logits, masks = model(square)
    assert (logits[0] - values["panoptic.class_logits"][index]).abs().max() <= SCORES
    assert (masks[0] - values["panoptic.mask_logits"][index]).abs().max() <= 1e-4
    found = panoptic.predict(pixels)
    expected = values[f"panoptic.pred.{index}"].numpy()
    assert np.mean((panoptic_as_reference(found) != expected).any(-1)) <= DIFFERING
    assert all(info.is_thing == (info.category in THINGS) for info in found.infos)
    assert all(0.35 < info.score <= 1 for info in found.infos)


def test_post_processing_is_the_reference_to_the_pixel(values):
    masks, logits = values["post.mask_logits"], values["post.class_logits"][0]
    given = Masks(tuple(masks.shape[1:]), lambda chosen: masks[chosen], masks[0].numel())
    found = merged_segments(logits, given, range(7), range(4), QueryConfig())
    classes = [info.category for info in found.infos]
    kinds = np.array([*classes, 7])[found.segments - 1]
    expected = values["post.panoptic"].numpy()
    assert np.array_equal(np.stack([kinds, found.segments - 1], -1), expected)
    assert len(set(classes)) < len(classes)  # several things of a class
    one_by_one = Masks(given.size, given.of, 1 << 30)  # so large that no two fit into memory
    again = merged_segments(logits, one_by_one, range(7), range(4), QueryConfig())
    assert np.array_equal(again.segments, found.segments)
    scores = torch.einsum("qc,qhw->chw", logits.softmax(-1)[:, :-1], masks.sigmoid())
    assert (scores - values["post.semantic"]).abs().max() <= SCORES


@pytest.mark.parametrize("index", [0, 1])
def test_instances_are_the_reference(index, instance, values):
    pixels = image(values, f"panoptic.image.{index}")
    found = instance.predict(pixels)
    assert np.abs(found.scores - values[f"instance.scores.{index}"].numpy()).max() <= SCORES
    assert (found.labels - 1).tolist() == values[f"instance.labels.{index}"].tolist()
    for place, mask in enumerate(values[f"instance.masks.{index}"].numpy().astype(bool)):
        assert np.mean(found.mask(place) != mask) <= DIFFERING
        if mask.any():
            rows, columns = np.nonzero(found.mask(place))
            box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert found.boxes[place].tolist() == box


@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_a_pair_is_two_predictions_for_the_price_of_the_replay(task, panoptic, instance, values):
    predictor = {"panoptic": panoptic, "instance": instance}[task]
    pixels = image(values, "panoptic.image.0")
    pair = predictor.predict(pixels, REPLAY, paired=True)
    plain, replayed = predictor.predict(pixels), predictor.predict(pixels, REPLAY)
    assert (plain.blocks, pair.baseline.blocks) == (8, 8)
    assert pair.blocks == predictor.cost(REPLAY, paired=True).blocks == 8 + 2 * (2 + 3) + 3
    parts = ("segments", "infos") if task == "panoptic" else ("masks", "scores", "labels", "boxes")
    for part in parts:
        for one, other in ((pair.baseline, plain), (pair.replayed, replayed)):
            assert np.array_equal(getattr(one, part), getattr(other, part))
    assert any(not np.array_equal(getattr(plain, part), getattr(replayed, part)) for part in parts)


@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_several_images_at_once_are_each_what_it_is_alone(task, panoptic, instance, values):
    predictor = {"panoptic": panoptic, "instance": instance}[task]
    first = image(values, "panoptic.image.0")
    images = [first, first[:, ::-1].copy()]
    for found, pixels in zip(predictor.predict_batch(images, REPLAY), images, strict=True):
        alone = predictor.predict(pixels, REPLAY)
        assert found.blocks == alone.blocks
        assert np.allclose(found.trace.drift, alone.trace.drift, rtol=1e-4, atol=1e-7)
        if task == "panoptic":
            assert np.mean(found.segments != alone.segments) <= DIFFERING
        else:
            assert np.abs(found.scores - alone.scores).max() <= SCORES


def test_padding_takes_no_part_in_the_replay(panoptic, values):
    # 50 x 90 pixels are shown as 36 x 64 in a square of 64: in three of four rows of patches
    pixels = image(values, "panoptic.image.0")
    maps = panoptic.predict(pixels, REPLAY).trace
    assert maps.drift.shape == maps.gate.shape == (2, 36, 64)
    with attached(panoptic.backbone.model, REPLAY, trace=True, this_thread=True) as loop:
        panoptic._forward([pixels], loop, False)
        drift, gate = loop.trace.drift[0][0], loop.trace.gate[0][0]
    assert (drift[3] == 0).all()
    assert (gate[3] == 0).all()
    assert (gate[:3] > 0).all()
    # a patch of median drift has the gate 1 / e, and the median runs over what is valid
    assert gate[:3].median() == pytest.approx(np.exp(-1), abs=0.02)


@pytest.mark.parametrize("task", ["panoptic", "instance", "semantic"])
def test_bfloat16_weights_predict_in_float32_from_the_logits_on(task, tmp_path, values):
    backbone, head = write_golden_pmt(tmp_path)
    model = load_pmt(head, backbone)
    make = {
        "panoptic": lambda: QuerySegmenter(model, "panoptic", QueryConfig(64, 0.35, 0.3), CLASSES, THINGS),
        "instance": lambda: QuerySegmenter(model, "instance", QueryConfig(64, keep=15), CLASSES),
        "semantic": lambda: Segmenter(model, SegmentConfig("even", short_side=64, scores=True)),
    }
    pixels = image(values, "panoptic.image.0")
    exact = make[task]().predict(pixels)
    model.to(torch.bfloat16)
    pair = make[task]().predict(pixels, REPLAY, paired=True)
    assert pair.blocks == 21
    if task == "panoptic":
        assert np.mean(pair.baseline.segments != exact.segments) < 0.1
    else:
        found = pair.baseline.scores
        assert found.dtype == np.float32
        assert (
            np.abs(np.sort(found, None) - np.sort(exact.scores, None)).max() < 0.02
        )  # eight bits of mantissa


def small(classes):
    with torch.device("meta"):
        return PMT(meta_backbone(BackboneShape(4, 64, 16)), PMTHead(PMTShape(64, 16, 5, classes, layers=1)))


def test_classes_are_cocos_where_there_are_as_many():
    panoptic = QuerySegmenter(small(133), "panoptic")
    assert panoptic.classes == COCO_PANOPTIC
    assert panoptic.things == frozenset(COCO)
    assert list(panoptic.classes)[80] == 92
    assert QuerySegmenter(small(80), "instance").classes == COCO
    assert QuerySegmenter(small(80), "panoptic").things == frozenset(COCO)
    assert list(QuerySegmenter(small(5), "instance").classes) == [1, 2, 3, 4, 5]


def test_what_cannot_be_is_told_in_one_sentence():
    with pytest.raises(GramLoopError, match="which of the 5 classes of this head are things is not known"):
        QuerySegmenter(small(5), "panoptic")
    with pytest.raises(GramLoopError, match="3 classes were given for a head of 5"):
        QuerySegmenter(small(5), "instance", classes={1: "a", 2: "b", 3: "c"})
    with pytest.raises(GramLoopError, match="a multiple of 16, not 100"):
        QuerySegmenter(small(5), "instance", QueryConfig(100))
    with pytest.raises(GramLoopError, match="has things and stuff"):
        QuerySegmenter(small(133), "instance")
