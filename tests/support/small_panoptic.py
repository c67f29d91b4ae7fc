"""A small panoptic set in COCO's layout, whose segments the tests know: blocks, some of them crowds, some void."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from gramloop.data.truth import SegmentMap, segments_info, segments_png
from small_sets import picture

CATEGORIES = [
    {"id": 1, "name": "cat", "isthing": 1},
    {"id": 2, "name": "dog", "isthing": 1},
    {"id": 9, "name": "grass", "isthing": 0},
]


def blocks(index: int, height: int = 96, width: int = 128) -> SegmentMap:
    """Segments with large ids, a crowd among them, and void."""
    rng = np.random.default_rng(index)
    numbers = np.array([7, 300, 70_000, 16_000_000])
    cells = rng.choice(np.append(numbers, 0), (height // 16, width // 16))
    cells[0, :5] = [0, *numbers]
    ids = np.kron(cells, np.ones((16, 16), dtype=np.int64)).astype(np.int32)
    crowd = np.array([False, True, False, False])
    return SegmentMap(ids, numbers, np.array([1, 2, 9, 1]), crowd)


def write_panoptic(root: Path, count: int, split: str = "val2017") -> Path:
    maps = root / "annotations" / f"panoptic_{split}"
    maps.mkdir(parents=True)
    (root / split).mkdir()
    annotations = []
    for index in range(count):
        Image.fromarray(picture(index, 96, 128)).save(root / split / f"{index:06d}.jpg", quality=95)
        found = blocks(index)
        (maps / f"{index:06d}.png").write_bytes(segments_png(found.ids))
        entry = {"image_id": 100 + index, "file_name": f"{index:06d}.png"}
        annotations.append({**entry, "segments_info": segments_info(found)})
    content = {
        "images": [
            {"id": 100 + index, "file_name": f"{index:06d}.jpg", "height": 96, "width": 128}
            for index in range(count)
        ],
        "annotations": annotations,
        "categories": CATEGORIES,
    }
    maps.with_suffix(".json").write_text(json.dumps(content))
    return root
