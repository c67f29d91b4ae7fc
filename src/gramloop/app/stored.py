"""What the results tab shows and offers, from a folder that was opened."""

from __future__ import annotations

from typing import Any

import gradio as gr

from gramloop.app import words
from gramloop.app.choices import EVERY, ORDERS
from gramloop.app.results import Ranked, ResultsRoom, conditions_of, gain_words, in_order
from gramloop.app.shielding import sentences
from gramloop.errors import GramLoopError, short_repr
from gramloop.evaluate.methods import BASELINE
from gramloop.report.load import count_conditions
from gramloop.report.run import Run
from gramloop.report.tables.conditions import every_condition

_AT_ONCE = 6  # images on a page of the list


def find_run(room: ResultsRoom, typed: str, name: str | None) -> Run:
    """An evaluation of a folder, by its name in the list."""
    runs = {run.name: run for run in room.open(typed)}
    if not isinstance(name, str) or name not in runs:
        raise GramLoopError(f"there is no evaluation {short_repr(name)} in this folder; open it again")
    return runs[name]


def opened(room: ResultsRoom, typed: str, progress: Any) -> list[Any]:
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
        return scores(found[0])

    said = read()
    if not found:
        return [gr.update(value=None, choices=[], visible=False), *hidden[1:], said]
    method, condition, page = chosen_run(room, typed, found[0].name)
    names = [run.name for run in found]
    compared = bool(found[0].compared)
    return [
        gr.Dropdown(names, value=names[0], visible=True),
        method,
        condition,
        gr.update(visible=compared),
        page,
        said,
    ]


def chosen_run(room: ResultsRoom, typed: str, name: str) -> list[Any]:
    """The controls that depend on the evaluation: method, condition, page."""
    try:
        run = find_run(room, typed, name)
        methods = list(run.compared)
        method = run.main_method if methods else None
        ranked = room.ranked(run, method) if method else ()
    except GramLoopError:
        return [gr.skip() for _ in range(3)]  # what follows says why
    return [
        gr.Dropdown(methods, value=method, visible=bool(methods)),
        gr.Dropdown([EVERY, *conditions_of(ranked)], value=EVERY, visible=bool(ranked)),
        _page_number(len(ranked)),
    ]


def _page_number(images: int) -> Any:
    pages = max(1, -(-images // _AT_ONCE))
    return gr.Number(1, label=f"Page, 1 to {pages}", visible=pages > 1)


def pages(room: ResultsRoom, typed: str, name: str, method: str, where: str) -> Any:
    """The number of the page, for the images of a choice."""
    try:
        ranked = room.ranked(find_run(room, typed, name), method)
    except GramLoopError:
        return gr.skip()
    return _page_number(len(in_order(ranked, "condition", where)))


def scores(run: Run) -> str:
    """What was evaluated, and the scores of every condition."""
    plan = run.plan
    many = len(plan.conditions)
    about = f"{run.task.title} of {plan.suite}, {many} condition{'s' * (many > 1)}; compared with {run.truth_words}."
    parts = [words.heading(run.name), words.paragraph(about[:1].upper() + about[1:])]
    if plan.label_free:
        parts.append(
            words.notice("every number is agreement with the clean prediction; none is accuracy", "hint")
        )
    return "".join([*parts, words.table(every_condition(run))])


def images(room: ResultsRoom, run: Run, method: str, where: str, how: str, number: object) -> str:
    """A page of the images that keep both predictions; a number beyond the last means the last."""
    if not isinstance(how, str) or how not in ORDERS:
        raise GramLoopError(f"there is no order {short_repr(how)}; there are {', '.join(ORDERS)}")
    if not isinstance(number, int | float) or number % 1 or number < 1:  # nan has a rest too
        raise GramLoopError(f"there is no page {short_repr(number)}; pages are whole numbers from 1 on")
    if not run.compared:
        return words.paragraph("There is no method to compare with the baseline.")
    ranked = in_order(room.ranked(run, method), ORDERS[how], where)
    if not ranked:
        return words.notice(
            "no image keeps pictures here; gramloop evaluate --pictures N keeps those of the first N", "hint"
        )
    begin = min(int(number) - 1, (len(ranked) - 1) // _AT_ONCE) * _AT_ONCE
    some = ranked[begin : begin + _AT_ONCE]
    title = f"Images {begin + 1} to {begin + len(some)} of {len(ranked)}, {how}: {BASELINE} and {method}"
    return words.heading(title) + "".join(_image(room, run, method, each) for each in some)


def _image(room: ResultsRoom, run: Run, method: str, each: Ranked) -> str:
    head = words.line(f"{each.kept.place} · {gain_words(run, each)}")
    try:
        found = room.row(run, method, each)
    except GramLoopError as error:
        return head + words.notice(str(error))
    return head + words.panes(found)
