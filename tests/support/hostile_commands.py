"""Settings, results and command lines that are broken in ways that a number decides."""

from __future__ import annotations

import json
import random
from pathlib import Path

import broken_files
from gramloop.replay.config import ReplayConfig
from hostile_case import Case, World, copied, plan_of


def bad_settings(world: World, rng: random.Random, place: Path) -> Case:
    file = place / "replay.json"
    good = json.loads((world.folder / "replay.json").read_bytes())
    if rng.random() < 0.85:
        file.write_bytes(broken_files.json_bytes(broken_files.change_json(good, rng)))
    else:
        file.write_bytes(broken_files.change_bytes((world.folder / "replay.json").read_bytes(), rng))
    command = [
        "predict",
        str(world.folder / "picture.png"),
        "--task",
        "semantic",
        "--model",
        str(world.model),
    ]
    command += ["--out", str(place / "out"), "--method", str(file), "--no-picture"]
    return Case(command, (place / "out",), lambda: _sound_settings(file))


def _sound_settings(file: Path) -> bool:
    try:
        content = json.loads(file.read_bytes())
        replay = content["replay"]
        number = lambda value: isinstance(value, int | float) and not isinstance(value, bool)  # noqa: E731
        window = replay.get("window")
        return (
            content["kind"] == "gramloop replay"
            and isinstance(content.get("about", {}), dict)
            and set(replay) <= set(ReplayConfig.__dataclass_fields__)
            and (window is None or (len(window) == 2 and all(type(x) is int for x in window) and 0 <= window[0] <= window[1] < 6))
            and ("replays" not in replay or (type(replay["replays"]) is int and replay["replays"] >= 0))
            and ("eps" not in replay or (number(replay["eps"]) and 0 < replay["eps"] < 1e309))
            and (replay.get("gate", "gram") in ("gram", "uniform", "none"))
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def bad_results(world: World, rng: random.Random, place: Path) -> Case:
    """A plan, manifest or unit of a finished evaluation is another; what is left must not be touched."""
    results = copied(world, "results", place)
    files = sorted(path for path in results.rglob("*") if path.is_file() and path.name != ".lock")
    file = results / "plan.json" if rng.random() < 0.6 else rng.choice(files)
    before = file.read_bytes()
    if file.suffix == ".json" and rng.random() < 0.8:
        file.write_bytes(broken_files.json_bytes(broken_files.change_json(json.loads(before), rng)))
    elif rng.random() < 0.2:
        file.unlink()
    else:
        file.write_bytes(broken_files.change_bytes(before, rng))
    command = ["evaluate", "--out", str(results), "--status"]
    if rng.random() < 0.5:
        command = ["report", str(results), "--out", str(place / "report"), "--no-pdf"]
    return Case(command, (results, place / "report"), lambda: _same_but_where(file, before))


def _same_but_where(file: Path, before: bytes) -> bool:
    """Whether nothing that decides a number differs; a plan that is gone or edited is known from its units."""
    if file.name != "plan.json":
        return True  # a unit that cannot be read is not counted, and a manifest decides no number
    return file.name == "plan.json" and bool(before)


BAD_VALUES = (
    "",
    " ",
    "x",
    "-1",
    "1e9",
    "nan",
    "0x10",
    "None",
    "[]",
    "../..",
    "\0".replace("\0", "\\0"),
    "=1",
    "9" * 30,
    "é",
)
NUMBERS = (
    "--images", "--shards", "--workers", "--severity", "--threads", "--pictures", "--short-side", "--jobs", "--prepare", "--batch",
)  # fmt: skip
CHOICES = ("--task", "--engine", "--origin", "--format", "--align", "--truth", "--device")
NAMES = ("--suite", "--condition", "--method", "--model", "--data", "--calibration", "--slurm")
REPLAY = (
    "--replays",
    "--gate",
    "--strength",
    "--eps",
    "--gate-at",
    "--adaptive",
    "--update-at",
)


def bad_command(world: World, rng: random.Random, place: Path) -> Case:
    """A command that would run, with one value that is none of its option's."""
    if rng.random() < 0.6:
        good = plan_of(world, world.scenes, "semantic", place / "out")
        options, bad = rng.choice([NUMBERS, CHOICES, NAMES]), rng.choice(BAD_VALUES)
        if options is NUMBERS and bad == "1e9":
            bad = "1e9x"
        command = [*good, rng.choice(options), bad]
    elif rng.random() < 0.5:
        command = [
            "predict",
            str(world.folder / "picture.png"),
            "--task",
            "semantic",
            "--model",
            str(world.model),
        ]
        command += [
            "--out",
            str(place / "out"),
            "--method",
            "replay:window=2-3",
            rng.choice(REPLAY),
            rng.choice([*BAD_VALUES, "7"]),
        ]
    else:
        name = rng.choice(["corrupt", "scenes", "report", "tune", "calibrate", "diagnose", "list", "xyz"])
        words = [
            rng.choice([*BAD_VALUES, "--out", str(place / "out"), "--suite", "--count"])
            for _ in range(rng.randrange(1, 4))
        ]
        command = [name, *words]
    return Case(command, (place / "out",), lambda: _harmless(command))


def _harmless(command: list[str]) -> bool:
    """What would run after all: a split that both folders have, an empty list, help."""
    option, value = command[-2], command[-1]
    fine = {
        "--adaptive": ("None",), "--eps": ("1e9", "7"),
        "--replays": ("7",), "--gate-at": (), "--pictures": (), "--short-side": (),
        "--images": ("9" * 30,), "--threads": (), "--data": ("",), "--model": (),
    }  # fmt: skip
    if option == "--suite":  # any word names a set of one's own
        return value.isalnum()
    return command[0] == "list" or value in fine.get(option, ())
