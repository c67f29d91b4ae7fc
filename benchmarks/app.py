"""The app under steady use: how long it takes to start, and whether 200 trials leave memory as they found it.

    python benchmarks/app.py [--requests 200] [--starts 3]

Every request is a new image under another shift, so that nothing comes out of the cache and the cache is full early.
Each is a visitor of its own who uploads it and asks for the trial over HTTP, as the page does. Memory is the server's
resident set; the visitors are in the same process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import numpy as np
import psutil

os.environ.setdefault("OMP_NUM_THREADS", "1")

START = """
import time, urllib.request
from gramloop.app.page import serving, try_image
from gramloop.app.trial import AppSettings, OfferedModel
from gramloop.models.tiny import WEIGHTS
with serving(AppSettings((OfferedModel("tiny", {"folder": str(WEIGHTS)}),)), port=0) as running:
    assert urllib.request.urlopen(running.url).status == 200
    print(time.process_time(), flush=True)
    from pathlib import Path
    import os
    scene = str(min(Path(os.environ["GRADIO_TEMP_DIR"]).glob("scene-1.png")))
    chosen = "tiny", "semantic", "c:impulse_noise", 3, ["denoise", "replay"], "window=6-6"
    assert "<figure>" in try_image(running.bench, scene, *chosen)
    print(time.process_time(), flush=True)
"""


def start_up() -> None:
    """Print the seconds until the page answers, and until the first trial stands; by the clock and of the processor."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for what in ("the page answers 200", "the first trial stands"):
            processor = float(process.stdout.readline())
            wall = time.perf_counter() - begin
            print(f"start-up: {wall:.1f} s until {what}, {processor:.1f} s of one core", flush=True)


def resident() -> float:
    """Megabytes of this process."""
    return float(psutil.Process().memory_info().rss) / 1e6


class Visitors:
    """People who open the page one after the other, each with an image."""

    def __init__(self, url: str) -> None:
        self.url = url
        config = self._ask("config")
        parts = {each["id"]: each["props"] for each in config["components"]}
        self.trial = next(each for each in config["dependencies"] if each["targets"][0][1] == "load")
        self.controls = [parts[number] for number in self.trial["inputs"]]
        self.many = 0

    def _ask(self, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(self.url + path, body, {"content-type": kind})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def come(self, png: bytes, **turned: object) -> str:
        """What the next one is shown; the first control is the image."""
        self.many += 1
        session, edge = f"visitor{self.many}", "edge-of-a-part"
        head = f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="photo.png"\r\n\r\n'
        form = head.encode() + png + f"\r\n--{edge}--\r\n".encode()
        (path,) = self._ask("gradio_api/upload", form, f"multipart/form-data; boundary={edge}")
        image = {"path": path, "meta": {"_type": "gradio.FileData"}}
        data = [image, *(turned.get(each.get("elem_id"), each["value"]) for each in self.controls[1:])]
        sent = {"data": data, "fn_index": self.trial["id"], "session_hash": session}
        self._ask("gradio_api/queue/join", json.dumps(sent).encode())
        with urllib.request.urlopen(f"{self.url}gradio_api/queue/data?session_hash={session}") as lines:
            for line in lines:
                if b"process_completed" in line[:200]:
                    return str(json.loads(line.removeprefix(b"data:"))["output"]["data"][0])
        raise AssertionError("the server ended the conversation")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=40)  # every shift once
    args = parser.parse_args()
    if args.requests < 4:
        parser.error("--requests is 4 or more, for a slope")
    for _ in range(args.starts):
        start_up()

    from PIL import Image

    from gramloop.app.page import serving
    from gramloop.app.trial import AppSettings, OfferedModel, shift_choices
    from gramloop.data.scenes.drawing import scene
    from gramloop.models.tiny import WEIGHTS

    shifts = [value for _, value in shift_choices()]
    settings = AppSettings((OfferedModel("tiny", {"folder": str(WEIGHTS)}),))
    marks: list[float] = []
    begin = 0.0
    with serving(settings, port=0) as running:
        visitors = Visitors(running.url)
        for number in range(args.warm_up + args.requests):
            if number == args.warm_up:
                begin = time.perf_counter()
            file = io.BytesIO()
            Image.fromarray(scene(number, split="train").image).save(file, format="png")
            shift, severity = shifts[number % len(shifts)], 1 + number % 5
            page = visitors.come(file.getvalue(), shift=shift, severity=severity)
            assert "<figure>" in page, page[:300]
            if number >= args.warm_up:
                marks.append(resident())
            if number % 20 == 19:
                print(f"{number + 1} requests: {resident():.0f} MB", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - begin
    half = marks[len(marks) // 2 :]
    slope, late = (float(np.polyfit(np.arange(len(some)), some, 1)[0]) for some in (marks, half))
    print(
        f"{args.requests} requests after {args.warm_up} of warm-up, {1000 * seconds / args.requests:.0f} ms each"
    )
    print(f"resident memory: first {marks[0]:.0f} MB, last {marks[-1]:.0f} MB, most {max(marks):.0f} MB")
    print(f"ratio of last to first: {marks[-1] / marks[0]:.3f}; slope {1000 * slope:.0f} kB per request")
    print(
        f"the later {len(half)}: from {half[0]:.0f} to {half[-1]:.0f} MB, {half[-1] / half[0] - 1:+.1%}; "
        f"slope {1000 * late:.0f} kB per request"
    )


if __name__ == "__main__":
    main()
