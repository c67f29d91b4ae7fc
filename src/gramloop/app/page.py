"""The page of the app, and its server: one tab to try an image, one that embeds the report of stored results."""

from __future__ import annotations

import base64
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from PIL import Image
from starlette.middleware import Middleware

from gramloop.app.trial import (
    LONGEST_TEXT,
    NO_SHIFT,
    AppSettings,
    Bench,
    Opened,
    Outcome,
    Trial,
    example_scenes,
    mitigation_choices,
    mitigations_of,
    read_upload,
    shift_choices,
)
from gramloop.data.suites import SEVERITIES, display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.store import PLAN
from gramloop.replay.config import replay_text

if TYPE_CHECKING:
    from gramloop.util.table import Cell, Table

_FIRST_SHIFT, _FIRST_SEVERITY = "c:impulse_noise", 3  # visible on any image
_HINT = "Drop an image, or take one of the scenes."
_NO_RESULTS = "No results yet: start with gramloop app --results DIR, or type a folder of gramloop evaluate."
_PHOTO = (
    "tiny knows drawn scenes only: its predictions on a photograph mean little. --model adds another model."
)
_ABOUT = (
    "# GramLoop\nShift an image and compare the predictions of a frozen model with and without mitigations. "
    "Nothing leaves this machine."
)
_DEEPEST = 4  # levels of folders that are searched for results
_WIDTH, _TALLEST = 2.4, 1.6  # inches of a picture, and its largest height for a width of 1
# one at a time and in order, so that nothing older is shown last
_QUIET: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": 1, "show_progress": "minimal"}
_HEADERS = (  # nothing may come from, or go to, another host; gradio needs inline scripts and styles
    (
        b"content-security-policy",
        b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; "
        b"form-action 'self'; base-uri 'self'; frame-ancestors 'self'",
    ),
    (b"referrer-policy", b"no-referrer"),
)
_CSS = """
#report iframe { width: 100%; height: 85vh; border: 1px solid var(--border-color-primary); background: white; }
.gl-line { font-weight: 600; overflow-wrap: anywhere; }
.gl-notice { padding: .7rem .9rem; border-left: 4px solid #0072b2; overflow-wrap: anywhere; }
.gl-problem { border-color: #d55e00; }
.gl-grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 130px), 1fr)); }
.gl-grid figure { margin: 0; min-width: 0; }
.gl-grid img { width: 100%; height: auto; display: block; }
.gl-grid small { display: block; }
.gl-grid figure:has(img[alt^="drift and gate"]) { grid-column: 1 / -1; }
.gl-legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; }
.gl-legend i { display: inline-block; width: .85rem; height: .85rem; margin-right: .4rem; }
.gl-table { overflow-x: auto; contain: inline-size; }
@media (min-width: 1000px) { .gl-grid { grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); } }
"""


# the server


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    bench: Bench
    page: Any  # gradio.Blocks, which knows its server


class Shield:
    """Answers requests that name one of ``hosts`` (any if empty), with headers that keep browsers on this host.

    A web site that points its own host name at this machine is refused.
    """

    def __init__(self, app: Any, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        if scope["type"] == "http" and self._hosts and _host(scope) not in self._hosts:
            await send({"type": "http.response.start", "status": 421, "headers": []})
            await send({"type": "http.response.body", "body": b"This page has another address.\n"})
        else:
            await self._app(scope, receive, with_headers)


def _host(scope: Any) -> str:
    """The host name of a request, without a port."""
    given = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    name, _, port = given.rpartition(":")
    return (name if port.isdigit() else given).strip("[]").lower()


@contextmanager
def serving(settings: AppSettings, port: int | None = None, *, browser: bool = False) -> Iterator[Running]:
    """The app for a ``with`` block; uploads are deleted at its end.

    Args:
        settings: What the page is built from.
        port: None for the first free one from 7860 on, 0 for any.
        browser: Open the page.
    """
    with tempfile.TemporaryDirectory(prefix="gramloop-app-", ignore_cleanup_errors=True) as private:
        os.environ["GRADIO_TEMP_DIR"] = private  # readable by this user alone
        bench = Bench(settings)
        page = build_page(bench, _write_scenes(Path(private)))
        hosts = {"127.0.0.1", "localhost", "::1", settings.host} if settings.local else set()
        shield = Middleware(Shield, hosts=frozenset(hosts))
        undocumented = {"docs_url": None, "redoc_url": None, "openapi_url": None}
        try:
            free = _free_port(settings.host)  # fails at once where gradio would try 100 ports
            _, url, _ = page.launch(
                server_name=settings.host,
                server_port=free if port == 0 else port,
                prevent_thread_lock=True,
                inbrowser=browser,
                quiet=True,
                share=False,
                footer_links=[],
                run_history=False,
                max_file_size=settings.limits.upload_bytes,
                ssr_mode=False,
                enable_monitoring=False,
                pwa=False,
                mcp_server=False,
                state_session_capacity=16,  # gradio keeps what each visitor saw last, some 2 MB
                css=_CSS,
                theme=gr.themes.Base(font=("system-ui", "sans-serif"), font_mono=("monospace",)),
                app_kwargs={**undocumented, "middleware": [shield]},
            )
        except (OSError, UnicodeError) as error:
            raise GramLoopError(f"cannot listen on --host {settings.host}, --port {port}: {error}") from error
        try:
            yield Running(url, bench, page)
        finally:
            page.close(verbose=False)
            del os.environ["GRADIO_TEMP_DIR"]


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        return int(server.getsockname()[1])


def _write_scenes(private: Path) -> list[Path]:
    """The scenes that the page offers, as files."""
    paths = [private / f"scene-{number}.png" for number, _ in enumerate(example_scenes(), start=1)]
    for path, picture in zip(paths, example_scenes(), strict=True):
        Image.fromarray(picture.pixels).save(path)
    return paths


# the page


def build_page(bench: Bench, scenes: Sequence[Path]) -> Any:
    """The page with both tabs."""
    with gr.Blocks(title="GramLoop", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(_ABOUT)
        with gr.Tabs(selected="results" if bench.settings.results else "try"):
            with gr.Tab("Try an image", id="try"):
                try_event = _try_tab(bench, scenes)
            with gr.Tab("Open results", id="results") as tab:
                open_event = _results_tab(bench, tab)
        page.load(*try_event, **_QUIET)
        if bench.settings.results:
            page.load(*open_event, **_QUIET)
    page.queue(api_open=False, max_size=64)
    return page


def notice(text: str, kind: str = "problem") -> str:
    """A message in a box; ``problem`` or ``hint``."""
    role, end = ("alert" if kind == "problem" else "status"), "" if text.endswith((".", "!")) else "."
    return f'<p class="gl-notice gl-{kind}" role="{role}">{escape(text[:1].upper() + text[1:] + end)}</p>'


def with_messages(do: Callable[..., str]) -> Callable[..., str]:
    """The HTML of a function, or a message in place of it; unexpected errors go to the terminal."""

    def safely(*args: Any) -> str:
        try:
            return do(*args)
        except GramLoopError as error:
            return notice(str(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return notice("an unexpected error; the terminal in which the app runs says more")

    return safely


# the tab of results


def _results_tab(bench: Bench, tab: Any) -> tuple[Any, ...]:
    """Build the tab; returns function, inputs and outputs of its first report."""
    settings = bench.settings
    with gr.Row():
        folder: Any = gr.Dropdown(
            [], allow_custom_value=True, label="Folder of results", scale=5, elem_id="folder"
        )
        button = gr.Button("Open", variant="primary", scale=1, elem_id="open")
    shown = gr.HTML(notice(_NO_RESULTS, "hint"), elem_id="report")

    def embed(typed: str | None) -> str:
        if not typed:
            return notice(_NO_RESULTS, "hint")
        with bench.lock:
            page = report_page(allowed_folder(settings, typed))
        frame = 'sandbox="allow-scripts allow-downloads" allow="clipboard-write" title="Report"'
        return f'<iframe {frame} srcdoc="{escape(page, quote=True)}"></iframe>'

    def enter(chosen: str | None) -> list[Any]:
        """The folders that there are by now, and the report of the chosen one, at first that of the first."""
        found = [str(path) for path in find_folders(settings.results)]
        chosen = chosen or (found[0] if found else None)
        return [gr.update(choices=found, value=chosen), with_messages(embed)(chosen)]

    first = enter, folder, [folder, shown]
    tab.select(*first, **_QUIET)
    gr.on([button.click, folder.input], with_messages(embed), folder, shown, **_QUIET)
    return first


def find_folders(roots: Sequence[Path]) -> list[Path]:
    """The result folders at and below some folders, in order."""
    patterns = ["*/" * depth + PLAN for depth in range(_DEEPEST + 1)]
    found = [sorted(path.parent for pattern in patterns for path in root.glob(pattern)) for root in roots]
    return list(dict.fromkeys(folder for each in found for folder in each))


def allowed_folder(settings: AppSettings, typed: str) -> Path:
    """The folder that a visitor names; one outside of ``--results`` is refused unless the page is local."""
    try:
        path = Path(typed.strip()).resolve()
        inside = any(path.is_relative_to(root.resolve()) for root in settings.results)
        if not inside and not settings.local:
            raise GramLoopError("only folders below those of --results can be opened here")
        if path.is_dir():
            return path
    except (OSError, ValueError) as error:  # a name that no file can have
        if isinstance(error, GramLoopError):
            raise
    raise GramLoopError(f"{typed[:200]} is no folder")


def report_page(folder: Path) -> str:
    """The report of a result folder, or of the folders in it, as one page; made again when its files have changed."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return _made_page(folder, (len(files), max((each.st_mtime_ns for each in files), default=0)))


@lru_cache(maxsize=8)
def _made_page(folder: Path, _state: tuple[int, int]) -> str:
    from gramloop.report.page import render
    from gramloop.report.write import read_document

    return render(read_document([folder], pdf=False))


# the tab of an image


def _try_tab(bench: Bench, scenes: Sequence[Path]) -> tuple[Any, ...]:
    """Build the tab; returns function, inputs and outputs of a trial."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            controls = _controls(bench, scenes)
            _, model, task, *_, replay = controls
        with gr.Column(scale=5, min_width=320):
            shown = gr.HTML(notice(_HINT, "hint"), elem_id="trial")

    def run(*values: Any) -> str:
        return try_image(bench, *values)

    def of_model(name: str) -> list[Any]:
        """The controls that depend on the model."""
        with bench.lock:
            opened = bench.open(name)
        tasks = [each or opened.predictor.task for each in bench.models[name].tasks]
        return [gr.update(choices=tasks, value=tasks[0]), _settings(opened)]

    changed = [each.change for each in controls if each is not model]
    safely = with_messages(run)
    gr.on(changed, safely, controls, shown, trigger_mode="always_last", **_QUIET)
    model.change(of_model, model, [task, replay], **_QUIET).then(safely, controls, shown, **_QUIET)
    return safely, controls, shown


def _controls(bench: Bench, scenes: Sequence[Path]) -> list[Any]:
    """Image, model, task, shift, severity, mitigations and settings of replay, as `try_image` takes their values."""
    names = list(bench.models)
    opened = bench.open(names[0])
    tasks = [each or opened.predictor.task for each in bench.models[names[0]].tasks]
    image = image_input(
        value=str(scenes[0]), label="Image", sources=["upload", "clipboard"], height=230, elem_id="image"
    )
    gr.Examples([[str(path)] for path in scenes], image, label="Scenes", examples_per_page=len(scenes))
    model = gr.Dropdown(names, value=names[0], label="Model", visible=len(names) > 1, elem_id="model")
    task = gr.Dropdown(tasks, value=tasks[0], label="Task", allow_custom_value=True, elem_id="task")
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
    return [image, model, task, shift, severity, mitigations, replay]


def image_input(**options: Any) -> gr.Image:
    """An uploaded image, as the path of its file: nothing is decoded here, and no address is fetched."""
    image = gr.Image(type="filepath", **options)
    keep = image.async_move_resource_to_block_cache

    async def keep_files(found: str | Path | None) -> str | None:
        if "://" in str(found):
            raise gr.Error("Images are uploaded; addresses are not fetched.", print_exception=False)
        return await keep(found)

    path_of = lambda given: given and given.path  # noqa: E731
    vars(image).update(preprocess=path_of, async_move_resource_to_block_cache=keep_files)
    return image


def _first_mitigations(opened: Opened) -> list[str]:
    """Those that the model can take: levels needs calibration statistics, a replay needs blocks."""
    replay = ["replay"] if opened.predictor.blocks else []
    return ["denoise", *(["levels"] if opened.stats is not None else []), *replay]


def _settings(opened: Opened) -> str:
    return replay_text(opened.replay) if opened.predictor.blocks else ""


def try_image(bench: Bench, image: str | None, *values: Any) -> str:
    """One trial as HTML, from the values that a visitor sent."""
    model, task, shift, severity, chosen, replay = values
    if image is None:
        return notice(_HINT, "hint")
    picture = read_upload(image, bench.settings.limits)
    stack = mitigations_of([str(each) for each in chosen or ()], str(replay or ""))
    outcome = bench.run(Trial(picture, model, task, shift or NO_SHIFT, severity, stack))
    photo = outcome.opened.embedded and picture.digest not in {each.digest for each in example_scenes()}
    with bench.lock:
        return (notice(_PHOTO, "hint") if photo else "") + trial_html(outcome)


# the outcome of a trial


def trial_html(outcome: Outcome) -> str:
    """Pictures and numbers of a trial."""
    shift = "clean" if outcome.shift is None else outcome.shift.condition.display_name
    parts = outcome.opened.name, outcome.task.name, shift, outcome.mitigations or "no mitigation"
    lines = [_sentence(outcome), outcome.clean.note]
    if outcome.maps is not None and not outcome.maps.drift.any():
        lines.append("Nothing was replayed: the adaptive rule skipped this image.")
    words = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
    table = f'<div class="gl-table">{score_table(outcome).html()}</div>'
    return f'<p class="gl-line">{escape(" · ".join(parts))}</p>{words}{_pictures(outcome)}{table}'


def _sentence(outcome: Outcome) -> str:
    """What the mitigations do to this image, in a sentence."""
    if outcome.mitigated is None:
        return ""
    before, after = outcome.agreement()
    does = "rises" if after > before else "falls" if after < before else "stays"
    change = f"from {before:.1f} to {after:.1f}" if after != before else f"at {after:.1f}"
    cost = outcome.mitigated.milliseconds / outcome.baseline.milliseconds
    return f"Agreement with the clean prediction {does} {change} ({outcome.task.image_metric}, %), at {cost:.2f}× the time."


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
    titles = ["input", "clean prediction", "baseline", "mitigated"]
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
    named = (f'<li><i style="background:{c}"></i>{escape(text)}</li>' for c, text in row.legend(style))
    return f'<div class="gl-grid">{"".join(html)}</div><ul class="gl-legend">{"".join(named)}</ul>'


def _png(pixels: Any) -> bytes:
    import cv2

    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()


def _figure(title: str, png: bytes, note: str = "") -> str:
    words = escape(f"{title}: {note}" if note else title, quote=True)
    return (
        f'<figure><img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{words}">'
        f"<figcaption><b>{escape(title)}</b><small>{escape(note)}</small></figcaption></figure>"
    )


def score_table(outcome: Outcome) -> Table:
    """Agreement with the clean prediction, blocks and milliseconds."""
    from gramloop.util.table import Table

    runs = [each for each in (outcome.baseline, outcome.mitigated) if each is not None]
    rows: list[Sequence[Cell]] = []
    for name, form, values in (
        (f"agreement, {outcome.task.image_metric} (%)", ".1f", outcome.agreement()),
        ("blocks executed", "d", [each.prediction.blocks for each in runs]),
        ("milliseconds", ".0f", [each.milliseconds for each in runs]),
    ):
        cells = [f"{value:{form}}" for value in values]
        ratio = [f"{values[1] / values[0]:.2f} ×" if values[0] else None] if len(cells) > 1 else [None, None]
        rows.append((name, *cells, *ratio))
    note = (
        "Agreement is with the baseline prediction of the clean image; it is not accuracy. Blocks are those of one "
        "view of the image. Times are of one run each."
    )
    return Table("Predictions", ("", "baseline", "mitigated", "ratio"), rows, [note])
