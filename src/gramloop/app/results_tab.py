"""The tab in which stored results are opened."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import gradio as gr

from gramloop.app import words
from gramloop.app.choices import EVERY, ORDERS
from gramloop.app.shielding import UNCHECKED, sentences
from gramloop.app.trial import Bench

if TYPE_CHECKING:
    from gramloop.app.results import ResultsRoom

_HINT = "Type the folder that gramloop evaluate wrote, and open it."


def results_tab(bench: Bench) -> None:
    """Build the tab. What reads results is imported when the first folder is opened, for the page starts sooner so."""

    @cache
    def room() -> ResultsRoom:
        from gramloop.app.results import ResultsRoom

        return ResultsRoom(bench.settings, bench.cache)

    folders = bench.settings.results
    with gr.Row(equal_height=False, elem_classes="gl-open"):
        folder = gr.Textbox(
            str(folders[0]) if folders else "",
            label="Folder of results",
            placeholder="out/demo",
            scale=5,
            max_length=1000,
            elem_id="folder",
        )
        button = gr.Button("Open", variant="primary", scale=1, min_width=110, elem_id="open")
    with gr.Row(equal_height=False):
        run = gr.Dropdown([], label="Evaluation", visible=False, elem_id="run", **UNCHECKED)
        method = gr.Dropdown([], label="Method", visible=False, elem_id="method", **UNCHECKED)
        condition = gr.Dropdown(
            [EVERY], value=EVERY, label="Condition", visible=False, elem_id="condition", **UNCHECKED
        )
        order = gr.Dropdown(
            list(ORDERS), value=next(iter(ORDERS)), label="Order", visible=False, elem_id="order", **UNCHECKED
        )
        page = gr.Number(1, label="Page", visible=False, elem_id="page")
    scores = gr.HTML(words.notice(_HINT, "hint"), elem_id="scores")
    images = gr.HTML("", elem_id="images")
    # one at a time and in order, so that nothing older is shown last
    quiet: dict[str, Any] = {
        "api_visibility": "private",
        "concurrency_limit": 1,
        "show_progress": "minimal",
    }

    def opened(typed: str, progress: gr.Progress = gr.Progress()) -> list[Any]:  # noqa: B008 - as gradio wants it
        from gramloop.app import stored

        return stored.opened(room(), typed, progress)

    def of_run(typed: str, name: str) -> list[Any]:
        from gramloop.app import stored

        return stored.chosen_run(room(), typed, name)

    def pages(typed: str, name: str, chosen: str, where: str) -> Any:
        from gramloop.app import stored

        return stored.pages(room(), typed, name, chosen, where)

    @sentences
    def table_of(typed: str, name: str | None) -> str:
        from gramloop.app import stored

        return stored.scores(stored.find_run(room(), typed, name)) if name else words.notice(_HINT, "hint")

    @sentences
    def images_of(typed: str, name: str | None, chosen: str, where: str, how: str, number: object) -> str:
        from gramloop.app import stored

        if not name:
            return ""
        return stored.images(
            room(), stored.find_run(room(), typed, name), chosen, where, how, 1 if number is None else number
        )

    choices = [folder, run, method, condition, order, page]
    controls = [run, method, condition, order, page, scores]
    gr.on([button.click, folder.submit], opened, folder, controls, **quiet).then(
        images_of, choices, images, **quiet
    )
    run.input(of_run, [folder, run], [method, condition, page], **quiet).then(
        table_of, [folder, run], scores, **quiet
    ).then(images_of, choices, images, **quiet)
    turned = [method.input, condition.input, order.input]
    gr.on(turned, pages, [folder, run, method, condition], page, **quiet).then(
        images_of, choices, images, **quiet
    )
    page.input(images_of, choices, images, trigger_mode="always_last", **quiet)
