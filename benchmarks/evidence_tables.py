"""Tables of a study: what every mitigation gains, and whether it can be chosen without labels.

A choice is made on some images and families, and judged on others: on the other half of both, both ways round; with
several parts, such as drives, on every part in turn by what the others chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import spearmanr

from evidence_scores import BASELINE, CLEAN, TRUTHS, Mask, Study, spread
from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, mean_interval
from gramloop.util.progress import tracked

TOLERANCE = 0.1  # points that a choice by labels may lose on the clean images that it sees
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}


@dataclass(frozen=True)
class Fold:
    """Who chooses and who judges."""

    images: Sequence[Mask]
    families: Sequence[str]
    judging_images: Sequence[Mask]
    judging_families: Sequence[str]


def print_study(study: Study) -> None:
    """All tables of one study."""
    images = " + ".join(str(len(part.ids)) for part in study.parts)
    severities = ", ".join(dict.fromkeys(key.split("/")[1] for key in study.conditions))
    score = partial(study.value, method=BASELINE, truth="labels", images=study.everything)
    clean, shifted = score(CLEAN), np.mean([score(key) for key in study.conditions])
    metric = study.parts[0].task.metrics[0]
    print(f"\n## {study.name}: {images} images, {len(study.families)} families at severity {severities}")
    print(f"\nBaseline {metric}: clean {clean:.2f}, shifted {shifted:.2f}.")
    print_gains(study)
    print_groups(study)
    print_truths(study)


def print_gains(study: Study) -> None:
    """Every method on everything: nothing was chosen, so that each row is fair and the best of them is not."""
    print(
        "\n| mitigation | Δ clean, over images | Δ shifted, over images | over families | by part |\n|---|---|---|---|---|"
    )
    rows = []
    for method in tracked(study.methods, f"{study.name}: gains", len(study.methods)):
        draws = study.draws(method, study.everything, study.families)
        single = [
            study.mean_gain(method, "labels", only(study, number), study.families)
            for number in range(len(study.parts))
        ]
        rows.append((draws[0], method, [
            text(image_interval(study.draws(method, study.everything, [CLEAN]), study.everything)),
            text(image_interval(draws, study.everything)),
            ends(cluster_bootstrap(spread(by_family(study, method, study.families)))),
            ", ".join(f"{each:+.2f}" for each in single) if len(single) > 1 else "",
        ]))  # fmt: skip
    for _, method, cells in sorted(rows, reverse=True):
        print(f"| `{method}` | " + " | ".join(cells) + " |")


def print_groups(study: Study) -> None:
    """Gains by kind of shift, by labels."""
    groups = {name: [each for each in members if each in study.families] for name, members in GROUPS.items()}
    severities = list(dict.fromkeys(key.split("/")[1] for key in study.conditions))
    columns = [*groups, *(f"severity {each}" for each in severities if len(severities) > 1), *study.families]
    print("\n| mitigation | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for method in study.methods:
        gains = {key: study.gain(key, method, "labels", study.everything) for key in study.conditions}
        cells = [np.mean([gains[key] for key in study.keys(members)]) for members in groups.values()]
        if len(severities) > 1:
            cells += [
                np.mean([gain for key, gain in gains.items() if key.endswith(each)]) for each in severities
            ]
        cells += [np.mean([gains[key] for key in study.keys([family])]) for family in study.families]
        print(f"| `{method}` | " + " | ".join(f"{each:+.2f}" for each in cells) + " |")


def print_truths(study: Study) -> None:
    """What each truth predicts on the choosing side, against gains by labels on the judging side."""
    folds = make_folds(study)
    print(
        "\n| chosen by | rank correlation | RMSE | bias | chosen | Δ clean | Δ shifted, over images | over families | regret |\n"
        + "|---" * 9 + "|"
    )  # fmt: skip
    actual = [gains(study, "labels", fold.judging_images, fold.judging_families) for fold in folds]
    for truth in tracked(TRUTHS, f"{study.name}: truths", len(TRUTHS)):
        expected = [gains(study, truth, fold.images, fold.families) for fold in folds]
        ranks = [spearmanr(*map(list_of, pair)).statistic for pair in zip(expected, actual, strict=True)]
        errors = np.array(
            [list_of(one) - list_of(other) for one, other in zip(expected, actual, strict=True)]
        )
        chosen = [choose(study, truth, fold, each) for fold, each in zip(folds, expected, strict=True)]
        regret = [
            max(0.0, *each.values()) - each.get(one, 0.0) for one, each in zip(chosen, actual, strict=True)
        ]
        clean, shifted, families = judge(study, folds, chosen)
        print(
            f"| {truth} | {', '.join(f'{each:.2f}' for each in ranks)} | {np.sqrt((errors**2).mean()):.2f} | "
            f"{errors.mean():+.2f} | {', '.join(f'`{each}`' for each in chosen)} | {text(clean)} | {text(shifted)} | "
            f"{ends(families)} | {np.mean(regret):.2f} |"
        )
    print("\n| mitigation | " + " | ".join(TRUTHS) + " |\n" + "|---" * (1 + len(TRUTHS)) + "|")
    whole = {truth: gains(study, truth, study.everything, study.families) for truth in TRUTHS}
    for method in study.methods:
        print(f"| `{method}` | " + " | ".join(f"{whole[truth][method]:+.2f}" for truth in TRUTHS) + " |")


def make_folds(study: Study) -> list[Fold]:
    """Other images and other families on either side; every family is judged once for halves, and for parts."""
    one, two = study.families[::2], study.families[1::2]
    if len(study.parts) == 1:
        even = [np.arange(len(study.parts[0].ids)) % 2 == 0]
        odd = [~even[0]]
        return [Fold(even, one, odd, two), Fold(odd, two, even, one)]
    found = []
    for number in range(len(study.parts)):
        judge = only(study, number)
        others = [~mask for mask in judge]
        found += [Fold(others, one, judge, two), Fold(others, two, judge, one)]
    return found


def only(study: Study, number: int) -> list[Mask]:
    """The images of one part."""
    return [np.full(len(part.ids), place == number) for place, part in enumerate(study.parts)]


def gains(study: Study, truth: str, images: Sequence[Mask], families: Sequence[str]) -> dict[str, float]:
    return {method: study.mean_gain(method, truth, images, families) for method in study.methods}


def choose(study: Study, truth: str, fold: Fold, expected: dict[str, float]) -> str:
    """The greatest expected gain above 0; by labels, among those that hold the clean images seen."""
    allowed = {
        method: gain for method, gain in expected.items()
        if truth != "labels" or study.gain(CLEAN, method, "labels", fold.images) >= -TOLERANCE
    }  # fmt: skip
    best = max(allowed, key=allowed.__getitem__, default=BASELINE)
    return best if allowed.get(best, 0) > 0 else BASELINE


def judge(study: Study, folds: Sequence[Fold], chosen: Sequence[str]) -> tuple[Interval, Interval, Interval]:
    """Gains by labels of what was chosen: clean and shifted over images, and shifted over families."""
    clean, shifted = [], []
    families: dict[str, list[float]] = {family: [] for family in study.families}
    for fold, method in zip(folds, chosen, strict=True):
        clean.append(study.draws(method, fold.judging_images, [CLEAN]))
        shifted.append(study.draws(method, fold.judging_images, fold.judging_families))
        for family in fold.judging_families:
            keys = study.keys([family])
            families[family].append(
                np.mean([study.gain(key, method, "labels", fold.judging_images) for key in keys])
            )
    over = cluster_bootstrap({family: [float(np.mean(each))] for family, each in families.items()})
    units = sum(len(part.ids) for part in study.parts)
    return mean_interval(clean, units), mean_interval(shifted, units), over


def by_family(study: Study, method: str, families: Sequence[str]) -> dict[str, float]:
    return {family: study.mean_gain(method, "labels", study.everything, [family]) for family in families}


def image_interval(draws: np.ndarray, images: Sequence[Mask]) -> Interval:
    return mean_interval([draws], int(sum(mask.sum() for mask in images)))


def list_of(values: dict[str, float]) -> np.ndarray:
    return np.array(list(values.values()))


def text(interval: Interval) -> str:
    return f"{interval.estimate:+.2f} {ends(interval)}"


def ends(interval: Interval) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"
