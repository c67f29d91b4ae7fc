"""gramloop.recentre: the formula at every tap of any ViT, undone to the bit, in graphs; batch norms of heads."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop import CalibrationStats, GramLoopError, counting
from gramloop.mitigations.feature_hooks import feature_source
from gramloop.mitigations.features import Norms, Recentre, batch_norm_means
from gramloop.tasks import Depth, as_predictor
from gramloop.tasks.images import to_tensor
from library_models import build, outputs

NORMED = {  # host: which of the tensors that it returns hold patches after the norm, as (B, N, C)
    "DINOv3ViTModel": lambda found: [found.last_hidden_state[:, 5:]],
    "Dinov2Model": lambda found: [found.last_hidden_state[:, 1:]],
    "IJepaModel": lambda found: [found.last_hidden_state],
    "DINOv3ViTBackbone": lambda found: [each.flatten(2).mT for each in found.feature_maps],
    "Dinov2WithRegistersBackbone": lambda found: [each.flatten(2).mT for each in found.feature_maps],
    "SiglipVisionModel": lambda found: [found.last_hidden_state],
}


@pytest.fixture
def vit() -> nn.Module:
    return build("DINOv3ViTModel")[0]


@pytest.fixture
def x() -> Tensor:
    return build("DINOv3ViTModel")[1]


def calibrated(model: nn.Module, size: int = 64, **description: object) -> CalibrationStats:
    batches = [
        torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(10 + seed)) for seed in range(3)
    ]
    return gramloop.calibrate(model, batches, **description)


def read(name: str, model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return NORMED[name](model(x))


@pytest.mark.parametrize("name", NORMED)
def test_the_formula_holds_at_every_tap_and_detaching_undoes_it(name: str) -> None:
    model, x = build(name)
    stats = calibrated(model, x.shape[-1])
    plain = read(name, model, x)
    taps = sorted(stats.means)[-len(plain) :]
    for recentre, limit in [(0.3, None), ("c=1", 1.0), ("0.5,c=0.5", 0.5)]:
        moving = Recentre(recentre) if isinstance(recentre, float) else Recentre.parse(recentre)
        hooks = gramloop.recentre(model, stats, recentre)
        with counting(hooks.vit.blocks) as counter:
            found = read(name, model, x)
        assert counter.blocks == hooks.vit.depth, "no block more than the host's own"
        for tap, before, after in zip(taps, plain, found, strict=True):
            away = before.mean(1, keepdim=True) - stats.means[tap]
            if limit is not None:
                away = away.sign() * (away.abs() - limit * stats.spreads[tap]).clamp(min=0)
            # sums over 16 patches in float32
            torch.testing.assert_close(after, before - moving.weight * away, rtol=1e-5, atol=1e-5)
        hooks.detach()
        assert all(torch.equal(a, b) for a, b in zip(read(name, model, x), plain, strict=True))


@pytest.mark.parametrize("name", ["DINOv3ViTModel", "Dinov2Backbone", "own-head", "DepthAnything", "CHMv2"])
def test_a_weight_of_nothing_is_the_plain_model_to_the_bit(name: str) -> None:
    model, x = build(name)
    plain, stats = outputs(model, x), calibrated(model, x.shape[-1])
    for recentre in (0.0, "c=1000"):
        with gramloop.recentre(model, stats, recentre):
            assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))
    with gramloop.recentre(model, stats, 0.5):
        assert not all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))


def test_a_replay_comes_first(vit: nn.Module, x: Tensor) -> None:
    stats, window = calibrated(vit), (2, 3)
    with gramloop.attached(vit, window=window):
        replayed = read("DINOv3ViTModel", vit, x)[0]
    away = replayed.mean(1, keepdim=True) - stats.means[5]
    with gramloop.recentre(vit, stats, 0.4), gramloop.attached(vit, window=window) as loop:
        both = read("DINOv3ViTModel", vit, x)[0]
        assert loop.blocks_executed == gramloop.cost(6, window).blocks
    torch.testing.assert_close(both, replayed - 0.4 * away, rtol=1e-5, atol=1e-5)
    with gramloop.mitigate(vit, "recentre:0.4+replay:window=2-3", stats) as attached:
        assert torch.equal(read("DINOv3ViTModel", vit, x)[0], both)
        attached.detach()
        assert not torch.equal(read("DINOv3ViTModel", vit, x)[0], both)
    for text, refusal in [("median", "acts on pixels"), ("recentre:0.3+flip", "acts on outputs")]:
        with pytest.raises(GramLoopError, match=refusal):
            gramloop.mitigate(vit, text, stats)
    assert not vit.norm._forward_hooks


def test_padding_does_not_move_the_mean(vit: nn.Module, x: Tensor) -> None:
    stats = calibrated(vit)
    plain = read("DINOv3ViTModel", vit, x)[0]
    valid = torch.ones(2, 4, 4, dtype=torch.bool)
    valid[1, 2:] = False
    with gramloop.recentre(vit, stats, 1.0) as hooks:
        hooks.valid = valid
        found = read("DINOv3ViTModel", vit, x)[0]
    torch.testing.assert_close(found[0].mean(0), stats.means[5], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, :8].mean(0), stats.means[5], rtol=0, atol=1e-5)
    assert not torch.allclose(plain[1, :8].mean(0), plain[1].mean(0), atol=1e-3)


def test_a_file_and_its_object_are_the_same(vit: nn.Module, x: Tensor, tmp_path: Path) -> None:
    stats = calibrated(vit)
    stats.save(tmp_path / "source.safetensors")
    found = []
    for given in (stats, tmp_path / "source.safetensors", str(tmp_path / "source.safetensors")):
        with gramloop.recentre(vit, given, 0.3):
            found.append(read("DINOv3ViTModel", vit, x)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert stats.noise is None
    assert stats.input_noise is not None


@pytest.mark.parametrize(
    ("name", "settings"),
    [("DINOv3ViTBackbone", []), ("DINOv3ViTModel", ["replay:window=2-3,replays=1"])],
    ids=["alone", "with a replay"],
)
def test_one_graph_and_an_export(name: str, settings: list[str]) -> None:
    model, x = build(name)

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = model

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([each.flatten(1) for each in NORMED[name](self.vit(x))], 1)

    features, stats = Features().eval(), calibrated(model)
    with torch.no_grad():
        plain = features(x)
        with gramloop.mitigate(features, "+".join(["recentre:0.5", *settings]), stats):
            expected = features(x)
            torch._dynamo.reset()
            compiled = torch.compile(features, fullgraph=True, backend="eager")
            assert torch.equal(compiled(x), expected)
            assert torch.equal(compiled(x), expected)
            program = torch.export.export(features, (x,))
            torch.testing.assert_close(program.module()(x), expected, rtol=0, atol=1e-5)
        assert not torch.equal(expected, plain)
        assert torch.equal(features(x), plain)
        assert torch.equal(compiled(x), plain), "compiled again without it"


@pytest.mark.parametrize("name", ["timm-vit", "timm-eva"])
def test_methods_of_a_host_and_several_taps(name: str) -> None:
    vit, x = build(name)

    class Intermediates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, pixels: Tensor) -> list[Tensor]:
            return [each.flatten(2).mT for each in vit.forward_intermediates(pixels, [1, 3], norm=True)[1]]

    model = Intermediates().eval()
    stats = calibrated(model)
    with torch.no_grad():
        plain = model(x)
        assert {1, 3} <= set(stats.means)
        with gramloop.recentre(model, stats, 1.0):
            for tap, found in zip((1, 3), model(x), strict=True):
                torch.testing.assert_close(found.mean(1), stats.means[tap].expand(2, -1), rtol=0, atol=1e-4)
        assert all(torch.equal(a, b) for a, b in zip(model(x), plain, strict=True))


def test_threads_may_recentre_each_for_itself(vit: nn.Module, x: Tensor) -> None:
    stats = calibrated(vit)
    plain = read("DINOv3ViTModel", vit, x)[0]
    other: list[Tensor] = []
    with gramloop.recentre(vit, stats, 0.5, this_thread=True):
        thread = threading.Thread(target=lambda: other.extend(read("DINOv3ViTModel", vit, x)))
        thread.start()
        thread.join()
        assert not torch.equal(read("DINOv3ViTModel", vit, x)[0], plain)
    assert torch.equal(other[0], plain)


def test_refusals_name_the_reason(vit: nn.Module, x: Tensor) -> None:
    stats = calibrated(vit)
    for given, how, message in [
        (stats, 2, "recentre's weight takes a number from 0 to 1, not 2"),
        (stats, True, "recentre's weight takes a number from 0 to 1, not True"),
        (stats, "c=x", "recentre's c takes a number from 0 to 1000, not 'x'"),
        (replace(stats, backbone="0" * 16), 0.3, "of another backbone"),
        (replace(stats, means={9: stats.means[5]}), 0.3, "of another backbone"),
        (replace(stats, means={}), 0.3, "needs calibration statistics of in-distribution images, with means"),
        ("none.safetensors", 0.3, "cannot read the calibration statistics"),
    ]:
        with pytest.raises(GramLoopError, match=message):
            gramloop.recentre(vit, given, how)
    with pytest.raises(GramLoopError, match="drops some of them"):
        gramloop.calibrate(build("ViTMAEModel")[0], [x])
    with pytest.raises(GramLoopError, match="at least 8 in-distribution images, better a few dozen, not 2"):
        gramloop.calibrate(vit, [x])
    with pytest.raises(GramLoopError, match=r"training mode; call model\.eval"):
        gramloop.calibrate(build("DINOv3ViTModel")[0].train(), [x])


def test_a_forward_that_shows_no_calibrated_block_is_refused() -> None:
    model, x = build("DepthAnything")
    plain, stats = outputs(model, x), calibrated(model, x.shape[-1])
    other = replace(stats, means={0: stats.means[5]}, spreads={0: stats.spreads[5]})
    with gramloop.recentre(model, other, 0.5), pytest.raises(GramLoopError, match="nothing was recentred"):
        outputs(model, x)
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))


@pytest.mark.parametrize("name", ["DPT", "VitDetBackbone", "Dinov2Backbone"])
def test_states_that_a_host_returns_before_the_norm(name: str) -> None:
    model, x = build(name)
    if name == "Dinov2Backbone":
        model.config.apply_layernorm = False
    before, stats = outputs(model, x), calibrated(model, x.shape[-1])
    assert stats.at == "states"
    with gramloop.recentre(model, stats, 1.0):
        found = outputs(model, x)
    assert not torch.equal(found[0], before[0])
    if name != "DPT":  # what it returns are the states
        for tap, each in zip(sorted(stats.means), found, strict=False):
            mean = each.flatten(2).mean(2)
            torch.testing.assert_close(mean, stats.means[tap].expand_as(mean), rtol=0, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), before, strict=True))


def test_recentring_moves_the_mean_the_share_of_the_way(segmenter, images, stats) -> None:
    means, pixels = batch_norm_means(segmenter, feature_source(segmenter, "")), to_tensor(images[0])
    for how, target in [
        (Recentre(1.0), lambda mean, tap: means[tap]),
        (Recentre(0.25), lambda mean, tap: 0.75 * mean + 0.25 * means[tap]),
        (
            Recentre(1.0, 1.0),
            lambda mean, tap: torch.clamp(
                mean, stats.means[tap] - stats.spreads[tap], stats.means[tap] + stats.spreads[tap]
            ),
        ),
    ]:
        plain = segmenter.backbone(pixels, segmenter.taps)
        with how.hooked(segmenter, stats):
            moved = segmenter.backbone(pixels, segmenter.taps)
        for tap, one, two in zip(segmenter.taps, plain, moved, strict=True):
            expected = target(one.patches.mean(1)[0], tap)
            torch.testing.assert_close(two.patches.mean(1)[0], expected, atol=1e-4, rtol=0)
            assert torch.equal(one.tokens[:, : one.prefix], two.tokens[:, : two.prefix])
            centred = [each.patches - each.patches.mean(1, keepdim=True) for each in (one, two)]
            assert (centred[0] - centred[1]).abs().max() < 1e-4


class TestNorms:
    """Batch norms inside heads and adapters."""

    def test_on_a_head_that_begins_with_one_they_are_recentring(self, segmenter, images):
        pixels, maps = to_tensor(images[0]), []
        for mitigation in (Norms(0.4), Recentre(0.4)):
            with mitigation.hooked(segmenter, None), torch.no_grad():
                maps.append(segmenter.model(pixels))
        torch.testing.assert_close(maps[0], maps[1], rtol=0, atol=1e-4)  # logits of scale 10, in float32
        assert not torch.allclose(maps[0], segmenter.model(pixels), atol=1e-2)
        assert not segmenter.model.head.bn._forward_pre_hooks

    def test_those_of_a_released_adapter_are_all_mixed(self):
        from gramloop.models.mask2former import SpatialPrior

        torch.manual_seed(0)
        adapter, pixels = SpatialPrior(16).eval(), torch.randn(1, 3, 64, 64)
        norms = [each for each in adapter.modules() if isinstance(each, nn.BatchNorm2d)]
        for norm in norms:
            norm.running_mean.normal_()
        module = nn.Module()
        module.adapter, module.forward = adapter, lambda shown: adapter(shown)
        module.preprocess = lambda image: pixels
        module.postprocess = lambda maps, size: Depth(np.zeros(size, np.float32))
        predictor, given = as_predictor(module, "depth"), []
        with Norms(1.0).hooked(predictor, None), torch.no_grad():
            for norm in norms:  # after the mixing: this hook sees what the norm is given
                norm.register_forward_pre_hook(
                    lambda norm, args: given.append((args[0].mean((0, 2, 3)), norm.running_mean))
                )
            adapter(pixels)
        assert len(given) == 6
        for mean, running in given:  # at weight 1 every norm is given what it expects
            torch.testing.assert_close(mean, running, rtol=0, atol=1e-4)
