"""What the evidence run stored, in words: gains with intervals over families and images, and costs."""

from __future__ import annotations

import json

import numpy as np

from evidence_study import SEARCHED, Study
from gramloop.evaluate.methods import Method
from gramloop.evaluate.plan import read_plan
from gramloop.evaluate.results import Results, collect
from gramloop.evaluate.store import Store, read_condition
from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, image_bootstrap, miou_delta, verdict
from gramloop.metrics.miou import mean_iou
from gramloop.replay.cost import extra_blocks


def results_of(study: Study, name: str) -> Results:
    folder = study.out / name
    return collect(Store(folder, read_plan(folder / "plan.json")))


def gain_of(results: Results, method: str) -> float:
    scores = [one.scores for one in results.conditions]
    return float(np.mean([each[method]["mIoU"] - each["baseline"]["mIoU"] for each in scores]))


def tell(study: Study, shifted_name: str, clean_name: str) -> None:
    shifted, clean = results_of(study, shifted_name), results_of(study, clean_name)
    print(f"baseline: clean {clean.conditions[0].scores['baseline']['mIoU']:.2f}", end=", ")
    print(f"mPC {np.mean([one.scores['baseline']['mIoU'] for one in shifted.conditions]):.2f}")
    for method in shifted.plan.methods[1:]:
        families: dict[str, list[float]] = {}
        for one in shifted.conditions:
            gain = one.scores[method.name]["mIoU"] - one.scores["baseline"]["mIoU"]
            families.setdefault(one.condition.split("/")[0], []).append(gain)
        fresh = {name: gains for name, gains in families.items() if name not in SEARCHED}
        everything, unseen = cluster_bootstrap(families), cluster_bootstrap(fresh)
        pair = counts(study, shifted_name, method.name)
        groups = {
            "all": [True] * len(shifted.conditions),
            "not tuned on": [one.condition.split("/")[0] not in SEARCHED for one in shifted.conditions],
            "noise": ["noise" in one.condition for one in shifted.conditions],
        }
        over_images = {name: over_images_of(*(each[rows] for each in pair)) for name, rows in groups.items()}
        over_images["clean"] = over_images_of(*counts(study, clean_name, method.name))
        cost = [mean_cost(study, name, method) for name in (clean_name, shifted_name)]
        print(
            f"{method.name}: clean {gain_of(clean, method.name):+.3f}; all families {everything} "
            f"({verdict(everything)}); not tuned on {unseen} ({verdict(unseen)}); "
            f"cost {cost[0]:.2f}x clean, {cost[1]:.2f}x shifted"
        )
        print("   over images: " + ", ".join(f"{name} {one}" for name, one in over_images.items()))
        print("   " + ", ".join(f"{name} {np.mean(gains):+.2f}" for name, gains in families.items()))
        for text, name in (("shifted", shifted_name), ("clean", clean_name)):
            drives = by_drive(study, name, method.name)
            print(
                f"   {text}, by drive: " + ", ".join(f"{drive} {gain:+.2f}" for drive, gain in drives.items())
            )
    summary = {one.condition: {m: s["mIoU"] for m, s in one.scores.items()} for one in shifted.conditions}
    (study.out / f"{shifted_name}.json").write_text(json.dumps(summary, indent=1))


def counts(study: Study, name: str, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the baseline and of a method, (conditions, images, 3, classes) each."""
    plan = results_of(study, name).plan
    stored = [read_condition(Store(study.out / name, plan), key) for key in plan.conditions]
    both = [
        np.stack(
            [
                np.stack(
                    [each.methods[one].rows.matrix(part) for part in ("intersection", "prediction", "label")],
                    1,
                )
                for each in stored
                if each is not None
            ]
        )
        for one in ("baseline", method)
    ]
    return both[0], both[1]


def by_drive(study: Study, name: str, method: str) -> dict[str, float]:
    """The gain on the frames of each drive, mean of the conditions."""
    plan = results_of(study, name).plan
    stored = read_condition(Store(study.out / name, plan), next(iter(plan.conditions)))
    assert stored is not None
    ids = stored.image_ids
    drives = np.array([each.split("_")[0] for each in ids])
    pair = counts(study, name, method)
    scores = {
        drive: [mean_iou(each[:, drives == drive].sum(axis=1)) for each in pair]
        for drive in np.unique(drives)
    }
    return {drive: float(np.mean(replayed - ordinary)) for drive, (ordinary, replayed) in scores.items()}


def over_images_of(baseline: np.ndarray, method: np.ndarray) -> Interval:
    return image_bootstrap(miou_delta(baseline, method), baseline.shape[1])


def mean_cost(study: Study, name: str, method: Method) -> float:
    """Blocks of the replay by itself over those of the ordinary forward; images passed over cost 1."""
    plan = results_of(study, name).plan
    store, depth = Store(study.out / name, plan), plan.model.depth
    replayed = 1 + extra_blocks(method.replay, depth) / depth
    costs = []
    for unit in plan.units:
        rows = store.rows([unit]) if unit.method.name == method.name else None
        costs += [replayed if blocks > depth else 1.0 for blocks in (rows.blocks if rows is not None else ())]
    return float(np.mean(costs))
