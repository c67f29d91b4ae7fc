"""Tries of the evidence run: strengths, heads, the blocks that show a replay, every window, forms of trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from evidence_branches import CLEAN, Branches, Condition, Counted, Gates, gains, measure, ordinary_score
from evidence_study import ABLATION_SEVERITY, SEARCHED, TRIED_STRENGTHS, TRUST, TUNE_SEVERITY, Study
from gramloop.metrics.bootstrap import cluster_bootstrap, image_bootstrap, miou_delta, verdict
from gramloop.metrics.miou import mean_iou
from gramloop.models.backbone import default_taps
from gramloop.replay.config import ReplayConfig, Window, describe_replay
from gramloop.replay.gram import gram_gate, masked_median
from gramloop.shifts.corruptions import CORRUPTIONS
from gramloop.tune.scan.files import read_scan
from gramloop.tune.scan.scores import rank_correlation
from gramloop.tune.search.adapting import best_rule, is_on
from gramloop.tune.search.space import windows
from gramloop.tune.search.split import Sample
from gramloop.tune.search.worth import PairedStatistics, Worth, worth

TAPS = default_taps(12)
WINDOW_FAMILIES = ("gaussian_noise", "defocus_blur", "snow", "pixelate")
TOLERANCE = 0.1  # points that clean images may lose


def tries_stage(study: Study) -> None:
    """What a strength is worth to two heads, by the last block that shows the replay."""
    branches = Branches(
        name="tries",
        split="search",
        many=study.sizes.tries,
        conditions=[CLEAN, *((name, TUNE_SEVERITY) for name in SEARCHED)],
        windows=[(2, 2), (5, 5), (6, 6), (9, 9)],
        gates_of=_strengths,
        probed=True,
        heads=("linear", "deep"),
        until=TAPS,
    )
    found = measure(study, branches)
    for head in branches.heads:
        scores = [ordinary_score(frames, head) for frames in found.values()]
        print(f"  {head} head, ordinary: clean {scores[0]:.2f}, shifted {np.mean(scores[1:]):.2f}")
    by_condition = {condition: gains(frames) for condition, frames in found.items()}
    for key in by_condition[CLEAN]:
        clean, *shifted = (each[key] for each in by_condition.values())
        window, gate, head, until = key.split("|")
        families = ", ".join(f"{name} {gain:+.2f}" for name, gain in zip(SEARCHED, shifted, strict=True))
        print(f"  {head}, block {window.split('-')[1]} until {until}, {gate}: shifted {np.mean(shifted):+.2f}, "
              f"clean {clean:+.2f} ({families})")  # fmt: skip


def windows_stage(study: Study) -> None:
    """Every window with the published gate, what forms of trust leave of it, and what the scan is worth."""
    places = windows(12, 2)
    branches = Branches(
        name="windows",
        split="search",
        many=study.sizes.windows,
        conditions=[CLEAN, *((name, TUNE_SEVERITY) for name in WINDOW_FAMILIES)],
        windows=places,
        gates_of=_trusted,
        probed=True,
        heads=("linear",),
        until=TAPS[-1:],
    )
    by_condition = {condition: gains(frames) for condition, frames in measure(study, branches).items()}
    forms = list(dict.fromkeys(key.split("|")[1] for key in by_condition[CLEAN]))
    shifted = {form: _by_window(places, form, by_condition, clean=False) for form in forms}
    clean = {form: _by_window(places, form, by_condition, clean=True) for form in forms}
    print(f"  shifted, then clean; {', '.join(forms)}")
    for window in places:
        cells = [", ".join(f"{each[form][window]:+.2f}" for form in forms) for each in (shifted, clean)]
        print(f"  {list(window)}: {cells[0]} | {cells[1]}")
    published = shifted["published"]
    worst = min(published, key=published.__getitem__)
    helped = [window for window in places if published[window] > 0]
    for form in forms:
        gained = np.mean([shifted[form][window] for window in helped])
        print(f"  {form}: worst window {list(worst)} {shifted[form][worst]:+.2f}; worst of all "
              f"{min(shifted[form].values()):+.2f}, clean {min(clean[form].values()):+.2f}; mean of all "
              f"{np.mean(list(shifted[form].values())):+.2f}; of the {len(helped)} that gain {gained:+.2f}")  # fmt: skip
    found = read_scan(study.out / "scan.json")
    for score, one in sorted(rank_correlation(found, published).items(), key=lambda pair: -pair[1].rho):
        print(f"  {score:22} rho {one.rho:+.2f} (p {one.p:.2f}) over {one.windows} windows")


def second_stage(study: Study) -> None:
    """A backbone that nothing was tuned on: every block alone, chosen on the search's frames, judged on others."""
    branches = Branches(
        name="second",
        split="search",
        many=study.sizes.second,
        conditions=[CLEAN, *((name, TUNE_SEVERITY) for name in SEARCHED)],
        windows=windows(12, 1),
        gates_of=_Constants((0.3, 1.0)),
        probed=False,
        heads=("linear",),
        until=TAPS,
    )
    found = measure(study, branches)
    standings: list[tuple[Worth, ReplayConfig]] = []
    for key in (key for key in found[CLEAN][0] if key.count("|") == 3):
        window, strength, _, until = key.split("|")
        start, end = map(int, window.split("-"))
        config = ReplayConfig(
            (start, end), 1, "uniform", float(strength), until=None if int(until) == TAPS[-1] else int(until)
        )
        cells = _cells(found, key)
        standings.append((worth("semantic", range(11), cells), config))
        if (ruled := best_rule("semantic", range(11), cells, end, TOLERANCE, 1.0)) is not None:
            standings.append((ruled[1], replace(config, adaptive=ruled[0])))
    standings = [one for one in standings if one[0].harmless(TOLERANCE)]
    standings.sort(key=lambda one: -one[0].cautious(1.0))
    for value, config in standings[:8]:
        print(f"  {describe_replay(config)}: {value.gain:+.2f} ± {value.error:.2f}, clean {value.clean:+.2f}")
    print(f"  beyond noise with 90%: {standings[0][0].beats_nothing(0.9)}; judged on other frames:")
    heads_stage(study, {"nearest": standings[0][1]}, many=study.sizes.report // 2)


def heads_stage(study: Study, configs: Mapping[str, ReplayConfig], many: int | None = None) -> None:
    """Settings of one window on the report's frames, for the head they were tuned with and for another."""
    first = next(iter(configs.values()))
    assert first.window is not None
    ends = {name: TAPS[-1] if config.until is None else config.until for name, config in configs.items()}
    branches = Branches(
        name="heads",
        split="report",
        many=many or study.sizes.report,
        conditions=[CLEAN, *((name, ABLATION_SEVERITY) for name in CORRUPTIONS)],
        windows=[first.window],
        gates_of=_Constants(tuple(sorted({float(config.strength) for config in configs.values()}))),
        probed=False,
        heads=("linear", "deep"),
        until=sorted(set(ends.values())),
    )
    found = measure(study, branches)
    for head in branches.heads:
        scores = [ordinary_score(frames, head) for frames in found.values()]
        print(f"  {head} head, ordinary: clean {scores[0]:.2f}, shifted {np.mean(scores[1:]):.2f}")
        for name, config in configs.items():
            key = f"{first.window[0]}-{first.window[1]}|{float(config.strength)}|{head}|{ends[name]}"
            _judge(f"{head}, {name}", {one: _pair(each, key, head, config) for one, each in found.items()})


def _judge(name: str, pairs: Mapping[Condition, tuple[np.ndarray, np.ndarray]]) -> None:
    """Gains with intervals over families and over images."""
    families = {
        condition[0]: [float(mean_iou(replayed.sum(axis=0)) - mean_iou(ordinary.sum(axis=0)))]
        for condition, (ordinary, replayed) in pairs.items()
        if condition != CLEAN
    }
    over_families = cluster_bootstrap(families)
    before, after = (np.stack([pair[i] for key, pair in pairs.items() if key != CLEAN]) for i in (0, 1))
    over_images = image_bootstrap(miou_delta(before, after), before.shape[1])
    clean = image_bootstrap(miou_delta(*pairs[CLEAN]), before.shape[1])
    print(f"  {name}: shifted {over_families} over families ({verdict(over_families)}), {over_images} over images; "
          f"clean {clean}")  # fmt: skip
    print("   " + ", ".join(f"{family} {gain:+.2f}" for family, [gain] in families.items()))


@dataclass(frozen=True)
class _Constants:
    """One gate for every patch; a class, since worker processes must be able to receive it."""

    strengths: tuple[float, ...]

    def __call__(self, drift: Tensor) -> Gates:
        return {str(each): torch.full_like(drift[0], each) for each in self.strengths}


def _strengths(drift: Tensor) -> Gates:
    """Constants, and the published gate."""
    gates = {f"uniform {each}": torch.full_like(drift[0], each) for each in TRIED_STRENGTHS}
    return {**gates, "gram": gram_gate(drift, 1e-6)[0]}


def _trusted(drift: Tensor) -> Gates:
    """The published gate, and what forms of trust leave of it."""
    published = gram_gate(drift, 1e-6)[0]
    excess = (masked_median(drift, drift.isfinite())[0] / TRUST).clamp(min=1.0)
    shares = {
        "proportional": 1 / excess,
        "root": excess**-0.5,
        "square": excess**-2,
        "cut off": (excess == 1.0).float(),
        "per patch": 1 / (drift[0] / TRUST).clamp(min=1.0),
    }
    return {"published": published, **{form: published * share for form, share in shares.items()}}


def _by_window(
    places: Sequence[Window], form: str, by_condition: Mapping[Condition, Mapping[str, float]], clean: bool
) -> dict[Window, float]:
    """A form's gain at every window, over clean or over shifted images."""
    found = {}
    for start, end in places:
        key = f"{start}-{end}|{form}|linear|{TAPS[-1]}"
        found[start, end] = float(
            np.mean([each[key] for one, each in by_condition.items() if (one == CLEAN) == clean])
        )
    return found


def _cells(found: Mapping[Condition, Sequence[Counted]], key: str) -> dict[str, list[PairedStatistics]]:
    """A branch as tune sees a candidate."""
    return {
        condition[0]: [
            PairedStatistics(
                Sample(place, str(place), place),
                {"counts": frame[f"ordinary|{key.split('|')[2]}"]},
                {"counts": frame[key]},
                None,
                0,
                {name: frame[f"signal|{name}"].tolist() for name in ("length", "spread")},
            )
            for place, frame in enumerate(frames)
        ]
        for condition, frames in found.items()
    }


def _pair(
    frames: Sequence[Counted], key: str, head: str, config: ReplayConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the ordinary pass and of the replay with its rule, (images, 3, classes) each."""
    ordinary = [frame[f"ordinary|{head}"] for frame in frames]
    rule, end = config.adaptive, (config.window or (0, 0))[1]
    replayed = [
        frame[key] if rule is None or is_on(rule, float(frame[f"signal|{rule.signal}"][end])) else before
        for frame, before in zip(frames, ordinary, strict=True)
    ]
    return np.stack(ordinary), np.stack(replayed)
