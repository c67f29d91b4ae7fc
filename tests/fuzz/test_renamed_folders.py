"""Renamed folders: a folder of results never mixes what a model computed under two names.

A backbone's name decides how images are normalised, and a PMT head's at which size it is given them. hypothesis draws
two names; the folder of the first is offered the second, which resumes with the numbers it has alone or is refused.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden import write_golden_pmt
from gramloop import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request, make_plan
from gramloop.models.backbone import LinearHead
from small_sets import write_semantic

NAMES = ["plain", "other", "dinov3_sat493m", "sat493m", "ade_semantic_pmt_small_64_dinov3"]
NAMES += ["coco_panoptic_pmt_large_96_dinov3"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    backbone, pmt = write_golden_pmt(folder)
    torch.manual_seed(0)
    linear = folder / "linear.safetensors"
    LinearHead(64, 7, (7,)).save(linear)
    return {
        "backbone": backbone,
        "pmt": pmt,
        "linear": linear,
        "data": write_semantic(folder / "data", 2),
    }


def run(place: Path, name: str, head: str, files: dict[str, Path], out: str) -> str:
    """The scores of the model with its folder renamed to ``name``."""
    folder = place / "models" / name
    if before := [*place.glob("models/*")]:
        before[0].rename(folder)
    else:
        folder.mkdir(parents=True)
        for kind in ("backbone", head):
            (folder / files[kind].name).symlink_to(files[kind])
    request = Request(
        suite="my-set-c",
        task="semantic",
        files={kind: str(folder / files[path].name) for kind, path in (("backbone", "backbone"), ("head", head))},
        data=DataSource(str(files["data"])),
        methods=("baseline",),
        conditions=("fog",),
        severities=(3,),
        truth="clean",
        shards=2,
        sizes={"mode": "whole", "short_side": 64} if head == "linear" else {},
    )  # fmt: skip
    return evaluate(make_plan(request), place / out, workers=1).csv()


@pytest.mark.slow
@given(st.sampled_from(["pmt", "linear"]), st.permutations(NAMES).map(lambda names: names[:2]))
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_renamed_folder_is_another_model_or_gives_the_same_numbers(
    files: dict[str, Path], head: str, names: list[str]
) -> None:
    if head == "pmt":  # such a head refuses a backbone of satellite images
        names = [name.replace("sat493m", "web") for name in names]
    with TemporaryDirectory() as made:
        place = Path(made)
        run(place, names[0], head, files, "out")
        unit = next(place.glob("out/**/*.parquet"))
        unit.unlink()  # the run was interrupted
        alone = run(place, names[1], head, files, "alone")
        try:
            same = run(place, names[1], head, files, "out") == alone
        except GramLoopError as error:
            same = "another model" in str(error) and not unit.exists()
        assert same


def test_a_size_in_a_folder_name_is_part_of_the_plan(files: dict[str, Path], tmp_path: Path) -> None:
    run(tmp_path, NAMES[0], "pmt", files, "out")
    with pytest.raises(GramLoopError, match="another model: input size differs"):
        run(tmp_path, NAMES[4], "pmt", files, "out")
