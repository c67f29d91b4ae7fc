"""What predictors need, against the same code with values, the allocator, and the sizes of the released models."""

from __future__ import annotations

import pytest
import torch

from allocations import allocated_peak
from gramloop.core.live_tensors import peak_of
from gramloop.errors import GramLoopError
from gramloop.models.backbone import BackboneShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.dinov3 import Backbone, meta_backbone
from gramloop.models.mask2former import Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.released_names import SHAPES
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.detect import DetectConfig, Detector
from gramloop.tasks.footprint import footprint, views_of
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.segment import SegmentConfig, Segmenter
from gramloop.util.forward_patch import counting

REPLAY = ReplayConfig((4, 5))
SHAPE = BackboneShape(8, 64, head_dim=32)
DETR = PlainDetrConfig(
    channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
    decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
)  # fmt: skip
WAYS = {"ordinary": (None, False), "replayed": (REPLAY, False), "paired": (REPLAY, True)}
pytestmark = pytest.mark.filterwarnings("ignore::gramloop.errors.UntunedWindowWarning")


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    head = Mask2FormerShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    torch.manual_seed(0)
    model = Mask2FormerSegmentor(Backbone(SHAPE), head).requires_grad_(False)
    return Segmenter(model, SegmentConfig("slide", 256, 256, 128))


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    model = WindowedDetector(Backbone(SHAPE), PlainDetr(DETR)).requires_grad_(False)
    return Detector(model, DetectConfig(short_side=384))


@pytest.mark.parametrize("way", WAYS)
def test_a_crop_needs_what_the_allocator_gives_for_it(segmenter, way):
    replay, paired = WAYS[way]
    crop = torch.randn(1, 3, 256, 256)

    def run():
        with torch.no_grad(), segmenter._attached(replay, paired, False) as loop:
            for _ in segmenter._scores(crop, loop, paired):
                pass

    run()
    needs = footprint(segmenter, (256, 256), replay, paired, autocast=False)
    counted = needs.activations - crop.nbytes  # which was there before
    weights = [*segmenter.model.parameters(), *segmenter.model.buffers(), crop]
    # a real run remembers the positions of a grid; kernels take scratch memory, and convolutions reorder weights
    assert counted == pytest.approx(peak_of(run, weights), rel=0.01)
    assert counted == pytest.approx(allocated_peak(run), rel=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_an_image_of_a_detector_needs_what_its_prediction_does(detector, way):
    replay, paired = WAYS[way]
    image = torch.randint(0, 256, (120, 160, 3), dtype=torch.uint8).numpy()

    def run():
        detector.predict(image, replay, paired, trace=False)

    run()
    needs = footprint(detector, (120, 160), replay, paired, autocast=False)
    weights = [*detector.model.parameters(), *detector.model.buffers()]
    # the prediction also holds the image before it is moved, which on a GPU is not on the device
    pixels = 3 * 384 * 512 * 4
    assert needs.activations <= peak_of(run, weights) <= needs.activations + 3 * pixels


def test_a_pair_of_detections_holds_one_map_of_features_at_a_time(detector):
    ordinary, paired = (footprint(detector, (120, 160), *WAYS[way]) for way in ("ordinary", "paired"))
    features = 8 * 64 * 24 * 32 * 4
    assert paired.activations - ordinary.activations < features


@pytest.mark.parametrize("task", ["semantic", "detection", "depth"])
def test_the_embedded_model_needs_less_without_autocast_and_with_rounded_weights(task):
    exact = load_predictor(task, {"folder": WEIGHTS}, device="meta")
    rounded = load_predictor(task, {"folder": WEIGHTS}, device="meta", dtype="bfloat16")
    blocks = sum(each.numel() for block in exact.blocks for each in block.parameters())
    before, after = (footprint(each, (192, 192), REPLAY, True) for each in (exact, rounded))
    assert before.weights - after.weights >= 2 * blocks
    assert after.moved < before.moved


def test_more_images_at_once_need_more(detector):
    one, two = (footprint(detector, (120, 160), batch=batch) for batch in (1, 2))
    assert 1.7 < two.activations / one.activations < 2.1
    assert one.weights == two.weights


@pytest.mark.parametrize(("size", "views"), [((100, 100), 1), ((100, 150), 2), ((300, 100), 5)])
def test_views_are_those_that_pass_the_blocks(segmenter, detector, size, views):
    image = torch.randint(0, 256, (*size, 3), dtype=torch.uint8).numpy()
    assert views_of(segmenter, size) == views
    for predictor in (segmenter, detector):
        with counting(predictor.blocks) as counter:
            predictor.predict(image)
        assert counter.blocks == SHAPE.depth * views_of(predictor, size)


def test_the_released_7b_segmentor_at_its_own_size():
    """30.6 GB of weights: 6,716,043,264 of the backbone, without a norm that evaluation never reads, and 927,454,817."""
    backbone = meta_backbone(SHAPES["vit7b16"])
    with torch.device("meta"):
        model = Mask2FormerSegmentor(backbone, Mask2FormerShape(4096)).requires_grad_(False)
    needs = footprint(Segmenter(model), (896, 896), ReplayConfig((21, 23)))
    assert needs.weights == pytest.approx(4 * (6_716_043_264 + 927_454_817), rel=1e-5)
    # 94 blocks read their weights in float32, and everything else is read at least once
    block = sum(each.numel() for each in backbone.blocks[0].parameters())
    assert needs.weights_read == pytest.approx(94 * 4 * block + 4 * 927_454_817, rel=0.03)
    # taps and states of 3,141 tokens in float32, and no scores of all pairs in any head
    assert 4 * 3141 * 4096 * 4 < needs.activations < 9e9


def test_models_that_are_not_known_are_refused():
    class Mine:
        name = "mine"

    with pytest.raises(GramLoopError, match="what mine needs is known for released heads"):
        footprint(Mine(), (10, 10))
