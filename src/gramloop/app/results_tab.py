"""The tab in which stored results are opened."""

from __future__ import annotations

from typing import Any

import gradio as gr

from gramloop.app import words
from gramloop.app.panes import Panes
from gramloop.app.results import (
    EVERY,
    ORDERS,
    Ranked,
    ResultsRoom,
    conditions_of,
    gain_words,
    in_order,
)
from gramloop.app.shielding import sentences
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.figures.drawing import main_method
from gramloop.report.load import count_conditions
from gramloop.report.run import TASK_WORDS, Run
from gramloop.report.tables.conditions import every_condition

_AT_ONCE = 6  # images on a page of the list
_HINT = "Type the folder that gramloop evaluate wrote, and open it."


def results_tab(room: ResultsRoom) -> None:
    """Build the tab."""
    first = str(room.roots[0]) if room.roots else ""
    with gr.Row(equal_height=False, elem_classes="gl-open"):
        folder = gr.Textbox(
            first,
            label="Folder of results",
            placeholder="out/demo",
            scale=5,
            max_length=1000,
            elem_id="folder",
        )
        button = gr.Button("Open", variant="primary", scale=1, min_width=110, elem_id="open")
    with gr.Row(equal_height=False):
        run = gr.Dropdown([], label="Evaluation", visible=False, elem_id="run")
        method = gr.Dropdown([], label="Method", visible=False, elem_id="method")
        condition = gr.Dropdown([EVERY], value=EVERY, label="Condition", visible=False, elem_id="condition")
        order = gr.Dropdown(
            list(ORDERS), value=next(iter(ORDERS)), label="Order", visible=False, elem_id="order"
        )
        page = gr.Slider(1, 2, value=1, step=1, label="Page", visible=False, elem_id="page")
    scores = gr.HTML(words.notice(_HINT, "hint"), elem_id="scores")
    images = gr.HTML("", elem_id="images")
    quiet: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": 2, "show_progress": "minimal"}

    def opened(typed: str, progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - as gradio wants it
        return _opened(room, typed, progress)

    @sentences
    def table_of(typed: str, name: str | None) -> str:
        return _scores(_run(room, typed, name)) if name else words.notice(_HINT, "hint")

    @sentences
    def images_of(typed: str, name: str | None, chosen: str, where: str, how: str, number: float) -> str:
        return _images(room, _run(room, typed, name), chosen, where, how, int(number)) if name else ""

    choices = [folder, run, method, condition, order, page]
    after = gr.on(
        [button.click, folder.submit], opened, folder, [run, method, condition, order, page, scores], **quiet
    )
    after.success(images_of, choices, images, **quiet)
    run.input(
        lambda typed, name: _chosen_run(room, typed, name), [folder, run], [method, condition, page], **quiet
    ).then(table_of, [folder, run], scores, **quiet).then(images_of, choices, images, **quiet)
    gr.on(
        [method.input, condition.input, order.input],
        lambda typed, name, chosen, where: _pages(room, typed, name, chosen, where),
        [folder, run, method, condition],
        page,
        **quiet,
    ).then(images_of, choices, images, **quiet)
    page.change(images_of, choices, images, trigger_mode="always_last", **quiet)


def _run(room: ResultsRoom, typed: str, name: str | None) -> Run:
    runs = {run.name: run for run in room.open(typed)}
    if name not in runs:
        raise GramLoopError(f"there is no evaluation {name!r} in this folder; open it again")
    return runs[name]


def _opened(room: ResultsRoom, typed: str, progress: Any) -> list[Any]:
    """All controls of a folder that was opened, and the scores of its first evaluation; or a sentence."""
    hidden = [gr.update(visible=False) for _ in range(5)]
    found: list[Run] = []

    @sentences
    def read() -> str:
        many, done = count_conditions([room.place(typed)]), 0

        def advance(what: str) -> None:
            nonlocal done
            done += 1
            progress(min(done / many, 1.0), desc=what)

        found.extend(room.open(typed, advance))
        return _scores(found[0])

    said = read()
    if not found:
        return [gr.update(value=None, choices=[], visible=False), *hidden[1:], said]
    method, condition, page = _chosen_run(room, typed, found[0].name)
    names = [run.name for run in found]
    shown = bool(found[0].replays)
    return [
        gr.Dropdown(names, value=names[0], visible=True),
        method,
        condition,
        gr.update(visible=shown),
        page,
        said,
    ]


def _chosen_run(room: ResultsRoom, typed: str, name: str) -> list[Any]:
    """The controls that depend on the evaluation: method, condition, page."""
    try:
        run = _run(room, typed, name)
        methods = list(run.replays)
        method = main_method(run) if methods else None
        ranked = room.ranked(run, method) if method else ()
    except GramLoopError:
        return [gr.skip() for _ in range(3)]  # what follows says why
    return [
        gr.Dropdown(methods, value=method, visible=bool(methods)),
        gr.Dropdown([EVERY, *conditions_of(ranked)], value=EVERY, visible=bool(ranked)),
        _page_slider(len(ranked)),
    ]


def _page_slider(images: int) -> Any:
    pages = max(1, -(-images // _AT_ONCE))
    return gr.Slider(1, max(pages, 2), value=1, visible=pages > 1)


def _pages(room: ResultsRoom, typed: str, name: str, method: str, where: str) -> Any:
    try:
        ranked = room.ranked(_run(room, typed, name), method)
    except GramLoopError:
        return gr.skip()
    return _page_slider(len(in_order(ranked, "condition", where)))


def _scores(run: Run) -> str:
    """What was evaluated, and the scores of every condition."""
    plan = run.plan
    many = len(plan.conditions)
    about = f"{TASK_WORDS[plan.task]} of {plan.suite}, {many} condition{'s' * (many > 1)}; compared with {run.truth_words}."
    parts = [words.heading(run.name), words.paragraph(about[:1].upper() + about[1:])]
    if plan.label_free:
        parts.append(
            words.notice("every number is agreement with the clean prediction; none is accuracy", "hint")
        )
    return "".join([*parts, words.table(every_condition(run))])


def _images(room: ResultsRoom, run: Run, method: str, where: str, how: str, number: int) -> str:
    """A page of the images that keep both predictions."""
    if not run.replays:
        return words.paragraph("There is no method to compare with the baseline.")
    ranked = in_order(room.ranked(run, method), ORDERS.get(how, "gain"), where)
    if not ranked:
        return words.notice(
            "no image keeps pictures here; gramloop evaluate --pictures N keeps those of the first N", "hint"
        )
    begin = max(0, min(number - 1, (len(ranked) - 1) // _AT_ONCE)) * _AT_ONCE
    some = ranked[begin : begin + _AT_ONCE]
    title = f"Images {begin + 1} to {begin + len(some)} of {len(ranked)}, {how}: {BASELINE} and {method}"
    return words.heading(title) + "".join(_image(room, run, method, each) for each in some)


def _image(room: ResultsRoom, run: Run, method: str, each: Ranked) -> str:
    head = words.line(f"{each.kept.place} · {gain_words(run, each)}")
    try:
        found: Panes = room.row(run, method, each)
    except GramLoopError as error:
        return head + words.notice(str(error))
    return head + words.panes(found)
