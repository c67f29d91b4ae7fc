"""``gramloop calibrate``: statistics of in-distribution images, for mitigations that need them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gramloop.cli.options import CommandResult, command, group, option
from gramloop.cli.shared import ModelOptions


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Which images, and for which model."""

    images: list[str] = option(
        "files, folders or globs of in-distribution images", metavar="IMAGE", positional=True
    )
    out: Path = option("such as calibration.safetensors", metavar="FILE")
    model: ModelOptions = group(ModelOptions, "model")


@command(
    CalibrateOptions,
    "FILE keeps the mean of the features that the head reads, its spread from image to image, and the usual level of "
    "noise and contrast; --calibration FILE of other commands uses it. A few dozen images are enough, and no labels.",
    [
        "gramloop calibrate photos --model hf:FOLDER --out calibration.safetensors",
    ],
    {
        "file": "what was written",
        "images": "how many were used",
        "taps": "the blocks whose features were measured; empty for a model without a ViT",
        "noise": "the level in grey values that 99 of 100 images stay below",
        "input_noise": "the same in units of the model's input, if it has a ViT",
    },
)
def calibrate_command(options: CalibrateOptions) -> CommandResult:
    """Measure every image, and write the file."""
    from gramloop.mitigations.calibration import calibrate
    from gramloop.tasks.images import find_images

    images = [file.path for file in find_images(options.images, options.out.parent)]
    stats = calibrate(options.model.load(), images)
    stats.save(options.out)
    taps = ", ".join(str(tap) for tap in stats.means)
    features = f"features after blocks {taps}" if taps else "pixels alone, since the model has no ViT"
    print(f"{stats.images} images, {features}, noise below {stats.noise:.2f} in 99 of 100: {options.out}")
    if stats.input_noise is not None:
        level = f"{stats.input_noise:.4g}"
        print(f"In the model's input, noise below {level}: adaptive=noise:{level}:{level} replays above that")
    about = {
        "taps": list(stats.means),
        "images": stats.images,
        "noise": stats.noise,
        "input_noise": stats.input_noise,
    }
    return 0, {"file": options.out, **about}
