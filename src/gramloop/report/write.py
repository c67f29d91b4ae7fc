"""A report on disk: the page, a Markdown version, tables and figures as files, each whole or absent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gramloop.errors import GramLoopError
from gramloop.evaluate.store import PLAN
from gramloop.report.document import Document, report_document
from gramloop.report.page import render
from gramloop.util.files import atomic_write
from gramloop.util.table import Table, markdown_text

if TYPE_CHECKING:
    from gramloop.report.stats import Over

PAGE, MARKDOWN, TABLES, FIGURES = "index.html", "report.md", "tables", "figures"
_FORMATS: dict[str, Callable[[Table], str]] = {"md": Table.markdown, "csv": Table.csv, "tex": Table.latex}


def read_document(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    over: Sequence[Over] = ("families",),
    exemplars: Sequence[str] = (),
    pdf: bool = True,
    workers: int | None = None,
) -> Document:
    """The report of results folders, or of one folder of `gramloop tune`.

    Args:
        folders: what `gramloop.report.load.load_runs` takes, or one folder of tune.
        out: the folder that the report goes to, for the lines that deploy a method.
        over: what intervals are drawn over.
        exemplars: images to show, as `gramloop.report.figures.draw_figures` takes them.
        pdf: draw figures also for paper.
        workers: processes; as many as are of use by default.
    """
    from gramloop.report.figures import draw_figures
    from gramloop.report.load import load_runs
    from gramloop.report.stats import compare_methods
    from gramloop.report.tuned import is_tuned, tuning_document

    tuned = [folder for folder in folders if is_tuned(folder)]
    if tuned and len(folders) > 1:
        raise GramLoopError(
            f"{tuned[0]} is a folder of gramloop tune, which has a page of its own; name it alone"
        )
    if tuned:
        return tuning_document(tuned[0], pdf)
    loaded = load_runs(folders, workers)
    evidence = compare_methods(loaded.runs, over, workers=workers)
    drawn = draw_figures(loaded, evidence, exemplars, pdf)
    return report_document(loaded, evidence, drawn.figures, drawn.remarks, out)


def report_files(document: Document) -> dict[str, bytes]:
    """Every file of a report by its path in the folder, the page last."""
    files: dict[str, bytes] = {}
    for section in document.sections:
        for table in section.tables:
            for ending, make in _FORMATS.items():
                files[f"{TABLES}/{table.key}.{ending}"] = make(table).encode()
    for figure in (*document.figures, *(one for section in document.sections for one in section.figures)):
        files[f"{FIGURES}/{figure.key}.png"] = figure.png
        if figure.pdf is not None:
            files[f"{FIGURES}/{figure.key}.pdf"] = figure.pdf
    others = tuple(files)
    files[MARKDOWN] = whole_markdown(document).encode()
    files[PAGE] = render(document, others).encode()
    return files


def write_report(document: Document, folder: Path) -> Path:
    """Write all files and return the page; files of an earlier report that this one lacks are removed."""
    check_folder(folder)
    files = report_files(document)
    for answer in document.answers:
        if answer.file:
            answer.write(folder)
    for name, content in files.items():
        atomic_write(folder / name, content)
    for place in (TABLES, FIGURES):
        for path in (folder / place).glob("*"):
            if f"{place}/{path.name}" not in files and path.suffix in (".md", ".csv", ".tex", ".png", ".pdf"):
                path.unlink(missing_ok=True)
    return folder / PAGE


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not one for reports, so that nothing of another kind is touched."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise GramLoopError(f"{folder} is a file; --out takes a folder for the report")
    if (folder / PLAN).exists():
        raise GramLoopError(
            f"{folder} holds results of gramloop evaluate; choose another folder for the report"
        )
    names = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    if PAGE not in names and names - {TABLES, FIGURES, MARKDOWN}:
        raise GramLoopError(f"{folder} is not empty and holds no report; choose a new folder for it")


def whole_markdown(document: Document) -> str:
    """The report as one Markdown file, with figures in the folder next to it."""
    plain = markdown_text
    lines = [f"# {plain(document.title)}", ""]
    lines += [f"- {name}: {plain(value)}" for name, value in document.about.items()]
    for answer in document.answers:
        lines += ["", answer.markdown()]
        for figure in document.figures_of(answer):
            lines += [f"![{plain(figure.alt)}]({FIGURES}/{figure.key}.png)", ""]
    lines.append("")
    if document.warnings:
        lines += ["## Warnings", "", *(f"- {plain(sentence)}" for sentence in document.warnings), ""]
    for section in document.sections:
        lines += [f"## {plain(section.title)}", ""]
        lines += [plain(section.text), ""] if section.text else []
        for table in section.tables:
            lines += [table.markdown(), ""]
        for figure in section.figures:
            picture = f"![{plain(figure.alt)}]({FIGURES}/{figure.key}.png)"
            lines += [f"### {plain(figure.title)}", "", picture, "", plain(figure.caption), ""]
    lines += ["## Configuration and versions", ""]
    for group, entries in document.facts.items():
        lines += [f"### {plain(group)}", ""]
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in entries.items()), ""]
    return "\n".join(lines).rstrip() + "\n"
