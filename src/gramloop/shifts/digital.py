"""What cameras and files do to images: tone, colour, resolution, compression, and a rubber sheet."""

import io

import cv2
import numpy as np
import PIL.Image
import PIL.ImageEnhance

from gramloop.shifts.common import FloatImage, Image, gaussian, on_channels, to_bytes


def brightness(image: Image, amount: float) -> Image:
    """The value of hue, saturation and value raised by `amount` (1 is its range).

    Hue and saturation stay if all channels grow by one factor, so no conversion is needed; black turns grey.
    """
    raised = np.minimum(np.arange(256) + 255 * amount, 255)
    if image.ndim == 2:
        return _through(image, raised)
    planes = cv2.split(image)
    value = cv2.max(cv2.max(planes[0], planes[1]), planes[2])
    growth = cv2.LUT(value, (raised / np.maximum(np.arange(256), 1)).astype(np.float32))
    grown = cv2.multiply(image, on_channels(growth, image), dtype=cv2.CV_32F)
    black = value == 0
    if black.any():
        grown[black] = raised[0]
    return to_bytes(grown)


def saturate(image: Image, factor: float, shift: float) -> Image:
    """The saturation of hue, saturation and value times `factor` plus `shift`; a grey image stays.

    Hue and value stay if each channel's distance from the largest grows by one factor.
    """
    if image.ndim == 2:
        return image.copy()
    planes = cv2.split(image)
    value = cv2.max(cv2.max(planes[0], planes[1]), planes[2])
    least = cv2.min(cv2.min(planes[0], planes[1]), planes[2])
    top, span = value.astype(np.float32), cv2.subtract(value, least).astype(np.float32)
    new_span = np.clip(span * np.float32(factor) + top * np.float32(shift), 0, top)
    growth = np.divide(new_span, span, out=np.zeros_like(span), where=span > 0)
    top, growth = on_channels(top, image), on_channels(growth, image)
    saturated = top - (top - image) * growth
    if shift > 0:
        # A grey pixel's hue is 0 by convention, which is red.
        grey = np.flatnonzero(span == 0)
        saturated.reshape(-1, 3)[grey, 1:] -= new_span.reshape(-1, 1)[grey]
    return to_bytes(saturated)


def contrast(image: Image, factor: float) -> Image:
    """Each channel drawn towards its mean."""
    levels = np.arange(256)[:, None]
    means = np.array(cv2.mean(image)[: 1 if image.ndim == 2 else 3])
    return _through(image, (levels - means) * factor + means)


def elastic_transform(image: Image, alpha: float, rng: np.random.Generator) -> Image:
    """The image on a rubber sheet: uniform noise, smoothed over 1% of each side, times `alpha` moves it."""
    height, width = image.shape[:2]
    reach = 0.005 * height
    noise = rng.random((2, height, width), dtype=np.float32)
    noise *= 2 * reach
    noise -= reach
    sigma = 0.01 * height, 0.01 * width
    columns, rows = (
        gaussian(n, sigma, truncate=3, border=cv2.BORDER_REFLECT) * np.float32(alpha) for n in noise
    )
    rows += np.arange(height, dtype=np.float32)[:, None]
    columns += np.arange(width, dtype=np.float32)
    values = image.astype(np.float32)
    moved: FloatImage = cv2.remap(values, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return to_bytes(moved)


def pixelate(image: Image, scale: float) -> Image:
    """Boxes of pixels averaged to `scale` of the size, then repeated."""
    height, width = image.shape[:2]
    small = PIL.Image.fromarray(image).resize(
        (max(1, int(width * scale)), max(1, int(height * scale))), PIL.Image.Resampling.BOX
    )
    return np.array(small.resize((width, height), PIL.Image.Resampling.NEAREST))


def jpeg_compression(image: Image, quality: float) -> Image:
    """Through JPEG at a quality (1 to 95) and back."""
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "JPEG", quality=int(quality))
    with PIL.Image.open(file) as decoded:
        return np.array(decoded)


def more_contrast(image: Image, factor: float) -> Image:
    """Away from the mean grey of the whole image, as Pillow enhances contrast."""
    return np.array(PIL.ImageEnhance.Contrast(PIL.Image.fromarray(image)).enhance(factor))


def darkness(image: Image, factor: float) -> Image:
    """Every value times `factor`, as Pillow enhances brightness."""
    return np.array(PIL.ImageEnhance.Brightness(PIL.Image.fromarray(image)).enhance(factor))


def _through(image: Image, levels: FloatImage) -> Image:
    """Each value of the image replaced by its level: (256,), or (256, channels)."""
    table = to_bytes(np.asarray(levels, dtype=np.float32).copy())
    shape = (256, 1) if table.ndim == 1 or table.shape[1] == 1 else (256, 1, 3)
    mapped: Image = cv2.LUT(image, table.reshape(shape))
    return mapped
