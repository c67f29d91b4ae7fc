"""What an attached replay computes, on every host and in every setting: measured here, stored in record.json.

PYTHONPATH=tests/support .venv/bin/python tests/frozen/attach/record_attach.py

writes the record anew. That is right only where a change of the numbers is meant; otherwise the record stays.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gramloop

# ---- Every use of the package. What is renamed in it is renamed here, and nowhere else in this folder. ----

Refused = gramloop.GramLoopError
MAPS = ("drift", "gate")
OTHER_MAPS = ("mean_gate", "displacement", "not_finite", "post_drift", "signal")


def attach(model: nn.Module, **settings: Any) -> Any:
    """A replay on a model: fields of the configuration, and trace, keep, blocks, norm, prefix, which, recentre, source."""
    how, stats = settings.pop("recentre", None), settings.pop("source", None)
    loop = gramloop.attach(model, **settings)
    if how is not None:
        found_by = {
            name: settings[name] for name in ("blocks", "norm", "prefix", "which") if name in settings
        }
        loop.recentring = gramloop.recentre(model, stats, how, **found_by)
    return loop


def detach(loop: Any) -> None:
    loop.detach()
    if (recentring := vars(loop).get("recentring")) is not None:
        recentring.detach()


def set_valid(loop: Any, mask: Any) -> None:
    """Which patches of the next forward are image."""
    loop.set_valid(mask)
    if (recentring := vars(loop).get("recentring")) is not None:
        recentring.valid = mask


def blocks_of(loop: Any) -> Sequence[nn.Module]:
    """The host's blocks, in order."""
    return loop.vit.blocks


def kept_outputs(loop: Any) -> dict[int, Any]:
    """What the kept blocks returned in the baseline pass."""
    return loop.baseline


def trace_maps(loop: Any, names: Sequence[str]) -> list[Tensor]:
    """The maps of these names, of all replays in order."""
    return list(tensors([getattr(loop.trace, name) for name in names]))


def blocks_executed(loop: Any) -> int:
    return loop.blocks_executed


def rule(signal: str, off: float, full: float) -> Any:
    """Replay only where an image's signal says so."""
    return gramloop.Adaptive(signal, off, full)


def statistics(model: nn.Module, calls: Iterable[Callable[[], Any]], at: str) -> Any:
    """What recentring moves towards, in one of the places where a head may read, whatever this one reads."""
    from gramloop.mitigations.calibration import FeatureRecorder
    from gramloop.mitigations.feature_hooks import feature_source

    seen = FeatureRecorder(feature_source(model, "calibrate"))
    seen.run(calls)
    seen.place = next((place for place in seen.means if place[0] == at), None)
    if seen.place is None:
        raise Refused(f"no features {at}")
    return seen.stats(seen.views, None, {})


# ---- Hosts ----


@dataclass(frozen=True)
class Host:
    """A model with one way of calling it. ``forward`` returns all tensors that the call returns."""

    model: nn.Module
    forward: Callable[[], list[Tensor]]
    window: tuple[int, int] = (2, 3)
    keep: tuple[int, ...] = (1, 3, 5)
    found_by: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # where a case says nothing else
    mask: Any = None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def outputs(self) -> list[Tensor]:
        with torch.no_grad(), self.context():
            return self.forward()


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from tensors(entry)


def random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def called(model: nn.Module, *args: Any, **more: Any) -> Host:
    return Host(model, lambda: list(tensors(model(*args))), **more)


def of_library(
    name: str, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32, **more: Any
) -> Host:
    """A host of tests/support; two square images unless a shape is given."""
    from library_models import build

    model, x = build(name)
    x = random(*shape) if shape else x
    return called(model.to(dtype), x.to(dtype), **more)


def top_left(rows: int = 4, columns: int = 4) -> Tensor:
    """The first image is padded below, the second on the right."""
    mask = torch.ones(2, rows, columns, dtype=torch.bool)
    mask[0, rows - 1 :], mask[1, :, columns - 2 :] = False, False
    return mask


GOLDEN: dict[str, Any] = {"window": (3, 4), "keep": (1, 4, 7)}


def of_reference(style: str, library: str, masked: bool = False) -> Host:
    """The reference weights in one library's ViT, on a grid of 4 x 6 patches."""
    from golden import load_golden
    from golden_hosts import HOSTS

    golden = load_golden(style)
    host = HOSTS[library](golden)
    x, taps = golden.values["x"], golden.config["taps"]
    mask = top_left(4, 6) if masked else None
    return Host(host.model, lambda: list(host.taps(x, taps).values()), **GOLDEN, mask=mask)


def _meta() -> nn.Module:
    from golden import load_golden
    from golden_hosts import meta

    return meta(load_golden("backbone_s")).model


class Classifier(nn.Module):
    """A head that calls the backbone by a method of its own."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        taps = self.backbone.get_intermediate_layers(x, [4, 5, 6, 7])
        return torch.cat([*(tokens[:, 0] for tokens in taps), taps[-1][:, 5:].mean(1)], 1)


class TokenBlock(nn.Module):
    """Mixes tokens and channels, so that a replay of one patch reaches the others."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Linear(10, 10), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * torch.tanh(self.tokens(x.mT).mT)
        return x + 0.5 * torch.tanh(self.channels(x))


class Chain(nn.Module):
    """Tokens in, tokens out: a ViT of an unknown family that shows no grid."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.norm = nn.ModuleList(TokenBlock() for _ in range(6)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Chunk(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


class DinoVisionTransformer(Chain):
    """Blocks in chunks that are padded with identities, as DINOv2 can keep them."""

    num_register_tokens = 0

    def __init__(self) -> None:
        super().__init__()
        first, second = list(self.blocks[:3]), list(self.blocks[3:])
        self.blocks = nn.ModuleList([Chunk(first), Chunk([*(nn.Identity() for _ in first), *second])])


def described(norm: bool) -> Host:
    model = Chain().eval()
    found_by = {"blocks": model.blocks, "prefix": 1, **({"norm": model.norm} if norm else {})}
    return called(model, random(2, 10, 8), found_by=found_by)


def described_dinov3() -> Host:
    from library_models import build

    model, x = build("DINOv3ViTModel")
    return called(model, x, found_by={"blocks": list(model.model.layer), "norm": model.norm, "prefix": 5})


def one_of_two() -> Host:
    from library_models import build

    (teacher, x), student = build("DeiTModel"), build("ViTModel")[0]
    pair = nn.ModuleDict({"student": student, "teacher": teacher}).eval()
    return Host(pair, lambda: list(tensors(teacher(x))), found_by={"which": "teacher"})


def _filled(model: nn.Module) -> nn.Module:
    """Weights that make blocks matter, drawn in the order of parameters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = parameter[0].numel() ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            elif parameter.abs().max() < 1e-2:
                parameter.fill_(0.3)
    return model.eval()


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 16,
}


def eomt(family: str, **settings: Any) -> Host:
    """Queries join the tokens at block 4, so that what reaches it is refused."""
    import transformers

    sizes = {"intermediate_size": 64} if family == "EomtDinov3" else {"mlp_ratio": 2}
    config = getattr(transformers, f"{family}Config")(
        **SMALL, **sizes, num_blocks=2, num_queries=5, num_upscale_blocks=1
    )
    torch.manual_seed(0)
    model = _filled(getattr(transformers, f"{family}ForUniversalSegmentation")(config))
    return called(model, random(2, 3, 64, 64), window=(1, 2), keep=(0, 2), settings=settings)


def rf_detr() -> Host:
    from transformers.models.rf_detr.configuration_rf_detr import RfDetrDinov2Config
    from transformers.models.rf_detr.modeling_rf_detr import RfDetrDinov2Backbone

    torch.manual_seed(0)
    config = RfDetrDinov2Config(**SMALL, mlp_ratio=2, num_windows=1, out_indices=[2, 6])
    return called(_filled(RfDetrDinov2Backbone(config)), random(2, 3, 64, 64))


def lw_detr() -> Host:
    from transformers.models.lw_detr.configuration_lw_detr import LwDetrViTConfig
    from transformers.models.lw_detr.modeling_lw_detr import LwDetrViTBackbone

    torch.manual_seed(0)
    config = LwDetrViTConfig(
        **SMALL,
        mlp_ratio=2,
        num_windows=1,
        window_block_indices=[],
        out_indices=[2, 6],
        pretrain_image_size=64,
    )
    return called(_filled(LwDetrViTBackbone(config)), random(2, 3, 64, 64))


def siglip2() -> Host:
    """Patches are handed in, and no grid is shown."""
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    sizes = {**SMALL, "intermediate_size": 64, "num_patches": 16}
    del sizes["image_size"]
    torch.manual_seed(0)
    model = _filled(Siglip2VisionModel(Siglip2VisionConfig(**sizes)))
    given = random(2, 16, 768), torch.ones(2, 16, dtype=torch.long), torch.tensor([[4, 4], [2, 8]])
    return called(model, *given)


LIBRARY = [
    "DINOv3ViTModel", "DINOv3ViTBackbone", "Dinov2Model", "Dinov2Backbone", "Dinov2WithRegistersModel",
    "Dinov2WithRegistersBackbone", "Dinov2ForImageClassification", "ViTModel", "ViTForImageClassification",
    "DeiTModel", "IJepaModel", "CLIPVisionModel", "CLIPVisionModelWithProjection", "SiglipVisionModel",
    "DepthAnything", "DPT", "DPT-on-Dinov2", "CHMv2", "own-head", "timm-vit", "timm-eva", "Sapiens2Model",
    "Sapiens2Backbone", "Tipsv2VisionModel", "Tipsv2-DPT-depth", "Tipsv2-DPT-segmentation",
    "OwlViTForObjectDetection", "Owlv2ForObjectDetection", "PixioModel", "PixioBackbone", "RadioModel",
    "VitPose-Backbone", "BeitModel", "Beit-Backbone-segmentation", "Data2VecVisionModel",
    "Data2Vec-Backbone-segmentation", "ViTMAEModel", "ViTMSNModel", "Aimv2VisionModel", "MLCDVisionModel",
    "ZoeDepth", "Prompt-Depth-Anything", "Deimv2-Backbone", "YolosForObjectDetection", "VitDetModel",
    "VitDetBackbone", "SamModel", "SamHQModel", "Sam3VisionModel",
]  # fmt: skip
STYLES = ["backbone_7b", "backbone_s", "backbone_splus"]
LIBRARIES = ["transformers", "transformers-backbone", "meta", "meta-list", "timm"]
BF16 = torch.bfloat16

HOSTS: dict[str, Callable[[], Host]] = {
    **{name: partial(of_library, name) for name in LIBRARY},
    **{f"{style} in {each}": partial(of_reference, style, each) for style in STYLES for each in LIBRARIES},
    "classifier on Meta's ViT": lambda: called(Classifier(_meta()).eval(), random(2, 3, 64, 96), **GOLDEN),
    "chunked blocks": lambda: called(DinoVisionTransformer().eval(), random(2, 10, 8)),
    "described chain": partial(described, norm=True),
    "described chain without a norm": partial(described, norm=False),
    "described DINOv3ViTModel": described_dinov3,
    "one of two ViTs": one_of_two,
    "Eomt": partial(eomt, "Eomt", gate_at=3),
    "EomtDinov3": partial(eomt, "EomtDinov3", gate_at=3),
    "EomtDinov3, as far as the queries": partial(eomt, "EomtDinov3"),
    "RfDetrDinov2Backbone": rf_detr,
    "LwDetrViTBackbone": lw_detr,
    "Siglip2VisionModel": siglip2,
    # the same hosts with other inputs
    "DINOv3ViTModel, one wide image": partial(of_library, "DINOv3ViTModel", (1, 3, 48, 80)),
    "DINOv3ViTModel, three images": partial(of_library, "DINOv3ViTModel", (3, 3, 64, 64)),
    "YolosForObjectDetection, wide": partial(of_library, "YolosForObjectDetection", (2, 3, 48, 80)),
    "VitDetModel, wide": partial(of_library, "VitDetModel", (2, 3, 48, 80)),
    "DINOv3ViTModel, masked": partial(of_library, "DINOv3ViTModel", mask=top_left()),
    "SamModel, masked": partial(of_library, "SamModel", mask=top_left()),
    "YolosForObjectDetection, masked": partial(of_library, "YolosForObjectDetection", mask=top_left()),
    "ViTMAEModel, masked": partial(of_library, "ViTMAEModel", mask=top_left()),
    "backbone_s in meta, masked": partial(of_reference, "backbone_s", "meta", masked=True),
    # other precisions
    "DINOv3ViTModel, bfloat16": partial(of_library, "DINOv3ViTModel", dtype=BF16),
    "DINOv3ViTModel, bfloat16, masked": partial(of_library, "DINOv3ViTModel", dtype=BF16, mask=top_left()),
    "DINOv3ViTModel, float64": partial(of_library, "DINOv3ViTModel", dtype=torch.float64),
    "DINOv3ViTModel, autocast": partial(
        of_library, "DINOv3ViTModel", context=partial(torch.autocast, "cpu", BF16)
    ),
}
LOW_PRECISION = ("bfloat16", "autocast")
RECENTRED = ["DINOv3ViTModel", "DINOv3ViTBackbone", "Dinov2Model", "DepthAnything", "own-head"]
# hosts of every layout, that are also measured in the settings of `other_settings`
THOROUGH = (
    "DINOv3ViTModel", "Dinov2Model", "SamModel", "VitDetModel", "YolosForObjectDetection", "DepthAnything",
    "backbone_s in meta", "described chain",
)  # fmt: skip

# ---- Settings ----

UNIFORM, MATCHED = {"gate": "uniform", "strength": 0.35}, {"gate": "uniform", "strength": "matched"}


def paper_settings(end: int) -> dict[str, dict[str, Any]]:
    """Placements, gates and strengths of the paper; ``end`` is the window's last block."""
    return {
        "no replay": {"replays": 0},
        "gram": {},
        "gram, one replay": {"replays": 1},
        "endpoint": {"gate_at": "end"},
        "final filter": {"update_at": "final"},
        "ungated": {"gate": "none"},
        "ungated, one replay": {"gate": "none", "replays": 1},
        "uniform": UNIFORM,
        "matched": MATCHED,
        "matched, one replay": {**MATCHED, "replays": 1},
        "gate at a block": {"gate_at": end + 1},
    }


def other_settings(end: int) -> dict[str, dict[str, Any]]:
    """Further combinations, and what the paper has not: a rule that decides per image."""
    return {
        "endpoint, one replay": {"gate_at": "end", "replays": 1},
        "uniform, one replay": {**UNIFORM, "replays": 1},
        "matched at the endpoint": {**MATCHED, "gate_at": "end"},
        "four replays": {"replays": 4},
        "one block": {"window": (end, end)},
        "from the first block": {"window": (0, end)},
        "to the last block": {"window": (end, 5 if end == 3 else 7)},
        "half strength": {"strength": 0.5},
        "final filter, ungated": {"update_at": "final", "gate": "none"},
        "final filter, uniform": {**UNIFORM, "update_at": "final"},
        "final filter, gate at the end": {"update_at": "final", "gate_at": "end"},
        "large eps": {"eps": 1.0},
        "by noise": {"adaptive": rule("noise", 0.5, 0.8)},
    }


def settings_of(name: str, host: Host) -> dict[str, dict[str, Any]]:
    """Every setting that is measured on a host."""
    end = host.window[1]
    chosen = paper_settings(end)
    if name.split(",")[0] in THOROUGH:
        chosen |= other_settings(end)
    if name in RECENTRED:
        chosen |= _recentred(name, host)
    return {label: {"window": host.window, **host.settings, **each} for label, each in chosen.items()}


def _recentred(name: str, host: Host) -> dict[str, dict[str, Any]]:
    from library_models import MODELS

    size, chosen = MODELS[name][1], {}
    for at in ("norm", "states"):
        calls = [partial(host.model, random(4, 3, size, size, seed=seed)) for seed in range(10, 13)]
        try:
            source = statistics(host.model, calls, at)
        except Refused:  # a head that reads elsewhere
            continue
        chosen[f"recentred, {at}"] = {"recentre": 0.3, "source": source, "replays": 0}
        chosen[f"recentred beyond, {at}, gram"] = {"recentre": "c=1", "source": source}
    return chosen


# ---- Measuring ----


def digest(found: Iterable[Tensor]) -> str:
    """The first half of a sha256 of shapes, kinds and bytes; bfloat16 as float32, which holds it exactly."""
    sha = hashlib.sha256()
    for tensor in found:
        wide = _wide(tensor)
        sha.update(f"{tuple(wide.shape)} {tensor.dtype}".encode())
        sha.update(wide.numpy().tobytes())
    return sha.hexdigest()[:16]


def summed_up(found: list[Tensor]) -> list[Any]:
    """`digest`, then mean, norm, and a random projection of all values; those that are not finite count as 0.

    After a layer norm, mean and norm are the same whatever was replayed; the projection is not.
    """
    values = torch.cat([_wide(tensor).double().flatten() for tensor in found] or [torch.zeros(0).double()])
    values = values.where(values.isfinite(), 0.0)
    direction = random(len(values), seed=0).double()
    numbers = values.sum() / max(len(values), 1), values.norm(), values @ direction
    return [digest(found), *(float(f"{float(number):.6g}") for number in numbers)]


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def measure(host: Host, settings: dict[str, Any]) -> dict[str, Any]:
    """One setting on one host, first bare, then with trace and kept blocks; the same must come of both."""
    try:
        bare, watched = _bare(host, settings), _watched(host, settings)
    except Refused:
        return {"refused": True}
    assert bare["out"] == watched["out"], "trace and keep change what the model returns"
    return {**bare, **watched}


def _bare(host: Host, settings: dict[str, Any]) -> dict[str, Any]:
    with _attached(host, settings) as loop:
        return {"out": summed_up(host.outputs()), "blocks": blocks_executed(loop)}


def _watched(host: Host, settings: dict[str, Any]) -> dict[str, Any]:
    """Also ``states``: what each block of the host shows to whoever hooks it, where the replay may end before the last."""
    shown: list[Tensor] = []
    with _attached(host, {**settings, "trace": True, "keep": host.keep}) as loop:
        hooks = [
            block.register_forward_hook(lambda *call: shown.extend(tensors(call[-1])))
            for block in blocks_of(loop)
        ]
        try:
            found: dict[str, Any] = {"out": summed_up(host.outputs()), "watched": blocks_executed(loop)}
        finally:
            for hook in hooks:
                hook.remove()
        found |= {name: summed_up(trace_maps(loop, [name])) for name in MAPS}
        found |= {"maps": digest(trace_maps(loop, OTHER_MAPS)), "states": digest(shown)}
        return {**found, "kept": digest(tensors(kept_outputs(loop)))}


@contextmanager
def _attached(host: Host, settings: dict[str, Any]) -> Iterator[Any]:
    loop = attach(host.model, **settings, **host.found_by)
    try:
        if host.mask is not None:
            set_valid(loop, host.mask)
        yield loop
    finally:
        detach(loop)


def measure_host(name: str) -> dict[str, dict[str, Any]]:
    """All settings on one host, and as "plain" the host alone, which it must be again after every detach()."""
    host = HOSTS[name]()
    plain = summed_up(host.outputs())
    found: dict[str, dict[str, Any]] = {"plain": {"out": plain}}
    for label, settings in settings_of(name, host).items():
        found[label] = measure(host, settings)
        assert digest(host.outputs()) == plain[0], f"{name}, {label}: detach() leaves something behind"
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums are split among threads, so that their number shows in the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def probe() -> dict[str, str]:
    """What tells machines apart whose floating point differs: the processor's kind, torch, and two plain forwards."""
    plain = {name: digest(HOSTS[name]().outputs()) for name in ("DINOv3ViTModel", "DINOv3ViTModel, bfloat16")}
    return {"cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__, **plain}


# ---- The record ----

RECORD = Path(__file__).with_name("record.json")
SUMMED_UP = ("out", *MAPS)
COUNTED = ("blocks", "watched", "refused")


def differing(found: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """The fields that are not equal to the bit."""
    names = found.keys() | recorded.keys()
    return sorted(name for name in names if _bits(found.get(name)) != _bits(recorded.get(name)))


def _bits(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def far(found: dict[str, Any], recorded: dict[str, Any], rtol: float) -> list[str]:
    """The fields whose numbers are others: counts exactly, the rest in proportion to the norm, since it may be near 0."""
    if found.keys() != recorded.keys():
        return sorted(found.keys() ^ recorded.keys())
    bad = [name for name in COUNTED if found.get(name) != recorded.get(name)]
    for name in set(SUMMED_UP) & found.keys():
        norm = recorded[name][2]
        pairs = zip(found[name][1:], recorded[name][1:], strict=True)
        if not all(math.isclose(one, other, rel_tol=rtol, abs_tol=rtol * norm) for one, other in pairs):
            bad.append(name)
    return sorted(bad)


def read() -> dict[str, Any]:
    """The record, with all fields of every case."""
    record = json.loads(RECORD.read_text())
    for cases in record["hosts"].values():
        for label in cases.keys() - {"plain", BASE}:
            cases[label] = {"refused": True} if "refused" in cases[label] else {**cases[BASE], **cases[label]}
    return record


def write(record: dict[str, Any]) -> None:
    """One case a line; what is as it is without a replay is left out, above all the kept outputs."""
    hosts = []
    for name, cases in record["hosts"].items():
        lines = [f"  {json.dumps(label)}: {_line(label, cases)}" for label in cases]
        hosts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    head = json.dumps(record["probe"])
    RECORD.write_text(f'{{"probe": {head},\n"hosts": {{\n' + ",\n".join(hosts) + "\n}}\n")


BASE = "no replay"


def _line(label: str, cases: dict[str, dict[str, Any]]) -> str:
    entry, base = cases[label], cases[BASE]
    if label not in ("plain", BASE) and "refused" not in entry:
        entry = {name: value for name, value in entry.items() if base.get(name) != value}
    return json.dumps(entry, separators=(",", ":"))


def main() -> None:
    with one_thread():
        write({"probe": probe(), "hosts": {name: measure_host(name) for name in HOSTS}})


if __name__ == "__main__":
    main()
