"""Whether a device computes what it should: replays and heads against float64 on the CPU, repeated and compiled forwards."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.depther import Depther, DptDepthHead, DptShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.mask2former import Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.models.tiny import load_tiny
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.gram import GramAnchor, gram_gate
from gramloop.util.device import available_devices, deterministic_algorithms

EXACT = 16.0  # digits of what is equal to the bit
VARIANTS: dict[str, dict[str, Any]] = {
    "Gram gate, as published": {},
    "gate at the window's end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant gate": {"gate": "uniform", "strength": 0.3},
    "matched constant gate": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "adaptive by noise": {"adaptive": Adaptive("noise", 0.0, 1.0)},
}
# decimal digits that a CPU reaches with one to spare; lengths of patches are float64 but on MPS, which has none
_DRIFT, _DRIFT_MPS = 5.5, 4.5
_PATCHES = {True: 4.5, False: 0.8}  # in float32, and with blocks in bfloat16
# sines of pixels in the detector's queries amplify rounding
_HEAD, _DETECTOR = {True: 4.0, False: 0.5}, {True: 3.0, False: 0.0}
_SHAPE = BackboneShape(4, 64, head_dim=16, hidden=128, registers=2)
_PACKAGES = ("gramloop", "torch", "transformers", "safetensors", "numpy", "opencv-python-headless", "pillow")
_Run = Callable[
    [], tuple[bool | None, str, float | None, float | None]
]  # the fields of a case after its name


def _detector() -> nn.Module:
    config = PlainDetrConfig(
        channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
        decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
    )  # fmt: skip
    return WindowedDetector(Backbone(_SHAPE), PlainDetr(config))


# heads in small, with random weights
HEADS: dict[str, Callable[[], nn.Module]] = {
    "Mask2Former": lambda: Mask2FormerSegmentor(
        Backbone(_SHAPE), Mask2FormerShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    ),
    "Plain-DETR": _detector,
    "PMT": lambda: PMT(
        Backbone(_SHAPE), PMTHead(PMTShape(64, 16, queries=6, classes=5, hidden=64, layers=2))
    ),
    "DPT depth": lambda: Depther(Backbone(_SHAPE), DptDepthHead(DptShape(64, 32, 16, 8, 16), (0, 1, 2, 3))),
}


@dataclass(frozen=True)
class Case:
    """One comparison. ``passed`` is None where it could not be tried; ``digits`` and ``needed`` are decimal digits."""

    group: str
    name: str
    passed: bool | None
    note: str
    digits: float | None = None
    needed: float | None = None


@dataclass(frozen=True)
class CheckResult:
    """A machine, and the comparisons made on it."""

    machine: dict[str, Any]
    precision: str
    cases: tuple[Case, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """The comparisons that do not agree."""
        return tuple(case for case in self.cases if case.passed is False)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        where = f"{self.machine['device']} in {self.precision}"
        judged = sum(case.passed is not None for case in self.cases)
        if not self.failed:
            return f"GramLoop computes on {where} what it should: {judged} of {judged} checks agree."
        names = ", ".join(f"{case.group}: {case.name}" for case in self.failed[:3])
        return (
            f"{len(self.failed)} of {judged} checks on {where} do not agree ({names}): do not trust numbers of this "
            "machine, and report what gramloop check --json prints."
        )

    def as_json(self) -> dict[str, Any]:
        """The result as plain values."""
        return {**asdict(self), "passed": not self.failed, "verdict": self.verdict}


def check_machine(
    device: torch.device | str = "cpu",
    autocast: bool = False,
    dtype: str = "float32",
    on_case: Callable[[Case], None] = lambda case: None,
) -> CheckResult:
    """Run every check on a device.

    Args:
        device: such as ``cuda:1``.
        autocast: run the backbone's blocks under bfloat16 autocast, as GPUs run the released models.
        dtype: of the backbone's weights, "float32" or "bfloat16".
        on_case: is called with each case when it is done.
    """
    if dtype not in ("float32", "bfloat16") or (autocast and dtype != "float32"):
        raise GramLoopError(
            "dtype is float32 or bfloat16, and autocast is for float32: leave out one of them"
        )
    words = "bfloat16 autocast" if autocast else "float32" if dtype == "float32" else "bfloat16 weights"
    cases, device = [], torch.device(device)
    with _no_tf32(), torch.no_grad():
        for group, name, run in _cases(device, words):
            try:
                case = Case(group, name, *run())
            except Exception as error:  # whatever a kernel, a driver or a compiler raises
                first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
                kind = "" if isinstance(error, GramLoopError) else f"{type(error).__name__}: "
                case = Case(group, name, False, f"{kind}{first}"[:300])
            cases.append(case)
            on_case(case)
    return CheckResult(describe_machine(device), words, tuple(cases))


def _cases(device: torch.device, words: str) -> Iterator[tuple[str, str, _Run]]:
    """Group, name and function of every check."""
    exact, autocast = words == "float32", words == "bfloat16 autocast"

    def settled(model: Any) -> Any:
        """A model on the device, its backbone in the precision."""
        backbone = model.to(device).backbone
        backbone.autocast_on = (device.type,) if autocast else ()
        if words == "bfloat16 weights":
            backbone.model.to(torch.bfloat16)
            backbone.norm.float()  # as in loaded models
        return model

    def drift(patches: Tensor, gated: bool) -> tuple[bool, str, float, float]:
        anchor, proposal = patches.float(), (patches + 0.01 * patches.roll(1, 1)).float()
        units = [each.double() / each.double().norm(dim=-1, keepdim=True) for each in (anchor, proposal)]
        before, after = (each @ each.transpose(1, 2) for each in units)
        expected = torch.square(after - before).mean(-1)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):  # float32 there, too
            found = GramAnchor(anchor.to(device)).drift(proposal.to(device))
        if gated:
            expected = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
            found = gram_gate(found, ReplayConfig.eps)
        return _compared(found, expected, _DRIFT_MPS if device.type == "mps" else _DRIFT)

    for patches, channels in ((196, 384), (1200, 64)):  # few and many for their channels
        drawn = torch.randn(1, patches, channels, generator=torch.Generator().manual_seed(0)).double()
        for what in ("drift", "gate"):
            name = f"{what} of {patches} patches of {channels} channels"
            yield "drift", name, partial(drift, drawn, what == "gate")

    def forward(
        build: Callable[[], Any], replay: ReplayConfig, needed: float
    ) -> tuple[bool, str, float, float]:
        model = build()
        truth, here = deepcopy(model).double(), settled(model)
        sides = (96, 96) if isinstance(model, WindowedDetector) else (64, 96)
        pixels = torch.randn(1, 3, *sides, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with attached(here.backbone.model, replay), attached(truth.backbone.model, replay):
            found, expected = here(pixels.float().to(device)), truth(pixels)
        return _compared(found, expected, needed)

    for name, settings in VARIANTS.items():
        replay = ReplayConfig(window=(4, 5), **settings)
        yield "placement", name, partial(forward, _Tiny, replay, _PATCHES[exact])
    for name, build in HEADS.items():
        needed = (_DETECTOR if name == "Plain-DETR" else _HEAD)[exact]
        yield "head", name, partial(forward, partial(_random, build), ReplayConfig(window=(1, 2)), needed)

    replay, pixels = ReplayConfig(window=(6, 6)), torch.zeros(1, 3, 64, 64, device=device)

    def twice() -> tuple[bool, str, None, None]:
        model = settled(_Tiny())
        with deterministic_algorithms(), attached(model.backbone.model, replay):
            same = torch.equal(model(pixels), model(pixels))
        return same, "two forwards of one image", None, None

    def one_graph() -> tuple[bool | None, str, None, None]:
        if not can_compile():
            return None, "not tried: torch.compile does not work here", None, None
        torch.compiler.reset()
        model = settled(_Tiny())
        with attached(model.backbone.model, replay):
            eager = model(pixels)
            compiled: Any = torch.compile(
                model, fullgraph=True, backend="eager"
            )  # the capture, not its kernels
            return torch.equal(compiled(pixels), eager), "the eager forward, in one graph", None, None

    yield "behaviour", "deterministic algorithms", twice
    yield "behaviour", "torch.compile", one_graph


class _Tiny(nn.Module):
    """The final patches of the embedded model."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = load_tiny().backbone

    def forward(self, pixels: Tensor) -> Tensor:
        return self.backbone.features(pixels, [11])[0].patches


def _random(build: Callable[[], nn.Module]) -> nn.Module:
    """A model whose weights have a size at which every layer matters."""
    model, generator = build().eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for value in model.parameters():
        if value.ndim > 1:
            nn.init.normal_(value, std=value[0].numel() ** -0.5, generator=generator)
    return model


def _compared(found: Any, expected: Any, needed: float) -> tuple[bool, str, float, float]:
    """A tensor, or several, against the same in float64."""
    pairs = [(found, expected)] if isinstance(found, Tensor) else zip(found, expected, strict=True)
    digits = min(agreement(ours, theirs) for ours, theirs in pairs)
    return digits >= needed, "float64", digits, needed


def agreement(found: Tensor, expected: Tensor) -> float:
    """Decimal digits of the largest difference, relative to the largest expected value; below 0 where one is not finite."""
    ours, theirs = (each.detach().cpu().double() for each in (found, expected))
    if ours.shape != theirs.shape or not ours.isfinite().all():
        return -1.0
    scale, difference = float(theirs.abs().max()), float((ours - theirs).abs().max())
    if difference == 0:
        return EXACT
    return min(EXACT, -math.log10(difference / scale)) if scale else -1.0


def can_compile() -> bool:
    """Whether ``torch.compile`` supports this Python and system."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    return bool(is_dynamo_supported())


@contextmanager
def _no_tf32() -> Iterator[None]:
    """Products and convolutions in float32 itself: by default PyTorch lets a GPU round convolutions to TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions of packages, the machine's devices, and the chosen one."""
    devices = {name: platform.processor() or platform.machine() for name in available_devices()}
    for name in devices:
        if name.startswith("cuda"):
            found = torch.cuda.get_device_properties(torch.device(name))
            devices[name] = f"{found.name}, {found.total_memory / 2**30:.1f} GiB"
    return {
        "packages": {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cuda": torch.version.cuda,
        "devices": devices,
        "device": str(device),
    }
