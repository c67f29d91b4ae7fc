"""What a recipe costs, before anything is run and without weights: images, blocks, device hours and storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gramloop.data.suites import find_suite
from gramloop.evaluate.methods import blocks_per_view, prediction_calls
from gramloop.reproduce.recipe import EvaluationEntry, Price, Recipe
from gramloop.util.table import Column, Table


@dataclass(frozen=True)
class EvaluationPrice:
    """The cost of one evaluation; hours are None where the recipe knows no times."""

    images: int
    blocks: float
    hours: float | None
    bytes: float


def price_of(recipe: Recipe, one: EvaluationEntry) -> EvaluationPrice:
    """The cost of an evaluation from the sizes and times that the recipe states."""
    model, data, suite = recipe.models[one.model], recipe.data[one.data], find_suite(one.suite)
    each = len(one.only) or data.images or data.scenes
    conditions = len(suite.select(one.conditions or None, one.severities or None))
    images = each if suite.kind == "o" else each * conditions
    if suite.kind == "o" and conditions < len(suite.conditions):
        images = round(each * conditions / len(suite.conditions))
    methods = one.all_methods if one.methods else []
    views = blocks_per_view(methods, model.depth, one.diagnostics) if methods else 0
    seconds = _seconds(recipe, model.price, one, model.depth)
    return EvaluationPrice(
        images if methods else 0,
        views * model.price.views * images,
        None if seconds is None else seconds * images / 3600,
        model.price.bytes * len(methods) * images,
    )


def _seconds(recipe: Recipe, price: Price, one: EvaluationEntry, depth: int) -> float | None:
    """Device seconds of all methods on an image: printed where a path is, else on the line through the printed ones."""
    if not one.methods:
        return 0.0
    known = recipe.models[price.like].price if price.like else price
    if len(known.seconds) < 2:
        return None
    block, rest = np.polyfit(list(known.seconds), list(known.seconds.values()), 1)
    if price.like:  # blocks by their tokens, and nothing else
        return float(
            blocks_per_view(one.all_methods, depth, one.diagnostics) * block * price.tokens / known.tokens
        )
    total = 0.0
    for call in prediction_calls(one.all_methods):
        blocks = blocks_per_view(call, depth, one.diagnostics)
        total += known.seconds.get(blocks, rest + block * blocks) + rest * (len(call) - 1)
    return float(total)


def price_table(recipe: Recipe, evaluations: Mapping[str, EvaluationEntry], device: str = "GPU") -> Table:
    """The cost of every evaluation, and of all."""
    prices = {name: price_of(recipe, one) for name, one in evaluations.items()}
    hours = [price.hours for price in prices.values() if price.hours is not None]
    total = EvaluationPrice(
        sum(price.images for price in prices.values()),
        sum(price.blocks for price in prices.values()),
        sum(hours) if len(hours) == len(prices) else None,
        sum(price.bytes for price in prices.values()),
    )
    rows = [
        (name, price.images, price.blocks / 1e6, price.hours, price.bytes / 1e9)
        for name, price in {**prices, "all": total}.items()
    ]
    return Table(
        "What it costs",
        (
            Column("evaluation", "Evaluation", "text"),
            Column("images", "Images", digits=0),
            Column("blocks", "Blocks (million)", digits=1),
            Column("hours", f"{device}-hours", digits=1),
            Column("storage", "Stored GB", digits=1),
        ),
        rows,
        _notes(recipe, evaluations),
        key="price",
        footer=1,
    )


def _notes(recipe: Recipe, evaluations: Mapping[str, EvaluationEntry]) -> list[str]:
    prices = {one.model: recipe.models[one.model].price for one in evaluations.values()}
    timed = "Hours come from the seconds per image that the recipe states; baseline and first replay share a pass."
    like = "{} has no times of its own: its blocks are priced by tokens, and its head is left out."
    return [
        *([timed] if any(price.seconds for price in prices.values()) else []),
        *(like.format(name) for name, price in prices.items() if price.like),
        "Storage is before compression.",
    ]
