"""Folders are walked while others write and delete in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gramloop.errors import GramLoopError
from gramloop.io.fingerprints import file_digest
from gramloop.io.tree import files_below


def test_every_file_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b/2.png", "a.png", "b/c/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)] == [
        "a.png",
        "b/2.png",
        "b/c/1.png",
    ]


def test_what_vanishes_meanwhile_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is deleted between being seen and being looked into."""
    (tmp_path / "goes").mkdir()
    (tmp_path / "stays").mkdir()
    (tmp_path / "stays" / "file").touch()
    look_into = os.scandir

    def too_late(path: str) -> object:
        if Path(path).name == "goes":
            os.rmdir(path)
        return look_into(path)

    monkeypatch.setattr(os, "scandir", too_late)
    assert files_below(tmp_path) == [tmp_path / "stays" / "file"]
    assert not (tmp_path / "goes").exists()


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", refuse)  # tests may run as root, who may read everything
    with pytest.raises(GramLoopError, match=f"cannot look into the folder {tmp_path}: Permission denied"):
        files_below(tmp_path)


def test_a_file_that_is_gone_has_no_checksum(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match=r"cannot read the file .*gone: No such file"):
        file_digest(tmp_path / "gone")
