"""The tab in which an image is tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import gradio as gr

from gramloop.app import words
from gramloop.app.choices import (
    NO_SHIFT,
    REPLAY,
    mitigation_choices,
    mitigations_of,
    replay_settings,
    shift_choices,
)
from gramloop.app.models import About
from gramloop.app.shielding import UNCHECKED, as_sent, as_text, image_input, sentences
from gramloop.app.trial import Bench, Trial
from gramloop.app.uploads import read_upload
from gramloop.data.records import Task
from gramloop.data.suites import SEVERITIES
from gramloop.errors import GramLoopError
from gramloop.replay.config import Gate, ReplayConfig, Signal
from gramloop.tasks.base import get_task

_FIRST_SHIFT, _FIRST_SEVERITY = "c:impulse_noise", 3  # shows something on any image
_HINT = "Drop an image, or take one of the scenes."
_MOST_REPLAYS = 5
_RULE = (0.2, 0.3)  # off and full of an adaptive replay, to begin with


@dataclass(frozen=True)
class _Controls:
    """What a visitor can turn."""

    image: gr.Image
    model: gr.Dropdown
    task: gr.Dropdown
    shift: gr.Dropdown
    severity: gr.Slider
    mitigations: gr.Dropdown
    first: gr.Number
    last: gr.Number
    replays: gr.Slider
    gate: gr.Radio
    strength: gr.Slider
    signal: gr.Dropdown
    off: gr.Number
    full: gr.Number
    more: gr.Textbox

    @property
    def all(self) -> list[Any]:
        """In the order of `_try`'s arguments."""
        return list(vars(self).values())


def try_tab(bench: Bench, scenes: list[Path]) -> Any:
    """Build the tab; what it returns runs when a page is opened: function, inputs and outputs."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300, elem_classes="gl-controls"):
            controls = _controls(bench, scenes)
        with gr.Column(scale=5, min_width=320):
            shown = gr.HTML(words.notice(_HINT, "hint"), elem_id="trial")

    @sentences
    def run(*values: Any) -> str:
        return _try(bench, *values)

    # one at a time and in order, so that nothing older is shown last
    quiet: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": 1, "show_progress": "minimal"}
    turned = [each.change for each in controls.all if each is not controls.model]
    gr.on(turned, run, controls.all, shown, trigger_mode="always_last", **quiet)
    own = [controls.task, controls.first, controls.last, controls.replays, controls.gate, controls.strength]
    chosen = controls.model.change(lambda name: _of_model(bench, name), controls.model, own, **quiet)
    chosen.then(run, controls.all, shown, **quiet)
    return run, controls.all, shown, quiet


def _controls(bench: Bench, scenes: list[Path]) -> _Controls:
    name = bench.models.names[0]
    about = bench.models.about(name)
    replay = about.replay
    window = replay.window or (0, 0)
    image = image_input(
        value=str(scenes[0]), label="Image", sources=["upload", "clipboard"], height=230, elem_id="image"
    )
    gr.Examples([[str(path)] for path in scenes], image, label="Scenes", examples_per_page=len(scenes))
    with gr.Group():
        model = gr.Dropdown(
            bench.models.names,
            value=name,
            label="Model",
            visible=len(bench.models.names) > 1,
            elem_id="model",
        )
        task = gr.Dropdown(_tasks(bench, name), value=about.task, label="Task", elem_id="task", **UNCHECKED)
    with gr.Group():
        shifts = gr.Dropdown(shift_choices(), value=_FIRST_SHIFT, label="Shift", elem_id="shift")
        severities = gr.Slider(
            SEVERITIES[0], SEVERITIES[-1], value=_FIRST_SEVERITY, step=1, label="Severity", elem_id="severity"
        )
    chosen = gr.Dropdown(
        mitigation_choices(),
        value=_first_mitigations(about),
        multiselect=True,
        allow_custom_value=True,
        label="Mitigations",
        info="They combine. Others can be typed, such as denoise:8 or recentre:0.5,c=1.",
        elem_id="mitigations",
    )
    with gr.Accordion("Settings of replay", open=False, visible=bool(about.depth), elem_id="replay"):
        with gr.Row():
            first = gr.Number(window[0], **_block("First", about), min_width=100, elem_id="first")
            end = gr.Number(window[1], **_block("Last", about), min_width=100, elem_id="last")
        replays = gr.Slider(
            0, _MOST_REPLAYS, value=replay.replays, step=1, label="Replays", elem_id="replays"
        )
        gate = gr.Radio(list(get_args(Gate)), value=replay.gate, label="Gate", elem_id="gate")
        strength = gr.Slider(0, 1, value=_strength(replay), step=0.05, label="Strength", elem_id="strength")
        signal = gr.Dropdown(
            ["none", *get_args(Signal)],
            value="none",
            label="Adaptive: replay by this signal",
            elem_id="signal",
        )
        with gr.Row():
            off = gr.Number(_RULE[0], label="Off at", min_width=100)
            full = gr.Number(_RULE[1], label="Full at", min_width=100)
        more = gr.Textbox("", label="Further settings", placeholder="eps=1e-6,until=10", max_length=400)
    return _Controls(
        image,
        as_text(model),
        as_text(task),
        as_text(shifts),
        as_sent(severities),
        as_text(chosen),
        as_sent(first),
        as_sent(end),
        as_sent(replays),
        as_text(gate),
        as_sent(strength),
        as_text(signal),
        as_sent(off),
        as_sent(full),
        more,
    )


def _first_mitigations(about: About) -> list[str]:
    """Those that a model can do: levels needs to know ordinary images, a replay needs blocks."""
    return ["denoise", *(["levels"] if about.sourced else []), *([REPLAY] if about.depth else [])]


def _strength(replay: ReplayConfig) -> float:
    """Where the slider stands; one that follows another gate has no number of its own."""
    return 1.0 if replay.strength == "matched" else replay.strength


def _block(end: str, about: About) -> dict[str, Any]:
    """A number without limits or precision of its own, which gradio would insist on without a word on the page."""
    return {"label": f"{end} block, 0 to {max(about.depth - 1, 0)}"}


def _tasks(bench: Bench, name: str) -> list[tuple[str, str]]:
    return [(get_task(task).title, task) for task in bench.models.tasks(name)]


def _of_model(bench: Bench, name: str) -> list[Any]:
    """The controls that depend on the model."""
    try:
        about, tasks = bench.models.about(name), _tasks(bench, name)
    except GramLoopError:
        return [gr.skip() for _ in range(6)]  # the trial that follows says why
    replay = about.replay
    first, end = replay.window or (0, 0)
    return [
        gr.Dropdown(tasks, value=about.task),
        gr.Number(first, **_block("First", about)),
        gr.Number(end, **_block("Last", about)),
        replay.replays,
        replay.gate,
        _strength(replay),
    ]


def try_once(bench: Bench, image: Path, *, shift: str = _FIRST_SHIFT, severity: int = _FIRST_SEVERITY) -> str:
    """What a new page shows of an image, all else as the controls begin; a first visitor need not wait for it then."""
    name = bench.models.names[0]
    about = bench.models.about(name)
    replay = about.replay
    first, last = replay.window or (0, 0)
    chosen = shift, severity, _first_mitigations(about)
    turned: Any = (first, last, replay.replays, replay.gate, _strength(replay), "none", *_RULE, "")
    return sentences(_try)(bench, str(image), name, about.task, *chosen, *turned)


def _try(
    bench: Bench,
    image: str | None,
    model: str,
    task: Task,
    shift: str | None,
    severity: float,
    chosen: list[str] | None,
    first: float,
    last: float,
    replays: float,
    gate: str,
    strength: float,
    signal: str,
    off: float,
    full: float,
    more: str,
) -> str:
    """One trial as HTML. What draws is imported with the first one, for the page starts sooner so."""
    from gramloop.app.telling import caption, say

    if image is None:
        return words.notice(_HINT, "hint")
    picture = read_upload(image, bench.settings.limits)
    opened = bench.models.open(model, task)
    controls = {
        "window": [_whole(first), _whole(last)],
        "replays": _whole(replays),
        "gate": gate,
        "strength": strength,
    }
    settings = replay_settings(opened.replay, controls, (signal, off, full), more or "")
    stack = mitigations_of(chosen or [], settings)
    outcome = bench.run(Trial(picture, model, task, shift or NO_SHIFT, _whole(severity), stack))
    return words.line(caption(outcome)) + say(outcome, bench.cache)


def _whole(value: object) -> Any:
    """A slider's number; what is none is refused by whoever takes it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
