"""``gramloop scenes``: write procedural scenes with their labels to disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gramloop.cli.options import MANY, option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES

KEYS = {"folder": "where they are", "scenes": "how many"}
EPILOG = f"The same numbers draw the same scenes everywhere.{EXAMPLES}  gramloop scenes out/scenes --count 20"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to draw."""

    folder: Path = option("folder to write to; the same command resumes", metavar="DIR", positional=True)
    count: int = option("how many scenes", metavar="N", limits=(1, MANY))
    start: int = option("index of the first (0)", 0, metavar="I")
    size: int = option("width and height (192)", 192, metavar="PX")
    seed: int = option("another endless set (0)", 0, metavar="S")
    split: str = option("val, or train: what the embedded model was trained on (val)", "val")
    workers: int | None = option("processes (all cores)", None, metavar="N", limits=(1, 4096))


def run(options: Options) -> Ended:
    """Write the scenes."""
    from gramloop.data.scenes.files import SceneFiles, write_scenes
    from gramloop.util.progress import progress_bar

    wanted = SceneFiles(options.count, options.start, options.size, options.split, options.seed)
    with progress_bar("drawing scenes", options.count) as advance:
        write_scenes(options.folder, wanted, workers=options.workers, on_scenes=lambda n: advance(steps=n))
    print(
        f"{options.count} scenes in {options.folder}: label pictures with classes.txt, annotations/instances_val.json, "
        "annotations/panoptic_val.json with its PNG files, and depth/ in millimetres"
    )
    return Ended(0, lambda: {"folder": options.folder, "scenes": options.count})
