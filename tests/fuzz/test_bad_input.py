"""Hostile input to the command line: no traceback, no exit 0 on nonsense, nothing half-written.

A case is a number: it decides what is broken and how, so that a failure can be looked at again. Few cases of every
kind are run with every change, all of them by ``make test-all``.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import broken_files
import pytest
from PIL import Image
from sound_sets import sound_coco

from gramloop.cli import main
from gramloop.core.config import ReplayConfig
from gramloop.core.settings import write_replay
from gramloop.io.atomic import TEMPORARY
from small_runs import write_model, write_scene_set
from small_stores import make_plan, write_store

SHORT = 18  # cases of every kind with every change


@dataclass(frozen=True)
class World:
    """Good files, which every case copies what it breaks from."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def scenes(self) -> Path:
        return self.folder / "scenes"


@dataclass(frozen=True)
class Case:
    """A command, the folders that it may not leave anything in, and what shows that its input was sound after all."""

    command: list[str]
    untouched: tuple[Path, ...]
    is_sound: Callable[[], bool]


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


def plan_of(world: World, data: Path, task: str, out: Path, *more: str) -> list[str]:
    model = "tiny" if task == "depth" else str(world.model)  # the embedded one alone has a depth head
    given = ["evaluate", "--suite", "mine", "--data", str(data), "--model", model, "--task", task]
    return [*given, "--out", str(out), "--dry-run", *more]


def copied(world: World, name: str, to: Path) -> Path:
    return Path(shutil.copytree(world.folder / name, to / name))


def never() -> bool:
    return False


def bad_annotations(world: World, rng: random.Random, place: Path) -> Case:
    data = copied(world, "scenes", place)
    file = data / "annotations" / "instances_val.json"
    good = file.read_bytes()
    if rng.random() < 0.85:
        content = json.loads(good)
        for _ in range(rng.choice([1, 1, 2])):
            content = broken_files.change_json(content, rng)
        file.write_bytes(broken_files.json_bytes(content))
    else:
        file.write_bytes(broken_files.change_bytes(good, rng))
    command = plan_of(world, data, "detect", place / "out")
    return Case(command, (place / "out",), lambda: sound_coco(file, data / "images"))


def bad_set(world: World, rng: random.Random, place: Path) -> Case:
    """A file of a set of label pictures, depth or panoptic segments is another, gone or a folder."""
    data = copied(world, "scenes", place)
    task = rng.choice(
        ["segment"] * 6 + ["depth"] * 5 + ["panoptic"]
    )  # the last starts processes, and takes seconds
    named = {
        "segment": ["classes.txt"],
        "depth": ["depth.json"],
        "panoptic": ["annotations/panoptic_val.json"],
    }[task]
    folder = {
        "segment": "annotations/validation",
        "depth": "depth/validation",
        "panoptic": "annotations/panoptic_val",
    }
    pictures = sorted((data / "images").rglob("*.png")) + sorted((data / folder[task]).rglob("*.png"))
    file = data / rng.choice(named) if rng.random() < 0.4 else rng.choice(pictures)
    before, kind = file.read_bytes(), rng.randrange(6)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.unlink()
        file.mkdir()
    elif file.suffix == ".json":
        file.write_bytes(broken_files.json_bytes(broken_files.change_json(json.loads(before), rng)))
    elif file.suffix == ".png" and kind < 5:
        file.write_bytes(broken_files.odd_picture(rng))
    else:
        file.write_bytes(broken_files.change_bytes(before, rng))
    command = plan_of(world, data, task, place / "out")
    if task == "panoptic":
        command = [
            "corrupt",
            "--suite",
            "mine-c",
            "--task",
            "panoptic",
            "--condition",
            "fog",
            "--severity",
            "1",
        ]
        command += ["--workers", "1", "--decode", str(data), str(place / "out")]
    return Case(command, (place / "out",), lambda: _readable(file, before))


def _readable(file: Path, before: bytes) -> bool:
    """Whether a picture can be decoded in its size, or another file is still one of its kind; an oracle by Pillow."""
    if not file.is_file():
        return file.name in ("depth.json",)  # which may be left out
    if file.suffix != ".png":
        return bool(file.read_bytes().strip())
    try:
        with Image.open(file) as picture, Image.open(io.BytesIO(before)) as old:
            return picture.size == old.size  # a plan looks at headers; pixels are told where they are read
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def bad_picture(world: World, rng: random.Random, place: Path) -> Case:
    file = place / rng.choice(["one.png", "two.jpg", "=3.png", "-4.png", "ü 5.webp"])
    data = broken_files.odd_picture(rng)
    if rng.random() < 0.4:
        data = broken_files.change_bytes((world.folder / "picture.png").read_bytes(), rng)
    file.write_bytes(data)
    command = ["predict", str(file), "--task", rng.choice(["segment", "detect"]), "--model", str(world.model)]
    command += ["--out", str(place / "out"), "--window", "2", "3"] + ["--no-picture"] * rng.randrange(2)
    return Case(command, (place / "out",), lambda: _decodes(file))


def _decodes(file: Path) -> bool:
    try:
        with Image.open(file) as picture:
            picture.load()
            return min(picture.size) >= 2
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def bad_weights(world: World, rng: random.Random, place: Path) -> Case:
    model = copied(world, "model", place)
    name = rng.choice(
        ["backbone/model.safetensors", "segment.safetensors", "detect.safetensors", "json", "json"]
    )
    task = "detect" if name.startswith("detect") else "segment"
    if name != "json":
        file = model / name
        broken_files.break_weights(file, rng)
        good = world.model / name
        sound = lambda: broken_files.sound_weights(file, good) and _sound_taps(file)  # noqa: E731
    else:
        file = model / rng.choice(["tiny.json", "backbone/config.json"])
        content = json.loads(file.read_bytes())
        changed = broken_files.change_json(content, rng)
        file.write_bytes(broken_files.json_bytes(changed))
        sound = lambda: _sound_model(content, changed)  # noqa: E731
    world = World(world.folder)
    command = ["predict", str(world.folder / "picture.png"), "--task", task, "--model", str(model)]
    command += ["--out", str(place / "out"), "--no-replay", "--no-picture"]
    if rng.random() < 0.5:
        command = plan_of(world, world.scenes, task, place / "out")
        command[command.index("--model") + 1] = str(model)
    return Case(command, (place / "out",), sound)


def _sound_taps(file: Path) -> bool:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        stored = (opened.metadata() or {}).get("taps")
    return stored is None or stored == "[2, 5]"


def _sound_model(before: dict, now: object) -> bool:
    """Fields that decide nothing may be anything; those that do are as they were."""
    deciding = (
        "stuff", "things", "detect", "model_type", "hidden_size", "num_hidden_layers", "intermediate_size",
        "num_attention_heads", "num_register_tokens", "patch_size", "use_gated_mlp", "hidden_act", "query_bias",
        "key_bias", "value_bias", "layer_norm_eps", "rope_theta", "num_channels",
    )  # fmt: skip
    if not isinstance(now, dict):
        return False
    kept = {name: now.get(name) for name in deciding if name in now}
    renamed = isinstance(now.get("stuff"), list) and all(isinstance(x, str) for x in now["stuff"])
    absent_is_usual = ("model_type", "hidden_act", "use_gated_mlp", "query_bias", "key_bias", "value_bias",
                       "layer_norm_eps", "num_channels", "hidden_size", "num_hidden_layers", "intermediate_size",
                       "num_register_tokens", "patch_size", "rope_theta")  # fmt: skip
    for name in deciding:
        if name not in before or (name not in now and name in absent_is_usual):
            continue
        if name in ("stuff", "things", "detect"):
            if name == "stuff" and not renamed:
                return False
            if name == "things" and (
                not isinstance(now.get(name), list)
                or len(now[name]) != len(before[name])
                or not all(isinstance(x, str) for x in now[name])
            ):
                return False
            if name == "detect" and (
                not isinstance(now.get(name), dict)
                or any(now[name].get(k) != v for k, v in before[name].items())
            ):
                return _without_optional(before[name], now.get(name))
        elif kept.get(name) != before[name] and name != "rope_theta":
            return False
    return True


def _without_optional(before: dict, now: object) -> bool:
    """The width of the detection head is 128 where it is left out, which the weights contradict here."""
    return isinstance(now, dict) and all(now.get(name) == value for name, value in before.items())


def bad_settings(world: World, rng: random.Random, place: Path) -> Case:
    file = place / "replay.json"
    good = json.loads((world.folder / "replay.json").read_bytes())
    if rng.random() < 0.85:
        file.write_bytes(broken_files.json_bytes(broken_files.change_json(good, rng)))
    else:
        file.write_bytes(broken_files.change_bytes((world.folder / "replay.json").read_bytes(), rng))
    command = ["predict", str(world.folder / "picture.png"), "--task", "segment", "--model", str(world.model)]
    command += ["--out", str(place / "out"), "--replay", str(file), "--no-picture"]
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
    "--images", "--shards", "--workers", "--severity", "--threads", "--pictures", "--short-side", "--jobs",
)  # fmt: skip
CHOICES = ("--task", "--engine", "--origin", "--format", "--align", "--truth", "--device")
NAMES = ("--suite", "--condition", "--method", "--model", "--data", "--replay", "--source", "--slurm")
REPLAY = (
    "--replays",
    "--gate",
    "--strength",
    "--eps",
    "--until",
    "--gate-at",
    "--trust",
    "--adaptive",
    "--update-at",
)


def bad_command(world: World, rng: random.Random, place: Path) -> Case:
    """A command that would run, with one value that is none of its option's."""
    if rng.random() < 0.6:
        good = plan_of(world, world.scenes, "segment", place / "out")
        options, bad = rng.choice([NUMBERS, CHOICES, NAMES]), rng.choice(BAD_VALUES)
        if options is NUMBERS and bad == "1e9":
            bad = "1e9x"
        command = [*good, rng.choice(options), bad]
    elif rng.random() < 0.5:
        command = [
            "predict",
            str(world.folder / "picture.png"),
            "--task",
            "segment",
            "--model",
            str(world.model),
        ]
        command += [
            "--out",
            str(place / "out"),
            "--window",
            "2",
            "3",
            rng.choice(REPLAY),
            rng.choice([*BAD_VALUES, "7"]),
        ]
    else:
        name = rng.choice(
            ["corrupt", "scan", "sheet", "scenes", "report", "tune", "calibrate", "diagnose", "list", "xyz"]
        )
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
        "--until": ("None",), "--trust": ("None", "1e9", "7"), "--adaptive": ("None",), "--eps": ("1e9", "7"),
        "--replays": ("7",), "--gate-at": (), "--pictures": (), "--short-side": (),
        "--images": ("9" * 30,), "--threads": (), "--data": ("",), "--model": (),
    }  # fmt: skip
    if option == "--suite":  # any word names a set of one's own
        return value.isalnum()
    return command[0] == "list" or value in fine.get(option, ())


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
    for task in ("segment", "detect", "depth"):
        assert main(plan_of(world, world.scenes, task, tmp_path / "out")) == 0
    picture = ["predict", str(world.folder / "picture.png"), "--task", "segment", "--model", str(world.model)]
    assert main([*picture, "--out", str(tmp_path / "a"), "--replay", str(world.folder / "replay.json")]) == 0
    assert main(["evaluate", "--out", str(world.folder / "results"), "--status"]) == 0
