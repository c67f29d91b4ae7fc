"""A detector in the released format on COCO-O's layout: domains of different sizes, one mean over them."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from coco_reference import box_figures
from gramloop.cli import main
from gramloop.evaluate.plan import read_plan
from gramloop.evaluate.store import Store, read_condition
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.tasks.loading import load_head
from gramloop.tasks.released import DetectConfig
from random_boxes import FoundBoxes, TrueBoxes

pytest.importorskip("transformers")
IMAGES = {"sketch": 3, "tattoo": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from golden import load_golden

    folder = tmp_path_factory.mktemp("detector")
    parts: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
    for name, value in load_golden("detector").weights.items():
        parts[name.startswith(DETECTOR_BACKBONE)][name.removeprefix(DETECTOR_BACKBONE)] = value
    torch.save(parts[True], folder / "backbone.pth")
    torch.save({"model": parts[False]}, folder / "head.pth")
    return folder / "backbone.pth", folder / "head.pth"


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_sets import coco_content, write_coco

    root = tmp_path_factory.mktemp("coco-o")
    for domain, images in IMAGES.items():
        write_coco(root / "ood_coco" / domain, coco_content(images))
    return root


def test_a_released_detector_on_domains(files, domains, tmp_path):
    out = tmp_path / "out"
    arguments = ["evaluate", "--suite", "coco-o", "--data", str(domains), "--partial", "--task", "detection"]
    arguments += ["--backbone", str(files[0]), "--head", str(files[1]), "--short-side", "144"]
    arguments += ["--condition", "sketch", "--condition", "tattoo", "--shards", "2", "--workers", "1"]
    methods = ["--method", "baseline", "--method", "mine:window=3-4"]
    assert main([*arguments, *methods, "--out", str(out)]) == 0
    plan = read_plan(out / "plan.json")
    assert plan.conditions == IMAGES
    assert set(plan.data.contents) == set(IMAGES)
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    by = {(row["condition"], row["method"]): row for row in rows}
    store, detector = Store(out, plan), load_head(*files, **vars(DetectConfig(short_side=144)))
    for method in plan.methods:
        scores = []
        for domain in IMAGES:
            stored = read_condition(store, domain).methods[method.name].rows
            boxes, found = (
                stored.values["truth_boxes"].reshape(-1, 4),
                stored.values["boxes"].reshape(-1, 4).astype(float),
            )
            truth = TrueBoxes(
                range(stored.images),
                sorted(plan.categories),
                np.repeat(np.arange(stored.images), stored.lengths["truth_labels"]),
                boxes,
                stored.values["truth_labels"],
                boxes[:, 2] * boxes[:, 3],  # as `coco_content` has it
                stored.values["truth_crowd"],
            )
            found = FoundBoxes(
                np.repeat(np.arange(stored.images), stored.lengths["labels"]),
                np.hstack([found[:, :2], found[:, 2:] - found[:, :2]]),
                stored.values["scores"],
                stored.values["labels"],
            )
            assert np.bincount(found.image_ids).min() > 100  # nothing is cut to COCO's 100 per category
            scores.append(box_figures(truth, found)[0])
            assert float(by[domain, method.name]["AP"]) == pytest.approx(scores[-1], abs=1e-9)
        assert float(by["mean", method.name]["AP"]) == pytest.approx(np.mean(scores), abs=1e-9)
    picture = sorted((domains / "ood_coco" / "tattoo" / "val2017").iterdir())[0]
    direct = detector.predict(picture, plan.methods[1].replay)
    first = read_condition(store, "tattoo").methods["mine"].first(1)[0]
    assert np.array_equal(np.float32(first["scores"]), direct.scores)
