"""attach(model, recentre=…): the formula at every tap, undone to the bit, in graphs, refused where it makes no sense."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gramloop
from golden import load_golden
from golden_hosts import meta
from gramloop import GramLoopError, counting
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.features import Recentre
from library_models import build, images, outputs

NORMED = {  # host: which of the tensors that it returns hold patches after the norm, as (B, N, C)
    "DINOv3ViTModel": lambda found: [found.last_hidden_state[:, 5:]],
    "Dinov2Model": lambda found: [found.last_hidden_state[:, 1:]],
    "IJepaModel": lambda found: [found.last_hidden_state],
    "DINOv3ViTBackbone": lambda found: [each.flatten(2).mT for each in found.feature_maps],
    "Dinov2WithRegistersBackbone": lambda found: [each.flatten(2).mT for each in found.feature_maps],
    "SiglipVisionModel": lambda found: [found.last_hidden_state],
}


def calibrated(model: nn.Module, size: int = 64) -> CalibrationStats:
    with gramloop.calibrating(model) as seen, torch.no_grad():
        for seed in range(3):
            model(torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(10 + seed)))
    return seen.source()


def read(name: str, model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return NORMED[name](model(x))


@pytest.mark.parametrize("name", NORMED)
def test_the_formula_holds_at_every_tap_and_detaching_undoes_it(name: str) -> None:
    model, x = build(name)
    source = calibrated(model, x.shape[-1])
    plain = read(name, model, x)
    taps = sorted(source.means)[-len(plain) :]
    for recentre, limit in [(0.3, None), ("c=1", 1.0), ("0.5,c=0.5", 0.5)]:
        moving = Recentre.of(recentre)
        loop = gramloop.attach(model, recentre=recentre, source=source)
        with counting(loop.host.blocks) as counter:
            found = read(name, model, x)
        assert counter.blocks == loop.host.depth, "no block more than the host's own"
        for tap, before, after in zip(taps, plain, found, strict=True):
            away = before.mean(1, keepdim=True) - source.means[tap]
            if limit is not None:
                away = away.sign() * (away.abs() - limit * source.spreads[tap]).clamp(min=0)
            # sums over 16 patches in float32
            torch.testing.assert_close(after, before - moving.weight * away, rtol=1e-5, atol=1e-5)
        loop.detach()
        assert all(torch.equal(a, b) for a, b in zip(read(name, model, x), plain, strict=True))


@pytest.mark.parametrize("name", ["DINOv3ViTModel", "Dinov2Backbone", "own-head", "DepthAnything", "CHMv2"])
def test_a_weight_of_nothing_is_the_plain_model_to_the_bit(name: str) -> None:
    model, x = build(name)
    plain, source = outputs(model, x), calibrated(model, x.shape[-1])
    for recentre in (0.0, "c=1000"):
        with gramloop.attached(model, recentre=recentre, source=source):
            assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))
    with gramloop.attached(model, recentre=0.5, source=source):
        assert not all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))


def test_a_replay_comes_first(vit: nn.Module, x: Tensor) -> None:
    source, window = calibrated(vit), (2, 3)
    with gramloop.attached(vit, window=window):
        replayed = read("DINOv3ViTModel", vit, x)[0]
    with gramloop.attached(vit, window=window, recentre=0.4, source=source, trace=True) as loop:
        both = read("DINOv3ViTModel", vit, x)[0]
        assert loop.blocks_executed == gramloop.cost(6, window).blocks
    away = replayed.mean(1, keepdim=True) - source.means[5]
    torch.testing.assert_close(both, replayed - 0.4 * away, rtol=1e-5, atol=1e-5)


def test_padding_does_not_move_the_mean(vit: nn.Module, x: Tensor) -> None:
    source = calibrated(vit)
    plain = read("DINOv3ViTModel", vit, x)[0]
    valid = torch.ones(2, 4, 4, dtype=torch.bool)
    valid[1, 2:] = False
    with gramloop.attached(vit, recentre=1.0, source=source) as loop, loop.valid(valid):
        found = read("DINOv3ViTModel", vit, x)[0]
    torch.testing.assert_close(found[0].mean(0), source.means[5], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, :8].mean(0), source.means[5], rtol=0, atol=1e-5)
    assert not torch.allclose(plain[1, :8].mean(0), plain[1].mean(0), atol=1e-3)


def test_a_file_and_its_object_are_the_same(vit: nn.Module, x: Tensor, tmp_path: Path) -> None:
    source = calibrated(vit)
    source.save(tmp_path / "source.safetensors")
    found = []
    for given in (source, tmp_path / "source.safetensors", str(tmp_path / "source.safetensors")):
        with gramloop.attached(vit, recentre=0.3, source=given):
            found.append(read("DINOv3ViTModel", vit, x)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert source.noise is None
    assert source.shown_noise is not None


@pytest.mark.parametrize(
    ("name", "settings"),
    [("DINOv3ViTBackbone", {}), ("DINOv3ViTModel", {"window": (2, 3), "replays": 1})],
    ids=["alone", "with a replay"],
)
def test_one_graph_and_an_export(name: str, settings: dict) -> None:
    model, x = build(name)

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = model

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([each.flatten(1) for each in NORMED[name](self.vit(x))], 1)

    features, source = Features().eval(), calibrated(model)
    with torch.no_grad():
        plain = features(x)
        with gramloop.attached(features, recentre=0.5, source=source, **settings):
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

    def run(pixels: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [each.flatten(2).mT for each in vit.forward_intermediates(pixels, [1, 3], norm=True)[1]]

    with gramloop.calibrating(vit) as seen:
        for seed in range(8):
            run(torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed)))
    source, plain = seen.source(), run(x)
    assert {1, 3} <= set(source.means)
    with gramloop.attached(vit, recentre=1.0, source=source):
        for tap, found in zip((1, 3), run(x), strict=True):
            torch.testing.assert_close(found.mean(1), source.means[tap].expand(2, -1), rtol=0, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(run(x), plain, strict=True))


def test_metas_module_with_several_resolutions_at_once() -> None:
    vit = meta(load_golden("backbone_s")).model
    sizes = [images(64), images(96)]
    with gramloop.calibrating(vit) as seen, torch.no_grad():
        for seed in range(4):
            vit.forward_features(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed)))
    source = seen.source()
    with torch.no_grad(), gramloop.attached(vit, recentre=1.0, source=source):
        for found in vit.forward_features_list(sizes):
            mean = found["x_norm_patchtokens"].mean(1)
            torch.testing.assert_close(
                mean, source.means[len(vit.blocks) - 1].expand(2, -1), rtol=0, atol=1e-4
            )


def test_threads_may_recentre_each_for_itself(vit: nn.Module, x: Tensor) -> None:
    source = calibrated(vit)
    plain = read("DINOv3ViTModel", vit, x)[0]
    other: list[Tensor] = []
    with gramloop.attached(vit, recentre=0.5, source=source, this_thread=True):
        thread = threading.Thread(target=lambda: other.extend(read("DINOv3ViTModel", vit, x)))
        thread.start()
        thread.join()
        assert not torch.equal(read("DINOv3ViTModel", vit, x)[0], plain)
    assert torch.equal(other[0], plain)


def test_what_makes_no_sense_is_refused_in_a_sentence(vit: nn.Module, x: Tensor) -> None:
    source = calibrated(vit)
    for given, sentence in [
        ({"recentre": 0.3}, "needs the statistics of ordinary images: source="),
        ({"source": source}, "give both, or neither"),
        ({"recentre": 2, "source": source}, "recentre is 2; it is a weight from 0 to 1, or a text"),
        ({"recentre": True, "source": source}, "recentre is True; it is a weight"),
        ({"recentre": "c=x", "source": source}, "recentre's c is 'x'; it is a number of standard deviations"),
        ({"recentre": 0.3, "source": replace(source, backbone="0" * 16)}, "of another backbone"),
        ({"recentre": 0.3, "source": replace(source, means={9: source.means[5]})}, "of tap 9, so of another"),
        ({"recentre": 0.3, "source": "none.safetensors"}, "cannot read the source statistics"),
    ]:
        with pytest.raises(GramLoopError, match=sentence):
            gramloop.attach(vit, **given)
    for name, sentence in [
        ("VitDetModel", "has no norm after its blocks"),
        ("ViTMAEModel", "drops patches"),
    ]:
        with pytest.raises(GramLoopError, match=sentence), gramloop.calibrating(build(name)[0]):
            pass
    with gramloop.calibrating(vit) as seen:
        pass
    with pytest.raises(GramLoopError, match="showed no block's patches while it was watched"):
        seen.source()
    with gramloop.calibrating(vit) as seen:
        outputs(vit, x)
    with pytest.raises(GramLoopError, match="at least 8 ordinary images, better a few dozen, not 2"):
        seen.source()


def test_a_head_that_reads_states_before_the_norm_is_told_so() -> None:
    model, x = build("DPT")
    plain, source = outputs(model, x), calibrated(model)
    # the norm is put on the last state, which no head reads; a source of other blocks meets nothing at all
    other = replace(source, means={2: source.means[5]})
    sentence = 'put no block that the source knows through its final norm .*at="states"'
    with gramloop.attached(model, recentre=0.5, source=other), pytest.raises(GramLoopError, match=sentence):
        outputs(model, x)
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), plain, strict=True))


@pytest.mark.parametrize("name", ["DPT", "VitDetBackbone", "Dinov2Backbone", "DINOv3ViTModel"])
def test_states_that_a_host_returns_as_they_are(name: str) -> None:
    model, x = build(name)
    if name == "DPT":
        model.config.output_hidden_states = True

    def states() -> list[Tensor]:
        with torch.no_grad():
            found = model(x, output_hidden_states=True)
        maps = getattr(found, "feature_maps", None)
        if maps is not None:
            return [each.flatten(2).mT for each in maps]
        prefix = 5 if name == "DINOv3ViTModel" else 1
        return [each[:, prefix:] for each in found.hidden_states[1:]]

    with gramloop.calibrating(model, at="states") as seen, torch.no_grad():
        for seed in range(4):
            size = x.shape[-1]
            noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))
            model(noise, output_hidden_states=True)
    source, plain, before = seen.source(), states(), outputs(model, x)
    assert source.at == "states"
    with gramloop.attached(model, recentre=0.5, source=source):
        found = states()
        for tap, one, two in zip(sorted(source.means)[-len(plain) :], plain, found, strict=True):
            away = one.mean(1, keepdim=True) - source.means[tap]
            torch.testing.assert_close(two, one - 0.5 * away, rtol=1e-5, atol=1e-5)
        if name == "DPT":
            assert not torch.equal(outputs(model, x)[0], before[0]), "its head reads them"
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), before, strict=True))
