"""A comparison as a page of the report: the verdicts first, then every difference with its interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gramloop.compare.paired import ModelComparison
from gramloop.evaluate.answer import Answer
from gramloop.report.document import Document, Section
from gramloop.report.page import render
from gramloop.report.write import PAGE
from gramloop.util.files import atomic_write


def write_comparison(found: ModelComparison, folder: Path) -> Path:
    """compare.csv, compare.md and the page, which needs no other file."""
    table = found.table()
    atomic_write(folder / "compare.csv", table.csv().encode())
    atomic_write(folder / "compare.md", table.markdown().encode())
    first, *others = found.models
    answers, sections = [], []
    for model, sentence in zip(others, found.sentences(), strict=True):
        about, _, words = sentence.partition(": ")
        answers.append(Answer(about, words[0].upper() + words[1:]))
        whole = found.table(model)
        part = replace(whole, notes=whole.notes[-1:], key=f"compare-{model}")
        sections.append(Section(part.key, f"{model}, by shift", "", (part,), folded=False))
    times = {model: f"{each:.4f} s" for model, each in found.seconds.items() if each is not None}
    document = Document(
        f"{', '.join(others)} against {first}",
        {"Metric": f"{found.metric}, in points", "Equivalent": f"within ±{found.margin:g} points"},
        tuple(answers),
        warnings=found.notes,
        sections=tuple(sections),
        facts={"Time per image, of predicting alone": times} if times else {},
    )
    atomic_write(folder / PAGE, render(document).encode())
    return folder / PAGE
