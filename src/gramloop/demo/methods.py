"""The ways to predict that the demonstration shows: the model as it is, replay, what executes no block, and both."""

from __future__ import annotations

from collections.abc import Mapping

from gramloop.data.records import TaskName as Task
from gramloop.evaluate.methods import BASELINE, GRAMLOOP
from gramloop.models.tiny import suggested_replay
from gramloop.replay.config import replay_text

ORDINARY, REPLAY, FREE, BOTH = "ordinary", "replay", "free", "both"
CHANGED = (REPLAY, FREE, BOTH)

# what gained most for each task on scenes of another split, among those that docs/evidence.md lists
MITIGATIONS: Mapping[Task, str] = {
    "semantic": "denoise:11+levels",
    "detection": "denoise:11+levels",
    "depth": "levels",
}


def ways(task: Task) -> dict[str, str]:
    """The methods' names in results, by what the demonstration calls them; free ones are named by what they do."""
    free = "-".join(part.partition(":")[0] for part in MITIGATIONS[task].split("+"))
    return {ORDINARY: BASELINE, REPLAY: GRAMLOOP, FREE: free, BOTH: f"{free}-replay"}


def methods_of(task: Task) -> list[str]:
    """As ``gramloop evaluate --method`` takes them; ``gramloop`` is the replay beside the weights."""
    names, text = ways(task), MITIGATIONS[task]
    both = f"{text}+replay:{replay_text(suggested_replay())}"
    return [BASELINE, GRAMLOOP, f"{names[FREE]}={text}", f"{names[BOTH]}={both}"]
