"""Recipes: what is refused, what they need and what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.reproduce import read_recipe

PATHS = {"baseline": 40, "loop-loop": 46, "final-final": 78, "gramloop": 94}  # blocks, as printed


@pytest.mark.parametrize("name", ["paper", "mini"])
def test_a_shipped_recipe_has_every_table_and_figure(name: str) -> None:
    recipe = read_recipe(name)
    tables = [
        "main",
        "intervals",
        "partitions",
        "placement",
        "compute",
        "corruptions",
        "perturbations",
        "classes",
    ]
    assert {*tables, "severity", "consistency", "diagnostic", "examples", "qualitative"} == set(
        recipe.outputs
    )


def test_an_output_needs_its_own_evaluations_alone() -> None:
    recipe = read_recipe("paper")
    wanted = recipe.needed({"corruptions": recipe.outputs["corruptions"]})
    assert list(wanted) == ["ade20k-c"]
    assert wanted["ade20k-c"].time_images == 0


def test_blocks_of_the_four_paths_are_the_printed_ones() -> None:
    methods = read_recipe("paper").evaluations["coco-o"].all_methods
    assert {each.name: each.blocks(40) for each in methods if each.name in PATHS} == PATHS


def test_the_price_is_known_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "--dry-run", "--json", "--out", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    coco = document["evaluations"]["coco"]
    # 5,000 images: the pair once and two more replays, at the paper's seconds for each path
    assert coco["hours"] == pytest.approx(19.4, abs=0.1)
    assert {each.partition(":")[0] for each in document["missing"]} >= {
        "dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth"
    }
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("titel: x\n", "titel"),
        ("[1, 2", "recipe"),
        (
            "title: x\nmodels: {}\ndata: {}\nevaluations: {}\noutputs: {main: {layout: none, title: x}}\n",
            "layout",
        ),
        (
            "title: x\nmodels: {}\ndata: {}\nevaluations: {}\noutputs: {a: {layout: classes, title: x}}\n",
            "output a needs method",
        ),
    ],
    ids=["unknown key", "not YAML", "unknown layout", "missing field"],
)
def test_a_bad_recipe_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(GramLoopError, match=message):
        read_recipe(path)


def test_unknown_recipes_and_outputs_are_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["reproduce", "papre", "--dry-run", "--out", out]) == 2
    assert main(["reproduce", "--only", "table9", "--dry-run", "--out", out]) == 2
    assert "table9" in capsys.readouterr().err
    assert not Path(out).exists()


def test_costs_that_are_known_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "title: x\nmodels: {m: {task: semantic, model: tiny, depth: 12}}\ndata: {s: {scenes: 1}}\n"
        "evaluations: {e: {suite: scenes, data: s, model: m, methods: [baseline, loop-loop, gramloop], "
        "time_images: 20}}\noutputs: {cost: {layout: compute, title: Cost, evaluations: [e], "
        "methods: [gramloop, baseline, loop-loop]}}\n"
    )
    words = ["reproduce", str(recipe), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    [file] = (tmp_path / "out" / "costs").iterdir()
    measured = file.read_bytes()
    assert main(words) == 0
    assert file.read_bytes() == measured
    found = {each["method"]: each for each in json.loads(measured)}
    assert {each["images"] for each in found.values()} == {1}  # of the one image there is
    peaks = [found[name]["peak_memory"] for name in ("baseline", "loop-loop", "gramloop")]
    assert peaks[0] < peaks[1] < peaks[2]  # proposals and anchors are kept, those of the last layer twice
    assert not (tmp_path / "out" / "e").exists()
