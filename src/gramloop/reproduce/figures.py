"""The paper's figures from stored results: severities, Gram consistency, the diagnostic, and predictions under shift."""

from __future__ import annotations

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.report.consistency import consistency_figure, gram_consistency
from gramloop.report.figures import Named, suite_gains
from gramloop.report.figures.diagnostic import diagnostic, drift_scale
from gramloop.report.figures.heat import severity_heat
from gramloop.report.figures.images import KeptImage, ShownImages, image_gain, kept_images
from gramloop.report.figures.qualitative import ComparedImage, qualitative
from gramloop.report.run import Run
from gramloop.reproduce.recipe import ImageRow, Output
from gramloop.reproduce.tables import Context


def severity_figure(key: str, layout: Output, made: Context) -> Named:
    """Gains by suite and severity."""
    gains = suite_gains([made.runs[name] for name in layout.evaluations], layout.method)
    yield key, severity_heat(gains)
    for name, row in zip(gains.names, gains.values, strict=True):
        top = gains.severities[int(np.nanargmax(row))]
        text = f"{name}: severity with the largest gain"
        made.claims.append(("largest at 4 or 5", text, top, max(gains.severities)))


def gram_figure(key: str, layout: Output, made: Context) -> Named:
    """Gram consistency at matched strength."""
    run = made.runs[layout.evaluation]
    found = next((each for each in gram_consistency(run) if each.method == layout.method), None)
    if found is None:
        raise GramLoopError(
            f"{run.name} has no drift of all its images; its evaluation needs diagnostics: true"
        )
    yield key, consistency_figure(found)
    for kind, below, each in (
        ("families", found.families_below, found.families),
        ("conditions", found.conditions_below, found.conditions),
    ):
        text = f"{run.name}: {kind} in which the gated replay ends below the uniform one"
        made.claims.append((f"{kind} below uniform", text, below, len(each)))


def impulse_figure(key: str, layout: Output, made: Context) -> Named:
    """Drift and gate of one image: under all conditions of the recipe, and under the last alone."""
    rows = []
    for each in layout.rows:
        run = made.runs[each.evaluation]
        kept = _kept(run, layout.method, each.condition, each.image or layout.image)
        rows.append(ShownImages(run).diagnosed(kept, layout.method, f"severity {kept.condition.severity}"))
    title, high = f"Image {layout.image}", layout.drift or drift_scale(rows)
    yield f"{key}-last", diagnostic(rows[-1:], f"{title}, {rows[-1].label}", high)
    if len(rows) > 1:
        yield key, diagnostic(rows, title, high)


def _kept(run: Run, method: str, condition: str, image: str) -> KeptImage:
    """An image that an evaluation kept, by its id."""
    for each in kept_images(run, [method], condition or "*"):
        if each.is_called(condition or each.condition.key, image):
            return each
    raise GramLoopError(
        f"{run.name} keeps no picture of the image {image} under {condition}; its evaluation needs keep: [{image!r}]"
    )


def shift_figure(key: str, layout: Output, made: Context) -> Named:
    """Input, annotation, baseline and method, a row for each image."""
    rows = [_compared(made.runs[each.evaluation], layout.method, each) for each in layout.rows]
    title = made.recipe.title_of
    words = layout.title.removeprefix("Figure: ")
    yield key, qualitative(rows, words, (title("baseline"), title(layout.method)))


def _compared(run: Run, method: str, row: ImageRow) -> ComparedImage:
    if row.image:
        kept, why = _kept(run, method, row.condition, row.image), "chosen"
    else:
        images = kept_images(run, [method], row.condition or "*")
        gains = [image_gain(run, each, method) for each in images]
        if not np.isfinite(gains).any():
            raise GramLoopError(
                f"{run.name} keeps no pictures under {row.condition or 'any condition'}; give it pictures: N"
            )
        kept, why = images[int(np.nanargmax(gains))], "largest gain of the images kept"
    found = ShownImages(run).compared(kept, [method], f"{run.name} · {kept.place} · {why}")
    return found.part(row.crop, row.categories) if row.crop or row.categories else found
