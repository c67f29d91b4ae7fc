"""Images one after the other: one that cannot be done costs a sentence, and the others are done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.tasks.outputs import ImageFile


def do_each_image(
    files: Sequence[ImageFile], doing: str, work: Callable[[ImageFile], None]
) -> list[dict[str, str]]:
    """Do the work on every image; the images that could not be done, with the reason of each."""
    from gramloop.util.progress import progress_bar

    failures = []
    with progress_bar(doing, len(files)) as advance:
        for file in files:
            advance(file.path.name, 0)
            if (reason := _attempt(file, work)) is not None:
                failures.append({"image": str(file.path), "reason": reason})
            advance(file.path.name)
    return failures


def _attempt(file: ImageFile, work: Callable[[ImageFile], None]) -> str | None:
    """Why an image could not be done, which is printed too; None where it could."""
    from torch import OutOfMemoryError

    try:
        work(file)
        return None
    except GramLoopError as error:
        sentence = str(error)
    except (MemoryError, OutOfMemoryError):
        sentence = "it does not fit into memory; try a smaller --short-side"
    print(sentence if str(file.path) in sentence else f"{file.path}: {sentence}", file=sys.stderr)
    return sentence
