"""What the README and docs show works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gramloop.cli import COMMANDS
from gramloop.models.hf import transformers_module

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_python_runs_from_top_to_bottom(capsys) -> None:
    transformers_module("models.dinov3_vit")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)
    assert "torch.Size([1, 14, 14])" in capsys.readouterr().out


def test_the_readme_names_every_command() -> None:
    named = set(re.findall(r"^\| `gramloop (\w+)`", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
