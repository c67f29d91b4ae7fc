"""Stored results: who may open which folder, and that scores and images are those that evaluate stored."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from gramloop.app.cache import Cache
from gramloop.app.choices import EVERY, ORDERS
from gramloop.app.results import Ranked, ResultsRoom, conditions_of, gain_words, in_order
from gramloop.app.settings import AppSettings, ModelSource
from gramloop.app.stored import images, opened, scores
from gramloop.errors import GramLoopError
from gramloop.evaluate.store import Store, read_condition
from gramloop.report.run import Run

ANY = (ModelSource("any", {}),)


def room(*roots: Path, host: str = "127.0.0.1") -> ResultsRoom:
    return ResultsRoom(AppSettings(ANY, roots, host), Cache(1 << 24))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_on_this_machine_any_folder_opens(stored_results: Path, host: str) -> None:
    assert len(room(host=host).open(str(stored_results))) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "::"])
def test_for_others_only_what_was_given_opens(stored_results: Path, tmp_path: Path, host: str) -> None:
    shared = room(stored_results / "semantic", host=host)
    assert [run.plan.task for run in shared.open(str(stored_results / "semantic"))] == ["semantic"]
    link = tmp_path / "link"
    link.symlink_to(stored_results / "detection")
    outside = [
        str(stored_results),
        str(stored_results / "detection"),
        str(stored_results / "semantic" / ".." / "detection"),
        str(stored_results / "semanti"),
        str(stored_results / "semantic2"),
        str(link),
        "/etc",
        "/no/such/folder",
        "~",
        "~root",
        os.path.relpath(stored_results / "detection"),
    ]
    said = set()
    for typed in outside:
        with pytest.raises(GramLoopError) as caught:
            shared.open(typed)
        said.add(str(caught.value))
    assert said == {
        "only folders below those given with --results can be opened here"
    }  # told alike, there or not
    with pytest.raises(GramLoopError, match="only folders below"):
        room(host=host).open(str(stored_results))


def test_a_link_inside_leads_nowhere_else(stored_results: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").symlink_to(stored_results / "detection")
    with pytest.raises(GramLoopError, match="only folders below"):
        room(tmp_path, host="0.0.0.0").open(str(tmp_path / "inside"))


@pytest.mark.parametrize("typed", ["", "  ", "a\0b", "x" * 2000, "/no/such/folder", "/etc"])
def test_what_is_no_folder_of_results_is_a_sentence(typed: str) -> None:
    with pytest.raises(GramLoopError):
        room().open(typed)


def test_scores_are_those_of_results_csv(stored_results: Path) -> None:
    (run,) = room().open(str(stored_results / "semantic"))
    page = scores(run)
    with (stored_results / "semantic" / "results.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["condition"] != "mean"]
    assert len(rows) == 6
    for row in rows:
        assert f">{row['condition']}<" in page
        assert f">{float(row['mIoU']):.3f}<" in page
        if row["mIoU gain"]:
            assert f">{float(row['mIoU gain']):+.3f}<" in page


def stored_rows(run: Run, key: str) -> list[dict[str, Any]]:
    found = read_condition(Store(run.folder, run.plan), key)
    assert found is not None
    return found.methods["gramloop"].first(4)


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_images_are_sorted_by_gain_or_loss(stored_results: Path, task: str) -> None:
    place = room()
    (run,) = place.open(str(stored_results / task))
    ranked = place.ranked(run, "gramloop")
    assert len(ranked) == 8  # four pictures of each of two conditions
    gains = [each.gain for each in in_order(ranked, "gain")]
    assert gains == sorted(gains, reverse=True)
    assert [each.gain for each in in_order(ranked, "loss")] == sorted(gains)
    assert in_order(ranked, "condition") == list(ranked)
    assert conditions_of(ranked) == ["impulse_noise/3", "fog/3"]
    assert {each.kept.condition.key for each in in_order(ranked, "gain", "fog/3")} == {"fog/3"}
    for each in ranked:
        rows = stored_rows(run, each.kept.condition.key)
        stored = next(row for row in rows if row["position"] == each.kept.position)
        assert each.treated == run.task.image_score(stored)
        if task == "semantic":
            assert stored["picture"] == each.kept.rows["gramloop"]["picture"]


def test_an_image_without_a_score_comes_last(stored_results: Path) -> None:
    place = room()
    (run,) = place.open(str(stored_results / "semantic"))
    first, second, *_ = place.ranked(run, "gramloop")
    odd = Ranked(first.kept, float("nan"), 5.0)
    for order in ("gain", "loss"):
        assert in_order([odd, second], order) == [second, odd]  # type: ignore[arg-type]
    assert "no score" in gain_words(run, odd)


def test_a_page_of_images_shows_both_predictions(stored_results: Path) -> None:
    place = room()
    (run,) = place.open(str(stored_results / "semantic"))
    first = images(place, run, "median", EVERY, next(iter(ORDERS)), 1)
    assert first.count("<figure>") == 6 * 4  # input, annotation, baseline and method
    assert "Images 1 to 6 of 8" in first
    last = images(place, run, "median", EVERY, next(iter(ORDERS)), 99)
    assert last.count("<figure>") == 2 * 4
    assert "Images 7 to 8 of 8" in last
    images(place, run, "median", EVERY, "largest loss first", 1)
    assert place.cache.computed["stored pictures"] == 8  # in another order they are the same
    with pytest.raises(GramLoopError, match="no method 'other'"):
        images(place, run, "other", EVERY, "as evaluated", 1)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (("median", EVERY, "as evaluated", 0), "there is no page 0; pages are whole numbers from 1 on"),
        (("median", EVERY, "as evaluated", 1.5), "there is no page 1.5"),
        (("median", EVERY, "as evaluated", float("nan")), "there is no page nan"),
        (("median", EVERY, "as evaluated", float("inf")), "there is no page inf"),
        (("median", EVERY, "as evaluated", "2"), "there is no page '2'"),
        (("median", EVERY, "by luck", 1), "there is no order 'by luck'; there are largest gain first"),
        (("median", EVERY, ["gain"], 1), "there is no order"),
        ((["median"], EVERY, "as evaluated", 1), "compares no method"),
    ],
)
def test_a_page_that_there_is_not_is_a_sentence(stored_results: Path, chosen: Any, said: str) -> None:
    place = room()
    (run,) = place.open(str(stored_results / "semantic"))
    with pytest.raises(GramLoopError) as caught:
        images(place, run, *chosen)
    assert said in str(caught.value)


def test_what_is_read_again_and_what_is_not(stored_results: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(stored_results / "semantic", tmp_path / "copy"))
    place = room()
    place.open(str(copy))
    place.open(str(copy))
    assert place.cache.computed["runs"] == 1
    lost = next((copy / "units" / "fog-3").glob("*/*.parquet"))
    lost.unlink()
    (run,) = place.open(str(copy))
    assert place.cache.computed["runs"] == 2
    assert list(run.missing) == ["fog/3"]
    assert "fog/3: 2 of 3 units are stored" in scores(run)


def test_pictures_whose_set_is_gone_are_told(stored_results: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(stored_results / "semantic", tmp_path / "copy"))
    moved = stored_results.parent / "set"
    aside = stored_results.parent / "set-aside"
    place = room()
    (run,) = place.open(str(copy))
    moved.rename(aside)
    try:
        page = images(place, run, "gramloop", EVERY, "as evaluated", 1)
    finally:
        aside.rename(moved)
    assert page.count('role="alert"') == 6
    assert "<figure>" not in page


def test_opening_fills_the_controls_or_says_why_not(stored_results: Path) -> None:
    place = room()
    found = opened(place, str(stored_results), lambda *_, **__: None)
    assert [name for name, _ in found[0].choices] == ["scenes-c detection", "scenes-c segmentation"]
    assert found[1].value == "gramloop"
    assert "<table" in found[-1]
    refused = opened(place, "/etc", lambda *_, **__: None)
    assert 'role="alert"' in refused[-1]
    assert "Traceback" not in refused[-1]
