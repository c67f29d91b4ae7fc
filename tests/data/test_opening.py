"""A new kind of annotations needs a reader, and nothing else of the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gramloop.data import READERS, Reader, ReadOptions, open_set, open_suite
from gramloop.data.coco import coco_root, open_coco
from gramloop.errors import GramLoopError
from small_sets import coco_content, write_coco


def test_a_reader_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_coco(tmp_path, coco_content(2))
    options = ReadOptions(task="keypoints", partial=True)
    with pytest.raises(
        GramLoopError, match="no reader of 'keypoints' annotations; there are semantic, detection"
    ):
        open_set("mine", root, options)
    reader = Reader(coco_root, lambda root, base, options: replace(open_coco(root), task="keypoints"))
    monkeypatch.setitem(READERS, "keypoints", reader)
    for base in ("mine", "coco"):
        found = open_set(base, root, options)
        assert (found.task, len(found)) == ("keypoints", 2)
    (_, shifted), *_ = open_suite("mine-c", root, conditions=["fog"], severities=[1], options=options)
    assert shifted.task == "keypoints"
    assert shifted[0].annotations == found[0].annotations
