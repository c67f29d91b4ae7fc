"""``gramloop export``: a model with its mitigation as a file for torch, onnxruntime or OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gramloop.cli.options import group, option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES, METHOD_HELP, ModelOptions
from gramloop.errors import GramLoopError

FEATURES = "features"
KEYS = {
    "file": "what was written, or described",
    "format": "pt2, onnx or openvino",
    "companions": "files that it needs: weights, or filters on pixels",
    "difference": "the largest one to the model in torch, relative to the largest value; null with --show",
    "about": "the metadata of the file",
}
EPILOG = (
    "The input is uint8 RGB (B, H, W, 3), normalised inside; a transformers model or your own takes float32 (B, 3, H, W), "
    "normalised. Without --method the model is exported as it is; --method also takes the best.json of gramloop tune. Filters on "
    "pixels become FILE.py next to it. The file is compared with the model in torch, and not written where it differs by more "
    "than 1e-4 (fp16: 0.02); it needs neither gramloop nor transformers. --task features exports a backbone."
    f"{EXAMPLES}  gramloop export --model tiny --task semantic --method replay:window=2-2 --out replayed.onnx\n"
    "  gramloop export --model hf:FOLDER --method recentre:c=2 --calibration calibration.safetensors --height 64 --width 64 --out recentred.onnx\n"
    "  gramloop export --model hf:BACKBONE --task features --method replay:window=3-4 --out features.onnx\n"
    "  gramloop export --model hf:FOLDER --precision int8 --calibration-images photos --out int8.xml\n"
    "  gramloop export --show replayed.onnx"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to export, and as what."""

    out: Path | None = option("such as model.onnx, model.xml or model.pt2", None, metavar="FILE")
    show: Path | None = option("describe an exported file, and export nothing", None, metavar="FILE")
    format: Literal["pt2", "onnx", "openvino"] | None = option("as the ending of FILE says, by default", None)
    precision: Literal["fp32", "fp16", "int8"] = option(
        "of onnx and openvino; int8 is calibrated on images (fp32)", "fp32"
    )
    calibration_images: list[str] = option(
        "files, folders or globs of in-distribution images for int8; can be repeated", [], metavar="DIR"
    )
    method: str | None = option(METHOD_HELP, None, metavar="TEXT")
    calibration: Path | None = option(
        "statistics of in-distribution images, as gramloop calibrate writes them", None, metavar="FILE"
    )
    height: int | None = option("of the input (as the model prepares images)", None, metavar="H")
    width: int | None = option("likewise", None, metavar="W")
    batch: int = option("images at once (1)", 1, metavar="B", limits=(1, 4096))
    model: ModelOptions = group(ModelOptions, "model")


def run(options: Options) -> Ended:
    """Write the file, or describe one."""
    if options.show is not None:
        from gramloop.export.formats import read_about

        kind, about = read_about(options.show)
        print(about)
        shown: dict[str, Any] = {
            "file": options.show,
            "format": kind,
            "companions": [],
            "difference": None,
            "about": vars(about),
        }
        return Ended(0, lambda: shown)
    if options.out is None:
        raise GramLoopError("--out FILE is missing: such as model.onnx, model.xml or model.pt2")
    if options.calibration is not None and options.method is None:
        raise GramLoopError("--calibration belongs to --method, such as recentre:c=2")
    from rich.console import Console

    from gramloop.export.exporting import export_model, format_of

    format_of(options.out, options.format)  # a typo is reported before weights are read
    model, name = _model(options.model)
    made = export_model(
        model,
        options.out,
        format=options.format,
        precision=options.precision,
        calibration_images=options.calibration_images,
        mitigations=options.method or (),
        stats=options.calibration,
        height=options.height,
        width=options.width,
        batch=options.batch,
        name=name,
    )
    Console().print(made)
    document = {"file": made.path, "format": made.format, "companions": list(made.companions)}
    return Ended(0, lambda: {**document, "difference": made.difference, "about": vars(made.about)})


def _model(options: ModelOptions) -> tuple[Any, str]:
    """The model on the CPU, and what it is called in the file: names without folders."""
    from gramloop.models.dino import load_any_backbone
    from gramloop.tasks.loading import model_files

    parts = [options.head or options.model, *([options.backbone] if options.backbone else [])]
    if options.task != FEATURES:
        return replace(options, device="cpu").load(), " on ".join(_name(part) for part in parts)
    spec = options.backbone or options.model
    file = next(iter(model_files(spec).values())) if spec.startswith("hf:") else spec
    return load_any_backbone(file, verify=options.verify_weights), _name(spec)


def _name(spec: str) -> str:
    return spec.removeprefix("hf:").rstrip("/").rpartition("/")[2]
