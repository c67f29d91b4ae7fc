"""A name of the hub is downloaded with the user's own token, and only when it is named so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dense_folders import save_model
from small_hub import hub

OPEN = """
from gramloop import GramLoopError
from gramloop.tasks import open_model
try:
    print(type(open_model("hf:someone/segments").model).__name__)
except GramLoopError as error:
    print(error)
"""


def open_from_hub(address: str, home: Path, token: str) -> str:
    """In a process of its own: the hub's library reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    found = subprocess.run(
        [sys.executable, "-c", OPEN], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


@pytest.mark.slow
def test_a_name_of_the_hub(tmp_path: Path) -> None:
    folder = save_model("DPT", tmp_path / "served")
    with hub("someone/segments", folder, "secret") as address:
        told = open_from_hub(address, tmp_path / "other", "wrong")
        assert told.startswith("someone/segments is no folder here, and the hub does not give it: ")
        assert "\n" not in told
        assert open_from_hub(address, tmp_path / "home", "secret") == "DPTForSemanticSegmentation"
    assert open_from_hub(address, tmp_path / "home", "secret") == "DPTForSemanticSegmentation", "it is kept"
