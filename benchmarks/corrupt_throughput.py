"""COCO-C written to disk by ``gramloop corrupt``: images per second and core, over VGA pictures drawn here.

    python benchmarks/corrupt_throughput.py --images 5000            # the size of COCO val2017: hours
    python benchmarks/corrupt_throughput.py --images 16              # a first impression

A condition is removed once it is written, so that the disk holds few of them at a time.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import cv2
from PIL import Image

from gramloop.data.opening import open_suite
from gramloop.data.scenes import THINGS, scene
from gramloop.data.suites import SUITES, Condition
from gramloop.data.writing import SuiteLayout, write_images, write_suite
from gramloop.util.processes import available_cores

HEIGHT, WIDTH = 480, 640
FULL = 5000


def draw_set(root: Path, count: int) -> float:
    """Landscape pictures of 640 x 480 in COCO's layout; returns seconds."""
    start = time.perf_counter()
    (root / "val").mkdir(parents=True)
    (root / "annotations").mkdir()
    images, annotations = [], []
    for index in range(count):
        drawn = scene(index, size=WIDTH)
        top = WIDTH - HEIGHT
        Image.fromarray(drawn.image[top:]).save(root / "val" / f"{index:012d}.jpg", quality=95)
        images.append({"id": index + 1, "file_name": f"{index:012d}.jpg", "height": HEIGHT, "width": WIDTH})
        for (x, y, w, h), kind in zip(drawn.boxes.tolist(), drawn.categories.tolist(), strict=True):
            box = [x, max(y - top, 0), w, min(h, y - top + h)]
            if box[3] > 0:
                entry = {
                    "id": len(annotations) + 1,
                    "image_id": index + 1,
                    "category_id": kind + 1,
                    "bbox": box,
                }
                annotations.append(entry)
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(THINGS)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations/instances_val.json").write_text(json.dumps(content))
    return time.perf_counter() - start


def alone(source: Path, target: Path, images: int) -> dict[str, float]:
    """Core-seconds per image of every corruption, in one process: decode, corrupt, encode, hash, write."""
    costs = {}
    for name in SUITES["coco-c"].select(severities=[1]):
        opened = open_suite("vga-c", source, conditions=[name.name])
        assert opened.clean is not None
        layout = SuiteLayout.of(opened, opened.clean, target)
        start = time.process_time()
        for condition in opened.conditions:
            write_images(layout, opened.shift(condition), opened.clean[:images])
        costs[name.name] = (time.process_time() - start) / (images * len(opened))
        shutil.rmtree(target)
    return costs


def together(source: Path, target: Path, workers: int) -> tuple[int, float, int]:
    """The whole suite over all processes; returns images, seconds and bytes."""
    opened = open_suite("vga-c", source)
    sizes: list[int] = []

    def weigh_and_remove(condition: Condition) -> None:
        sizes.extend(path.stat().st_size for path in (target / condition.key).rglob("*.png"))
        shutil.rmtree(target / condition.key)

    start = time.perf_counter()
    outcome = write_suite(opened, target, workers=workers, on_finished=weigh_and_remove)
    return outcome.made, time.perf_counter() - start, sum(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=16, help="pictures in the set (default: 16)")
    parser.add_argument("--workers", type=int, default=available_cores())
    args = parser.parse_args()
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "clean", Path(folder) / "shifted"
        print(f"{args.images} pictures of {WIDTH} x {HEIGHT} drawn in {draw_set(source, args.images):.1f} s")
        few = min(args.images, 4)
        costs = alone(source, target, few)
        print(f"\none process, {few} pictures x 5 severities, core-milliseconds per image written:")
        for name, cost in costs.items():
            print(f"  {name:20}{1e3 * cost:8.1f}")
        mean = sum(costs.values()) / len(costs)
        print(f"  {'mean':20}{1e3 * mean:8.1f}   = {1 / mean:.1f} images per second and core")
        made, wall, size = together(source, target, args.workers)
        cores = wall * args.workers
        print(f"\nthe whole suite, {made} images on {args.workers} processes: {wall:.1f} s")
        print(f"  {made / wall:.1f} images per second, {made / cores:.1f} images per second and process")
        print(f"  against one process without a pool: x {cores / made / mean:.2f} time per image and process")
        whole = FULL * 75
        if made < whole:
            print(
                f"  extrapolated from {made} images: COCO-C over {FULL} pictures ({whole} images) takes "
                f"{whole * cores / made / 3600:.1f} core-hours and {whole * size / made / 1e9:.0f} GB"
            )


if __name__ == "__main__":
    main()
