"""Images that are kept by their id, frost of the user's own textures, and seeded generators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import DataSource, Part, read_plan
from gramloop.evaluate.provenance import PlannedImages
from gramloop.evaluate.rows import maps_of
from gramloop.util.device import deterministic
from small_runs import rows_of, runner_of, small_plan


def test_an_image_is_kept_by_its_id(model_folder: Path, scene_folder: Path, tmp_path: Path) -> None:
    plain = small_plan(model_folder, scene_folder, pictures=1)
    plan = small_plan(model_folder, scene_folder, pictures=1, keep=["00000007"])
    assert plan.hash != plain.hash
    (tmp_path / "plan.json").write_text(plan.text())
    assert read_plan(tmp_path / "plan.json") == plan
    finished = runner_of(plan).run_one(Part("fog/3", range(6, 9), plan.methods))
    rows = rows_of(plan, finished, "gramloop")
    [kept] = rows.first(plan.pictures, plan.keep)
    assert kept["image_id"] == "00000007"
    assert maps_of(kept) is not None
    assert [row["picture"] is not None for row in rows.first(11)] == [False, True, False]


def test_an_unknown_image_cannot_be_kept(model_folder: Path, scene_folder: Path) -> None:
    with pytest.raises(GramLoopError, match="scenes-c has no image '360325'"):
        small_plan(model_folder, scene_folder, keep=["360325"])


def test_frost_has_the_textures_that_are_given(
    model_folder: Path, scene_folder: Path, tmp_path: Path
) -> None:
    textures = tmp_path / "textures"
    textures.mkdir()
    white = Image.fromarray(np.full((128, 128, 3), 255, np.uint8))
    white.save(textures / "white.png")
    data = DataSource(str(scene_folder), frost_textures=str(textures))
    given = {"conditions": ["frost"], "methods": ["baseline"]}
    plain, plan = (
        small_plan(model_folder, scene_folder, **given),
        small_plan(model_folder, scene_folder, data=data, **given),
    )
    assert plan.hash != plain.hash
    own, other = (PlannedImages(each).records("frost/3", range(1))[0].image() for each in (plan, plain))
    assert own.mean() > other.mean()
    white.resize((64, 64)).save(textures / "white.png")
    with pytest.raises(GramLoopError, match=r"frost texture .* changed"):
        PlannedImages(plan)


def test_generators_start_from_one_seed_and_are_restored() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    drawn = []
    for _ in range(2):
        with deterministic(1):
            drawn.append((float(torch.rand(1)), float(np.random.rand())))  # noqa: NPY002 - the global one is meant
    assert drawn[0] == drawn[1]
    assert torch.rand(1) == expected
