"""The noise of pixels as a signal: a closed form, the estimate on bytes, and what it decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop import Adaptive, GramLoopError, parse_replay, read_replay, write_replay
from gramloop.replay.adaptive import image_noise, noise_response
from gramloop.tasks.images import WEB, to_tensor
from library_models import build

SETTINGS = {"window": (2, 3), "replays": 1, "gate": "uniform", "strength": 0.5}


def level(images: Tensor) -> Tensor:
    return image_noise(noise_response(images))


def last(vit: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return vit(x).last_hidden_state


def test_slopes_are_no_noise_and_a_single_pixel_is_known() -> None:
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(20.0), indexing="ij")
    assert level((3 * rows - 2 * columns).expand(1, 3, 12, 20)).item() == pytest.approx(0, abs=1e-4)
    dot = torch.zeros(1, 1, 12, 20)
    dot[0, 0, 5, 5] = 1.0  # |K| sums to 16
    assert level(dot).item() == pytest.approx(16 / (10 * 18) * np.sqrt(np.pi / 2) / 6, rel=1e-6)
    assert level(torch.ones(2, 3, 2, 9)).tolist() == [0, 0]


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_of_gaussian_noise_it_is_the_standard_deviation(sigma: float) -> None:
    grey = sigma * torch.randn(2, 1, 200, 200, generator=torch.Generator().manual_seed(0))
    # the mean over 4e4 pixels; neighbouring responses share pixels
    torch.testing.assert_close(level(grey.expand(2, 3, 200, 200)), torch.full((2,), sigma), rtol=0.03, atol=0)


def test_it_is_the_estimate_on_bytes_in_other_units() -> None:
    from gramloop.mitigations.filters import noise_level

    pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    expected = noise_level(pixels) / 255
    found = level(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255).item()
    assert found == pytest.approx(expected, rel=1e-3)  # the other rounds grey values to bytes
    normalised = level(to_tensor(pixels, WEB)).item()
    assert normalised * 0.226 == pytest.approx(
        expected, rel=0.02
    )  # whose channels are divided by 0.224 to 0.229


def test_padding_does_not_count() -> None:
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, 4, 4, dtype=torch.bool)
    valid[1, :, 2:] = False
    padded = images.clone()
    padded[1, :, :, 33:] = 50 * images[1, :, :, 33:]  # beyond what the kernel reaches from the valid half
    found = image_noise(noise_response(padded), valid.flatten(1), (4, 4))
    assert found[0] == pytest.approx(level(images)[0].item(), rel=1e-6)
    alone = noise_response(images)[1, :, :31].mean() * np.sqrt(np.pi / 2) / 6
    assert found[1].item() == pytest.approx(alone.item(), rel=1e-5)


def test_every_image_of_a_batch_is_decided_for_itself(vit: nn.Module, x: Tensor) -> None:
    x = torch.cat([x[:1], 0.1 * x[1:]])
    both = level(x)
    between = float(both.mean())
    plain = last(vit, x)
    with gramloop.attached(vit, **SETTINGS):
        replayed = last(vit, x)
    with gramloop.attached(vit, adaptive=Adaptive("noise", between, between), trace=True, **SETTINGS) as loop:
        found = last(vit, x)
        assert loop.trace is not None
        torch.testing.assert_close(loop.trace.signal, both)
    assert torch.equal(found[0], replayed[0])
    assert torch.equal(found[1], plain[1])
    with gramloop.attached(vit, adaptive=Adaptive("noise", 1e3, 1e3), **SETTINGS) as loop:
        assert torch.equal(last(vit, x), plain)
        assert loop.blocks_executed == 6


def test_a_mask_of_the_forward_counts(vit: nn.Module, x: Tensor) -> None:
    valid = torch.ones(2, 4, 4, dtype=torch.bool)
    valid[1, 2:] = False
    with gramloop.attached(vit, adaptive=Adaptive("noise", 0, 1), trace=True, **SETTINGS) as loop:
        loop.set_valid(valid)
        last(vit, x)
        assert loop.trace is not None
        torch.testing.assert_close(
            loop.trace.signal, image_noise(noise_response(x), valid.flatten(1), (4, 4))
        )


def test_it_is_a_setting_like_the_others(tmp_path) -> None:
    config = parse_replay("window=2-3,adaptive=noise:0.2:0.3")
    write_replay(tmp_path / "replay.json", config)
    assert read_replay(tmp_path / "replay.json") == config
    assert config.adaptive == Adaptive("noise", 0.2, 0.3)


def test_it_compiles_into_one_graph(vit: nn.Module, x: Tensor) -> None:
    with torch.no_grad(), gramloop.attached(vit, adaptive=Adaptive("noise", 0.1, 2.0), **SETTINGS):
        expected = vit(x).last_hidden_state
        torch._dynamo.reset()
        compiled = torch.compile(vit, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x).last_hidden_state, expected)


def test_a_host_that_does_not_show_its_image_is_refused() -> None:
    vit = build("DINOv3ViTModel")[0]
    with pytest.raises(GramLoopError, match="does not show the image that it embeds"):
        gramloop.attach(
            vit.model, blocks=list(vit.model.layer), prefix=5, adaptive=Adaptive("noise", 1, 1), **SETTINGS
        )
