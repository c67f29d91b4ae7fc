"""What methods cost: work by the blocks they execute and the size they see images in, and measured time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gramloop.evaluate.methods import BASELINE, Method
from gramloop.mitigations.stack import replay_of, stack_scales
from gramloop.report.run import Run


@dataclass(frozen=True)
class PathCost:
    """One method's cost; device seconds include the head, Gram algebra and the handling of images."""

    method: str
    blocks: float  # of one view of an image, counted
    formula: int  # the same by the formula
    depth: int
    seconds: float | None  # of one device per image
    together: str = ""  # what was predicted in the same call, and is in these seconds
    peak_memory: int = 0  # bytes
    work: float = 1.0  # blocks times the area they see, per those of the ordinary model
    time: float | None = (
        None  # seconds of predicting, without the handling of images, per those of the baseline
    )

    @property
    def multiplier(self) -> float:
        """Blocks by the formula, per block of the ordinary model."""
        return self.formula / self.depth


def path_costs(run: Run, group: Sequence[Run] = ()) -> list[PathCost]:
    """The cost of every method of a run; the baseline's time comes from where it was timed alone."""
    spent, depth = run.spent, run.plan.model.depth
    if not spent.images:
        return []
    methods = {method.name: method for method in run.plan.methods}
    rows = []
    for name in run.methods:
        call = next((each for each in spent.calls if name in each.split("+")), None)
        predicting = spent.predicting(name)
        shared = call is not None and predicting is None
        if shared and call is not None and name != BASELINE:
            predicting = spent.calls[call]
        seconds = None if predicting is None else _with_handling(run, predicting)
        if name == BASELINE and seconds is None:
            peers = (one for one in group if BASELINE in one.spent.calls and _alike(one, run))
            seconds = next((_with_handling(one, one.spent.calls[BASELINE]) for one in peers), None)
        rows.append(
            PathCost(
                name,
                spent.blocks.get(name, 0) / spent.images,
                methods[name].blocks(depth),
                depth,
                seconds,
                BASELINE if shared and name != BASELINE else "",
                spent.peak_memory,
                work_of(run, name),
                time_of(run, name),
            )
        )
    return rows


def work_of(run: Run, name: str) -> float:
    """Blocks executed, each times the area it sees, per those of the ordinary model.

    Blocks are as counted, for a replay may decide image by image; by formula where diagnostics made it execute more
    than it needs.
    """
    method, depth = next(each for each in run.plan.methods if each.name == name), run.plan.model.depth
    blocks = run.spent.blocks
    counted = bool(blocks.get(name)) and (not run.plan.diagnostics or _decides(method))
    if not counted:
        return area_of(method) * method.blocks(depth) / depth
    ordinary = blocks.get(BASELINE) or depth * run.spent.images
    return area_of(method) * blocks[name] / ordinary


def area_of(method: Method) -> float:
    """The area of a look at an image per that of the usual one, on average."""
    sizes = stack_scales(method.mitigations)
    return sum(size**2 for size in sizes) / len(sizes)


def _decides(method: Method) -> bool:
    replay = method.replay or replay_of(method.mitigations)
    return replay is not None and replay.adaptive is not None


def time_of(run: Run, name: str) -> float | None:
    """Seconds of predicting per those of the baseline; None where one of them was not measured by itself."""
    own, ordinary = run.spent.predicting(name), run.spent.predicting(BASELINE)
    return None if own is None or not ordinary else own / ordinary


def _alike(first: Run, second: Run) -> bool:
    return (first.plan.suite, first.plan.task) == (second.plan.suite, second.plan.task)


def _with_handling(run: Run, predicting: float) -> float:
    """Predicting, and the handling of images, which all methods of a run share, per image."""
    spent = run.spent
    handling = spent.seconds - sum(spent.calls.values())
    return (predicting + handling) / spent.images
