"""Every number of a scan against ``gramloop.attach``, window by window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gramloop
from gramloop.data.scenes.drawing import scene
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.models.tiny import load_tiny
from gramloop.shifts.corruptions import corrupt
from gramloop.tasks.images import to_tensor
from gramloop.tune.scan.scanning import Scan, scan_windows
from gramloop.tune.scan.sweep import all_windows, naive_blocks
from library_models import build

# States are float64 here, so that batching moves nothing that can be seen; drift itself is computed in float32
# (24 bits) over a few hundred terms, and its median and ratios inherit that.
CLOSE = {"rtol": 2e-5, "atol": 1e-9}

Case = tuple[nn.Module, Callable[[], Any]]  # a model, and a forward of one image


@cache
def random_dinov3() -> Case:
    model, x = build("DINOv3ViTModel")
    model.double()
    return model, lambda: model(x[:1].double())


@cache
def embedded() -> Case:
    backbone = load_tiny().backbone.double()
    pixels = to_tensor(scene(0, 64, "scan").image).double()
    return backbone, lambda: backbone(pixels, [11])


CASES = {"DINOv3": (random_dinov3, 4), "tiny": (embedded, 2)}


@cache
def scanned(name: str) -> Scan:
    case, max_length = CASES[name]
    model, forward = case()
    return scan_windows(model, [forward], max_length=max_length)


def attached_states(case: Case, window: tuple[int, int], replays: int) -> tuple[Tensor, gramloop.Trace]:
    """The state that an ungated replay leaves at the window's end, and the trace, from the public interface."""
    model, forward = case
    settings: Any = {"window": window, "replays": replays, "gate": "none", "trace": True}
    with gramloop.attached(model, **settings) as loop, torch.no_grad():
        seen: list[Tensor] = []
        # not prepended: this hook comes after the replay's and sees what the host goes on with
        handle = loop.vit.blocks[window[1]].register_forward_hook(lambda b, a, out: seen.append(out))
        forward()
        handle.remove()
    trace = loop.trace
    assert trace is not None
    return seen[0][0, loop.vit.prefix :], trace  # (N, C)


def middle(values: Tensor) -> float:
    return float(np.median(values.double().numpy()))


@pytest.mark.parametrize("name", CASES)
def test_every_statistic_is_what_an_attached_replay_gives(name: str) -> None:
    case, found = CASES[name][0](), scanned(name)
    for place, window in enumerate(found.windows):
        Z, _ = attached_states(case, window, 0)
        P1, _ = attached_states(case, window, 1)
        P2, _ = attached_states(case, window, 2)
        _, trace = attached_states(case, window, 3)
        drift = [middle(each.flatten()) for each in trace.drift]
        first, second = P1 - Z, P2 - P1
        step = middle(trace.displacement[0].flatten().double() / Z.norm(dim=1))
        expected = {
            "drift_mean": float(trace.drift[0].double().mean()),
            "drift_median": drift[0],
            "step": step,
            "amplification": drift[0] ** 0.5 / step,
            "growth_2": drift[1] / drift[0],
            "growth_3": drift[2] / drift[0],
            "cosine": middle((first * second).sum(1) / first.norm(dim=1) / second.norm(dim=1)),
            "step_ratio": middle(second.norm(dim=1) / first.norm(dim=1)),
        }
        measured = {key: values[0, 0, place] for key, values in found.values.items()}
        assert measured.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(measured[key], value, **CLOSE, err_msg=f"{key} of {window}")


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_those_that_ran(name: str) -> None:
    case, max_length = CASES[name]
    model, forward = case()
    with gramloop.attached(model, replays=0) as loop:
        blocks = loop.vit.blocks
    ran = 0

    def counted(forward: Any) -> Any:
        def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal ran
            ran += len(hidden)
            return forward(hidden, *args, **kwargs)

        return run

    for block in blocks:
        vars(block)["forward"] = counted(block.forward)
    try:
        found = scan_windows(model, [forward], max_length=max_length, replays=2)
    finally:
        for block in blocks:
            del vars(block)["forward"]
    depth = len(blocks)  # the ordinary pass, and per replay every window from its start on
    assert found.blocks == ran == depth + 2 * sum(depth - start for start, _ in found.windows)


def test_the_naive_way_costs_what_it_is_said_to() -> None:
    model, forward = random_dinov3()
    windows = all_windows(6, 3)
    executed = 0
    for window in windows:
        with gramloop.attached(model, window=window, replays=2, gate="none", trace=True) as loop:
            with gramloop.counting(loop.vit.blocks) as counter, torch.no_grad():
                forward()
            executed += counter.blocks
    assert naive_blocks(6, windows, 2) == executed


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_chunks_change_nothing(chunk: int) -> None:
    model, forward = random_dinov3()
    again, whole = scan_windows(model, [forward], chunk=chunk), scanned("DINOv3")
    assert again.blocks == whole.blocks
    for name, values in whole.values.items():
        np.testing.assert_allclose(again.values[name], values, **CLOSE)


def test_images_do_not_know_of_each_other() -> None:
    model, x = build("DINOv3ViTModel")
    together = scan_windows(model, [x[:1], x[1:]])
    for index in range(2):
        alone = scan_windows(model, [x[index : index + 1]])
        for name, values in alone.values.items():
            np.testing.assert_array_equal(together.values[name][:, index], values[:, 0])


def test_a_windows_cost_is_that_of_one_gated_replay() -> None:
    found = scanned("DINOv3")
    assert [one.blocks for one in found.costs()] == [gramloop.cost(6, w, 1).blocks for w in found.windows]


@pytest.mark.parametrize("depth", [1, 5, 12])
@pytest.mark.parametrize("longest", [1, 3, 20])
def test_all_windows_are_all(depth: int, longest: int) -> None:
    expected = {(s, e) for s in range(depth) for e in range(depth) if 0 <= e - s < longest}
    windows = all_windows(depth, longest)
    assert set(windows) == expected
    assert len(windows) == len(expected)


@pytest.mark.parametrize("name", ["Dinov2WithRegistersModel", "timm-vit", "own-head", "SiglipVisionModel"])
def test_any_host_that_attach_understands(name: str) -> None:
    model, x = build(name)
    found = scan_windows(model, [x[:1]], max_length=1, replays=2)
    with gramloop.attached(model, window=(2, 2), replays=1, gate="none", trace=True) as loop:
        with torch.no_grad():
            model(x[:1])
        drift = loop.trace.drift[0]
    # float32 states: a batch of trajectories and a single one round differently, about 1e-6 of a step
    place = found.windows.index((2, 2))
    np.testing.assert_allclose(found.values["drift_mean"][0, 0, place], drift.double().mean(), rtol=1e-3)


def test_a_scan_leaves_no_trace_in_the_model() -> None:
    model, x = build("DINOv3ViTModel")
    before = model(x).last_hidden_state
    scan_windows(model, [x[:1]], replays=2)
    with pytest.raises(GramLoopError):
        scan_windows(model, [x])
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(model(x).last_hidden_state, before)


def test_pictures_are_seen_clean_and_shifted() -> None:
    model, _ = build("DINOv3ViTModel")
    seen: list[np.ndarray] = []

    def prepare(pixels: np.ndarray) -> Tensor:
        seen.append(pixels)
        return to_tensor(pixels)

    pictures = [scene(index, 64, "scan").image for index in range(2)]
    shifts = [Condition("contrast", 5), Condition("gaussian_noise", 1)]
    found = scan_windows(model, pictures, preprocess=prepare, shifts=shifts, replays=2, max_length=1)
    assert found.conditions == ("clean", "contrast/5", "gaussian_noise/1")
    assert found.images == ("0", "1")
    assert all(values.shape == (3, 2, 6) for values in found.values.values())
    assert np.array_equal(seen[0], pictures[0])
    assert np.array_equal(seen[1], pictures[1])
    assert np.array_equal(seen[3], corrupt(pictures[1], "contrast", 5, np.random.default_rng()))
    again = scan_windows(model, {"clean": [to_tensor(one) for one in pictures]}, replays=2, max_length=1)
    assert np.array_equal(again.values["step"][0], found.values["step"][0])


def made(values: Any, conditions: tuple[str, ...] = ("clean", "fog/3")) -> Scan:
    array = np.asarray(values, dtype=np.float64)  # (conditions, images, windows)
    windows = tuple((start, start) for start in range(array.shape[2]))
    images = tuple(str(index) for index in range(array.shape[1]))
    return Scan("ViT", array.shape[2], 2, windows, conditions, images, {"step": array}, 1, 1)


def test_shifted_against_clean() -> None:
    found = made([[[1.0, 4.0], [2.0, 8.0], [4.0, 8.0]], [[2.0, 2.0], [4.0, 4.0], [12.0, np.nan]]])
    assert found.typical("step").tolist() == [3.0, 4.0]
    assert found.shifted_to_clean("step").tolist() == [2.0, 0.5]
    # 2, 4, 12 against 1, 2, 4: pairs above 1 + 2 + 3, two ties
    assert found.separation("step")[0] == pytest.approx((6 + 2 / 2) / 9)


def test_what_cannot_be_scanned() -> None:
    model, x = build("DINOv3ViTModel")
    one = x[:1]
    for kwargs, sentence in [
        ({"max_length": 0}, "max_length is 0"),
        ({"replays": 1}, "replays is 1"),
        ({"chunk": 0}, "chunk is 0"),
    ]:
        with pytest.raises(GramLoopError, match=sentence):
            scan_windows(model, [one], **kwargs)
    for images, sentence in [
        ([], "at least one"),
        ({"clean": [one], "fog": []}, "the same images"),
        ([x], "showed 2 images"),
        ([lambda: None], "0 times"),
        ([lambda: (model(one), model(one))], "2 times"),
        ([3], "not int"),
    ]:
        with pytest.raises(GramLoopError, match=sentence):
            scan_windows(model, images)
    with pytest.raises(GramLoopError, match="training mode"):
        scan_windows(build("DINOv3ViTModel")[0].train(), [one])
    with gramloop.attached(model), pytest.raises(GramLoopError, match="attached already"):
        scan_windows(model, [one])
    with pytest.raises(GramLoopError, match="twice"):
        scan_windows(model, [scene(0, 64).image], preprocess=to_tensor, shifts=[Condition("fog", 3)] * 2)
    with pytest.raises(GramLoopError, match="severity 9 of fog"):
        scan_windows(model, [scene(0, 64).image], preprocess=to_tensor, shifts=[Condition("fog", 9)])
    with pytest.raises(GramLoopError, match="needs the condition 'clean'"):
        made([[[1.0, 2.0]]], ("given",)).shifted_to_clean("step")
    with pytest.raises(GramLoopError, match="no 'drift'"):
        made([[[1.0, 2.0]]], ("given",)).typical("drift")
