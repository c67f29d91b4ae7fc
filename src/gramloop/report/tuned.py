"""The answer and the page of a search: what `gramloop tune` chose, on images that it did not search."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gramloop.evaluate.answer import (
    Answer,
    MethodGain,
    clean_words,
    deploy_lines,
    metric_words,
    recommend,
    short_path,
)
from gramloop.evaluate.plan import AGREEMENT
from gramloop.mitigations.stack import read_stack, replay_alone
from gramloop.report.document import Document, RenderedFigure, Section, answer_section
from gramloop.report.figures.chart import gain_chart
from gramloop.tasks.base import get_task
from gramloop.tune.result import deciding_interval, holdout_table
from gramloop.tune.schedule import CLEAN
from gramloop.tune.tuning import RESULT
from gramloop.util.json_files import read_json
from gramloop.util.table import Column, Table
from gramloop.util.yaml_files import read_yaml

COMMAND_FILE = "command.yaml"  # the options of the call, as gramloop tune --config takes them
_PARTS = ("other families", "searched families")  # of the held-out data, the one that decides first
_SCOPES = {
    "other families": "under shifts that the search did not use",
    "searched families": "under the shifts of the search",
}


def is_tuned(folder: Path) -> bool:
    """Whether a folder holds a finished search."""
    return (folder / RESULT).is_file()


def tuning_answer(folder: Path) -> Answer:
    """What to use, by the images and, where some were kept, the shifts that the search did not use."""
    content = read_json(folder / RESULT, "a choice of gramloop tune")
    about = content["about"]
    name = about["subject"].get("suite", folder.name)
    unseen, chosen = about["unseen images"], "" if about["nearest"] else _name(content)
    part = next(each for each in _PARTS if each in unseen)
    label_free = "agreement" in unseen.get(CLEAN, {}) or "clean change" in (about["finalists"] or [{}])[0]
    metric = get_task(about["task"]).metrics[0]
    metric = f"{AGREEMENT} {metric}" if label_free else metric
    leader = _gain(chosen or _name(about["nearest"]), part, unseen, about["cost"])
    free = about["at no extra cost"]
    gains = [leader, *([_gain(_name(free), part, free["unseen images"], free["cost"])] if free else [])]
    scope, tried = _SCOPES[part], about["tried"]["candidates"]
    if not chosen:
        sentence = (
            f"Use the model as it is: none of {tried} candidates improves {metric_words(metric)} beyond noise. The "
            f"closest is {leader.method} ({leader.points} {scope}), at {leader.cost} of the baseline{clean_words(leader)}."
        )
    elif leader.verdict == "helps":
        sentence = recommend(leader, metric, scope)
    else:
        does = "lowers" if leader.verdict == "hurts" else "does not significantly change"
        sentence = (
            f"{leader.method} won the search, but {does} {metric_words(metric)} {scope} ({leader.points}), at "
            f"{leader.cost} of the baseline{clean_words(leader)}. Judge it on more images before you deploy it."
        )
    images = unseen[part]["images"]
    notes = (
        f"Measured on {images} images that the search did not use; {about['tried']['predictions']} predictions in all.",
    )
    deploy = tuple(_deploy(folder, about["task"])) if chosen else ()
    return Answer(name, sentence, metric, chosen, tuple(gains), deploy, notes)


def _name(content: Mapping[str, Any] | None) -> str:
    """The mitigations of a stored choice or candidate as text."""
    if not content:
        return ""
    if "replay" in content:
        from gramloop.replay.config import ReplayConfig, replay_text

        return f"replay:{replay_text(ReplayConfig.from_json(content['replay']))}"
    return str(content.get("mitigations", ""))


def _gain(name: str, part: str, unseen: Mapping[str, Any], cost: float) -> MethodGain:
    found, clean = unseen[part], unseen.get(CLEAN, {})
    on_clean = (clean["baseline score"], clean["mitigated score"]) if "baseline score" in clean else None
    scores = found["mitigated score"], found["baseline score"]
    return MethodGain(name, *scores, deciding_interval(found), cost, clean=on_clean)


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / COMMAND_FILE
    return dict(read_yaml(file, "options of gramloop tune")) if file.is_file() else {}


def _deploy(folder: Path, task: str) -> Iterator[str]:
    settings, file = _settings(folder), short_path(folder / RESULT)
    stack, _ = read_stack(str(folder / RESULT))
    named = ("model", "backbone", "head")
    model = " ".join(f"--{name} {shlex.quote(str(settings[name]))}" for name in named if name in settings)
    known = model or ("--model tiny" if settings else "")
    yield from deploy_lines(known, task, file, replay_alone(stack) is not None)


def tuning_document(folder: Path, pdf: bool = True) -> Document:
    """The page of a search."""
    content = read_json(folder / RESULT, "a choice of gramloop tune")
    about, answer, settings = content["about"], tuning_answer(folder), _settings(folder)
    drawn = gain_chart(answer.gains, answer.metric, answer.method)
    figure = RenderedFigure.of("gains", drawn, answer_section(answer.name), pdf)
    suite = about["subject"].get("suite", "images in memory")
    split = about["split"]
    words = [
        f"--{name} {shlex.quote(str(each))}" for name, value in settings.items() for each in _each(value)
    ]
    header = {
        "Model": f"{settings.get('model', settings.get('head', 'tiny' if settings else 'in memory'))}, {about['task']}",
        "Data": f"{settings.get('data', 'drawn scenes')}: {sum(split['images'].values())} images, {suite}",
        "Command": " ".join(
            ["gramloop tune", *(word for word in words if not word.startswith("--command "))]
        ),
    }
    shifts = {"searched": ", ".join(split["seen families"]), "kept": ", ".join(split["unseen families"])}
    facts = {
        "Search": {"date": about["date"], **{key: str(value) for key, value in about["tried"].items()}},
        "Shifts": {**shifts, **{f"{name} images": str(many) for name, many in split["images"].items()}},
    }
    section = Section("search", "How it was found", "", tuning_tables(folder))
    title = f"Which mitigations help on {suite}"
    return Document(title, header, (answer,), (figure,), sections=(section,), facts=facts)


def tuning_tables(folder: Path) -> tuple[Table, ...]:
    """The gains on images that the search did not use, and the finalists."""
    about = read_json(folder / RESULT, "a choice of gramloop tune")["about"]
    name = _name(about["nearest"]) or "the choice"
    title = f"{name[:1].upper()}{name[1:]} on images that the search did not use"
    return holdout_table(title, about["unseen images"]), _finalist_table(about["finalists"])


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _finalist_table(finalists: list[dict[str, Any]]) -> Table:
    rows = [
        (_name(one), one["gain"], one["error"], one.get("clean gain", one.get("clean change")), one["cost"])
        for one in finalists
    ]
    columns = (
        Column("candidate", kind="text"),
        Column("gain", digits=2, signed=True),
        Column("error", "± s.e.", digits=2),
        Column("clean", "Δ clean", digits=2, signed=True),
        Column("cost", "work", digits=2, unit="×"),
    )
    return Table("Finalists, on the images of the decision", columns, rows, key="finalists")
