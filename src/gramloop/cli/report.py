"""``gramloop report``: stored results as one page, with tables and figures as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gramloop.cli.options import CommandResult, command, option
from gramloop.cli.output import print_answer

if TYPE_CHECKING:
    from gramloop.report.document import Document


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which results, and what is made of them."""

    results: list[Path] = option(
        "folders of gramloop evaluate, or of such folders; or one of gramloop tune",
        metavar="RESULTS",
        positional=True,
    )
    out: Path = option("folder for the report", metavar="DIR")
    bootstrap: Literal["families", "images", "both"] = option(
        "what intervals are drawn over (families of shifts); with both, claims have to hold over both",
        "families",
    )
    exemplar: list[str] = option(
        "an image to show, such as fog/3:17; best, worst and typical by default; can be repeated",
        [],
        metavar="CONDITION:IMAGE",
    )
    workers: int | None = option(
        "processes; all cores, up to 8, for large results by default", None, metavar="N", limits=(1, 4096)
    )
    pdf: bool = option("figures as PNG alone", True)


@command(
    ReportOptions,
    "Nothing is predicted again: all numbers and figures come from what gramloop evaluate stored. DIR gets "
    "index.html, which needs no other file and no network, report.md, tables/ (Markdown, CSV in full precision, "
    "LaTeX) and figures/ (PNG, PDF).",
    [
        "gramloop report out/first --out out/report",
        "gramloop report out/first out/second --bootstrap both --out out/both",
    ],
    {
        "page": "the report",
        "answers": "of each suite: suite, sentence, method to use (empty for the model as it is), deploy, notes",
        "verdicts": "of each method: suite, method, verdict (helps, hurts or not significantly different), gain, low, high, time",
        "warnings": "what a reader should know",
    },
)
def report_command(options: ReportOptions) -> CommandResult:
    """Write the report and print its answers."""
    from rich.console import Console

    from gramloop.report.write import check_folder, read_document, report_files, write_report
    from gramloop.util.progress import progress_bar

    check_folder(options.out)
    over: tuple[Any, ...] = (options.bootstrap,) if options.bootstrap != "both" else ("families", "images")
    document = read_document(
        options.results,
        options.out,
        over=over,
        exemplars=options.exemplar,
        pdf=options.pdf,
        workers=options.workers,
    )
    with progress_bar("writing", len(report_files(document))) as advance:
        page = write_report(document, options.out, advance)
    for answer in document.answers:
        print_answer(answer)
    if document.warnings:
        many = len(document.warnings)
        first = f"{many} warning{'s' * (many > 1)}, in the report; the first: {document.warnings[0]}"
        Console().print(first, markup=False, highlight=False)
    print(page)
    return 0, _as_json(document, page)


def _as_json(document: Document, page: Path) -> dict[str, Any]:
    verdicts = []
    for answer in document.answers:
        for one in answer.gains:
            ends = (None, None) if one.interval is None else (one.interval.low, one.interval.high)
            about = {"suite": answer.name, "method": one.method, "verdict": one.verdict, "gain": one.gain}
            verdicts.append({**about, "low": ends[0], "high": ends[1], "time": one.time})
    answers = [answer.as_json() for answer in document.answers]
    return {"page": page, "answers": answers, "verdicts": verdicts, "warnings": list(document.warnings)}
