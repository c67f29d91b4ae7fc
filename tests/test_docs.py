"""Python in the docs imports from rooms, and runs where it needs nothing that only its reader has."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DINOv3ViTConfig, DINOv3ViTModel

import gramloop
from gramloop.data.scenes import SCENE_CATEGORIES, SceneFiles, scene, scene_segments, write_scenes
from gramloop.tasks import to_tensor
from small_runs import write_model, write_scene_set
from small_stores import make_plan, write_store

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
Names = dict[str, Any]


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=lambda page: page.name)
def test_imports_are_public_names(page: Path) -> None:
    for node in ast.walk(ast.parse("\n".join(python_of(page)))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gramloop"):
            assert str(node.module).count(".") <= 1, f"{page.name} imports from a file inside a room"
            module = importlib.import_module(str(node.module))
            assert {alias.name for alias in node.names} <= set(module.__all__), f"{page.name}, {node.module}"
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("gramloop.")]


def a_model(folder: Path) -> Names:
    """What a reader of docs/replay.md has at hand."""
    torch.manual_seed(0)
    config = DINOv3ViTConfig(
        hidden_size=32, num_hidden_layers=12, num_attention_heads=2, intermediate_size=64, patch_size=16
    )
    model = DINOv3ViTModel(config).eval().requires_grad_(False)
    model.trunk = SimpleNamespace(layers=model.model.layer, norm=model.norm)
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    tensors = [to_tensor(image) for image in images]
    return {
        "gramloop": gramloop,
        "model": model,
        "image": tensors[0],
        "images": tensors[0],
        "mask": torch.ones(1, 4, 4, dtype=torch.bool),
        "tensors": tensors,
        "others": tensors[::-1],
        "photographs": list(images),
        "prepare": to_tensor,
    }


def a_model_and_a_set(folder: Path) -> Names:
    """What a reader of docs/evaluate.md has at hand."""
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_scene_set(folder / "data" / "mine", 2)
    return {}


def a_model_and_a_larger_set(folder: Path) -> Names:
    """What a reader of docs/tune.md has at hand."""
    write_model(folder / "model")
    write_scene_set(folder / "data" / "mine", 12)
    return {}


def an_evaluation(folder: Path) -> Names:
    """What a reader of docs/report.md has at hand."""
    write_store(folder / "out" / "c", make_plan())
    write_store(folder / "out" / "clean", make_plan(suite="scenes", conditions=["clean"]))
    return {}


def a_set_with_depth_and_segments(folder: Path) -> Names:
    """What a reader of docs/tasks.md has at hand."""
    if not (folder / "scenes").exists():
        write_scenes(folder / "scenes", SceneFiles(1, size=64), workers=1)
    truth = scene_segments(scene(0, 64, "val"))
    return {
        "folder": folder / "scenes",
        "prediction": np.linspace(1, 9, 64 * 64).reshape(64, 64),
        "found": truth,
        "truth": truth,
        "categories": list(SCENE_CATEGORIES),
    }


@pytest.mark.parametrize(
    ("page", "given", "left"),
    [
        ("replay.md", a_model, lambda names: names["loop"].trace.gate[0].shape == (1, 4, 4)),
        ("evaluate.md", a_model_and_a_set, lambda names: len(names["correct"]) == 2),
        ("tune.md", a_model_and_a_larger_set, lambda names: Path("out/tune/best.json").exists()),
        ("tasks.md", a_set_with_depth_and_segments, lambda names: names["predicted"].shape == (64, 64)),
        pytest.param(
            "deploy.md",
            lambda _: {"pixels": torch.zeros(1, 64, 96, 3, dtype=torch.uint8)},
            lambda names: torch.export.load("depth.pt2").module()(names["pixels"])[0].shape == (1, 64, 96),
            marks=pytest.mark.slow,
        ),
        ("report.md", an_evaluation, lambda names: Path("report/index.html").exists()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_python_runs(
    page: str,
    given: Callable[[Path], Names],
    left: Callable[[Names], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: Names = {}
    for block in python_of(ROOT / "docs" / page):
        names |= given(tmp_path)
        exec(block, names)
    assert left(names)


WAYS = re.findall(
    r"^### (.*?)\n(.*?)(?=^#|\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("title", "way"), WAYS, ids=[title for title, _ in WAYS])
def test_the_way_of_an_image_is_as_described(title: str, way: str) -> None:
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", way, re.MULTILINE)
    assert 3 <= len(rows) <= 10
    assert len({file for file, _ in rows}) == len(rows)
    for file, words in rows:
        tree = ast.parse((ROOT / "src" / "gramloop" / file).read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        named = {name for name in re.findall(r"`([^`]+)`", words) if "/" not in name}
        assert named
        assert named <= defined, f"{file} has no {named - defined}"
