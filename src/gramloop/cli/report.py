"""``gramloop report``: stored results as one page, with tables and figures as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop.cli.help import examples
from gramloop.cli.output import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gramloop.report.document import Document
    from gramloop.report.stats import Over

KEYS = {
    "page": "the report",
    "answers": "which method to take, by suite: suite, sentences",
    "verdicts": "of each method: suite, method, verdict (helps, hurts or inconclusive), gain, low, high, sentence",
    "warnings": "what a reader should know",
}
OVER: tuple[Over, ...] = ("families", "images")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "Nothing is predicted again: all numbers and figures come from what gramloop evaluate stored. DIR gets "
        "index.html, which needs no other file and no network, report.md, tables/ (Markdown, CSV in full "
        "precision, LaTeX) and figures/ (PNG, PDF)."
        + examples(
            "gramloop report out/first --out out/report",
            "gramloop report out/coco out/coco-c --bootstrap both --out out/report",
        )
    )
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="folders of gramloop evaluate, or of such folders",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the report")
    parser.add_argument(
        "--bootstrap",
        choices=(*OVER, "both"),
        default="families",
        help="what intervals are drawn over (families of shifts); with both, claims have to hold over both",
    )
    parser.add_argument(
        "--exemplar",
        action="append",
        default=[],
        metavar="CONDITION:IMAGE",
        help="an image to show, such as fog/3:17; best, worst and typical by default; can be repeated",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes; all cores, up to 8, for large results by default",
    )
    parser.add_argument("--no-pdf", action="store_true", help="figures as PNG alone")


def run(args: argparse.Namespace) -> Ended:
    """Write the report and print its verdicts."""
    from gramloop.report.write import check_folder, report_files, write_report
    from gramloop.util.progress import progress_bar

    check_folder(args.out)
    document = _document(args)
    with progress_bar("writing", len(report_files(document))) as advance:
        page = write_report(document, args.out, advance)
    for answer in document.answers:
        print(f"{answer.suite}: {' '.join(answer.sentences)}")
    for verdict in document.verdicts:
        print(f"{verdict.suite}, {verdict.method}: {verdict.words}. {verdict.sentence}")
    if document.warnings:
        many = len(document.warnings)
        print(f"{many} warning{'s' * (many > 1)}, in the report; the first: {document.warnings[0]}")
    print(page)
    return Ended(0, lambda: _as_json(document, page))


def _as_json(document: Document, page: Path) -> dict[str, Any]:
    verdicts = []
    for verdict in document.verdicts:
        found = verdict.interval
        ends: dict[str, float | None] = {"gain": None, "low": None, "high": None}
        if found is not None:
            ends = {"gain": found.estimate, "low": found.low, "high": found.high}
        about = {"suite": verdict.suite, "method": verdict.method, "verdict": verdict.words}
        verdicts.append({**about, **ends, "sentence": verdict.sentence})
    answers = [{"suite": answer.suite, "sentences": answer.sentences} for answer in document.answers]
    return {"page": page, "answers": answers, "verdicts": verdicts, "warnings": list(document.warnings)}


def _document(args: argparse.Namespace) -> Document:
    from gramloop.report.document import make_document
    from gramloop.report.figures import draw_figures
    from gramloop.report.load import count_conditions, load_runs, report_workers
    from gramloop.report.stats import compare_methods, count_resamplings
    from gramloop.util.progress import progress_bar

    workers = report_workers(args.results, args.workers)
    with progress_bar("reading", count_conditions(args.results)) as advance:
        loaded = load_runs(args.results, advance, workers)
    total = count_resamplings(loaded.runs) if args.bootstrap != "families" else None
    over: Sequence[Over] = OVER if args.bootstrap == "both" else (args.bootstrap,)
    with progress_bar("resampling", total) as advance:
        evidence = compare_methods(loaded.runs, over, on_progress=advance, workers=workers)
    with progress_bar("drawing figures", None) as advance:
        drawn = draw_figures(loaded, evidence, args.exemplar, not args.no_pdf, on_progress=advance)
    return make_document(loaded, evidence, drawn.figures, drawn.remarks)
