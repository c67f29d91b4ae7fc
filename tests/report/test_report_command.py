from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.evaluate.results import collect
from small_stores import make_plan, pixels, write_store


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segmentation with a better replay, its clean set, and detection, in one folder."""
    folder = tmp_path_factory.mktemp("results")
    write_store(
        folder / "seg",
        make_plan(methods=["baseline", "gramloop", "loop-loop"]),
        lambda condition, method, place: pixels("fog", method, place),  # a gain in every condition
    )
    write_store(folder / "clean", make_plan(suite="scenes", conditions=["clean"]))
    write_store(folder / "det", make_plan(task="detection"))
    return folder


def test_a_report_of_several_suites(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert main(["report", str(results), "--out", str(out), "--no-pdf"]) == 0
    said = capsys.readouterr().out
    assert "Use gramloop: AP under shift rises" in said
    assert said.rstrip().endswith(str(out / "index.html"))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="https?:', page)
    assert str(tmp_path) not in page  # nothing of this machine
    for path in out.rglob("*"):
        assert path.is_dir() or path.stat().st_size
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "report.md", "tables/main.csv", "tables/main.md", "tables/main.tex"} <= names
    assert not any(name.endswith(".pdf") for name in names)
    assert {name for name in names if name.startswith("figures/")}
    assert all(
        f"figures/{name}" in names
        for name in re.findall(r"\(figures/([^)]*)\)", (out / "report.md").read_text())
    )


def test_numbers_in_the_tables_are_those_of_evaluate(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert main(["report", str(results / "seg"), "--out", str(out), "--no-pdf"]) == 0
    from gramloop.evaluate.plan import read_plan
    from gramloop.evaluate.store import Store

    found = collect(Store(results / "seg", read_plan(results / "seg" / "plan.json")))
    with (out / "tables" / "main.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    for method in ("baseline", "gramloop", "loop-loop"):
        assert float(row[method]) == found.mean(method)
    assert float(row["gramloop gain"]) == found.mean("gramloop") - found.mean("baseline")  # type: ignore[operator]


def test_writing_again_gives_the_same_bytes_and_leaves_nothing_behind(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    main(["report", str(results / "clean"), "--out", str(out), "--no-pdf"])
    (out / "tables" / "of-an-earlier-report.md").write_text("old")
    before = {path: path.read_bytes() for path in (out / "tables").iterdir()}
    main(["report", str(results / "clean"), "--out", str(out), "--no-pdf"])
    after = {path: path.read_bytes() for path in (out / "tables").iterdir()}
    before.pop(out / "tables" / "of-an-earlier-report.md")
    assert after == before


def test_over_images(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(results / "clean"), "--out", str(tmp_path / "r"), "--bootstrap", "images"]
    assert main([*arguments, "--no-pdf"]) == 0
    assert "Intervals are over 12 images" in capsys.readouterr().out


def test_what_cannot_be_compared_is_said_in_the_report(tmp_path: Path) -> None:
    write_store(tmp_path / "o" / "a", make_plan())
    write_store(tmp_path / "o" / "b", make_plan(versions={"torch": "3"}))
    assert main(["report", str(tmp_path / "o"), "--out", str(tmp_path / "r"), "--no-pdf"]) == 0
    report = (tmp_path / "r" / "report.md").read_text()
    assert "cannot be compared: they were made with gramloop 1 and none" in report
    assert {"main-1.csv", "main-2.csv"} <= set(os.listdir(tmp_path / "r" / "tables"))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: folder.mkdir(), "holds no results of gramloop evaluate"),
        (lambda folder: None, "holds no results of gramloop evaluate"),
        (
            lambda folder: (folder.mkdir(), (folder / "plan.json").write_text(json.dumps({"layout": 99}))),
            "another version of gramloop",
        ),
    ],
    ids=["empty", "absent", "other-layout"],
)
def test_misuse_of_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prepare: object, words: str
) -> None:
    prepare(tmp_path / "o")  # type: ignore[operator]
    assert main(["report", str(tmp_path / "o"), "--out", str(tmp_path / "r")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_other_peoples_folders_are_left_alone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-ada.txt").write_text("Dear Ada")
    assert main(["report", str(results), "--out", str(tmp_path / "letters")]) == 2
    assert "is not empty and holds no report" in capsys.readouterr().err
    assert os.listdir(tmp_path / "letters") == ["to-ada.txt"]
    assert main(["report", str(results), "--out", str(results / "seg")]) == 2
    assert "holds results of gramloop evaluate" in capsys.readouterr().err


def test_a_report_without_labels_speaks_of_agreement_and_of_no_gain_on_clean_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_store(tmp_path / "results" / "shifted", make_plan(suite="photos-c", truth="clean"))
    write_store(
        tmp_path / "results" / "clean", make_plan(suite="photos", conditions=["clean"], truth="clean")
    )
    out = tmp_path / "report"
    assert main(["report", str(tmp_path / "results"), "--out", str(out), "--no-pdf"]) == 0
    said = capsys.readouterr().out
    assert "agreement with the clean prediction (mIoU) under shift" in " ".join(said.split())
    assert "photos\n" not in said  # no answer on clean images
    text = (out / "report.md").read_text()
    assert "none is accuracy" in text
    assert "mPC (agreement mIoU)" in text
    assert not re.search("DINOv|rank correlation|docs/", text)  # nothing that another study measured
    with (out / "tables" / "main.csv").open() as stream:
        clean = next(row for row in csv.DictReader(stream) if row["suite"] == "photos")
    assert clean["metric"] == "agreement mIoU"
    assert clean["gramloop gain"] == ""
    assert "no change of them is a gain or a loss" in text


def test_labels_and_clean_predictions_are_not_set_side_by_side(tmp_path: Path) -> None:
    from gramloop.report import load_runs

    write_store(tmp_path / "with", make_plan())
    write_store(tmp_path / "without", make_plan(truth="clean"))
    loaded = load_runs([tmp_path / "with", tmp_path / "without"])
    assert len(loaded.groups) == 2
    assert "one is compared with labels, the other with clean predictions" in loaded.warnings[0]


def test_the_page_shows_the_command_that_evaluated(results: Path, tmp_path: Path) -> None:
    from gramloop.evaluate.store import MANIFEST
    from gramloop.report import load_runs, report_document

    manifest = results / "det" / MANIFEST
    shown = []
    for starts in ([{"time": "1"}], [{"time": "1"}, {"time": "2", "command": "gramloop evaluate --out it"}]):
        manifest.write_text(json.dumps({"starts": starts}))
        document = report_document(load_runs([results / "det"]), ())
        shown.append((document.about.get("Command"), document.facts["scenes-c"]["run"]))
    manifest.unlink()
    assert shown == [(None, "1"), ("gramloop evaluate --out it", "1 to 2, in 2 starts")]
