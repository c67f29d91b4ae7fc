"""Which mitigations can be part of a file: those that are tensor operations on one image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from gramloop.core.recentring import Recentring
from gramloop.core.source import Source, read_source
from gramloop.errors import GramLoopError
from gramloop.mitigations.applying import Mitigated, check_stack, replay_of
from gramloop.mitigations.files import read_mitigations
from gramloop.mitigations.mitigation import Mitigation
from gramloop.mitigations.norms import Norms
from gramloop.mitigations.recentre import Recentre
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.texts import names_mitigations, ordered, parse_mitigations, stack_text
from gramloop.replay.attach import Loop, attached, loops_on
from gramloop.replay.config import ReplayConfig
from gramloop.replay.vit import find_vit
from gramloop.tasks.padded import PaddedSegmenter
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.renumbering import before_renumbering

CAN = "replays (also adaptive ones), recentre without stream, and norms"
Wanted = str | Path | ReplayConfig | Recentring | Sequence[Mitigation] | None


@dataclass(frozen=True)
class Stack:
    """Mitigations, and what ordinary images look like where one of them needs to know."""

    mitigations: tuple[Mitigation, ...] = ()
    source: Source | None = None

    @property
    def text(self) -> str:
        """As `gramloop.mitigations.parse_mitigations` reads it; empty where there are none."""
        return stack_text(self.mitigations)

    @property
    def replay(self) -> ReplayConfig | None:
        """The replay among them."""
        return replay_of(self.mitigations)

    @property
    def recentring(self) -> Recentre | None:
        """The recentring among them."""
        return next((each for each in self.mitigations if isinstance(each, Recentre)), None)


def stack_of(wanted: Wanted, source: Source | str | Path | None = None) -> Stack:
    """What an argument means: a text, a file of `gramloop tune`, a replay, a recentring, or mitigations."""
    known = read_source(source) if isinstance(source, str | Path) else source
    if isinstance(wanted, ReplayConfig):
        return _checked((Replay(wanted),), known)
    if isinstance(wanted, Recentring) and not isinstance(wanted, Mitigation):
        return _checked((Recentre(wanted.weight, wanted.beyond),), known)
    if isinstance(wanted, Mitigation):
        return _checked((wanted,), known)
    if wanted is None or wanted == "":
        return Stack(source=known)
    if isinstance(wanted, Path) or (
        isinstance(wanted, str) and wanted.endswith(".json") and not names_mitigations(wanted)
    ):
        stored = read_mitigations(wanted)
        return _checked(stored.stack, known or stored.read_source())
    return _checked(parse_mitigations(wanted) if isinstance(wanted, str) else ordered(wanted), known)


def _checked(stack: tuple[Mitigation, ...], source: Source | None) -> Stack:
    for each in stack:
        if not isinstance(each, Replay | Recentre | Norms):
            where = {
                "pixels": "works on the pixels before the model",
                "outputs": "looks at an image several times",
            }
            why = where.get(each.stage, "is no part of the model")
            raise GramLoopError(f"{each.text} {why}, so it cannot be exported; what can be are {CAN}")
        if each.carries_state:
            raise GramLoopError(
                f"{each.text} carries a mean from image to image, which a file cannot keep; what can be exported are {CAN}"
            )
    return Stack(stack, source)


def prepared(predictor: Predictor[Prediction], stack: Stack) -> Predictor[Prediction]:
    """The predictor whose head sees treated features; refuses mitigations that make no sense for it."""
    plain = before_renumbering(predictor)
    check_stack(stack.mitigations, plain, stack.source)
    if stack.mitigations and isinstance(plain, PaddedSegmenter):
        raise GramLoopError(
            f"{plain.task} images lie in a square with padding, which a file cannot tell from the image, and which {stack.text} "
            "must not count; it is exported without a mitigation"
        )
    for each in stack.mitigations:
        plain = each.prepare(plain, stack.source)
    return plain


def unwrapped(predictor: object, stack: Stack) -> tuple[object, Stack]:
    """A predictor with mitigations of its own as the plain one and these; others as they are."""
    if not isinstance(predictor, Mitigated):
        return predictor, stack
    if stack.mitigations:
        raise GramLoopError(
            f"the predictor has mitigations already ({stack_text(predictor.stack)}); leave out {stack.text}"
        )
    return predictor.plain, _checked(predictor.stack, predictor.source)


@contextmanager
def attached_stack(root: nn.Module, stack: Stack, recentred: bool) -> Iterator[None]:
    """The replay, and for a module of no known head the recentring, attached meanwhile."""
    move = None if recentred else stack.recentring
    norms = [each for each in stack.mitigations if isinstance(each, Norms)]
    if norms and not recentred:
        raise GramLoopError(
            f"{norms[0].text} acts on the batch norms of a head that is known, and this one is not"
        )
    if stack.replay is None and move is None:
        yield
        return
    given = {} if move is None else {"recentre": Recentring(move.weight, move.beyond), "source": stack.source}
    with attached(root, stack.replay or ReplayConfig(replays=0), **given):  # type: ignore[arg-type]
        yield


def attached_before(root: nn.Module) -> Loop | None:
    """What a module came with, where something is attached to it."""
    try:
        return next(iter(loops_on(find_vit(root))), None)
    except GramLoopError:
        return None
