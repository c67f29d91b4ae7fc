"""A comparison as a page of the report: the verdicts first, then every difference with its interval."""

from __future__ import annotations

from pathlib import Path

from gramloop.compare.paired import ModelComparison
from gramloop.evaluate.answer import Answer
from gramloop.report.document import Document, Section
from gramloop.report.page import render
from gramloop.report.write import PAGE
from gramloop.util.files import atomic_write


def write_comparison(found: ModelComparison, folder: Path) -> Path:
    """compare.csv, compare.md and the page, which needs no other file."""
    table, (first, *others) = found.table(), found.models
    verdicts = {model: found.verdict_of(model) for model in others}
    times = {model: f"{each:.4f} s" for model, each in found.seconds.items() if each is not None}
    document = Document(
        f"{', '.join(others)} against {first}",
        {"Metric": f"{found.metric}, in points", "Equivalent": f"within ±{found.margin:g} points"},
        tuple(
            Answer(f"{model} against {first}", text[0].upper() + text[1:]) for model, text in verdicts.items()
        ),
        warnings=found.notes,
        sections=(Section("compare", "By shift", "", (table,), folded=False),),
        facts={"Time per image, of predicting alone": times} if times else {},
    )
    for name, text in (
        ("compare.csv", table.csv()),
        ("compare.md", table.markdown()),
        (PAGE, render(document)),
    ):
        atomic_write(folder / name, text.encode())
    return folder / PAGE
