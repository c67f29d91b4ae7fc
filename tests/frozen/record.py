"""What the commands produced before the package was rebuilt: the cases, how they are run, and what is kept of them.

    OMP_NUM_THREADS=1 python tests/frozen/record.py              # writes all of record/ anew
    OMP_NUM_THREADS=1 python tests/frozen/record.py scenes tune  # only cases whose name begins so

Results must not change; names may. All command lines are in CASES, and what was renamed since goes into the
RENAMED_... tables, so that the record itself never needs an edit.
"""

from __future__ import annotations

import os

if __name__ == "__main__":  # before anything imports torch
    os.environ["OMP_NUM_THREADS"] = "1"

import contextlib
import csv
import hashlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RECORD = HERE / "record"
COMPONENTS = HERE.parents[1] / "examples" / "components.py"

# Names of today in place of those of the record: {name now: name in the record}.
RENAMED_COLUMNS = {
    "baseline score": "ordinary",
    "mitigated score": "mitigated",
    "input_noise": "shown_noise",
    "gramloop calibration": "gramloop source",
    "calibration": "source",
}  # columns of CSV files and keys of JSON files
RENAMED_VALUES = {
    f"0000000{number}.{now}.png": f"0000000{number}.{before}.png"
    for number in range(4)
    for now, before in (("baseline", "ordinary"), ("mitigated", "replayed"))
}  # cells of CSV files and texts of JSON files
RENAMED_FILES = {
    "best.json": "found.json",
    r"\.baseline\.": ".ordinary.",
    r"\.mitigated\.": ".replayed.",
}  # regular expression: replacement, on the path of a kept file

# Never recorded: hashes of plans and files, times, versions, hosts, memory, paths.
DROPPED_COLUMNS = {"seconds", "observed", "memory", "time"}
# Not in the record: the interval that decides. What it decides is compared nowhere, for one rule replaced several.
DROPPED_COLUMNS |= {"deciding estimate", "deciding low", "deciding high"}
DECIDED_COLUMNS = re.compile(r"verdict|against .*")
DROPPED_KEYS = {
    "at", "backbone", "begun", "data", "date", "file", "files", "found by", "hash", "host", "memory", "plan", "seconds", "sha256",
    "source sha256", "subject", "version", "versions",
    "all families", "95% interval", "answer", "time",  # of tune's result, which the record does not have
    "substeps", "trust", "until",  # settings of a replay that are listed now, or no longer; null in all cases
}  # fmt: skip
DROPPED_LINES = re.compile(r" took [\d.]+ m?s ")  # of printed tables

WIDTH = "100"  # of printed tables


@dataclass(frozen=True)
class Killed:
    """A command that is started in a process of its own and killed once a file of this pattern is there."""

    words: tuple[str, ...]
    stored: str


@dataclass(frozen=True)
class Case:
    """Commands that are run in an empty folder, one after the other, and the files that are kept."""

    name: str
    commands: tuple[tuple[str, ...] | Killed | Callable[[], None], ...]
    keep: tuple[str, ...]  # patterns of paths; said/2.txt is what the third command printed
    slow: bool = False
    tolerance: float = 0.5  # of a score, on a CPU of another type


def words(text: str) -> tuple[str, ...]:
    """A command line as its words."""
    return tuple(text.split())


def repeated(option: str, text: str) -> str:
    """An option once for each word."""
    return " ".join(f"{option} {word}" for word in text.split())


SCENES = words("scenes set --count 4 --size 96 --workers 1 --quiet")
ORDINARY = words("scenes ordinary --count 8 --size 96 --split train --workers 1 --quiet")
PANOPTIC, INSTANCES = (f"--model {COMPONENTS}:{name}" for name in ("panoptic", "instances"))
SMALL = "--short-side 96"
WORK = "--workers 1 --quiet --calibration source.safetensors"
REPLAYS = "baseline gramloop ungated uniform matched loop-loop final-final"
SETTINGS = "endpoint:window=11-11,replays=1 early:window=3-5,replays=2,strength=0.5"
PIXELS = "denoise levels sharpen"
LOOKS = "flip scales:0.75,1,1.25 resize:1.25"
STACKS = "both=levels+recentre:0.3+gramloop pair=gramloop+pair"
RARE = "median gaussian:0.7 nlm:6 recentre:0.5,c=1"


def calibrated(model: str) -> tuple[str, ...]:
    """What ordinary scenes look like to a model."""
    return words(f"calibrate ordinary/images {model} --out source.safetensors --quiet")


def evaluated(suite: str, model: str, methods: str, conditions: str = "", more: str = "") -> tuple[str, ...]:
    """An evaluation of the scenes, into a folder with the suite's name; conditions at severity 3."""
    shifts = f"{repeated('--condition', conditions)} --severity 3" if conditions else ""
    chosen = repeated("--method", methods)
    return words(f"evaluate --suite {suite} --data set --out {suite} {model} {WORK} {shifts} {chosen} {more}")


def reported(suites: str) -> tuple[str, ...]:
    """The report of these evaluations."""
    return words(f"report {suites} --out report --no-pdf --workers 1 --bootstrap both --quiet")


def task(
    name: str, model: str, methods: str, more: str, tolerance: float, source: str = ""
) -> tuple[Case, Case]:
    """The cases of a task: clean scenes and a -c suite with few methods, a -p suite with more of them.

    What ordinary images look like is told by the model itself, or by another one, ``source``.
    """
    kept = ("scenes*/results.csv", "report/tables/*.csv")
    begin = (SCENES, ORDINARY, calibrated(source or model))
    first = (
        *begin,
        evaluated("scenes", model, methods),
        evaluated("scenes-c", model, methods, "gaussian_noise contrast"),
        reported("scenes scenes-c"),
    )
    second = (
        *begin,
        evaluated("scenes-p", model, f"{methods} {more}", "rotate defocus", "--diagnostics"),
        reported("scenes-p"),
    )
    return (
        Case(f"evaluate-{name}", first, kept, tolerance=tolerance),
        Case(f"evaluate-{name}-p", second, kept, True, tolerance),
    )


def predicted(name: str, model: str) -> Case:
    """Predictions of two scenes."""
    few = words("scenes set --count 2 --size 96 --workers 1 --quiet")
    command = words(f"predict set/images {model} --out out --quiet")
    return Case(f"predict-{name}", (few, command), ("out/**/*.*",))


def tuned(name: str, conditions: str, more: str, slow: bool = False) -> Case:
    """A small search."""
    scenes = words("scenes set --count 24 --size 96 --split tune --workers 1 --quiet")
    shifts = f"{repeated('--condition', conditions)} --severity 3"
    candidates = (
        repeated("--mitigation", "levels recentre:c=1 flip") + " --try window=10-10 --try strength=0.5"
    )
    command = words(
        f"tune --suite scenes-c --data set {shifts} --out found --budget 240 --workers 1 "
        f"--calibration source.safetensors {candidates} {more}"
    )
    calibrate = calibrated(f"--model tiny --task semantic {SMALL}")
    return Case(f"tune-{name}", (scenes, ORDINARY, calibrate, command), ("found/best.json",), slow)


def without_labels(name: str, model: str, conditions: str, tolerance: float) -> Case:
    """Agreement with the predictions of clean images."""
    methods = "baseline gramloop levels flip"
    run = evaluated("scenes-p", model, methods, conditions, "--truth clean")
    commands = (SCENES, ORDINARY, calibrated(model), run, reported("scenes-p"))
    kept = ("scenes-p/results.csv", "report/tables/*.csv")
    return Case(f"clean-truth-{name}", commands, kept, tolerance=tolerance)


def shifted_pixels() -> None:
    """Every corruption and perturbation of one scene, in colour and in grey, as arrays in files."""
    from gramloop.shifts import (
        CORRUPTIONS,
        EXTRA_CORRUPTIONS,
        PERTURBATIONS,
        corrupt,
        generator,
        perturb,
        signs,
    )

    image = read_pixels(next(Path("set").rglob("images/**/*.png")))
    for kind, names in (("c", (*CORRUPTIONS, *EXTRA_CORRUPTIONS)), ("p", PERTURBATIONS)):
        Path(kind).mkdir()
        for name in names:
            for severity in (1, 3, 5):
                for colour, seen in (("colour", image), ("grey", image[..., 1].copy())):
                    if kind == "c":
                        found = corrupt(seen, name, severity, seed=7)
                    else:
                        random = generator("frozen", name, severity, "image")
                        found = perturb(seen, name, severity, random, signs=signs("image"))
                    np.save(Path(kind) / f"{name}-{severity}-{colour}.npy", found)


def changed_set(name: str, suite: str, conditions: str, more: str = "") -> Case:
    """Shifted conditions on disk."""
    few = words("scenes set --count 2 --size 96 --workers 1 --quiet")
    shifts = repeated("--condition", conditions)
    command = words(
        f"corrupt set out --suite {suite} --task {name} {shifts} --severity 3 --workers 1 --quiet {more}"
    )
    kept = ("out/*/3/**/*.png", "out/*/3/**/*.jpg", "out/*/3/**/*.json", "out/*/3/**/*.npy")
    return Case(f"corrupt-{name}-{suite}", (few, command), kept)


SEGMENT, DETECT, DEPTH = (f"--model tiny --task {name}" for name in ("semantic", "detection", "depth"))
SURE_SOON = (
    "--confidence 0.6 --finalists 2 --keep-unseen gaussian_noise"  # so that few images choose something
)
BEFORE_KILL = evaluated(
    "scenes-c", f"{SEGMENT} {SMALL}", "baseline gramloop levels", "fog pixelate", "--shards 4"
)
WRITTEN = words(
    "corrupt set written --suite scenes-c --task semantic --condition gaussian_noise --condition contrast "
    "--severity 3 --workers 1 --quiet"
)
FROM_FOLDERS = words(
    f"evaluate --suite scenes-c --data written --origin folders --out scenes-c {SEGMENT} {SMALL} {WORK} "
    f"--condition gaussian_noise --condition contrast --severity 3 {repeated('--method', f'{REPLAYS} {PIXELS}')}"
)

CASES = (
    Case(
        "scenes",
        (SCENES, ORDINARY),
        ("set/**/*.png", "set/annotations/*.json", "set/*.txt", "ordinary/images/**/*.png"),
    ),
    Case("shifted-pixels", (SCENES, shifted_pixels), ("c/*.npy", "p/*.npy")),
    changed_set("semantic", "scenes-c", "noise blur weather digital"),
    changed_set("semantic", "scenes-p", "rotate shear pixelate", "--format jpg"),
    changed_set("detection", "scenes-p", "geometry"),
    changed_set("panoptic", "scenes-p", "geometry"),
    changed_set("instance", "scenes-p", "geometry"),
    changed_set("depth", "scenes-p", "geometry"),
    *(
        Case(
            f"calibrate-{name}",
            (ORDINARY, words(f"calibrate ordinary/images {model} --out source.safetensors --json")),
            ("source.safetensors", "said/1.txt"),
        )
        for name, model in (("segment", f"{SEGMENT} {SMALL}"), ("detect", DETECT), ("depth", DEPTH))
    ),
    predicted("segment", SEGMENT),
    predicted("detect", DETECT),
    predicted("depth", DEPTH),
    predicted("panoptic", PANOPTIC),
    predicted("instance", INSTANCES),
    *task(
        "segment",
        f"{SEGMENT} {SMALL}",
        f"{REPLAYS} {SETTINGS} {PIXELS} recentre:c=1 flip",
        f"recentre:0.3 {LOOKS.removeprefix('flip ')} {STACKS} {RARE}",
        0.5,
    ),
    *task(
        "detect",
        DETECT,
        f"{REPLAYS} endpoint:window=11-11,replays=1 {PIXELS} flip",
        f"{LOOKS[5:]} {STACKS}",
        4,
    ),
    *task(
        "depth",
        f"{DEPTH} {SMALL}",
        f"{REPLAYS} endpoint:window=11-11,replays=1 {PIXELS} flip",
        f"{LOOKS[5:]} {STACKS}",
        0.5,
    ),
    *task(
        "panoptic",
        PANOPTIC,
        f"baseline gramloop loop-loop uniform {PIXELS}",
        "ungated matched final-final",
        4,
        SEGMENT,
    ),
    *task(
        "instance",
        INSTANCES,
        f"baseline gramloop loop-loop uniform {PIXELS}",
        "ungated matched final-final",
        4,
        SEGMENT,
    ),
    Case(
        "evaluate-written",
        (SCENES, ORDINARY, calibrated(f"{SEGMENT} {SMALL}"), WRITTEN, FROM_FOLDERS),
        ("scenes-c/results.csv",),
    ),
    Case(
        "evaluate-killed",
        (
            SCENES,
            ORDINARY,
            calibrated(f"{SEGMENT} {SMALL}"),
            Killed(BEFORE_KILL, "scenes-c/units/**/*.parquet"),
            words("evaluate --out scenes-c --workers 1 --quiet"),
        ),
        ("scenes-c/results.csv",),
    ),
    Case(
        "evaluate-not-killed",
        (SCENES, ORDINARY, calibrated(f"{SEGMENT} {SMALL}"), BEFORE_KILL),
        ("scenes-c/results.csv",),
        slow=True,
    ),
    without_labels("segment", f"{SEGMENT} {SMALL}", "rotate contrast", 0.5),
    without_labels("detect", DETECT, "rotate contrast", 4),
    tuned("segment", "fog contrast brightness gaussian_noise", f"--task semantic {SMALL} {SURE_SOON}"),
    tuned("detect", "fog contrast gaussian_noise pixelate", "--task detection", slow=True),
    Case(
        "diagnose",
        (
            SCENES,
            words(
                "diagnose set/images --short-side 96 --shift contrast --severity 3 --out out --quiet "
                "--method replay:window=6-6,replays=1,strength=0.15"
            ),
        ),
        ("out/**/*.json",),
        slow=True,
    ),
)


def run_case(case: Case, folder: Path) -> None:
    """Run the commands of a case in an empty folder."""
    (gramloop,) = entry_points(group="console_scripts", name="gramloop")
    main = gramloop.load()
    (folder / "said").mkdir(parents=True)
    with contextlib.chdir(folder), one_thread():
        for place, command in enumerate(case.commands):
            if isinstance(command, Killed):
                _kill(command)
            elif callable(command):
                command()
            else:
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    code = main(list(command))
                Path("said", f"{place}.txt").write_text(said.getvalue())
                if code != 0:
                    raise RuntimeError(f"{case.name}: gramloop {' '.join(command)} ended with {code}")


def _kill(command: Killed) -> None:
    program = "import sys; from importlib.metadata import entry_points as found; "
    program += "sys.exit(list(found(group='console_scripts', name='gramloop'))[0].load()(sys.argv[1:]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", program, *command.words], env=environment)
    while process.poll() is None and not any(Path().glob(command.stored)):
        time.sleep(0.002)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError(f"it ended with {process.returncode} before it could be killed")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums depend on the number of threads, and printed tables on the width of the terminal."""
    import torch

    before, width = torch.get_num_threads(), os.environ.get("COLUMNS")
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = WIDTH
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if width is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = width


def kept(case: Case, folder: Path) -> dict[str, str]:
    """The record of a case that was run: the texts of its small files, by their names."""
    texts: dict[str, str] = {}
    arrays: dict[str, object] = {}
    for path in sorted({path for pattern in case.keep for path in folder.glob(pattern) if path.is_file()}):
        name = path.relative_to(folder).as_posix()
        for now, recorded in RENAMED_FILES.items():
            name = re.sub(now, recorded, name)
        if path.suffix in (".png", ".jpg", ".npy"):
            arrays[name] = about(np.load(path) if path.suffix == ".npy" else read_pixels(path))
        elif path.suffix == ".safetensors":
            texts[f"{name}.json"] = as_json(_tensors(path))
        elif path.suffix == ".csv":
            texts[name] = _table(path.read_text())
        elif path.suffix == ".json" or path.read_text().startswith("{"):
            texts[name.removesuffix(".txt").removesuffix(".json") + ".json"] = as_json(
                _stripped(json.loads(path.read_text()))
            )
        else:
            texts[name] = _lines(path.read_text())
    if arrays:
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in arrays.items())
        texts["arrays.json"] = f"{{\n{lines}\n}}\n"
    return texts


def about(values: np.ndarray) -> dict[str, object]:
    """An array as its hash, and as numbers that still tell something where the hash differs."""
    values = np.ascontiguousarray(values)
    told = f"{values.dtype.str} {values.shape} ".encode()
    known = np.asarray(values, np.float64)
    return {
        "sha256": hashlib.sha256(told + values.tobytes()).hexdigest(),
        "shape": list(values.shape),
        "mean": round(float(known.mean()), 6),
        "deviation": round(float(known.std()), 6),
    }


def read_pixels(path: Path) -> np.ndarray:
    """The decoded pixels of an image file."""
    from PIL import Image

    with Image.open(path) as image:
        return np.array(image)


def as_json(value: object) -> str:
    """JSON that is easy to read, unless it is long."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return (text if len(text) < 12_000 else json.dumps(value, ensure_ascii=False)) + "\n"


def _tensors(path: Path) -> dict[str, object]:
    from safetensors import safe_open

    with safe_open(path, "np") as stored:
        about_it = _stripped({key: _parsed(text) for key, text in (stored.metadata() or {}).items()})
        tensors = {name: stored.get_tensor(name) for name in sorted(stored.keys())}
    values = {
        RENAMED_COLUMNS.get(name, name): {"shape": list(each.shape), "values": each.ravel().tolist()}
        for name, each in tensors.items()
    }
    return {"about": about_it, "tensors": values}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            RENAMED_COLUMNS.get(key, key): _stripped(each)
            for key, each in value.items()
            if key not in DROPPED_KEYS
        }
    if isinstance(value, list):
        return [_stripped(each) for each in value]
    return RENAMED_VALUES.get(value, value) if isinstance(value, str) else value


def _table(text: str) -> str:
    header, *rows = csv.reader(text.splitlines())
    places = [place for place, name in enumerate(header) if name not in DROPPED_COLUMNS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RENAMED_COLUMNS.get(header[place], header[place]) for place in places)
    writer.writerows([RENAMED_VALUES.get(row[place], row[place]) for place in places] for row in rows)
    return out.getvalue()


def results_only(name: str, text: str) -> str:
    """A text without what a rule decided from the numbers of a table, and without drawings of predictions."""
    if name == "arrays.json":
        arrays = {
            path: about for path, about in json.loads(text).items() if not path.endswith(".picture.png")
        }
        return json.dumps(arrays, indent=1)
    if name.endswith(".json"):
        return json.dumps(_without_verdicts(_stripped(json.loads(text))), indent=1)
    if not name.startswith("report/"):
        return text
    header, *rows = csv.reader(text.splitlines())
    places = [place for place, name in enumerate(header) if not DECIDED_COLUMNS.fullmatch(name)]
    return "".join(f"{','.join(row[place] for place in places)}\n" for row in (header, *rows))


def _without_verdicts(value: object) -> object:
    """Without words that a rule chose; the numbers that they follow from stay."""
    if isinstance(value, dict):
        said = {key for key, each in value.items() if key == "verdict" and isinstance(each, str)}
        return {key: _without_verdicts(each) for key, each in value.items() if key not in said}
    return [_without_verdicts(each) for each in value] if isinstance(value, list) else value


def _lines(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if not DROPPED_LINES.search(line))


def probe() -> dict[str, str]:
    """What distinguishes types of CPU: the scores of the embedded segmenter on one scene, and numpy's products, to the bit."""
    import torch

    from gramloop.data import scene
    from gramloop.tasks import open_model

    with one_thread():
        scores = open_model("tiny", "semantic", {"scores": True}).predict(scene(3, 192, "val").image).scores
    numbers = np.random.default_rng(0)
    weights = [numbers.integers(0, 4, (rows, 4)).astype(np.float64) for rows in (1, 2, 64, 250)]
    # as panoptic quality is resampled
    products = [np.tensordot(each, numbers.random((4, 4, 14)), axes=1) for each in weights]
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "products": hashlib.sha256(b"".join(each.tobytes() for each in products)).hexdigest(),
        "scores": hashlib.sha256(np.ascontiguousarray(scores).tobytes()).hexdigest(),
    }


def write(beginnings: list[str]) -> None:
    """Run the cases whose names begin so, or all, and write their record."""
    if not beginnings:
        shutil.rmtree(RECORD, ignore_errors=True)
    RECORD.mkdir(exist_ok=True)
    (RECORD / "probe.json").write_text(as_json(probe()))
    for case in CASES:
        if beginnings and not case.name.startswith(tuple(beginnings)):
            continue
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            run_case(case, Path(folder) / "run")
            texts = kept(case, Path(folder) / "run")
        shutil.rmtree(RECORD / case.name, ignore_errors=True)
        for name, text in texts.items():
            path = RECORD / case.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        size = sum(len(text) for text in texts.values())
        print(
            f"{case.name}: {len(texts)} files, {size} bytes, {time.process_time() - began:.1f} s", flush=True
        )


if __name__ == "__main__":
    write(sys.argv[1:])
