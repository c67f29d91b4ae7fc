"""The page of a search: what `gramloop tune` chose, on images that it did not search."""

from __future__ import annotations

from pathlib import Path

from gramloop.report.document import Document, RenderedFigure, Section, answer_section
from gramloop.report.figures.charts import gain_chart
from gramloop.tune.result import RESULT, evidence_tables, read_asked, read_evidence, stored_answer


def is_tuned(folder: Path) -> bool:
    """Whether a folder holds a finished search."""
    return (folder / RESULT).is_file()


def tuning_document(folder: Path, pdf: bool = True) -> Document:
    """The page of a search."""
    about, answer, asked = read_evidence(folder), stored_answer(folder), read_asked(folder)
    drawn = gain_chart(answer.gains, answer.metric, answer.method)
    figure = RenderedFigure.of("gains", drawn, answer_section(answer.name), pdf)
    suite, split = about["subject"].get("suite", "images in memory"), about["split"]
    header = {
        "Model": f"{asked.get('model', '').removeprefix('--model ') or 'in memory'}, {about['task']}",
        "Data": f"{asked.get('data', 'in memory')}: {sum(split['images'].values())} images, {suite}",
        **({"Command": asked["command"]} if "command" in asked else {}),
    }
    shifts = {"searched": ", ".join(split["seen families"]), "kept": ", ".join(split["unseen families"])}
    facts = {
        "Search": {"date": about["date"], **{key: str(value) for key, value in about["tried"].items()}},
        "Shifts": {**shifts, **{f"{name} images": str(many) for name, many in split["images"].items()}},
    }
    section = Section("search", "How it was found", "", evidence_tables(about))
    title = f"Which mitigations help on {suite}"
    return Document(title, header, (answer,), (figure,), sections=(section,), facts=facts)
