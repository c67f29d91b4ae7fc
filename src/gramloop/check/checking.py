"""What a machine computes: drift, gate and placements against float64, heads against stored numbers, repeated forwards."""

from __future__ import annotations

import json
import math
import platform
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.depther import Depther, DptDepthHead, DptShape
from gramloop.models.detector import WindowedDetector
from gramloop.models.mask2former import Mask2FormerSegmentor, Mask2FormerShape
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig
from gramloop.models.pmt import PMT, PMTHead, PMTShape
from gramloop.models.tiny import load_tiny, normalise
from gramloop.replay.attach import attached
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.replay.gram import GramAnchor, gram_gate
from gramloop.util.device import available_devices, deterministic_algorithms

STORED = Path(__file__).with_name("stored.json")
EXACT = 16.0  # digits of what is equal to the bit
VARIANTS: dict[str, dict[str, Any]] = {
    "Gram gate, as published": {},
    "gate at the window's end": {"gate_at": "end"},
    "update at the last block": {"update_at": "final"},
    "constant gate": {"gate": "uniform", "strength": 0.3},
    "matched constant gate": {"gate": "uniform", "strength": "matched"},
    "ungated": {"gate": "none"},
    "shown until block 8": {"until": 8},
    "decided by noise": {"adaptive": Adaptive("noise", 0.0, 1.0)},
    "decided by length": {"adaptive": Adaptive("length", 0.0, 100.0)},
    "decided by spread": {"adaptive": Adaptive("spread", 0.0, 2.0)},
}
# decimal digits, with one to spare below what a CPU gives: of drift and gate (lengths of patches are float64, but not on
# MPS, which has none), of final patches, and of heads; sines of pixels in the detector's queries amplify rounding
_DRIFT, _DRIFT_MPS = 5.5, 4.5
_PATCHES = {True: 4.5, False: 0.8}  # in float32, and with blocks in bfloat16
_HEAD, _DETECTOR = {True: 4.0, False: 0.5}, {True: 3.0, False: 0.0}
_SAMPLES = 40  # stored values of every output of a head
_SHAPE = BackboneShape(
    depth=4, width=64, head_dim=16, hidden=128, gated=False, qkv_bias=True, local_cls_norm=False, registers=2
)
_PACKAGES = ("gramloop", "torch", "transformers", "safetensors", "numpy", "opencv-python-headless", "pillow")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class CheckedPrecision:
    """A device, the type of the backbone's weights, and whether its blocks run under bfloat16 autocast."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @property
    def exact(self) -> bool:
        """Whether everything is float32."""
        return self.dtype == torch.float32 and not self.autocast

    @property
    def words(self) -> str:
        """The precision in words."""
        if self.dtype != torch.float32:
            return "bfloat16 weights"
        return "bfloat16 autocast" if self.autocast else "float32"

    def settle(self, backbone: Backbone) -> Backbone:
        """The backbone on the device, in this precision; its final norm stays float32."""
        backbone.autocast_on = (self.device.type,) if self.autocast else ()
        if self.dtype != torch.float32:
            backbone.model.to(self.dtype)
            backbone.norm.float()
        return backbone.to(self.device)


@dataclass(frozen=True)
class Case:
    """What was compared with what, and how it came out.

    ``passed`` is None for what could not be tried here. ``digits`` and ``needed`` are decimal digits of agreement; both
    are None for what either holds or does not.
    """

    group: str
    name: str
    passed: bool | None
    words: str
    digits: float | None = None
    needed: float | None = None


@dataclass(frozen=True)
class Checked:
    """A machine, what was checked on it, and how it came out."""

    machine: dict[str, Any]
    precision: str
    cases: tuple[Case, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """What does not agree."""
        return tuple(case for case in self.cases if case.passed is False)

    @property
    def verdict(self) -> str:
        """In one line."""
        where = f"{self.machine['device']} in {self.precision}"
        judged = sum(case.passed is not None for case in self.cases)
        if not self.failed:
            return f"GramLoop computes on {where} what it should: {judged} of {judged} checks agree."
        names = ", ".join(f"{case.group}: {case.name}" for case in self.failed[:3])
        return (
            f"{len(self.failed)} of {judged} checks on {where} do not agree ({names}): do not trust numbers of this "
            "machine; what gramloop check --json prints is what a report of the fault needs."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        about = {"machine": self.machine, "precision": self.precision, "passed": not self.failed}
        return {**about, "verdict": self.verdict, "cases": [asdict(case) for case in self.cases]}


def check_machine(
    device: torch.device | str = "cpu",
    autocast: bool = False,
    dtype: str = "float32",
    watch: Callable[[Case], None] = lambda case: None,
) -> Checked:
    """Run every check on a device.

    Args:
        device: such as ``cuda:1``.
        autocast: run the backbone's blocks under bfloat16 autocast, as GPUs run the released models.
        dtype: of the backbone's weights.
        watch: sees each case as it is done.
    """
    if dtype not in _DTYPES or (autocast and dtype != "float32"):
        raise GramLoopError(
            "dtype is float32 or bfloat16, and autocast is for float32: leave out one of them"
        )
    precision = CheckedPrecision(torch.device(device), _DTYPES[dtype], autocast)
    cases = []
    with _true_float32():
        for group in (drift_cases, placement_cases, head_cases, behaviour_cases):
            for name, run in group(precision):
                cases.append(_attempted(group.__name__.partition("_")[0], name, run))
                watch(cases[-1])
    return Checked(describe_machine(precision.device), precision.words, tuple(cases))


Cases = Iterator[
    tuple[str, Callable[[], tuple[Any, ...]]]
]  # name, and what gives the fields of a `Case` after it


def _attempted(group: str, name: str, run: Callable[[], tuple[Any, ...]]) -> Case:
    """A case; one that fails, with the first line of the error, where the device cannot do it."""
    try:
        return Case(group, name, *run())
    except GramLoopError as error:
        return Case(group, name, False, str(error))
    except Exception as error:  # whatever a kernel, a driver or a compiler says
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        return Case(group, name, False, f"{type(error).__name__}: {first}"[:160])


def _compared(found: Tensor, expected: Tensor, needed: float) -> tuple[Any, ...]:
    digits = agreement(found, expected)
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


def drift_cases(precision: CheckedPrecision) -> Cases:
    """Drift and gate of random patches against Gram matrices in float64; under autocast as well these are float32."""
    generator = torch.Generator().manual_seed(0)
    needed = _DRIFT_MPS if precision.device.type == "mps" else _DRIFT

    def run(given: Tensor, moved: Tensor, gated: bool) -> tuple[Any, ...]:
        units = [each.double() / each.double().norm(dim=-1, keepdim=True) for each in (given, moved)]
        before, after = (each @ each.transpose(1, 2) for each in units)
        expected = torch.square(after - before).mean(-1)
        with torch.autocast(precision.device.type, torch.bfloat16, enabled=precision.autocast):
            found = GramAnchor(given.to(precision.device)).drift(moved.to(precision.device))
        if gated:
            expected = torch.exp(-expected / torch.quantile(expected, 0.5).clamp(min=ReplayConfig.eps))
            found = gram_gate(found, ReplayConfig.eps)
        return _compared(found, expected, needed)

    for patches, channels in ((196, 384), (1200, 64)):  # few and many for their channels
        given, step = torch.randn(2, 1, patches, channels, generator=generator, dtype=torch.float64)
        for what in ("drift", "gate"):
            name = f"{what} of {patches} patches of {channels} channels"
            yield name, partial(run, given.float(), (given + 0.01 * step).float(), what == "gate")


def placement_cases(precision: CheckedPrecision) -> Cases:
    """The final patches of an attached model in every variant, against the same model in float64 on the CPU."""
    image, truth = pattern(64, 96), load_tiny().backbone.model.double()
    here = precision.settle(load_tiny().backbone)

    def run(config: ReplayConfig) -> tuple[Any, ...]:
        with torch.no_grad():
            with attached(truth, config):
                tokens = truth(image.double()).last_hidden_state
            with attached(here.model, config):
                found = here(image.to(precision.device), [here.shape.depth - 1])[0].patches
        expected = tokens[:, tokens.shape[1] - found.shape[1] :]
        return _compared(found.float(), expected, _PATCHES[precision.exact])

    for name, settings in VARIANTS.items():
        yield name, partial(run, ReplayConfig(window=(4, 5), **settings))


def head_cases(precision: CheckedPrecision) -> Cases:
    """Every output of every head, plain and replayed, against stored numbers."""
    stored = json.loads(STORED.read_text())

    def run(name: str) -> tuple[Any, ...]:
        pairs = zip(sampled_outputs(name, precision), stored[name], strict=True)
        digits = min(agreement(found, torch.tensor(expected)) for found, expected in pairs)
        needed = (_DETECTOR if name == "Plain-DETR" else _HEAD)[precision.exact]
        return digits >= needed, "stored", digits, needed

    for name in HEADS:
        yield name, partial(run, name)


def sampled_outputs(name: str, precision: CheckedPrecision) -> list[Tensor]:
    """Evenly spread values of every output of a head, plain and replayed."""
    model, pixels = HEADS[name]()
    precision.settle(model.to(precision.device).backbone)
    shown = pixels.to(precision.device)
    with torch.no_grad():
        outputs = _tensors(model(shown))
        with attached(model.backbone.model, ReplayConfig(window=(1, 2), replays=1)):
            outputs += _tensors(model(shown))
    flat = [each.float().cpu().flatten() for each in outputs]
    return [each[torch.linspace(0, len(each) - 1, _SAMPLES).long()] for each in flat]


def _tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [part for each in found for part in _tensors(each)]


def pattern(height: int, width: int) -> Tensor:
    """A normalised picture of waves, (1, 3, height, width)."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [
        np.sin(rows / 7 + k) + np.cos(columns / (5 + k)) + np.sin((rows + columns) / 23) for k in range(3)
    ]
    pixels = (128 + 40 * np.stack(waves, -1)).round().clip(0, 255).astype(np.uint8)
    return normalise(torch.from_numpy(pixels)[None])


def _filled(model: Any) -> Any:
    """Weights that follow from their names, of a size at which every layer matters; frozen."""
    filled = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
            drawn, leaf = np.asarray(generator.standard_normal(tuple(value.shape))), name.rpartition(".")[2]
            if drawn.ndim > 1:
                drawn = drawn / np.sqrt(np.prod(drawn.shape[1:]))
            else:
                drawn = 1 + 0.2 * np.abs(drawn) if leaf == "running_var" else (leaf == "weight") + 0.1 * drawn
            filled[name] = torch.from_numpy(np.asarray(drawn)).to(value.dtype)
    model.load_state_dict(filled, strict=False)
    return model.eval().requires_grad_(False)


def _mask2former() -> nn.Module:
    shape = Mask2FormerShape(channels=64, hidden=32, classes=5, queries=6, feedforward=64)
    return Mask2FormerSegmentor(Backbone(_SHAPE), shape)


def _plain_detr() -> nn.Module:
    config = PlainDetrConfig(
        channels=8 * 64, width=64, heads=4, encoder_layers=1, encoder_feedforward=64, decoder_layers=2,
        decoder_feedforward=64, rpe_hidden=32, queries=8, classes=5,
    )  # fmt: skip
    return WindowedDetector(Backbone(_SHAPE), PlainDetr(config))


def _pmt() -> nn.Module:
    return PMT(Backbone(_SHAPE), PMTHead(PMTShape(64, 16, queries=6, classes=5, hidden=64, layers=2)))


def _dpt() -> nn.Module:
    shape = DptShape(channels=64, reassembled=32, fused=16, hidden=8, bins=16)
    return Depther(Backbone(_SHAPE), DptDepthHead(shape, (0, 1, 2, 3)))


HEADS: dict[str, Callable[[], tuple[Any, Tensor]]] = {
    "embedded model": lambda: (load_tiny(), pattern(96, 96)),
    "Mask2Former": lambda: (_filled(_mask2former()), pattern(64, 64)),
    "Plain-DETR": lambda: (_filled(_plain_detr()), pattern(96, 144)),
    "PMT": lambda: (_filled(_pmt()), pattern(64, 64)),
    "DPT depth": lambda: (_filled(_dpt()), pattern(64, 80)),
}


def behaviour_cases(precision: CheckedPrecision) -> Cases:
    """Determinism, and one graph under ``torch.compile``."""
    backbone = precision.settle(load_tiny().backbone)
    pixels, last = pattern(64, 64).to(precision.device), backbone.shape.depth - 1
    replay = ReplayConfig(window=(6, 6))

    def twice() -> tuple[Any, ...]:
        with torch.no_grad(), deterministic_algorithms(), attached(backbone.model, replay):
            first, again = (backbone(pixels, [last])[0].tokens for _ in range(2))
        same = torch.equal(first, again)
        return same, f"two forwards of one image {'are equal to the bit' if same else 'differ'}"

    def one_graph() -> tuple[Any, ...]:
        """The graph is captured and run as it is: what a compiler makes of it is the compiler's."""
        if not can_compile():
            return None, "not tried: torch.compile does not work here"
        torch.compiler.reset()
        with torch.no_grad(), attached(backbone.model, replay):
            eager = backbone(pixels, [last])[0].tokens
            compiled = torch.compile(backbone, fullgraph=True, backend="eager")
            equal = torch.equal(compiled(pixels, [last])[0].tokens, eager)
        return equal, f"one graph, {'equal to the bit' if equal else 'with other numbers'}"

    yield "deterministic algorithms", twice
    yield "torch.compile", one_graph


def can_compile() -> bool:
    """Whether this Python and system are ones that ``torch.compile`` knows."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    return bool(is_dynamo_supported())


@contextmanager
def _true_float32() -> Iterator[None]:
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
    """Versions of packages, what the machine has, and which device was chosen."""
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
