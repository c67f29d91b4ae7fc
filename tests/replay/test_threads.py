"""Threads that call one attached model get what each would get alone, to the bit."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from threading import Barrier, Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gramloop import Adaptive, GramLoopError, Loop, ReplayConfig, Trace, attached, counting
from library_models import build, images

THREADS = 4
DEPTH = 6


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * random(6, 6, seed=seed))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh((x + x.mean(1, keepdim=True)) @ self.weight)


class SmallViT(nn.Module):
    """A patch embedding, one class token and six blocks; returns what every block put out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 6, 4, 4)
        self.embed.load_state_dict({"weight": random(6, 3, 4, 4, seed=7), "bias": random(6, seed=8)})
        self.blocks = nn.ModuleList(Block(index) for index in range(DEPTH))
        self.norm = nn.LayerNorm(6)
        self.eval().requires_grad_(False)

    def forward(self, image: Tensor) -> list[Tensor]:
        patches = self.embed(image).flatten(2).mT
        x = torch.cat([patches.mean(1, keepdim=True), patches], dim=1)
        return [x := block(x) for block in self.blocks]


# inputs that differ in size and batch, so that no forward can pass for another
IMAGES = [
    (1.0 + 0.5 * index) * random(1 + index % 2, 3, 8 + 4 * (index % 3), 12, seed=index) for index in range(6)
]


def loop_on(vit: SmallViT, config: ReplayConfig, **options: Any) -> Any:
    return attached(vit, config, blocks=list(vit.blocks), norm=vit.norm, prefix=1, **options)


def seen_in(vit: SmallViT, loop: Loop, image: Tensor, masked: bool) -> list[Any]:
    """Everything that one forward shows: outputs, trace, kept blocks, blocks executed."""
    if masked:
        batch, _, height, width = image.shape
        loop.set_valid(random(batch, height // 4, width // 4, seed=int(height)) > -0.5)
    return [vit(image), *left_by(loop)]


def left_by(loop: Loop) -> list[Any]:
    trace = loop.trace and [getattr(loop.trace, field.name) for field in fields(Trace)]
    return [trace, sorted(loop.baseline.items()), loop.blocks_executed]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    return bool(a == b)


def in_threads(work: Callable[[int], int]) -> int:
    """The sum of what ``work`` returns in each of the threads, which begin together."""
    barrier = Barrier(THREADS)

    def run(index: int) -> int:
        barrier.wait()
        with torch.no_grad():
            return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(run, range(THREADS)))


def middle(vit: SmallViT, signal: Any) -> Adaptive:
    """A rule that replays about half of the images."""
    values = []
    with loop_on(vit, ReplayConfig((1, 2), adaptive=Adaptive(signal, 0.0, 1.0)), trace=True) as loop:
        for image in IMAGES:
            vit(image)
            values.append(loop.trace.signal.min().item())
    threshold = sorted(values)[len(values) // 2]
    return Adaptive(signal, threshold, threshold)


GATES: list[dict[str, Any]] = [
    {"gate": "gram"},
    {"gate": "uniform", "strength": 0.3},
    {"gate": "uniform", "strength": "matched"},
    {"gate": "none"},
]
PLACEMENTS: list[dict[str, Any]] = [
    {},
    {"gate_at": "end"},
    {"update_at": "final"},
    {"update_at": "final", "gate_at": 3},
]


# masks, kept blocks, traces
OPTIONS = [*itertools.product((False, True), ((), (0, 2, 4, 5)), (False, True))]


def wrong_forwards(settings: dict[str, Any], signal: str | None, forwards: int, options: list[Any]) -> int:
    """Forwards that show something else than in one thread alone."""
    vit, wrong = SmallViT(), 0
    rule = None if signal is None else middle(vit, signal)
    config = ReplayConfig((1, 2), adaptive=rule, **settings)
    for masked, keep, trace in options:
        with loop_on(vit, config, keep=keep, trace=trace) as loop:
            alone = [seen_in(vit, loop, image, masked) for image in IMAGES]

            def work(thread: int, loop: Loop = loop, masked: bool = masked, alone: list[Any] = alone) -> int:
                order = [(thread + turn) % len(IMAGES) for turn in range(forwards)]
                return sum(not same(seen_in(vit, loop, IMAGES[i], masked), alone[i]) for i in order)

            wrong += in_threads(work)
    return wrong


def cases() -> Iterator[Any]:
    for placement, gate in itertools.product(PLACEMENTS, GATES):
        signals = [None] if "update_at" in placement else [None, "noise"]
        for signal in signals:
            settings = {**placement, **gate}
            yield pytest.param(settings, signal, id=" ".join([*map(str, settings.values()), signal or "all"]))


@pytest.mark.parametrize(("settings", "signal"), [*cases()])
def test_threads_on_one_attached_model(settings: dict[str, Any], signal: str | None) -> None:
    with torch.no_grad():
        assert wrong_forwards(settings, signal, 3, [OPTIONS[0], OPTIONS[-1]]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "signal"), [*cases()])
def test_many_forwards_of_threads_on_one_attached_model(settings: dict[str, Any], signal: str | None) -> None:
    with torch.no_grad():
        assert wrong_forwards(settings, signal, 200, OPTIONS) == 0


@pytest.mark.parametrize("settings", [{}, {"update_at": "final"}])
def test_threads_on_a_library_model(settings: dict[str, Any]) -> None:
    vit = build("DINOv3ViTModel")[0]
    inputs = [images(side, batch) for side, batch in ((64, 2), (48, 1), (80, 1))]
    with torch.no_grad(), attached(vit, window=(2, 3), trace=True, **settings) as loop:

        def seen(x: Tensor) -> list[Any]:
            return [vit(x).last_hidden_state, *left_by(loop)]

        alone = [seen(x) for x in inputs]

        def work(thread: int) -> int:
            order = [(thread + turn) % 3 for turn in range(6)]
            return sum(not same(seen(inputs[i]), alone[i]) for i in order)

        assert in_threads(work) == 0


# what each thread runs beside the others: nothing, or a replay of its own
OWN = [
    None,
    ReplayConfig((1, 2)),
    ReplayConfig((2, 4), update_at="final"),
    ReplayConfig((1, 2), gate="uniform", strength=0.3),
]


def test_each_thread_has_its_own_replay() -> None:
    vit = SmallViT()

    def run(config: ReplayConfig | None, image: Tensor) -> Any:
        if config is None:
            return vit(image)
        with loop_on(vit, config, keep=(0, 2, 5), trace=True, this_thread=True) as loop:
            return seen_in(vit, loop, image, masked=image.shape[2] > 8)

    with torch.no_grad():
        alone = [[run(config, image) for image in IMAGES] for config in OWN]

    def work(thread: int) -> int:
        turns = [(thread + turn) % len(OWN) for turn in range(60)]
        return sum(
            not same(run(OWN[i], IMAGES[turn % 6]), alone[i][turn % 6]) for turn, i in enumerate(turns)
        )

    assert in_threads(work) == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vit.modules())


def test_a_replay_for_one_thread_stands_beside_those_of_others_only() -> None:
    vit = SmallViT()
    with ThreadPoolExecutor(1) as pool:
        with loop_on(vit, OWN[1], this_thread=True):
            for this_thread in (False, True):
                with pytest.raises(GramLoopError, match="attached already"):
                    loop_on(vit, OWN[3], this_thread=this_thread)
            with pytest.raises(GramLoopError, match="attached already"):
                pool.submit(loop_on, vit, OWN[3]).result()
            other = pool.submit(loop_on, vit, OWN[3], this_thread=True).result()
        assert not same(pool.submit(vit, IMAGES[0]).result(), vit(IMAGES[0]))
        with pytest.raises(GramLoopError, match="attached already"):
            loop_on(vit, OWN[3])
        twin = copy.deepcopy(vit)
        assert same(twin(IMAGES[0]), vit(IMAGES[0]))
        with loop_on(twin, OWN[3]):
            assert same(twin(IMAGES[0]), pool.submit(vit, IMAGES[0]).result())
        other.detach()


def test_a_forward_that_is_under_way_is_not_disturbed() -> None:
    """Another thread attaches and detaches for itself all the while."""
    vit, done = SmallViT(), Event()
    ordinary = [vit(image) for image in IMAGES]

    def attach_and_detach() -> None:
        while not done.is_set():
            loop_on(vit, OWN[1], keep=range(DEPTH), this_thread=True).detach()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(attach_and_detach)
        wrong = sum(not same(vit(IMAGES[turn % 6]), ordinary[turn % 6]) for turn in range(300))
        done.set()
        other.result()
    assert wrong == 0


@pytest.mark.parametrize("settings", [{"gate": "uniform", "strength": 0.3}, {"update_at": "final"}])
def test_threads_on_one_compiled_model(settings: dict[str, Any]) -> None:
    vit, graphs, image = SmallViT(), [], IMAGES[0]

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    def masked(index: int) -> Tensor | None:
        return None if index == 0 else random(1, 6, seed=index) > -0.5

    with torch.no_grad(), loop_on(vit, ReplayConfig((1, 2), **settings), trace=True, keep=(5,)) as loop:
        torch._dynamo.reset()
        compiled = torch.compile(vit, fullgraph=True, backend=backend)

        def seen(model: Any, index: int) -> list[Any]:
            loop.set_valid(masked(index))
            return [model(image), *left_by(loop)]

        alone = [seen(vit, index) for index in range(THREADS)]
        seen(compiled, 0), seen(compiled, 1)

        def work(thread: int) -> int:
            order = [(thread + turn) % THREADS for turn in range(8)]
            return sum(not same(seen(compiled, i), alone[i]) for i in order)

        assert in_threads(work) == 0
    assert graphs


def test_counting_in_threads() -> None:
    vit = SmallViT()

    def work(thread: int) -> int:
        for turn in range(20):
            with counting(vit.blocks):
                vit(IMAGES[turn % 6])
        return 20

    with counting(vit.blocks) as counter:
        forwards = in_threads(work)
    assert counter.blocks == DEPTH * forwards
    assert not any("forward" in vars(block) for block in vit.blocks)
