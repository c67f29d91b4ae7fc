"""The page: one tab to try an image, one that embeds the report of stored results."""

from __future__ import annotations

import base64
import ctypes
import gc
import io
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import gradio as gr
from gradio.data_classes import ImageData
from PIL import Image

from gramloop.app.results import allowed_folder, find_folders, report_page
from gramloop.app.trial import (
    LONGEST_TEXT,
    NO_SHIFT,
    Bench,
    Opened,
    Outcome,
    Trial,
    example_scenes,
    mitigation_choices,
    mitigations_of,
    shift_choices,
)
from gramloop.app.uploads import read_upload
from gramloop.data.suites import SEVERITIES, display_name
from gramloop.errors import GramLoopError
from gramloop.replay.config import replay_text

if TYPE_CHECKING:
    from gramloop.util.table import Cell, Table

P = ParamSpec("P")
C = TypeVar("C", bound=gr.components.Component)
METHODS, TRUTH = ("baseline", "mitigated"), "clean prediction"
_FIRST_SHIFT, _FIRST_SEVERITY = "c:impulse_noise", 3  # visible on any image
_HINT = "Drop an image, or take one of the scenes."
_NO_RESULTS = "No results yet: start with gramloop app --results DIR, or type a folder of gramloop evaluate."
_PHOTO = (
    "tiny knows drawn scenes only: its predictions on a photograph mean little. --model adds another model."
)
_SESSIONS = 16  # gradio keeps what each visitor saw last, some 2 MB; nothing here needs it
_WIDTH, _TALLEST = 2.4, 1.6  # inches of a picture, and its largest height for a width of 1
# one at a time and in order, so that nothing older is shown last
_QUIET: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": 1, "show_progress": "minimal"}
_ABOUT = (
    "# GramLoop\nShift an image and compare the predictions of a frozen model with and without mitigations. "
    "Nothing leaves this machine."
)
CSS = """
.gradio-container { width: 100% !important; max-width: 1500px !important; margin: 0 auto !important; }
.gl-controls { position: sticky; top: 8px; }
#trial, #report { min-height: 2rem; min-width: 0; }
#report iframe { width: 100%; height: 85vh; border: 1px solid var(--border-color-primary); border-radius: 8px; background: white; }
.gl-line { font-weight: 600; margin: 0 0 .6rem; overflow-wrap: anywhere; }
.gl-notice { padding: .7rem .9rem; border-radius: 8px; border-left: 4px solid; margin: .3rem 0; overflow-wrap: anywhere; }
.gl-problem { border-color: #d55e00; background: color-mix(in srgb, #d55e00 9%, var(--background-fill-primary)); }
.gl-hint { border-color: #0072b2; background: color-mix(in srgb, #0072b2 7%, var(--background-fill-primary)); }
.gl-grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 215px), 1fr)); }
.gl-grid figure { margin: 0; min-width: 0; }
.gl-grid img { width: 100%; height: auto; display: block; border-radius: 6px; border: 1px solid var(--border-color-primary); }
.gl-grid figcaption { font-size: .85rem; padding: .3rem .1rem 0; line-height: 1.35; }
.gl-grid figcaption small, .gl-table p { display: block; font-size: .85rem; color: color-mix(in srgb, var(--body-text-color) 78%, transparent); }
.gl-legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .7rem 0 .2rem; font-size: .85rem; }
.gl-legend li { display: flex; align-items: center; gap: .4rem; margin: 0; }
.gl-legend i { width: .85rem; height: .85rem; border-radius: 3px; border: 1px solid rgba(0, 0, 0, .25); flex: none; }
.gl-table { overflow-x: auto; contain: inline-size; margin-top: 1rem; }
.gl-table table { font-size: .88rem; font-variant-numeric: tabular-nums; margin: 0; }
.gl-table caption { text-align: left; font-weight: 600; caption-side: top; }
@media (max-width: 720px) { .gl-controls { position: static; } .gradio-container { padding: 8px !important; }
  .gl-grid { grid-template-columns: repeat(auto-fit, minmax(min(100%, 130px), 1fr)); } }
"""


def theme() -> Any:
    """Quiet colours, and fonts that are already installed."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        font=("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif"),
        font_mono=("ui-monospace", "Consolas", "monospace"),
    )


def build(bench: Bench, scenes: list[Path]) -> Any:
    """The page with both tabs."""
    with gr.Blocks(
        title="GramLoop", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True
    ) as page:
        gr.Markdown(_ABOUT)
        with gr.Tabs(selected="results" if bench.settings.results else "try"):
            with gr.Tab("Try an image", id="try"):
                try_event = _try_tab(bench, scenes)
            with gr.Tab("Open results", id="results") as tab:
                open_event = _results_tab(bench, tab)
        page.load(*try_event, **_QUIET)
        if bench.settings.results:
            page.load(*open_event, **_QUIET)
    page.state_session_capacity = _SESSIONS
    page.queue(api_open=False, max_size=64, default_concurrency_limit=4)
    return page


# what visitors send, and what they are answered


def notice(text: str, kind: str = "problem") -> str:
    """A message in a box; ``problem`` or ``hint``."""
    role, end = ("alert" if kind == "problem" else "status"), "" if text.endswith((".", "!")) else "."
    return f'<p class="gl-notice gl-{kind}" role="{role}">{escape(text[:1].upper() + text[1:] + end)}</p>'


def with_messages(do: Callable[P, str]) -> Callable[P, str]:
    """The HTML of a function, or a message in place of it; unexpected errors go to the terminal."""

    @wraps(do)
    def safely(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return do(*args, **kwargs)
        except GramLoopError as error:
            return notice(str(error))
        except MemoryError:
            return notice("this machine has not enough memory for that; try a smaller image")
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return notice("an unexpected error; the terminal in which the app runs says more")
        finally:  # figures are cycles of objects, and glibc keeps what threads freed
            gc.collect()
            if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
                trim(0)

    return safely


def image_input(**options: Any) -> gr.Image:
    """An uploaded image, as the path of its file: nothing is decoded here, and no address is fetched."""
    image = gr.Image(type="filepath", **options)
    keep = image.async_move_resource_to_block_cache

    def path_of(payload: ImageData | None) -> str | None:
        return None if payload is None or payload.path is None else str(Path(payload.path))

    async def keep_files(found: str | Path | None) -> str | None:
        if "://" in str(found):
            raise gr.Error("Images are uploaded; addresses are not fetched.", print_exception=False)
        return await keep(found)

    vars(image).update(preprocess=path_of, async_move_resource_to_block_cache=keep_files)
    return image


def unchecked(control: C) -> C:
    """A control whose value arrives as it was sent: gradio would refuse a wrong one without a message on the page."""
    vars(control).update(preprocess=lambda value: value)
    return control


# the tab of results


def _results_tab(bench: Bench, tab: Any) -> tuple[Any, ...]:
    """Build the tab; returns function, inputs and outputs of its first report."""
    settings = bench.settings
    with gr.Row(equal_height=False):
        options: dict[str, Any] = {"label": "Folder of results", "scale": 5, "elem_id": "folder"}
        folder = unchecked(gr.Dropdown([], allow_custom_value=True, **options))
        button = gr.Button("Open", variant="primary", scale=1, min_width=110, elem_id="open")
    shown = gr.HTML(notice(_NO_RESULTS, "hint"), elem_id="report")

    @with_messages
    def embed(typed: object) -> str:
        if not typed:
            return notice(_NO_RESULTS, "hint")
        page = report_page(allowed_folder(settings, str(typed)), bench.lock)
        frame = 'sandbox="allow-scripts allow-downloads" allow="clipboard-write" title="Report"'
        return f'<iframe {frame} srcdoc="{escape(page, quote=True)}"></iframe>'

    def enter(chosen: object) -> list[Any]:
        """The folders that there are by now, and the report of the chosen one, at first that of the first."""
        found = [str(path) for path in find_folders(settings.results)]
        chosen = chosen or (found[0] if found else None)
        return [gr.update(choices=found, value=chosen), embed(chosen)]

    first = enter, folder, [folder, shown]
    tab.select(*first, **_QUIET)
    gr.on([button.click, folder.input], embed, folder, shown, **_QUIET)
    return first


# the tab of an image


def _try_tab(bench: Bench, scenes: list[Path]) -> tuple[Any, ...]:
    """Build the tab; returns function, inputs and outputs of a trial."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300, elem_classes="gl-controls"):
            controls = _controls(bench, scenes)
            _, model, task, *_, replay = controls
        with gr.Column(scale=5, min_width=320):
            shown = gr.HTML(notice(_HINT, "hint"), elem_id="trial")

    @with_messages
    def run(*values: Any) -> str:
        return _try(bench, *values)

    def of_model(name: object) -> list[Any]:
        """The controls that depend on the model."""
        try:
            with bench.lock:
                return [gr.update(**_tasks(bench, str(name))), _settings(bench.models.open(str(name)))]
        except GramLoopError:
            return [gr.skip(), gr.skip()]  # the trial that follows gives the reason

    changed = [each.change for each in controls if each is not model]
    gr.on(changed, run, controls, shown, trigger_mode="always_last", **_QUIET)
    chosen = model.change(of_model, model, [task, replay], **_QUIET)
    chosen.then(run, controls, shown, **_QUIET)
    return run, controls, shown


def _controls(bench: Bench, scenes: list[Path]) -> list[Any]:
    """Image, model, task, shift, severity, mitigations and settings of replay, as `_try` takes their values."""
    names = bench.models.names
    opened = bench.models.open(names[0])
    image = image_input(
        value=str(scenes[0]), label="Image", sources=["upload", "clipboard"], height=230, elem_id="image"
    )
    gr.Examples([[str(path)] for path in scenes], image, label="Scenes", examples_per_page=len(scenes))
    with gr.Group():
        several = len(names) > 1
        model = gr.Dropdown(names, value=names[0], label="Model", visible=several, elem_id="model")
        tasks = _tasks(bench, names[0])
        task = gr.Dropdown(**tasks, label="Task", allow_custom_value=True, elem_id="task")
    with gr.Group():
        shift = gr.Dropdown(shift_choices(), value=_FIRST_SHIFT, label="Shift", elem_id="shift")
        ends = SEVERITIES[0], SEVERITIES[-1], _FIRST_SEVERITY
        severity = gr.Slider(*ends, step=1, label="Severity", elem_id="severity")
    mitigations = gr.Dropdown(
        mitigation_choices(),
        value=_first_mitigations(opened),
        multiselect=True,
        allow_custom_value=True,
        label="Mitigations",
        info="They combine. Type others, such as denoise:8 or recentre:0.5,c=1.",
        elem_id="mitigations",
    )
    replay = gr.Textbox(
        _settings(opened),
        label="Settings of replay",
        placeholder="window=5-7,replays=2",
        max_length=LONGEST_TEXT,
        elem_id="replay",
    )
    return [image, *map(unchecked, (model, task, shift, severity, mitigations, replay))]


def _first_mitigations(opened: Opened) -> list[str]:
    """Those that the model can take: levels needs calibration statistics, a replay needs blocks."""
    replay = ["replay"] if opened.predictor.blocks else []
    return ["denoise", *(["levels"] if opened.stats is not None else []), *replay]


def _settings(opened: Opened) -> str:
    return replay_text(opened.replay) if opened.predictor.blocks else ""


def _tasks(bench: Bench, name: str) -> dict[str, Any]:
    tasks = bench.models.tasks(name)
    return {"choices": list(tasks), "value": tasks[0]}


def try_first(bench: Bench, scene: Path) -> str:
    """What a new page shows."""
    opened = bench.models.open(bench.models.names[0])
    chosen = _FIRST_SHIFT, _FIRST_SEVERITY, _first_mitigations(opened), _settings(opened)
    return with_messages(_try)(bench, str(scene), opened.name, opened.predictor.task, *chosen)


def _try(
    bench: Bench,
    image: str | None,
    model: object,
    task: object,
    shift: object,
    severity: object,
    chosen: object,
    replay: object,
) -> str:
    """One trial as HTML, from the values that a visitor sent."""
    if image is None:
        return notice(_HINT, "hint")
    picture = read_upload(image, bench.settings.limits)
    texts = [str(each) for each in chosen] if isinstance(chosen, list) else [str(chosen or "")]
    stack = mitigations_of(texts, str(replay or ""))
    condition = NO_SHIFT if shift is None else str(shift), severity
    outcome = bench.run(Trial(picture, str(model), str(task), *condition, stack))
    with bench.lock:
        drawn = picture.digest in {each.digest for each in example_scenes()}
        photo = outcome.opened.embedded and not drawn
        return (notice(_PHOTO, "hint") if photo else "") + trial_html(outcome, bench)


# the outcome of a trial


def trial_html(outcome: Outcome, bench: Bench) -> str:
    """Pictures and numbers of a trial."""
    shift = "clean" if outcome.shift is None else outcome.shift.condition.display_name
    parts = outcome.opened.name, outcome.task.name, shift, outcome.mitigations or "no mitigation"
    line = f'<p class="gl-line">{escape(" · ".join(parts))}</p>{_sentence(outcome)}'
    note = f"<p>{escape(outcome.clean.note)}</p>" if outcome.clean.note else ""
    key = (outcome.clean.digest, outcome.shifted.digest, *parts)
    pictures = bench.cache.get("pictures", key, lambda: _pictures(outcome))
    if outcome.maps is not None and not outcome.maps.drift.any():
        note += "<p>Nothing was replayed: the adaptive rule skipped this image.</p>"
    if outcome.maps is None and outcome.replay is not None:
        why = "with 0 replays" if not outcome.replay.replays else "where an image is seen several times"
        note += f"<p>There are no maps of drift and gate {why}.</p>"
    return f'{line}{note}{pictures}<div class="gl-table">{score_table(outcome).html()}</div>'


def _sentence(outcome: Outcome) -> str:
    """What the mitigations do to this image, in a sentence."""
    if outcome.mitigated is None:
        return ""
    before, after = outcome.agreement()
    does = "rises" if after > before else "falls" if after < before else "stays"
    change = f"from {before:.1f} to {after:.1f}" if after != before else f"at {after:.1f}"
    cost = outcome.mitigated.milliseconds / outcome.baseline.milliseconds
    text = f"Agreement with the clean prediction {does} {change} ({outcome.task.image_metric}, %), at {cost:.2f}× the time."
    return f"<p>{escape(text)}</p>"


def _pictures(outcome: Outcome) -> str:
    """Clean and shifted image, clean prediction, both predictions, and the maps of the replay."""
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.report.figures.qualitative import ComparedImage
    from gramloop.tasks.predictor import per_patch
    from gramloop.util.plotting import CaptionedFigure, Sheet, styled

    task, image = outcome.task, outcome.shifted.pixels
    found = tuple(replace(each, trace=None) for each in outcome.predictions)
    row = ComparedImage("", image, task, task.as_prediction(outcome.truth), found, outcome.classes)
    style, tall = row.style(), _WIDTH * min(max(image.shape[0] / image.shape[1], 0.2), _TALLEST)
    with styled():
        sheets = [Sheet(_WIDTH, tall) for _ in range(2 + len(found))]
        row.draw([sheet.panel(0, 0, _WIDTH, tall) for sheet in sheets], style)
        pngs = [CaptionedFigure(sheet.figure, "", "", "").png() for sheet in sheets]
    titles = ["input", TRUTH, *METHODS[: len(found)]]
    notes = ["", "", "", *(each.text for each in row.changes(style))]
    html = []
    if outcome.shift is not None:
        condition = outcome.shift.condition
        titles[0], notes[0] = (
            "shifted image",
            f"{display_name(condition.name)}, severity {condition.severity}",
        )
        html.append(_figure("clean image", _png(outcome.clean.pixels)))
    html += map(_figure, titles, pngs, notes)
    if (maps := outcome.maps) is not None:
        drift, gate = per_patch(maps.drift, maps.cell)[-1], per_patch(maps.gate, maps.cell)[-1]
        post = None if maps.post_drift is None else per_patch(maps.post_drift[None], maps.cell)[0]
        drawn = diagnostic([Diagnosed("this image", image, drift, gate, post)])
        html.append(_figure("drift and gate", drawn.png(), drawn.caption))
    colours = "".join(
        f'<li><i style="background:{colour}"></i>{escape(text)}</li>' for colour, text in row.legend(style)
    )
    return f'<div class="gl-grid">{"".join(html)}</div><ul class="gl-legend">{colours}</ul>'


def _png(pixels: Any) -> bytes:
    from gramloop.util.plotting import shrunk

    buffer = io.BytesIO()
    Image.fromarray(shrunk(pixels)).save(buffer, format="png")
    return buffer.getvalue()


def _figure(title: str, png: bytes, note: str = "") -> str:
    words = escape(f"{title}: {note}" if note else title, quote=True)
    return (
        f'<figure><img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{words}">'
        f"<figcaption><b>{escape(title)}</b><small>{escape(note)}</small></figcaption></figure>"
    )


def score_table(outcome: Outcome) -> Table:
    """Agreement with the clean prediction, blocks and milliseconds."""
    from gramloop.util.table import Table

    agreement, runs = outcome.agreement(), [outcome.baseline, outcome.mitigated or outcome.baseline]
    blocks, times = ([each.prediction.blocks for each in runs], [each.milliseconds for each in runs])
    rows: list[Sequence[Cell]] = [
        (f"agreement, {outcome.task.image_metric} (%)", *_compared(agreement, ".1f", "+.1f")),
        ("blocks executed", *_compared(blocks[: len(agreement)], "d")),
        ("milliseconds", *_compared(times[: len(agreement)], ".0f")),
    ]
    note = (
        "Agreement is with the baseline prediction of the clean image; it is not accuracy. Blocks are those of one "
        "view of the image. Times are of one run each."
    )
    return Table("Predictions", ("", *METHODS, "change"), rows, [note])


def _compared(values: Sequence[float], form: str, difference: str = "") -> tuple[Cell, ...]:
    """Baseline, mitigated and their difference, or ratio, as text."""
    first, *others = values
    if not others:
        return f"{first:{form}}", None, None
    change = f"{others[0] - first:{difference}}" if difference else f"{others[0] / first:.2f} ×"
    return f"{first:{form}}", f"{others[0]:{form}}", change
