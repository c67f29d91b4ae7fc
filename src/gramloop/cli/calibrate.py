"""``gramloop calibrate``: statistics of in-distribution images, for mitigations that need them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gramloop.cli.options import group, option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES, ModelOptions

KEYS = {
    "file": "what was written",
    "images": "how many were used",
    "taps": "the blocks whose features were measured; empty for a model without a ViT",
    "noise": "the level below which 99 of 100 images lie",
}
EPILOG = (
    "FILE keeps the mean of the features that the head reads, its spread from image to image, and the usual level of noise "
    "and contrast; --calibration FILE of other commands uses it. A few dozen images are enough, and no labels."
    f"{EXAMPLES}  gramloop calibrate photos --model hf:FOLDER --out calibration.safetensors"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which images, and for which model."""

    images: list[str] = option(
        "files, folders or globs of in-distribution images", metavar="IMAGE", positional=True
    )
    out: Path = option("such as calibration.safetensors", metavar="FILE")
    model: ModelOptions = group(ModelOptions, "model")


def run(options: Options) -> Ended:
    """Measure every image, and write the file."""
    from gramloop.mitigations.source import calibrate, write_source
    from gramloop.tasks.outputs import find_images

    images = [file.path for file in find_images(options.images, options.out.parent)]
    stats = calibrate(options.model.load(), images)
    write_source(options.out, stats)
    taps = ", ".join(str(tap) for tap in stats.means)
    features = f"features after blocks {taps}" if taps else "pixels alone, since the model has no ViT"
    print(f"{stats.images} images, {features}, noise below {stats.noise:.2f} in 99 of 100: {options.out}")
    about = {"images": stats.images, "noise": stats.noise, "taps": list(stats.means)}
    return Ended(0, lambda: {"file": options.out, **about})
