"""Hooks that others put on blocks, blocks that work in place, and blocks that are given different arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gramloop
from library_models import outputs

WINDOW = (2, 3)


def steered(block: nn.Module, args: tuple, output: Tensor) -> Tensor:
    return output * 1.5


def prompted(block: nn.Module, args: tuple) -> tuple:
    return (args[0] * 1.5, *args[1:])


def put(block: nn.Module, before: bool, first: bool = False):
    if before:
        return block.register_forward_pre_hook(prompted, prepend=first)
    return block.register_forward_hook(steered, prepend=first)


@pytest.mark.parametrize("first", [False, True], ids=["appended", "prepended"])
@pytest.mark.parametrize("late", [False, True], ids=["before attach", "after attach"])
@pytest.mark.parametrize(
    ("index", "before"),
    [(1, False), (2, True), (2, False), (3, True), (3, False), (4, True), (4, False), (5, False)],
)
def test_a_hook_that_changes_a_state_is_refused_by_its_name(
    vit: nn.Module, x: Tensor, index: int, before: bool, late: bool, first: bool
) -> None:
    block = vit.model.layer[index]
    if not late:
        put(block, before, first)
    with gramloop.attached(vit, window=WINDOW):
        if late:
            put(block, before, first)
        name = "prompted" if before else "steered"
        with pytest.raises(
            gramloop.GramLoopError, match=rf"the hook {name} changes what (block \d|the last block)"
        ):
            outputs(vit, x)


@pytest.mark.parametrize("late", [False, True])
def test_a_hook_before_the_first_block_of_a_window_that_begins_there(
    vit: nn.Module, x: Tensor, late: bool
) -> None:
    block = vit.model.layer[0]
    if not late:
        put(block, before=True, first=True)
    with gramloop.attached(vit, window=(0, 1)):
        outputs(vit, x) if late else None
        if late:
            put(block, before=True, first=True)
        with pytest.raises(gramloop.GramLoopError, match="the hook prompted changes"):
            outputs(vit, x)


@pytest.mark.parametrize("settings", [{}, {"update_at": "final"}, {"gate_at": "end"}], ids=str)
def test_hooks_that_only_look_change_nothing(vit: nn.Module, x: Tensor, settings: dict) -> None:
    with gramloop.attached(vit, window=WINDOW, **settings):
        expected = outputs(vit, x)[0]
    seen: list[int] = []

    def look(index: int) -> Callable[..., None]:
        return lambda *_: seen.append(index)

    for index, block in enumerate(vit.model.layer):
        block.register_forward_hook(look(index), prepend=True)
        block.register_forward_pre_hook(look(index))
    with gramloop.attached(vit, window=WINDOW, **settings):
        assert torch.equal(outputs(vit, x)[0], expected)
    assert seen == [index for index in range(6) for _ in (0, 1)]  # and see no replay


@pytest.mark.parametrize("index", [0, 5])
def test_a_hook_where_nothing_is_replayed_is_the_hosts_own(vit: nn.Module, x: Tensor, index: int) -> None:
    """Before the window and, with gate_at="end", after it, replays and probes run no block."""
    with gramloop.attached(vit, window=WINDOW, gate_at="end") as loop:
        plain = outputs(vit, x)[0]
        put(vit.model.layer[index], before=False)
        changed = outputs(vit, x)[0]
        assert not torch.equal(changed, plain)
        assert loop.blocks_executed == 6 + 2 * 2


class Block(nn.Module):
    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(8, 8), kind

    def forward(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        step = self.linear(x).tanh() * scale
        if self.kind == "returned":
            return x.add_(step)
        if self.kind == "written":
            out = x + step
            x.zero_()
            return out
        return x + step


class Chain(nn.Module):
    """Tokens in, tokens out; ``kinds`` by block, and what each is given beside the state."""

    def __init__(
        self, kinds: tuple[str, ...] = ("",) * 4, scales: Callable[[int], dict] = lambda index: {}
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.scales = nn.ModuleList(Block(kind) for kind in kinds), scales

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            x = block(x, **self.scales(index))
        return x


def attached(model: Chain, **settings):
    return gramloop.attached(model.eval(), window=(1, 1), blocks=model.blocks, prefix=1, **settings)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("settings", [{}, {"update_at": "final"}, {"gate": "none"}], ids=str)
@pytest.mark.parametrize("kind", ["returned", "written"])
def test_blocks_that_work_in_place_are_refused(kind: str, settings: dict, guard: Callable) -> None:
    model = Chain(("", kind, "", ""))
    refused = pytest.raises(gramloop.GramLoopError, match="Block works in place")
    with attached(model, **settings), guard(), refused:
        model(torch.randn(1, 6, 8))


def test_a_kept_state_that_a_later_block_wrote_into_is_refused() -> None:
    model = Chain(("", "returned", "", "")).eval()
    settings = {"window": (2, 2), "gate_at": "end", "keep": (0,), "blocks": model.blocks, "prefix": 1}
    with gramloop.attached(model, **settings) as loop, torch.no_grad():
        model(torch.randn(1, 6, 8))
        with pytest.raises(
            gramloop.GramLoopError, match="kept output of block 0 of Chain was written into by a later"
        ):
            loop.baseline  # noqa: B018


@pytest.mark.parametrize(
    "scales",
    [
        lambda index: {"scale": 1.0 + index},
        lambda index: {"scale": torch.tensor(1.0 + index)},
        lambda index: {"scale": 2.0} if index == 2 else {},
    ],
    ids=["numbers", "tensors", "one without"],
)
def test_blocks_that_are_given_different_arguments_are_refused(scales: Callable[[int], dict]) -> None:
    model = Chain(scales=scales)
    with (
        attached(model),
        pytest.raises(gramloop.GramLoopError, match="block 2 of Chain is given another scale than"),
    ):
        outputs(model, torch.randn(1, 6, 8))


def test_equal_arguments_made_anew_for_every_block_are_the_same() -> None:
    tokens = torch.randn(1, 6, 8)
    anew = Chain(scales=lambda index: {"scale": torch.full((8,), 0.5)})
    once = Chain(scales=lambda index: {"scale": 0.5})
    with attached(anew), attached(once):
        torch.testing.assert_close(outputs(anew, tokens)[0], outputs(once, tokens)[0], rtol=0, atol=0)


def test_a_window_among_blocks_that_are_given_the_same_is_replayed() -> None:
    model = Chain(scales=lambda index: {"scale": 1.0 if index < 2 else 0.5})
    with gramloop.attached(model.eval(), window=(0, 1), gate_at="end", blocks=model.blocks, prefix=1) as loop:
        outputs(model, torch.randn(1, 6, 8))
        assert loop.blocks_executed == 4 + 2 * 2


def test_a_host_that_changes_states_between_blocks_is_refused() -> None:
    class Between(Chain):
        def forward(self, x: Tensor) -> Tensor:
            for index, block in enumerate(self.blocks):
                x = block(x) + (index == 1)
            return x

    model = Between()
    with (
        attached(model),
        pytest.raises(gramloop.GramLoopError, match="the model changes what block 1 of Between"),
    ):
        outputs(model, torch.randn(1, 6, 8))
