"""What a plan needs of a GPU, whether or not there is one here: counted by running the model's code without values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gramloop.core.dry_run import Needs
from gramloop.evaluate.methods import BASELINE, Method, blocks_per_view
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.predicting import calls
from gramloop.evaluate.sources import open_planned
from gramloop.evaluate.timing import call_name
from gramloop.tasks.footprint import Size, footprint, pixels_at_once, views_of
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.predictor import wants_trace
from gramloop.util.progress import tracked

FITS = 0.95  # of a card; its context, the scratch memory of libraries and holes between tensors need the rest


@dataclass(frozen=True)
class PlanNeeds:
    """Views of all images, and what the largest image needs.

    calls: by the methods that are predicted together; mitigations look at images in ways of their own and are left out.
    """

    views: int
    blocks: int
    largest: Size
    calls: Mapping[str, Needs]

    @property
    def peak(self) -> int:
        """Bytes of tensors at once."""
        return max(needs.peak for needs in self.calls.values())


@dataclass(frozen=True)
class Card:
    """A GPU that is here."""

    name: str
    memory: int


def plan_needs(plan: Plan) -> PlanNeeds:
    """Count what a plan needs; no weight is loaded, and no image is read.

    Raises:
        GramLoopError: where the model is not one of the released heads or the embedded one.
    """
    model = plan.model
    predictor = load_predictor(plan.task, model.files, model.sizes, "meta", dtype=model.dtype)
    sizes = _sizes(plan)
    largest = max(sizes, key=lambda size: pixels_at_once(predictor, size))
    found = {}
    wanted = [together for together in calls(plan.methods) if not together[-1].mitigations]
    wanted = wanted or [(Method(BASELINE),)]
    for together in tracked(wanted, "counting memory", len(wanted)):
        replay = together[-1].replay
        found[call_name(together)] = footprint(
            predictor,
            largest,
            replay,
            len(together) > 1,
            trace=replay is not None and _traces(plan, together[-1]),
            autocast=model.device == "cuda",
            batch=plan.batch,
        )
    views = sum(many * views_of(predictor, size) for size, many in sizes.items())
    per_view = blocks_per_view(plan.methods, model.depth, plan.diagnostics)
    return PlanNeeds(views, views * per_view, largest, found)


def card_here(kind: str) -> Card | None:
    """The first GPU of a kind on this machine."""
    if kind != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Card(str(found.name), int(found.total_memory))


def needs_lines(plan: Plan, needs: PlanNeeds, card: Card | None) -> list[str]:
    """The needs of a plan in words."""
    height, width = needs.largest
    weights = next(iter(needs.calls.values())).weights
    computes = (
        ""
        if plan.model.dtype == "bfloat16" or plan.model.device != "cuda"
        else ", blocks compute in bfloat16"
    )
    lines = [
        f"{needs.blocks:,} blocks in all: {needs.views:,} views of {plan.images:,} images",
        f"memory of the largest image, {width} x {height}, counted without weights:",
        f"  weights: {gigabytes(weights)}, the backbone's in {plan.model.dtype}{computes}",
    ]
    for name, each in needs.calls.items():
        lines.append(
            f"  {name}: {gigabytes(each.peak)} at once, {gigabytes(each.activations)} of it beside the weights; "
            f"{gigabytes(each.moved)} read and written, {gigabytes(each.weights_read)} of it weights"
        )
    if card is None:
        return [*lines, f"no such card here (--device {plan.model.device}) to compare that with"]
    fits = needs.peak <= FITS * card.memory
    said = "it fits" if fits else "it does not fit; --dtype bfloat16 or a smaller --short-side needs less"
    return [*lines, f"{card.name} has {gigabytes(card.memory)}: {said}"]


def gigabytes(number: float) -> str:
    """Bytes in words; 1 GB is 10⁹ bytes."""
    if number >= 1e12:
        return f"{number / 1e12:.1f} TB"
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _traces(plan: Plan, method: Method) -> bool:
    assert method.replay is not None
    return plan.diagnostics or (plan.pictures > 0 and wants_trace(method.replay, None))


def _sizes(plan: Plan) -> Counter[Size]:
    """How many images of each size are shown over all conditions."""
    opened, sizes = open_planned(plan), Counter[Size]()
    for key, images in plan.conditions.items():
        data = opened.open(condition_of(key)) if opened.clean is None else opened.clean
        sizes.update((record.height, record.width) for record in data[:images])
    return sizes
