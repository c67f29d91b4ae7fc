"""A pair of forwards that share what they have in common equals two forwards to the bit, at the stated cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gramloop import ReplayConfig, counting
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, pair_blocks
from gramloop.replay.vit import find_vit
from gramloop.tasks.custom import reusing_blocks
from library_models import build, outputs

CONFIGS = {
    "published": ReplayConfig(window=(1, 2)),
    "loop-loop": ReplayConfig(window=(1, 2), replays=1, gate_at="end"),
    "final-final": ReplayConfig(window=(1, 2), update_at="final"),
    "ungated": ReplayConfig(window=(2, 3), gate="none"),
    "nothing": ReplayConfig(window=(2, 3), replays=0),
}


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(*pair) for pair in zip(some, others, strict=True))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("name", ["DINOv3ViTBackbone", "DepthAnything", "DPT", "own-head"])
def test_a_pair_equals_two_forwards_and_costs_what_is_said(name: str, config: ReplayConfig) -> None:
    model, x = build(name)
    host = find_vit(model)
    plain = outputs(model, x)
    with attached(model, config):
        replayed = outputs(model, x)
    with counting(host.blocks) as counter, reusing_blocks(host.blocks) as memory:
        first = outputs(model, x)
        memory.repeats = True
        with attached(model, config, this_thread=True):
            second = outputs(model, x)
    assert equal(first, plain)
    assert equal(second, replayed)
    assert counter.blocks == memory.executed == pair_blocks(config, host.depth)
    assert all("forward" not in vars(block) for block in host.blocks)


def test_an_image_that_is_not_replayed_runs_once() -> None:
    model, x = build("DINOv3ViTBackbone")
    never = ReplayConfig(window=(2, 3), adaptive=Adaptive("noise", 1e9, 1e9))
    blocks = find_vit(model).blocks
    with counting(blocks) as counter, reusing_blocks(blocks) as memory:
        plain = outputs(model, x)
        memory.repeats = True
        with attached(model, never, this_thread=True):
            assert equal(outputs(model, x), plain)
    assert counter.blocks == len(blocks)


class Noisy(nn.Module):
    """Draws something new in every forward, so that no two share anything."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x + 0.01 * torch.rand_like(x)).last_hidden_state


class InPlace(nn.Module):
    """Writes into what its blocks return."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        model.layers[2].register_forward_hook(lambda block, args, output: output.mul_(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).last_hidden_state


@pytest.mark.parametrize("kind", [Noisy, InPlace])
def test_what_is_not_the_same_is_run_again(kind: type[nn.Module]) -> None:
    inner, x = build("ViTModel")
    model, config = kind(inner).eval(), CONFIGS["published"]
    blocks = find_vit(model).blocks
    torch.manual_seed(1)
    plain = outputs(model, x)
    with attached(model, config):
        replayed = outputs(model, x)
    torch.manual_seed(1)
    with reusing_blocks(blocks) as memory:
        assert equal(outputs(model, x), plain)
        memory.repeats = True
        with attached(model, config, this_thread=True):
            assert equal(outputs(model, x), replayed)
    assert memory.executed > pair_blocks(config, len(blocks))


def test_threads_remember_for_themselves() -> None:
    model, x = build("DINOv3ViTBackbone")
    blocks, config = find_vit(model).blocks, CONFIGS["published"]
    images = [x + 0.1 * index for index in range(8)]

    def pair(image: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
        with reusing_blocks(blocks) as memory:
            first = outputs(model, image)
            memory.repeats = True
            with attached(model, config, this_thread=True):
                return first, outputs(model, image), memory.executed

    alone = [pair(image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(pair, images))
    for some, others in zip(alone, together, strict=True):
        assert equal(some[0], others[0])
        assert equal(some[1], others[1])
        assert some[2] == others[2]
    assert all("forward" not in vars(block) for block in blocks)
