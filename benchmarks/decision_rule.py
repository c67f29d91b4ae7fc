"""How often the decision of a search errs, and how often it finds what helps: simulated searches, no model.

    python benchmarks/decision_rule.py --searches 400

A search is drawn as numbers: 20 candidates of which three gain or none does, families as the embedded model's scenes
have them, images with effects of their own, heavy-tailed noise in every image and family. The three best on the images
of the search come to the decision on others, which is the package's own. Compared are swaps of
images alone (`images`), and swaps of images and flips of families (`both`), which `gramloop tune` uses. `in vain` are choices of that rule that do not
gain on the searched families; `strict` corrects the test over families for all candidates, not for the finalists.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import Score, mean_score
from gramloop.tasks.base import Categories, Rows, Task
from gramloop.tune.evidence import Measured, Scoring, weigh_finalists
from gramloop.tune.schedule import Sample

# measured: what `levels+recentre:0.1` gains on the embedded segmenter's scenes at severity 3, and the standard deviation
# of an image's share in that, by family (gramloop tune --suite scenes-c --task segment --budget 2400 --images 60)
FAMILIES = {
    "contrast": (76.8, 16.0), "frost": (28.7, 19.2), "fog": (23.8, 18.3), "snow": (6.6, 7.5), "brightness": (3.0, 8.9),
    "impulse_noise": (0.4, 0.7), "defocus_blur": (0.2, 9.6), "jpeg_compression": (0.2, 0.4), "gaussian_noise": (0.1, 0.6),
    "pixelate": (0.1, 0.4), "elastic_transform": (0.1, 0.4), "shot_noise": (-0.1, 0.9), "zoom_blur": (-0.4, 4.1),
    "glass_blur": (-0.7, 3.9), "motion_blur": (-0.8, 5.5),
}  # fmt: skip
GAINS, SPREADS = np.array(list(FAMILIES.values())).T
CANDIDATES, FINALISTS = 20, 3
SHARED = 0.5  # of the variance of noise: candidates resemble each other
IMAGE_SPREAD = 2.9  # points by which the mean over families of a candidate's gain varies from image to image
CONFIDENCE = 0.95


class Mean(Task):  # type: ignore[type-arg]
    """A plain mean of one number per image."""

    name, metrics, columns = "mean", ("mean",), {"value": "float64"}

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return mean_score(rows.values["value"])


SCORING = Scoring(Mean(), Categories({}))


@dataclass(frozen=True)
class Scenario:
    """What candidates do: ``strength`` times the measured gains, or these with random signs, or the same everywhere."""

    name: str
    strength: float = 0.0
    random_signs: bool = False  # of the families: helps some and hurts others, and none on average
    everywhere: float = 0.0  # points in every family
    image_spread: float = 0.0
    families: int = 10
    images: int = 13

    def family_gains(self, chosen: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64]:
        """(candidates, families)"""
        gains = np.tile(self.strength * GAINS[chosen] + self.everywhere, (CANDIDATES, 1))
        if self.random_signs:
            gains *= random.choice((-1, 1), gains.shape)
        elif self.strength or self.everywhere:
            gains *= random.uniform(0.8, 1.2, (CANDIDATES, 1)) * (np.arange(CANDIDATES) < FINALISTS)[:, None]
        return gains


NULL = (
    Scenario("noise"),
    Scenario("noise, images differ", image_spread=IMAGE_SPREAD),
    Scenario("noise, 6 images, 4 families", image_spread=IMAGE_SPREAD, images=6, families=4),
    Scenario("noise, 25 images", image_spread=IMAGE_SPREAD, images=25),
)
BY_FAMILY = (
    Scenario("helps or hurts by family", strength=0.3, random_signs=True),
    Scenario("the same, images differ", strength=0.3, random_signs=True, image_spread=IMAGE_SPREAD),
)
GAINING = (
    Scenario("as measured", strength=1.0, image_spread=IMAGE_SPREAD),
    Scenario("a tenth of that", strength=0.1, image_spread=IMAGE_SPREAD),
    Scenario("as measured, 6 images, 4 families", 1.0, image_spread=IMAGE_SPREAD, images=6, families=4),
    Scenario("+1 everywhere", everywhere=1.0, image_spread=IMAGE_SPREAD),
    Scenario("+2 everywhere", everywhere=2.0, image_spread=IMAGE_SPREAD),
    Scenario(
        "+2 everywhere, 6 images, 4 families", everywhere=2.0, image_spread=IMAGE_SPREAD, images=6, families=4
    ),
    Scenario("+2 everywhere, 25 images", everywhere=2.0, image_spread=IMAGE_SPREAD, images=25),
)


def draw(
    scenario: Scenario, chosen: NDArray[np.int64], gains: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.float64]:  # → (candidates, images, families)
    """Gains of single images."""

    def noise(*shape: int) -> NDArray[np.float64]:
        drawn = random.standard_t(5, shape) / np.sqrt(5 / 3)  # kurtosis 9; measured: 7 to 12
        each = random.standard_t(5, (CANDIDATES, *shape)) / np.sqrt(5 / 3)
        found: NDArray[np.float64] = np.sqrt(SHARED) * drawn + np.sqrt(1 - SHARED) * each
        return found

    images, families = scenario.images, scenario.families
    cells = noise(images, families) * SPREADS[chosen]
    return gains[:, None] + scenario.image_spread * noise(images, 1) + cells


def finalists(gains: NDArray[np.float64]) -> NDArray[np.int64]:
    """The candidates that are best on the images of the search, as rungs rank them."""
    mean = gains.mean(axis=(1, 2))
    errors = gains.mean(axis=1).var(axis=1, ddof=1) / gains.shape[2]
    errors += gains.mean(axis=2).var(axis=1, ddof=1) / gains.shape[1]
    return np.argsort(-(mean - np.sqrt(errors)), kind="stable")[:FINALISTS]


def measured(gains: NDArray[np.float64]) -> dict[str, Measured]:  # of (images, families)
    """One candidate as a search keeps it."""
    samples, nothing = [Sample(place, str(place), place) for place in range(len(gains))], np.zeros(len(gains))
    return {
        f"family{number}/3": Measured(
            samples, *(Rows(len(gains), {"value": each}) for each in (nothing, column))
        )
        for number, column in enumerate(gains.T)
    }


def search(scenario: Scenario, random: np.random.Generator) -> dict[str, bool]:
    """Whether each rule chooses something."""
    chosen = random.permutation(len(FAMILIES))[: scenario.families]
    gains = scenario.family_gains(chosen, random)
    best = finalists(draw(replace(scenario, images=12), chosen, gains, random))
    cells = [measured(each) for each in draw(scenario, chosen, gains, random)[best]]
    found = weigh_finalists(SCORING, cells)
    both = [each.beats_nothing(CONFIDENCE) for each in found]
    strict = [each.families * CANDIDATES / FINALISTS <= 1 - CONFIDENCE for each in found]
    return {
        "images": any(each.images <= 1 - CONFIDENCE for each in found),
        "both": any(both),
        "in vain": any(np.array(both) & (gains[best].mean(axis=1) <= 0)),
        "strict": any(np.array(both) & strict),
    }


def rates(scenario: Scenario, searches: int, seed: int) -> dict[str, float]:
    """The share of searches in which each rule chooses something."""
    found = [search(scenario, np.random.default_rng((seed, number))) for number in range(searches)]
    return {rule: float(np.mean([each[rule] for each in found])) for rule in found[0]}


def lines(searches: int, seed: int) -> Iterator[str]:
    """A table."""
    parts = {
        "Error rate: pure noise, something is chosen": NULL,
        "Family effects that cancel: something is chosen": BY_FAMILY,
        "Power: something gains, and is chosen": GAINING,
    }
    for title, scenarios in parts.items():
        yield f"\n{title}"
        for scenario in scenarios:
            shares = (
                f"{rule} {100 * share:5.1f}%" for rule, share in rates(scenario, searches, seed).items()
            )
            yield f"  {scenario.name:38} {'   '.join(shares)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=400, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for line in lines(arguments.searches, arguments.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
