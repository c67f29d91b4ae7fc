"""A model that runs out of memory: which image it was, what would help, and memory for the next one."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from gramloop.data.records import Record
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.renumbering import before_renumbering

# what PyTorch says in a plain RuntimeError: on the CPU, on MPS, and in libraries below CUDA
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


class OutOfMemoryError(GramLoopError):
    """An image does not fit into memory: its unit is not stored, and all others go on."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def too_large(
    plan: Plan, predictor: Predictor[Prediction], device: torch.device, records: Sequence[Record]
) -> OutOfMemoryError:
    """The sentence about images that were shown at once: their size, their tokens, and what to change."""
    largest = max(records, key=lambda record: record.height * record.width)
    tokens = getattr(before_renumbering(predictor), "tokens", None)
    many = tokens(largest.height, largest.width) if tokens is not None else 0
    about = f"{largest.width} x {largest.height}{f', {many:,} tokens at once' if many else ''}"
    advice = ["a smaller --short-side"]
    if len(records) > 1:
        about += f", in a batch of {len(records)}"
        advice.insert(0, "--batch 1")
    if device.type != "cpu" and plan.model.dtype == "float32":
        advice.append("--dtype bfloat16")
    advice.append("another --device")
    return OutOfMemoryError(
        f"{largest.path} ({about}) does not fit into the memory of {device}; try "
        f"{', '.join(advice[:-1])} or {advice[-1]}"
    )


def release_memory(device: torch.device) -> None:
    """Give back what a failed prediction left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
