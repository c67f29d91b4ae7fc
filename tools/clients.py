"""Run replay with the models and tools that people use it with, and print the worst difference of each.

    python tools/clients.py          # a Markdown table, for docs/appendix/reliability.md

Small models with random weights; the window is blocks 2 to 3 of 6, or as published. The textbook is a hook that
computes Algorithm 1 with Gram matrices in float64. `make install` brings timm, which is left out where it is not there.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, nn

import gramloop
from gramloop.replay.vit import find_vit, state_of, with_hidden, with_state

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "replay"))
WINDOW, REPLAYS = (2, 3), 2
TEXTBOOK = "the textbook"
TIMM = (
    "vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "deit_tiny_distilled_patch16_224",
    "vit_wee_patch16_reg1_gap_256", "eva02_tiny_patch14_224", "vit_base_patch16_clip_224", "vit_base_patch16_siglip_224",
    "vit_small_patch16_dinov3",
)  # fmt: skip
Row = tuple[str, str, float]  # client, what it is compared with, worst difference


@contextmanager
def textbook(model: nn.Module, window: tuple[int, int], **described: Any) -> Iterator[None]:
    """Algorithm 1 as it is printed: Gram matrices of all patches, in float64."""
    vit = find_vit(model, **described)
    layout, blocks, (start, end) = vit.layout, vit.blocks, window

    def after(block: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        hidden = state_of(output)
        grid = layout.grid(hidden)

        def run(first: int, last: int, Z: Tensor) -> Tensor:
            for each in blocks[first : last + 1]:
                words, named = with_hidden(args, kwargs, layout.state(Z, grid))
                Z = layout.tokens(state_of(each.forward(*words, **named)))
            return Z

        def gram(Z: Tensor) -> Tensor:
            Y = layout.patches(run(end + 1, len(blocks) - 1, Z))
            Q = nn.functional.normalize((Y if vit.final_norm is None else vit.final_norm(Y)).double(), dim=-1)
            return Q @ Q.transpose(1, 2)

        Z = layout.tokens(hidden)
        G_0 = gram(Z)
        for _ in range(REPLAYS):
            Z_hat = run(start, end, Z)
            d = (gram(Z_hat) - G_0).square().mean(-1)
            g = torch.exp(-d / d.quantile(0.5, dim=1, keepdim=True).clamp(min=1e-6))
            mean = g.mean(1, keepdim=True)
            gates = torch.cat([mean.expand(-1, layout.prefix), g, mean.expand(-1, layout.suffix)], 1)
            Z = (Z + gates[..., None] * (Z_hat - Z).double()).to(Z.dtype)
        return with_state(output, layout.state(Z, grid))

    handle = blocks[end].register_forward_hook(after, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def apart(found: Any, expected: Any) -> float:
    """The largest difference of two nested outputs, relative to the size of the expected one where that is above 1."""
    pairs = list(zip(tensors(found), tensors(expected), strict=True))
    return max(
        ((a.double() - b.double()).abs().max() / max(1.0, float(b.abs().max()))).item()
        for a, b in pairs
        if b.numel() and b.is_floating_point()
    )


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in a model's output."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


def against_textbook(
    model: nn.Module, run: Callable[[nn.Module], Any], window: tuple[int, int] = WINDOW, **described: Any
) -> float:
    """The worst difference of an attached forward."""
    with torch.no_grad():
        with textbook(model, window, **described):
            expected = run(model)
        with gramloop.attach(model, window=window, replays=REPLAYS, **described):
            return apart(run(model), expected)


def transformers_rows() -> Iterator[Row]:
    """Every model of the tests, those of language models, and padding that a host masks."""
    from test_seams import _vision_towers, random_weights  # type: ignore[import-not-found]

    from library_models import MODELS, build

    worst = {}
    for name in MODELS:
        if not name.startswith("timm") and "MAE" not in name:  # which shuffles at random
            model, x = build(name)
            worst[name] = against_textbook(model, lambda m, x=x: m(x))
    yield (
        f"transformers: {len(worst)} models (worst: {max(worst, key=worst.__getitem__)})",
        TEXTBOOK,
        max(worst.values()),
    )
    for name, make in _vision_towers().items():
        made, run = make()
        yield f"vision tower of {name}", TEXTBOOK, against_textbook(random_weights(made), run)
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64}
    model = random_weights(Siglip2VisionModel(Siglip2VisionConfig(**sizes, patch_size=16, num_patches=16)))
    patches, mask, shapes = torch.randn(2, 16, 768), torch.ones(2, 16).long(), torch.tensor([[4, 4], [3, 3]])
    mask[1, 9:] = 0
    with torch.no_grad(), gramloop.attach(model, window=WINDOW):
        padded = model(patches, mask, shapes).last_hidden_state[1, :9]
        alone = model(patches[1:, :9], mask[1:, :9], shapes[1:]).last_hidden_state[0]
    yield "Siglip2 NaFlex, padded batch", "the image alone", apart(padded, alone)


def timm_rows() -> Iterator[Row]:
    """Models of timm in their own size."""
    try:
        from reference_packages import import_reference

        timm: Any = import_reference("timm")
    except BaseException:  # pytest's skip
        return
    worst = {}
    for name in TIMM:
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, img_size=112, num_classes=8).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.1)
        x = torch.randn(1, 3, 112, 112)
        worst[name] = against_textbook(model, lambda m, x=x: m(x), (6, 7))
    yield (
        f"timm: {len(worst)} models (worst: {max(worst, key=worst.__getitem__)})",
        TEXTBOOK,
        max(worst.values()),
    )


class Features(nn.Module):
    """The part of a model that people deploy."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        """Image in, tensor out."""
        found: Tensor = self.vit(x).last_hidden_state
        return found


class LowRank(nn.Module):
    """A linear layer with an update of low rank, as LoRA adds one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base = linear
        self.down, self.up = (
            nn.Linear(linear.in_features, 4, bias=False),
            nn.Linear(4, linear.out_features, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The layer and its update."""
        result: Tensor = self.base(x) + self.up(self.down(x))
        return result


def dinov3() -> tuple[Features, Tensor]:
    """A small DINOv3 and two images."""
    from library_models import build

    model, x = build("DINOv3ViTModel")
    return Features(model).eval(), x


def noise(images: int) -> Tensor:
    """Images of which no two patches are alike."""
    return torch.randn(images, 3, 48, 64, generator=torch.Generator().manual_seed(1))


def wrapped_rows() -> Iterator[Row]:
    """Weights and layers that others replace, and hosts that are described."""
    from test_seams import OtherViT, random_weights, segment_anything_encoder

    model, x = dinov3()
    for block in model.vit.model.layer:  # type: ignore[union-attr]
        block.mlp.up_proj = LowRank(block.mlp.up_proj)
        block.attention.q_proj = LowRank(block.attention.q_proj)
    yield "LoRA-style layers in every block", TEXTBOOK, against_textbook(model.eval(), lambda m: m(x))
    model, x = dinov3()
    yield "bfloat16 autocast, a batch", "each image alone", _autocast(model, x)
    for order in ("TBC", "BHWC"):
        torch.manual_seed(0)
        other = random_weights(OtherViT(order))
        described = {"blocks": other.blocks, "norm": other.norm, "prefix": 0, "layout": order}
        found = against_textbook(other, lambda m: m(noise(3)), **described)
        yield f"described blocks that carry {order}", TEXTBOOK, found
    torch.manual_seed(0)
    encoder = segment_anything_encoder(use_rel_pos=True, window_size=2, global_attn_indexes=(2, 5))
    images = torch.randn(2, 3, 64, 64)
    yield "segment-anything's encoder", TEXTBOOK, against_textbook(encoder, lambda m: m(images))


def _autocast(model: nn.Module, x: Tensor) -> float:
    with (
        torch.no_grad(),
        gramloop.attach(model, window=WINDOW),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        return apart(torch.cat([model(one[None]) for one in x]), model(x))


def collector_rows() -> Iterator[Row]:
    """What hosts and tools record of a forward."""
    model, x = dinov3()
    vit: Any = model.vit
    vit.set_attn_implementation("eager")
    seen: list[Tensor] = []
    with torch.no_grad():
        with textbook(model, WINDOW):
            handle = vit.model.layer[5].norm1.register_forward_hook(lambda *call: seen.append(call[-1]))
            model(x)
            expected, attention = seen[-1], vit(x, output_attentions=True).attentions[-1]
            seen.clear()
        with gramloop.attach(model, window=WINDOW):
            model(x)
            assert len(seen) == 1, f"{len(seen)} activations of one forward"
            maps = vit(x, output_attentions=True).attentions
            assert len(maps) == 6, f"{len(maps)} maps of 6 blocks"
        handle.remove()
    yield "outputs.attentions, one map per block", "the textbook's last", apart(maps[-1], attention)
    yield "activation hook inside the last block (Grad-CAM)", "the textbook's last", apart(seen[0], expected)


def graph_rows() -> Iterator[Row]:
    """Graphs, run with other numbers of images than they were made with."""
    model, x = dinov3()
    images = [torch.randn(many, 3, 64, 64) for many in (1, 2, 5)]
    batch = {"x": {0: torch.export.Dim("images", min=1, max=64)}}
    with torch.no_grad(), gramloop.attach(model, window=WINDOW):
        expected = [model(each) for each in images]
        made = {
            "torch.compile": torch.compile(model),
            "torch.jit.trace": torch.jit.trace(model, (x,)),
            "torch.export": torch.export.export(model, (x,), dynamic_shapes=batch).module(),
        }
        with tempfile.TemporaryDirectory() as folder:
            import onnxruntime

            for name, more in {
                "ONNX": {"dynamo": True, "dynamic_shapes": batch, "verbose": False},
                "ONNX, legacy exporter": {
                    "dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "images"}},
                },
            }.items():  # fmt: skip
                torch.onnx.export(model, (x,), f"{folder}/model.onnx", **more)
                session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
                made[name] = lambda each, session=session: torch.from_numpy(
                    session.run(None, {"x": each.numpy()})[0]
                )
        for name, run in made.items():
            found = max(apart(run(each), want) for each, want in zip(images, expected, strict=True))
            yield f"{name}, for 1, 2 and 5 images", "eager", found


def distributed_rows() -> Iterator[Row]:
    """Two processes on gloo."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (folder,), 2)
        for name in ("DDP", "FSDP2, every block sharded"):
            yield f"{name}, two processes", "one process", float(Path(folder, name[:4]).read_text())


def _process(rank: int, folder: str) -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, x = dinov3()
    sharded = copy.deepcopy(model)
    for block in sharded.vit.model.layer:  # type: ignore[union-attr]
        fully_shard(block)
    fully_shard(sharded)
    with torch.no_grad():
        with gramloop.attach(model, window=WINDOW):
            expected = model(x)
        for name, host in {"DDP": DistributedDataParallel(model), "FSDP": sharded}.items():
            with gramloop.attach(host, window=WINDOW):
                found = [host(x) for _ in range(2)]
            if not rank:
                Path(folder, name).write_text(str(apart(found, [expected] * 2)))
    distributed.destroy_process_group()


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    print(f"Measured on {date.today()} with torch {torch.__version__}, on CPUs.\n")
    print("| client | compared with | worst difference |\n|---|---|---|")
    for rows in (transformers_rows, timm_rows, wrapped_rows, collector_rows, distributed_rows, graph_rows):
        for client, other, worst in rows():
            print(f"| {client} | {other} | {worst:.1e} |", flush=True)


if __name__ == "__main__":
    main()
