"""The app: try a shift and mitigations on an image, and open stored results, in a browser on this machine."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gramloop.data.records import Record, Shift
from gramloop.data.scenes import scene
from gramloop.data.suites import SEVERITIES, display_name, find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.store import PLAN
from gramloop.mitigations import apply
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.stack import KINDS, REPLAYS, Replay, read_stack, stack_text
from gramloop.models.tiny import SOURCE
from gramloop.replay.config import ReplayConfig, default_window
from gramloop.shifts.recipes import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.images import RGB, read_image
from gramloop.tasks.options import ModelOptions
from gramloop.tasks.prediction import Prediction, draw_predictions
from gramloop.tasks.predictor import AnyPredictor
from gramloop.util.plotting import CaptionedFigure
from gramloop.util.table import Table

HOST = "127.0.0.1"  # this machine alone: a visitor may open any folder and run any amount of work
_FIRST_SHIFT, _FIRST_SEVERITY = "c:impulse_noise", 3  # visible on any image
_TASKS = "semantic", "detection", "depth"  # of the embedded model
_SCENES = (10, 7, 4, 21, 1, 12, 26, 17)  # of the split "val"
_EXAMPLES = {  # mitigations that need a number
    "scales": "scales:0.75,1,1.25",
    "resize": "resize:1.25",
    "recentre": "recentre:0.3",
    "norms": "norms:0.1",
}
_LONGEST_SIDE = 1024  # larger images are shrunk to this, and the page says so
_SURE = 0.5  # a box or mask of the clean prediction that scores less is not taken for an object
_DEEPEST = 4  # levels of folders that are searched for results
_ABOUT = (
    "# GramLoop\nShift an image and compare the predictions of a frozen model with and without mitigations. "
    "Nothing leaves this machine."
)
_HINT = "Drop an image, or take one of the scenes."
_NO_RESULTS = "Start with gramloop app --results DIR, or type a folder of gramloop evaluate."
_PHOTO = "The embedded model knows drawn scenes only: its predictions on a photograph mean little. --model names another model."
_NOTE = (
    "Agreement is with the baseline prediction of the clean image; it is not accuracy. Blocks are those of one view of "
    "the image. Times are of one run each."
)
# one at a time and in order: two predictions would slow each other down, and figures share matplotlib's settings;
# what changes meanwhile is answered next
_QUEUED: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_limit": 1,
    "concurrency_id": "gramloop",
    "trigger_mode": "always_last",
    "show_progress": "minimal",
}
_CSS = """
#report iframe { width: 100%; height: 85vh; border: 1px solid var(--border-color-primary); background: white; }
.gl-answer { font-weight: 600; font-size: 1.1rem; }
.gl-notice { padding: .7rem .9rem; border-left: 4px solid #0072b2; overflow-wrap: anywhere; }
.gl-problem { border-color: #d55e00; }
.gl-scroll { overflow-x: auto; contain: inline-size; }
.gl-scroll img { display: block; min-width: 700px; max-width: 100%; }
.gl-below { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: start; }
.gl-below img { width: 480px; max-width: 100%; }
.gl-below .gl-scroll { flex: 1 1 300px; }
#trial figure { margin: .5rem 0; }
"""


# a trial


@dataclass(frozen=True)
class Trial:
    """The predictions of an image and how far they agree with that of the clean image."""

    predictor: AnyPredictor
    shift: Shift | None
    clean: RGB
    shifted: RGB
    clean_prediction: Prediction
    predictions: tuple[Prediction, ...]  # the baseline's and, with mitigations, the mitigated one
    milliseconds: tuple[float, ...]
    agreement: tuple[float, ...]  # in percent of the task's metric of one image
    mitigations: str


class Bench:
    """Runs trials; what it predicted last is kept, so that a change of one control predicts only what it has to."""

    def __init__(self, model: ModelOptions, calibration: Path | None = None) -> None:
        self.model = model
        self.embedded = model.files() == ModelOptions().files()
        self.calibration = calibration or (SOURCE if self.embedded else None)
        first = model.chosen_task()
        self.tasks = sorted(_TASKS, key=lambda task: task != first) if self.embedded else []
        self.open = cache(self._open)
        self._predict = lru_cache(maxsize=16)(self._predicted)

    def _open(self, task: str | None) -> tuple[AnyPredictor, CalibrationStats | None]:
        """The model for a task, and its calibration statistics."""
        predictor = replace(self.model, task=task or self.model.task).load()
        stats = None if self.calibration is None else CalibrationStats.read(self.calibration)
        predictor.predict(scene(0).image)  # what happens only once must not count as time of a trial
        return predictor, stats

    def _predicted(
        self, task: str | None, mitigations: str, shape: tuple[int, ...], pixels: bytes
    ) -> tuple[Prediction, float]:
        """A prediction, and its milliseconds."""
        predictor, stats = self.open(task)
        model = apply(mitigations, predictor, stats) if mitigations else predictor
        begin = time.perf_counter()
        found = model.predict(np.frombuffer(pixels, np.uint8).reshape(shape))
        return found, 1000 * (time.perf_counter() - begin)

    def run(
        self, clean: RGB, task: str | None, shift: Shift | None, mitigations: Sequence[str] = ()
    ) -> Trial:
        """Predict an image with and without mitigations."""
        predictor, stats = self.open(task)
        kind, text = get_task(predictor.task), "+".join(each.strip() for each in mitigations if each.strip())
        stack = read_stack(text, stats)[0] if text else ()
        # named after its content, so that the same image is always shifted alike
        name = hashlib.sha256(f"{clean.shape}".encode() + clean.tobytes()).hexdigest()[:16]
        height, width = clean.shape[:2]
        record = Record(name, Path(name), name, height, width, shift=shift)
        shifted = clean if shift is None else shift.pixels(clean, record)
        (first, _), *timed = (
            self._predict(task, each, image.shape, image.tobytes())
            for image, each in ((clean, ""), (shifted, ""), *([(shifted, text)] if stack else []))
        )
        truth = kind.as_truth(first, _SURE)
        if shift is not None and shift.moves:
            truth = kind.move_truth(truth, record, shift)
        found = tuple(kind.align(each, truth, "auto") for each, _ in timed)
        labels = [np.ravel(getattr(each, "labels", ())) for each in (first, *found)]  # some have no name
        last = max((*predictor.classes, *(int(each.max()) for each in labels if each.size)), default=-1)
        categories = Categories(dict.fromkeys(range(last + 1), ""))
        agreement = tuple(
            kind.image_score(kind.statistics(each, truth, categories), categories) for each in found
        )
        times = tuple(milliseconds for _, milliseconds in timed)
        return Trial(predictor, shift, clean, shifted, first, found, times, agreement, stack_text(stack))


@cache
def example_scenes() -> tuple[RGB, ...]:
    """The drawn scenes that the page offers."""
    return tuple(scene(index, split="val").image for index in _SCENES)


def read_upload(path: str | Path) -> tuple[RGB, str]:
    """The image in a size that is quick to predict, and what was changed for that."""
    pixels = read_image(path)
    height, width = pixels.shape[:2]
    scale = _LONGEST_SIDE / max(height, width)
    if scale >= 1:
        return pixels, ""
    size = max(2, round(width * scale)), max(2, round(height * scale))
    small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    return small, f"Shrunk from {width} x {height} to {size[0]} x {size[1]} pixels."


def shift_choices() -> list[tuple[str, str]]:
    """Names to show, with what `shift_of` takes: corruptions first, then perturbations."""
    corruptions = [(display_name(name), f"c:{name}") for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    perturbations = [(f"{display_name(name)} (perturbation)", f"p:{name}") for name in PERTURBATIONS]
    return [("none", "none"), *corruptions, *perturbations]


def shift_of(choice: str, severity: int) -> Shift | None:
    """The shift of a choice; None for none."""
    kind, _, name = choice.partition(":")
    if not name:
        return None
    suite = find_suite(f"image-{kind}")
    (condition,) = suite.select([name], [severity])
    return Shift(suite.name, suite.kind, condition)


def _replay(predictor: AnyPredictor) -> list[str]:
    """The replay to start from, its window spelled out; none for a model without blocks."""
    if not predictor.blocks:
        return []
    return [Replay(ReplayConfig(window=default_window(len(predictor.blocks)))).text]


def mitigation_choices(predictor: AnyPredictor) -> list[str]:
    """Every kind of mitigation and every named replay that the model can take, each ready for use."""
    kinds = [_EXAMPLES.get(name, name) for name in KINDS if name != Replay.name]
    return [*kinds, *_replay(predictor), *(REPLAYS if predictor.blocks else [])]


# as HTML


def trial_html(trial: Trial, name: str, notes: Sequence[str] = ()) -> str:
    """The answer of a trial, its pictures and its numbers."""
    task, classes = get_task(trial.predictor.task), trial.predictor.classes
    shift = "clean" if trial.shift is None else trial.shift.condition.display_name
    parts = name, task.name, shift, trial.mitigations or "no mitigation"
    maps = trial.predictions[-1].trace
    skipped = maps is not None and not maps.drift.any()
    lines = [*notes, *(["Nothing was replayed: the adaptive rule skipped this image."] if skipped else [])]
    words = "".join(f"<p>{escape(line)}</p>" for line in [" · ".join(parts), *lines] if line)
    style = task.style([trial.clean_prediction, *trial.predictions], classes)
    named = dict(zip(("baseline", "mitigated"), trial.predictions, strict=False))
    above = _figure(draw_predictions(trial.shifted, named, classes, style=style))
    below = f'<div class="gl-scroll">{_table(trial, task.metrics[0]).html()}</div>'
    if trial.shift is not None:
        clean = {"clean prediction": trial.clean_prediction}
        below = _figure(draw_predictions(trial.clean, clean, classes, style=style)) + below
    answer = f'<p class="gl-answer">{escape(_answer(trial, task.metrics[0]))}</p>'
    return f'{answer}{words}<div class="gl-scroll">{above}</div><div class="gl-below">{below}</div>'


def _answer(trial: Trial, metric: str) -> str:
    """What the mitigations do to this image, in a sentence."""
    before, after = trial.agreement[0], trial.agreement[-1]
    if before != before or after != after:  # NaN
        return "The clean prediction holds nothing to agree with."
    if len(trial.predictions) == 1:
        return f"Agreement with the clean prediction is {before:.1f} ({metric}, %)."
    does = "rises" if after > before else "falls" if after < before else "stays"
    change = f"from {before:.1f} to {after:.1f}" if after != before else f"at {after:.1f}"
    cost = trial.milliseconds[1] / trial.milliseconds[0]
    return f"Agreement with the clean prediction {does} {change} ({metric}, %), at {cost:.2f}× the time."


def _table(trial: Trial, metric: str) -> Table:
    """Agreement with the clean prediction, blocks and milliseconds."""
    rows: list[Sequence[Any]] = []
    for name, form, values in (
        (f"agreement, {metric} (%)", ".1f", trial.agreement),
        ("blocks executed", "d", [each.blocks for each in trial.predictions]),
        ("milliseconds", ".0f", trial.milliseconds),
    ):
        ratio = [f"{after / values[0]:.2f} ×" if values[0] else None for after in values[1:]]
        rows.append((name, *(f"{value:{form}}" for value in values), *ratio))
    columns = ("", "baseline", "mitigated", "ratio") if trial.mitigations else ("", "baseline")
    return Table("Predictions", columns, rows, [_NOTE])


def _figure(figure: Any) -> str:
    png = base64.b64encode(CaptionedFigure(figure, "", "", "").png()).decode()
    titles = ", ".join(panel.get_title() for panel in figure.axes if panel.get_title())
    return f'<figure><img src="data:image/png;base64,{png}" alt="{escape(titles)}"></figure>'


def notice(text: str, kind: str = "problem") -> str:
    """A message in a box; ``problem`` or ``hint``."""
    role, end = ("alert" if kind == "problem" else "status"), "" if text.endswith((".", "!")) else "."
    return f'<p class="gl-notice gl-{kind}" role="{role}">{escape(text[:1].upper() + text[1:] + end)}</p>'


# results


def find_folders(roots: Sequence[Path]) -> list[Path]:
    """The result folders at and below some folders, in order."""
    patterns = ["*/" * depth + PLAN for depth in range(_DEEPEST + 1)]
    found = [sorted(path.parent for pattern in patterns for path in root.glob(pattern)) for root in roots]
    return list(dict.fromkeys(folder for each in found for folder in each))


def report_html(folder: str) -> str:
    """The report of a result folder, or of the folders in it, as a page inside the page."""
    from gramloop.report.page import render
    from gramloop.report.write import read_document

    page = render(read_document([Path(folder)], pdf=False))
    frame = 'sandbox="allow-scripts allow-downloads" title="Report"'
    return f'<iframe {frame} srcdoc="{escape(page, quote=True)}"></iframe>'


# the page and its server


def build_page(bench: Bench, scenes: Sequence[Path], results: Sequence[Path] = ()) -> Any:
    """The page with both tabs."""
    with gr.Blocks(title="GramLoop", analytics_enabled=False) as page:
        gr.Markdown(_ABOUT)
        with gr.Tabs(selected="results" if results else "try"):
            with gr.Tab("Try an image", id="try"):
                _try_tab(page, bench, scenes)
            with gr.Tab("Open results", id="results"):
                _results_tab(page, results)
    return page


def _try_tab(page: Any, bench: Bench, scenes: Sequence[Path]) -> None:
    """Controls, and the trial that every change of them makes."""
    tasks, first = bench.tasks, next(iter(bench.tasks), None)
    predictor, stats = bench.open(first)
    levels = [] if stats is None else ["levels"]
    with gr.Row():
        with gr.Column(min_width=280):
            image = gr.Image(
                str(scenes[0]),
                type="filepath",
                label="Image",
                sources=["upload", "clipboard"],
                height=230,
                elem_id="image",
            )
            # read by `read_upload`, with a message where it cannot be
            vars(image)["preprocess"] = lambda given: given and given.path
        with gr.Column(min_width=280):
            task = gr.Dropdown(tasks, value=first, label="Task", visible=len(tasks) > 1, elem_id="task")
            shift = gr.Dropdown(shift_choices(), value=_FIRST_SHIFT, label="Shift", elem_id="shift")
            ends = SEVERITIES[0], SEVERITIES[-1], _FIRST_SEVERITY
            severity = gr.Slider(*ends, step=1, label="Severity", elem_id="severity")
        with gr.Column(min_width=280):
            mitigations = gr.Dropdown(
                mitigation_choices(predictor),
                value=["denoise", *levels, *_replay(predictor)],
                multiselect=True,
                allow_custom_value=True,
                label="Mitigations",
                info="They combine. Type others, such as denoise:8, replay:window=5-7,replays=2 or out/tune/best.json.",
                elem_id="mitigations",
            )
    gr.Examples([[str(path)] for path in scenes], image, label="Scenes")
    output = gr.HTML(notice(_HINT, "hint"), elem_id="trial")

    controls: list[Any] = [image, task, shift, severity, mitigations]
    changes = [page.load, *(each.change for each in controls)]
    gr.on(changes, partial(_try_image, bench), controls, output, **_QUEUED)


def _try_image(
    bench: Bench, path: str | None, task: str | None, shift: str, severity: int, chosen: list[str] | None
) -> str:
    """One trial as HTML, from the values of the controls."""
    if path is None:
        return notice(_HINT, "hint")
    try:
        pixels, note = read_upload(path)
        trial = bench.run(pixels, task, shift_of(shift, int(severity)), chosen or ())
    except GramLoopError as error:
        return notice(str(error))
    photo = bench.embedded and not any(np.array_equal(pixels, each) for each in example_scenes())
    return (notice(_PHOTO, "hint") if photo else "") + trial_html(trial, bench.model.name, [note])


def _results_tab(page: Any, results: Sequence[Path]) -> None:
    """A box for the folder, and its report."""
    found = [str(path) for path in find_folders(results)]
    with gr.Row(equal_height=True):
        folder: Any = gr.Dropdown(
            found,
            value=next(iter(found), None),
            allow_custom_value=True,
            label="Folder of results",
            scale=5,
            elem_id="folder",
        )
        button = gr.Button("Open", variant="primary", scale=1, elem_id="open")
    output = gr.HTML(notice(_NO_RESULTS, "hint"), elem_id="report")

    def open_folder(chosen: str | None) -> str:
        try:
            return report_html(chosen.strip()) if chosen else notice(_NO_RESULTS, "hint")
        except GramLoopError as error:
            return notice(str(error))

    gr.on([page.load, button.click, folder.change], open_folder, folder, output, **_QUEUED)


@contextmanager
def serving(
    model: ModelOptions,
    results: Sequence[Path] = (),
    port: int | None = None,
    *,
    calibration: Path | None = None,
    browser: bool = False,
) -> Iterator[str]:
    """Serve the app for a ``with`` block, which gets its address; uploads are deleted at its end.

    Args:
        model: What is tried.
        results: Folders of results, or of such folders; the first one is opened.
        port: None for the first free one from 7860 on.
        calibration: Statistics of in-distribution images, a file of `gramloop calibrate`.
        browser: Open the page.
    """
    for folder in results:
        if not folder.is_dir():
            raise GramLoopError(f"--results {folder} is no folder")
    with tempfile.TemporaryDirectory(prefix="gramloop-app-", ignore_cleanup_errors=True) as private:
        os.environ["GRADIO_TEMP_DIR"] = private  # readable by this user alone
        scenes = [Path(private) / f"scene-{number}.png" for number, _ in enumerate(example_scenes(), start=1)]
        for path, pixels in zip(scenes, example_scenes(), strict=True):
            Image.fromarray(pixels).save(path)
        page = build_page(Bench(model, calibration), scenes, results)
        # a web site that points its own host name at this machine is refused
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        try:
            url = page.launch(
                server_name=HOST,
                server_port=port,
                prevent_thread_lock=True,
                inbrowser=browser,
                quiet=True,
                footer_links=[],
                ssr_mode=False,
                state_session_capacity=16,  # gradio keeps what each page showed last, some 2 MB
                css=_CSS,
                theme=gr.themes.Base(font=("system-ui", "sans-serif"), font_mono=("monospace",)),
                app_kwargs={"middleware": [hosts]},
            )[1]
        except OSError as error:
            raise GramLoopError(f"cannot listen on --port {port}: {error}") from error
        try:
            yield url
        finally:
            page.close(verbose=False)
            del os.environ["GRADIO_TEMP_DIR"]
