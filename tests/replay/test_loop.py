from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

import gramloop
from golden import load_golden
from golden_hosts import meta, transformers_model
from library_models import images, outputs

WINDOW = (2, 3)


def hidden_states(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(x, output_hidden_states=True).hidden_states


def test_hidden_states_keep_their_number_and_order(vit: nn.Module, x: Tensor) -> None:
    before = hidden_states(vit, x)
    with gramloop.attached(vit, window=WINDOW):
        during = hidden_states(vit, x)
    after = hidden_states(vit, x)
    with gramloop.attached(vit, window=WINDOW):
        again = hidden_states(vit, x)
    assert len(before) == len(during) == len(after) == len(again) == 7
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(during, again, strict=True))
    # Entry i + 1 is block i: ordinary up to the window's last block, refined from there on.
    assert [torch.equal(a, b) for a, b in zip(before, during, strict=True)] == [True] * 4 + [False] * 3


def test_detached_leaves_no_hook(vit: nn.Module) -> None:
    loop = gramloop.attach(vit, window=WINDOW, trace=True, keep=(1, 5))
    loop.detach()
    loop.detach()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vit.modules())


def test_an_error_inside_the_with_block_detaches(vit: nn.Module) -> None:
    with pytest.raises(KeyError), gramloop.attached(vit):
        raise KeyError
    assert not any(module._forward_hooks for module in vit.modules())


@pytest.mark.parametrize(
    "settings",
    [{"replays": 0}, {"gate": "uniform", "strength": 0.0}, {"strength": 0.0}],
    ids=["no replays", "closed uniform gate", "strength 0"],
)
def test_no_replay_is_the_ordinary_forward_to_the_bit(vit: nn.Module, x: Tensor, settings: dict) -> None:
    before = outputs(vit, x)
    with gramloop.attached(vit, window=WINDOW, **settings):
        during = outputs(vit, x)
    assert all(torch.equal(a, b) for a, b in zip(before, during, strict=True))


@pytest.mark.parametrize("window", [(0, 0), (0, 5), (5, 5), (4, 5)])
@pytest.mark.parametrize("update_at", ["end", "final"])
def test_windows_at_either_edge(vit: nn.Module, x: Tensor, window: tuple[int, int], update_at: str) -> None:
    with gramloop.attached(vit, window=window, update_at=update_at, trace=True) as loop:
        refined = outputs(vit, x)
    assert all(t.isfinite().all() for t in refined)
    assert loop.blocks_executed == gramloop.cost(6, window, update_at=update_at).blocks
    if window[1] == 5:  # no suffix: the loop end is the last block
        with gramloop.attached(vit, window=window, update_at=update_at, gate_at="end"):
            assert all(torch.equal(a, b) for a, b in zip(refined, outputs(vit, x), strict=True))


def test_an_image_gets_the_same_bits_alone_and_in_a_batch(vit: nn.Module) -> None:
    x = images(64, batch=3)
    with gramloop.attached(vit, window=WINDOW):
        together = outputs(vit, x)[0]
        alone = torch.cat([outputs(vit, x[i : i + 1])[0] for i in range(3)])
        assert torch.equal(together, outputs(vit, x)[0])
    plain_together, plain_alone = (
        outputs(vit, x)[0],
        torch.cat([outputs(vit, x[i : i + 1])[0] for i in range(3)]),
    )
    assert torch.equal(plain_together, plain_alone), "this host does not promise it"
    assert torch.equal(together, alone)


def test_matched_strength_is_the_mean_gate_of_the_gram_gated_trajectory(vit: nn.Module, x: Tensor) -> None:
    for placement in ({}, {"gate_at": "end"}, {"update_at": "final"}):
        with gramloop.attached(vit, window=WINDOW, replays=3, trace=True, **placement) as loop:
            outputs(vit, x)
            gram = loop.trace
        with gramloop.attached(
            vit, window=WINDOW, replays=3, gate="uniform", strength="matched", trace=True, **placement
        ) as loop:
            outputs(vit, x)
            matched = loop.trace
        assert gram is not None
        assert matched is not None
        for one, expected, gate in zip(matched.mean_gate, gram.mean_gate, matched.gate, strict=True):
            torch.testing.assert_close(one, expected)
            torch.testing.assert_close(gate, expected[:, None, None].expand_as(gate))
        if placement != {"update_at": "final"}:  # where proposals do not depend on what was accepted
            assert not torch.allclose(matched.drift[1], gram.drift[1], rtol=1e-3)


def test_matched_strength_is_that_uniform_strength(vit: nn.Module, x: Tensor) -> None:
    with gramloop.attached(vit, window=WINDOW, replays=1, trace=True) as loop:
        outputs(vit, x)
        gram = loop.trace
    assert gram is not None
    with gramloop.attached(vit, window=WINDOW, replays=1, gate="uniform", strength="matched"):
        matched = outputs(vit, x)[0]
    for image in range(2):
        level = float(gram.mean_gate[0][image])
        with gramloop.attached(vit, window=WINDOW, replays=1, gate="uniform", strength=level):
            torch.testing.assert_close(outputs(vit, x)[0][image], matched[image])


def test_post_gating_drift_is_that_of_the_final_state(vit: nn.Module, x: Tensor) -> None:
    from gramloop.replay.gram import GramAnchor

    ordinary = outputs(vit, x)[0]
    with gramloop.attached(vit, window=WINDOW, trace=True) as loop:
        refined = outputs(vit, x)[0]
    assert loop.blocks_executed == gramloop.cost(6, WINDOW).blocks, "the trace of the method costs no block"
    expected = GramAnchor(ordinary[:, 5:]).drift(refined[:, 5:])
    assert loop.trace is not None
    assert loop.trace.post_drift is not None
    torch.testing.assert_close(loop.trace.post_drift.flatten(1), expected, rtol=1e-4, atol=1e-9)


def test_a_trace_holds_what_was_accepted(vit: nn.Module, x: Tensor) -> None:
    before = hidden_states(vit, x)[4]
    with gramloop.attached(vit, window=WINDOW, replays=1, trace=True) as loop:
        after = hidden_states(vit, x)[4]
    trace = loop.trace
    assert trace is not None
    step = (after - before)[:, 5:].norm(dim=-1).view(2, 4, 4)
    torch.testing.assert_close(trace.displacement[0], step, rtol=1e-4, atol=1e-6)
    assert trace.not_finite[0].tolist() == [0, 0]


def test_no_trace_unless_asked(vit: nn.Module, x: Tensor) -> None:
    with gramloop.attached(vit, window=WINDOW) as loop:
        outputs(vit, x)
    assert loop.trace is None
    assert loop.baseline == {}


@pytest.mark.parametrize("update_at", ["end", "final"])
def test_kept_blocks_are_the_ordinary_pass(vit: nn.Module, x: Tensor, update_at: str) -> None:
    ordinary = hidden_states(vit, x)
    keep = tuple(range(6))
    with gramloop.attached(vit, window=WINDOW, update_at=update_at, keep=keep) as loop:
        hidden_states(vit, x)
    assert loop.blocks_executed == gramloop.cost(6, WINDOW, update_at=update_at).blocks
    for index in keep:
        assert torch.equal(loop.baseline[index], ordinary[index + 1])


def test_kept_blocks_without_a_probe_cost_the_ordinary_suffix(vit: nn.Module, x: Tensor) -> None:
    ordinary = hidden_states(vit, x)
    with gramloop.attached(vit, window=WINDOW, gate="none", keep=(4,)) as loop:
        hidden_states(vit, x)
    assert torch.equal(loop.baseline[4], ordinary[5])
    assert loop.blocks_executed == gramloop.cost(6, WINDOW, gate="none").blocks + 1


def test_kept_blocks_without_a_replay_are_counted(vit: nn.Module, x: Tensor) -> None:
    with (
        gramloop.attached(vit, window=WINDOW, replays=0, keep=(5,)) as loop,
        gramloop.counting(loop.vit.blocks) as counter,
    ):
        hidden_states(vit, x)
    assert counter.blocks == loop.blocks_executed == 6 + 2


def test_an_image_that_is_skipped_goes_on_ordinarily(vit: nn.Module, x: Tensor) -> None:
    ordinary = hidden_states(vit, x)
    never = gramloop.Adaptive("noise", 1e9, 1e9)
    with gramloop.attached(vit, window=WINDOW, gate="uniform", adaptive=never, trace=True) as loop:
        during = hidden_states(vit, x)
    assert loop.blocks_executed == 6
    assert loop.trace is not None
    assert len(loop.trace.gate) == 2
    assert not torch.stack([*loop.trace.gate, loop.trace.post_drift]).any()
    assert all(torch.equal(a, b) for a, b in zip(during, ordinary, strict=True))


def test_several_resolutions_at_once_are_refused() -> None:
    golden = load_golden("backbone_s")
    vit = meta(golden).model
    large, small = golden.values["x"], golden.values["x"][:, :, :32, :48].contiguous()
    with torch.no_grad(), gramloop.attached(vit, window=(3, 4)):
        alone = vit.forward_features(large)
        with pytest.raises(gramloop.GramLoopError, match="a list of 2; a replay takes"):
            vit.forward_features_list([large, small])
        [listed] = vit.forward_features_list([large])
    assert all(torch.equal(listed[key], alone[key]) for key in alone)


def test_a_patch_that_blows_up_keeps_the_ordinary_trajectory(vit: nn.Module, x: Tensor) -> None:
    ordinary = outputs(vit, x)[0]

    class Exploding(nn.Module):
        """Fine in the ordinary pass; not a number when its input has been through it before."""

        calls = 0

        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, *args, **kwargs) -> Tensor:
            self.calls += 1
            out = self.block(*args, **kwargs)
            return out if self.calls == 1 else out.index_fill(0, torch.tensor([1]), math.nan)

    vit.model.layer[3] = Exploding(vit.model.layer[3]).eval()
    with gramloop.attached(vit, window=WINDOW, trace=True) as loop:
        refined = outputs(vit, x)[0]
    assert loop.trace is not None
    assert [count.tolist() for count in loop.trace.not_finite] == [[0, 16], [0, 16]]
    assert torch.equal(refined[1], ordinary[1])
    assert not torch.equal(refined[0], ordinary[0])


def test_bfloat16_autocast_around_the_blocks_leaves_drift_in_float32() -> None:
    golden = load_golden("backbone_s")
    host = transformers_model(golden)
    with torch.no_grad(), gramloop.attached(host.model, window=(3, 4), trace=True) as loop:
        with torch.autocast("cpu", torch.bfloat16):
            tokens = host.taps(golden.values["x"], [7])[7]
        under_autocast = loop.trace
    assert under_autocast is not None
    assert tokens.dtype == torch.float32
    assert all(
        drift.dtype == gate.dtype == torch.float32
        for drift, gate in zip(under_autocast.drift, under_autocast.gate, strict=True)
    )
    # Blocks round to 8 bits, so drift moves by some percent; a Gram in bfloat16 would err by 1e-6 and more
    # on entries that should be equal, which a second identical pass would show:
    unmoved = {"window": (3, 4), "replays": 1, "gate": "uniform", "strength": 0.0}
    with (
        torch.no_grad(),
        gramloop.attached(host.model, trace=True, **unmoved) as loop,
        torch.autocast("cpu", torch.bfloat16),
    ):
        host.taps(golden.values["x"], [7])
    assert loop.trace is not None
    assert loop.trace.post_drift is not None
    assert loop.trace.post_drift.max() == 0


def test_bfloat16_weights(vit: nn.Module, x: Tensor) -> None:
    low = vit.to(torch.bfloat16)
    with gramloop.attached(low, window=WINDOW, trace=True) as loop:
        refined = outputs(low, x.bfloat16())[0]
    assert refined.dtype == torch.bfloat16
    assert loop.trace is not None
    assert loop.trace.drift[0].dtype == torch.float32


def test_gradients_reach_the_input_through_the_replay(vit: nn.Module, x: Tensor) -> None:
    x = x.requires_grad_()
    with gramloop.attached(vit, window=WINDOW):
        vit(x).last_hidden_state.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_copy_carries_its_own_replay(vit: nn.Module, x: Tensor) -> None:
    plain = outputs(vit, x)
    loop = gramloop.attach(vit, window=WINDOW)
    twin = copy.deepcopy(vit)
    refined = outputs(vit, x)
    loop.detach()
    assert torch.equal(outputs(twin, x)[0], refined[0])
    assert torch.equal(outputs(vit, x)[0], plain[0])


def test_configuration_travels(vit: nn.Module) -> None:
    config = gramloop.ReplayConfig(window=(1, 2), replays=3)
    assert pickle.loads(pickle.dumps(config)) == config
    with gramloop.attached(vit, config, replays=1) as loop:
        assert loop.config == gramloop.ReplayConfig(window=(1, 2), replays=1)


def test_a_mask_may_be_a_map_or_a_row(vit: nn.Module, x: Tensor) -> None:
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :3, :2] = True
    results = []
    with gramloop.attached(vit, window=WINDOW, trace=True) as loop:
        for given in (mask, mask.flatten(1)):
            loop.set_valid(given)
            results.append(outputs(vit, x)[0])
            assert loop.trace is not None
            assert (loop.trace.gate[0][~mask] == 0).all()
            assert (loop.trace.gate[0][mask] > 0).all()
    assert torch.equal(*results)


def test_padding_does_not_move(vit: nn.Module, x: Tensor) -> None:
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :3] = True
    before = hidden_states(vit, x)[4]
    for gate in ("gram", "none"):
        with gramloop.attached(vit, window=WINDOW, gate=gate) as loop:
            loop.set_valid(mask)
            after = hidden_states(vit, x)[4]
        moved = (after != before).any(-1)[:, 5:].view(2, 4, 4)
        assert torch.equal(moved, mask)
