"""A head's names decide what it is, and so which predictor it becomes."""

from __future__ import annotations

import pytest
import torch

from golden import load_golden, released_shapes, write_golden_depther, write_golden_pmt
from gramloop import GramLoopError
from gramloop.models import LinearHead
from gramloop.models.checkpoint import head_classes, head_kind
from gramloop.tasks import (
    Detector,
    DptDepthEstimator,
    QuerySegmenter,
    Segmenter,
    load_predictor,
)
from gramloop.tasks.loading import head_task

PMT = {
    "pmt_small_coco_panoptic": ("panoptic", QuerySegmenter, "dinov3_vits16"),
    "pmt_large_coco_instance": ("instance", QuerySegmenter, "dinov3_vitl16"),
    "pmt_large_ade20k_semantic": ("semantic", Segmenter, "dinov3_vitl16"),
}


def released(name, path, wrap=None):
    """A file with the names and shapes of a released one, and one number in place of those of each entry."""
    entries = {
        key: torch.tensor(float(key.endswith("periods"))).expand(shape)
        for key, shape in released_shapes(name).items()
    }
    masks = {key: value for key, value in entries.items() if key.endswith("bias_mask")}
    entries |= {
        key: torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(len(value) // 3) for key, value in masks.items()
    }
    torch.save({wrap: entries} if wrap else entries, path)
    return path


@pytest.mark.parametrize("name", PMT)
def test_a_pmt_head_is_for_what_it_was_trained(name, tmp_path):
    task, kind, backbone = PMT[name]
    head = released(name, tmp_path / "pytorch_model.bin")
    files = {"head": str(head), "backbone": str(released(backbone, tmp_path / "backbone.pth"))}
    assert head_kind(head) == "pmt"
    assert head_task(head) == task
    predictor = load_predictor(None, files, device="meta")
    assert isinstance(predictor, kind)
    assert predictor.task == task
    assert len(predictor.classes) == head_classes(head)
    semantic = load_predictor("semantic", files, device="meta")
    assert semantic.config.mode == "even"
    assert len(semantic.classes) == len(predictor.classes)


def test_the_size_of_training_is_taken_from_the_name(tmp_path):
    backbone = released("dinov3_vitl16", tmp_path / "backbone.pth")
    folder = tmp_path / "coco_panoptic_pmt_large_1280_dinov3"
    folder.mkdir()
    files = {"head": str(released("pmt_large_coco_panoptic", folder / "pytorch_model.bin"))}
    files["backbone"] = str(backbone)
    assert load_predictor(None, files, device="meta").config.side == 1280
    assert load_predictor(None, files, {"side": 640}, device="meta").config.side == 640
    plain = {**files, "head": str(released("pmt_large_coco_panoptic", tmp_path / "pytorch_model.bin"))}
    assert load_predictor(None, plain, device="meta").config.side == 640


def test_meta_s_heads_and_linear_ones_are_told_apart(tmp_path):
    torch.save(load_golden("segmentor").weights, tmp_path / "segmentor.pth")
    torch.save({"model": load_golden("detector").weights}, tmp_path / "detector.pth")
    backbone, head = write_golden_depther(tmp_path)
    LinearHead(64, 3, (1, 3)).save(tmp_path / "linear.safetensors")
    kinds = {
        "segmentor.pth": ("mask2former", "semantic"),
        "detector.pth": ("plain-detr", "detection"),
        head.name: ("depther", "depth"),
        "linear.safetensors": ("linear", "semantic"),
    }
    for name, (kind, task) in kinds.items():
        assert head_kind(tmp_path / name) == kind
        assert head_task(tmp_path / name) == task
    assert isinstance(load_predictor(None, {"head": tmp_path / "detector.pth"}), Detector)
    assert isinstance(load_predictor(None, {"head": tmp_path / "segmentor.pth"}), Segmenter)
    both = {"head": tmp_path / "linear.safetensors", "backbone": backbone}
    assert isinstance(load_predictor(None, both), Segmenter)
    assert isinstance(load_predictor(None, {"head": head, "backbone": backbone}), DptDepthEstimator)


def test_what_cannot_be_is_told_in_one_sentence(tmp_path):
    backbone, head = write_golden_pmt(tmp_path)
    files = {"head": head, "backbone": backbone}
    with pytest.raises(
        GramLoopError, match="a PMT head, for the task semantic or panoptic or instance, not for depth"
    ):
        load_predictor("depth", files)
    with pytest.raises(GramLoopError, match="is a head alone; its backbone must be given too"):
        load_predictor("instance", {"head": head})
    with pytest.raises(GramLoopError, match="which of the 7 classes of this head are things is not known"):
        load_predictor("panoptic", files)
    with pytest.raises(
        GramLoopError, match="has no setting short_side; its settings are side, threshold, overlap, keep"
    ):
        load_predictor("instance", files, {"short_side": 64})
    with pytest.raises(GramLoopError, match="holds none of the supported heads"):
        load_predictor(None, {"head": backbone})
    with pytest.raises(GramLoopError, match="does not exist"):
        load_predictor(None, {"head": tmp_path / "nothing.bin"})
