"""``gramloop export``: a model with its mitigation as a file for torch, onnxruntime or OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gramloop.cli.images import METHOD_HELP
from gramloop.cli.options import CommandResult, command
from gramloop.cli.output import show
from gramloop.errors import GramLoopError
from gramloop.evaluate.options import CALIBRATION_HELP
from gramloop.tasks.options import ModelOptions
from gramloop.util.options import group, option


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export, and as what."""

    out: Path = option("such as model.onnx, model.xml (OpenVINO) or model.pt2", metavar="FILE")
    precision: Literal["fp32", "fp16", "int8"] = option(
        "of onnx and openvino; int8 is calibrated on images (fp32)", "fp32"
    )
    calibration_images: list[str] = option(
        "files, folders or globs of in-distribution images for int8; can be repeated", [], metavar="DIR"
    )
    method: str | None = option(METHOD_HELP, None, metavar="TEXT")
    calibration: Path | None = option(CALIBRATION_HELP, None, metavar="FILE")
    height: int | None = option("of the input (as the model prepares images)", None, metavar="H")
    width: int | None = option("likewise", None, metavar="W")
    batch: int = option("images at once (1)", 1, metavar="B", limits=(1, 4096))
    model: ModelOptions = group(ModelOptions, "model")


@command(
    ExportOptions,
    "The input is uint8 RGB (B, H, W, 3), normalised inside; a transformers model or your own takes float32 (B, 3, H,"
    " W), normalised. Without --method the model is exported as it is; --method also takes the best.json of gramloop "
    "tune. Filters on pixels become FILE.py next to it. The file is compared with the model in torch, and not written"
    " where it differs by more than 1e-4 (fp16: 0.02); it needs neither gramloop nor transformers. --task features "
    "exports a backbone.",
    [
        "gramloop export --model tiny --task semantic --method replay:window=2-2 --out replayed.onnx",
        "gramloop export --model hf:FOLDER --method recentre:c=2 --calibration calibration.safetensors --height 64 --width 64 --out recentred.onnx",
        "gramloop export --model hf:BACKBONE --task features --method replay:window=3-4 --out features.onnx",
        "gramloop export --model hf:FOLDER --precision int8 --calibration-images photos --out int8.xml",
    ],
)
def export_command(options: ExportOptions) -> CommandResult:
    """Write the file, and describe it."""
    if options.calibration is not None and options.method is None:
        raise GramLoopError("--calibration belongs to --method, such as recentre:c=2")
    from gramloop.export.exporting import export_model, format_of, open_backbone

    format_of(options.out)  # a typo is reported before weights are read
    asked = options.model
    if asked.task == "features":
        parts = [asked.backbone or asked.model]
        model: Any = open_backbone(parts[0])
    else:
        parts = [asked.head or asked.model, *([asked.backbone] if asked.backbone else [])]
        model = replace(asked, device="cpu").load()
    made = export_model(
        model,
        options.out,
        precision=options.precision,
        calibration_images=options.calibration_images,
        height=options.height,
        width=options.width,
        batch=options.batch,
        mitigations=options.method or (),
        stats=options.calibration,
        # in the file, names are without folders
        name=" on ".join(part.removeprefix("hf:").rstrip("/").rpartition("/")[2] for part in parts),
    )
    show(made)
    document = {"file": made.path, "format": made.format, "companions": list(made.companions)}
    return 0, {**document, "difference": made.difference, "about": vars(made.about)}
