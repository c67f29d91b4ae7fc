"""Hosts whose states are no plain row of prefix tokens and patches, or that stand beside others in a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop.replay.gram import interpolate
from gramloop.replay.vit import TokenLayout, find_vit, state_of
from library_models import build, outputs

WINDOW = (2, 3)


@pytest.mark.parametrize("order", ["BHWC", "BCHW"])
def test_a_map_and_its_tokens(order: str) -> None:
    shape = (2, 3, 5, 4) if order == "BHWC" else (2, 4, 3, 5)
    state = torch.arange(120.0).view(shape)
    layout = TokenLayout(map=order)  # type: ignore[arg-type]
    tokens = layout.tokens(state)
    assert layout.grid(state) == (3, 5)
    assert tokens.shape == (2, 15, 4)
    row, column = 1, 2
    patch = state[0, row, column] if order == "BHWC" else state[0, :, row, column]
    assert torch.equal(tokens[0, row * 5 + column], patch)
    assert torch.equal(layout.state(tokens, (3, 5)), state)


@pytest.mark.parametrize("name", ["VitDetModel", "YolosForObjectDetection"])
def test_the_accepted_step_is_the_gate_of_each_patch_on_a_grid_that_is_not_square(name: str) -> None:
    model, _ = build(name)
    x = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(5))
    host = find_vit(model)
    seen: list[Tensor] = []
    host.blocks[WINDOW[1]].register_forward_hook(lambda *call: seen.append(state_of(call[-1])))
    outputs(model, x)
    for gate in ("none", "gram"):
        with gramloop.attached(model, window=WINDOW, gate=gate, replays=1, trace=True) as loop:
            outputs(model, x)
    before, proposal, accepted = (host.layout.tokens(state) for state in seen)
    assert loop.trace is not None
    (gates,), (mean,) = loop.trace.gate, loop.trace.mean_gate
    assert gates.shape == (2, 3, 5)
    around = mean[:, None].expand(-1, before.shape[1])
    every = around.clone()
    every[:, host.layout.prefix : host.layout.prefix + 15] = gates.flatten(1)
    torch.testing.assert_close(accepted, interpolate(before, proposal, every))
    torch.testing.assert_close(mean, gates.mean((1, 2)))


def test_kept_blocks_of_a_host_with_maps_in_tuples() -> None:
    model, x = build("VitDetModel")
    with torch.no_grad():
        ordinary = model(x, output_hidden_states=True).hidden_states
    with gramloop.attached(model, window=WINDOW, keep=tuple(range(6))) as loop:
        outputs(model, x)
    assert all(torch.equal(loop.baseline[index], ordinary[index + 1]) for index in range(6))


def test_a_mask_on_a_host_with_maps() -> None:
    model, x = build("SamModel")
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :3, :2] = True
    with gramloop.attached(model, window=WINDOW, trace=True) as loop:
        loop.set_valid(mask)
        outputs(model, x)
    assert loop.trace is not None
    assert torch.equal(loop.trace.gate[0] > 0, mask)


def test_tuples_with_attention_weights() -> None:
    model, x = build("Data2VecVisionModel")
    with torch.no_grad(), gramloop.attached(model, window=WINDOW):
        plain = model(x).last_hidden_state
        with_weights = model(x, output_attentions=True)
    assert len(with_weights.attentions) == 6
    torch.testing.assert_close(with_weights.last_hidden_state, plain)


def test_yolos_with_positions_between_its_blocks_is_refused() -> None:
    from transformers import YolosConfig, YolosModel

    sizes = {
        "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
        "image_size": [64, 64],
    }  # fmt: skip
    with pytest.raises(
        gramloop.GramLoopError, match=r"YolosModel cannot be replayed from block 0 on: it adds position embed"
    ):
        gramloop.attach(YolosModel(YolosConfig(**sizes)).eval(), window=(1, 2))


def test_patches_that_come_in_another_order_take_no_mask() -> None:
    model, x = build("ViTMAEModel")
    with gramloop.attached(model, window=WINDOW) as loop:
        loop.set_valid(torch.ones(2, 16, dtype=torch.bool))
        with pytest.raises(gramloop.GramLoopError, match="ViTMAEModel at model shuffles its patches"):
            outputs(model, x)


def test_images_packed_into_one_sequence_are_refused() -> None:
    model, _ = build("RadioModel")
    patches, grids = torch.randn(4 + 6, 3 * 16 * 16), torch.tensor([[2, 2], [2, 3]])
    with (
        torch.no_grad(),
        gramloop.attached(model, window=WINDOW),
        pytest.raises(gramloop.GramLoopError, match=r"shape \(10, 768\): images packed into one sequence"),
    ):
        model(patches, image_grid_hw=grids)


def test_which_names_one_of_several_vits() -> None:
    pair = nn.ModuleDict({"student": build("ViTModel")[0], "teacher": build("DeiTModel")[0]}).eval()
    with gramloop.attached(pair, which="teacher", window=WINDOW) as loop:
        assert loop.vit.layout.prefix == 2
        assert loop.vit.blocks[0] is pair["teacher"].layers[0]
    with pytest.raises(gramloop.GramLoopError, match=r"no module 'pupil'; its ViTs are at: student, teacher"):
        gramloop.attach(pair, which="pupil")
    with pytest.raises(gramloop.GramLoopError, match="no ViT found in ModuleList"):
        gramloop.attach(pair, which="student.layers")
    with pytest.raises(
        gramloop.GramLoopError, match="which='student' names a known ViT and blocks= describes"
    ):
        gramloop.attach(pair, which="student", blocks=pair["student"].layers, prefix=1)


def test_a_text_tower_is_no_vit() -> None:
    model, x = build("OwlViTForObjectDetection")
    with gramloop.attached(model, window=WINDOW):
        refined = outputs(model, x)
    with gramloop.attached(model, window=WINDOW, which="model.owlvit.vision_model"):
        assert all(torch.equal(a, b) for a, b in zip(outputs(model, x), refined, strict=True))
