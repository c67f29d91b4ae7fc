"""Weights that a folder of transformers lacks: harmless where the model never reads them, else a refusal.

transformers fills them with random numbers and goes on. Released folders do lack some that no forward reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError

_BLANK = np.full((64, 64, 3), 128, dtype=np.uint8)


def settle_missing(
    model: nn.Module, missing: Iterable[str], preprocess: Callable[[Any], Mapping[str, Any]], path: Path
) -> None:
    """Set missing weights to 0 where a look at a grey image does not depend on them, else refuse the model.

    Nothing that is read can be NaN and leave every output finite.
    """
    held = model.state_dict()
    lacking = [name for name in missing if name in held and held[name].is_floating_point()]
    if not lacking:
        return
    with torch.no_grad():
        for name in lacking:
            held[name].fill_(torch.nan)
        given = {name: _placed(value, model) for name, value in preprocess(_BLANK).items()}
        reads = any(not value.isfinite().all() for value in _tensors(model(**given)))
        for name in lacking:
            held[name].zero_()
    if reads:
        raise GramLoopError(
            f"{path} lacks {len(lacking)} of the model's weights, such as {lacking[0]}; its config.json and weights come "
            "from one save_pretrained of a whole model"
        )


def _placed(value: Any, model: nn.Module) -> Any:
    return value.to(next(model.parameters()).device) if isinstance(value, Tensor) else value


def _tensors(output: Any) -> Iterator[Tensor]:
    """Every floating-point tensor in a model's output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _tensors(each)
