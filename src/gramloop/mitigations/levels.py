"""Brightness and contrast brought back where they lie outside those of ordinary images; sharpness likewise.

Each acts only beyond what ordinary images show, and more the farther: an image at the edge is hardly touched, so
that there is no jump, and one far outside is brought to what is usual. Thresholds come from ordinary images alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from gramloop.errors import GramLoopError
from gramloop.mitigations.appearance import appearance
from gramloop.mitigations.filters import PixelMitigation
from gramloop.mitigations.mitigation import Mitigation
from gramloop.mitigations.source import Source
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor

MOST_GAIN = 20.0  # of contrast; of an image fainter than that, little but rounding is left
MOST_SHARPENED, RADIUS = 1.5, 1.5  # share of the detail added, and the standard deviation that defines it


class Appearing(PixelMitigation):
    """A change of pixels that needs to know how ordinary images look."""

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """It needs a source that knows."""
        self.ordinary(source)

    def ordinary(self, source: Source | None) -> Mapping[str, float]:
        """How ordinary images look."""
        if source is None or not source.pixels:
            raise GramLoopError(
                f"{self.name} needs to know how ordinary images look; calibrate on a few dozen and give their source"
            )
        return source.pixels


@dataclass(frozen=True)
class Levels(Appearing):
    """Contrast stretched around each channel's mean, and all channels shifted alike."""

    name = "levels"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The image with brightness and contrast of ordinary ones; the same one where it has them."""
        usual, found = self.ordinary(source), appearance(pixels)
        gain = beyond(found["contrast"], usual["contrast.low"], usual["contrast.usual"])
        bright = found["brightness"]
        shift = min(max(bright, usual["brightness.low"]), usual["brightness.high"]) - bright
        if gain == 1 and shift == 0:
            return pixels
        means = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        moved = (pixels - means) * np.float32(min(gain, MOST_GAIN)) + (means + np.float32(shift))
        whole: RGB = moved.round().clip(0, 255).astype(np.uint8)
        return whole


@dataclass(frozen=True)
class Sharpen(Appearing):
    """Detail added to images that are less sharp than ordinary ones."""

    name = "sharpen"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The sharpened image; the same one where it is as sharp as ordinary ones."""
        usual, found = self.ordinary(source), appearance(pixels)
        gain = beyond(found["sharpness"], usual["sharpness.low"], usual["sharpness.usual"])
        if gain == 1:
            return pixels
        share, smooth = min(gain - 1, MOST_SHARPENED), cv2.GaussianBlur(pixels, (0, 0), RADIUS)
        sharper: RGB = cv2.addWeighted(pixels, 1 + share, smooth, -share, 0)
        return sharper


def beyond(found: float, low: float, usual: float) -> float:
    """By what to multiply to come back: 1 from ``low`` on, growing with its square, at most to ``usual``."""
    if found >= low or found <= 0:
        return 1.0
    return max(1.0, min(usual / found, (low / found) ** 2))
