"""Hostile input to the command line: no traceback, no exit 0 on nonsense, nothing half-written.

A case is a number: it decides what is broken and how, so that a failure can be looked at again. Few cases of every
kind are run with every change, all of them by ``make test-all``.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.replay.config import ReplayConfig, write_replay
from gramloop.util.files import TEMPORARY
from hostile_case import Case, World, plan_of
from hostile_commands import bad_command, bad_results, bad_settings
from hostile_images import bad_annotations, bad_picture, bad_set
from hostile_models import bad_weights
from small_runs import write_model, write_scene_set
from small_stores import make_plan, write_store

SHORT = 18  # cases of every kind with every change


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    write_model(folder / "model")
    write_scene_set(folder / "scenes", 2)
    write_store(folder / "results", make_plan(images=4, conditions=("fog/1", "snow/1")))
    write_replay(folder / "replay.json", ReplayConfig((2, 3)), {"found": 1})
    picture = folder / "scenes" / "images" / "validation" / "00000000.png"
    shutil.copy(picture, folder / "picture.png")
    return World(folder)


KINDS = {
    bad_annotations: 500,
    bad_set: 250,
    bad_picture: 350,
    bad_weights: 300,
    bad_settings: 250,
    bad_results: 200,
    bad_command: 350,
}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; locks are no content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@contextlib.contextmanager
def _quiet() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield out, err


def trouble(
    world: World, make: Callable[[World, random.Random, Path], Case], number: int, place: Path
) -> str:
    """What went wrong with a case, or nothing."""
    rng = random.Random(f"{make.__name__}-{number}")
    place.mkdir(parents=True)
    case = make(world, rng, place)
    before = {folder: tree(folder) for folder in case.untouched}
    said = f"{make.__name__} {number}: {' '.join(case.command)}\n"
    with _quiet() as (_, err):
        try:
            code = main(case.command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
        except BaseException:
            return f"{said}TRACEBACK {traceback.format_exc()}"
    words = err.getvalue()
    if "Traceback" in words:
        return f"{said}TRACEBACK {words}"
    if code == 0:
        return "" if case.is_sound() else f"{said}ACCEPTED"
    if not words.strip():
        return f"{said}SILENT {code}"
    left = [folder for folder, files in before.items() if tree(folder) != files]
    if left or list(place.rglob(f"{TEMPORARY}*")):
        return f"{said}HALF-WRITTEN {left} {[sorted(tree(folder)) for folder in left]}\n{words}"
    return ""


def run(world: World, make: Callable[[World, random.Random, Path], Case], cases: range, place: Path) -> None:
    found = []
    for number in cases:
        found += [trouble(world, make, number, place / str(number))]
        shutil.rmtree(place / str(number), ignore_errors=True)
    wrong = [each for each in found if each]
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n\n" + "\n\n".join(wrong[:20])


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_few_of_every_kind(world: World, make: Callable, tmp_path: Path) -> None:
    run(world, make, range(SHORT), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_all_of_every_kind(world: World, make: Callable, tmp_path: Path) -> None:
    run(world, make, range(KINDS[make]), tmp_path)


def test_the_long_run_has_two_thousand_cases() -> None:
    assert sum(KINDS.values()) >= 2000


def test_good_files_are_accepted(world: World, tmp_path: Path) -> None:
    """The cases begin from what works, or they would show nothing."""
    for task in ("semantic", "detection", "depth"):
        assert main(plan_of(world, world.scenes, task, tmp_path / "out")) == 0
    picture = [
        "predict",
        str(world.folder / "picture.png"),
        "--task",
        "semantic",
        "--model",
        str(world.model),
    ]
    assert main([*picture, "--out", str(tmp_path / "a"), "--method", str(world.folder / "replay.json")]) == 0
    assert main(["evaluate", "--out", str(world.folder / "results"), "--status"]) == 0
