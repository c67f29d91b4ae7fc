"""Result folders: which are listed, who may open which, and that the page is the report of the folder."""

import os
from pathlib import Path

import pytest

pytest.importorskip("gradio")

from gramloop.app import page as app_page
from gramloop.app.page import allowed_folder, find_folders, report_page
from gramloop.app.trial import AppSettings, OfferedModel
from gramloop.errors import GramLoopError

ANY = (OfferedModel("any", {}),)


def test_folders_are_found_at_any_level(stored_results: Path) -> None:
    wanted = [stored_results / "detection", stored_results / "semantic"]
    assert find_folders([stored_results]) == find_folders([stored_results.parent]) == wanted
    assert find_folders([stored_results / "semantic", stored_results]) == wanted[::-1]
    assert find_folders([]) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_on_this_machine_any_folder_opens(tmp_path: Path, host: str) -> None:
    assert allowed_folder(AppSettings(ANY, (), host), f" {tmp_path} ") == tmp_path


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "::"])
def test_for_others_only_what_was_given_opens(tmp_path: Path, host: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for each in (inside / "a", outside):
        each.mkdir(parents=True)
    (tmp_path / "link").symlink_to(outside)
    (inside / "link").symlink_to(outside)
    settings = AppSettings(ANY, (inside,), host)
    assert allowed_folder(settings, str(inside / "a")) == inside / "a"
    typed = [tmp_path, outside, inside / ".." / "outside", tmp_path / "insid", tmp_path / "link"]
    typed += [inside / "link", "/etc", "/no/such/folder", "~", "~root", os.path.relpath(outside)]
    messages = set()
    for each in typed:
        with pytest.raises(GramLoopError) as caught:
            allowed_folder(settings, str(each))
        messages.add(str(caught.value))
    assert messages == {
        "only folders below those of --results can be opened here"
    }  # whether it exists or not


@pytest.mark.parametrize("typed", ["a\0b", "x" * 1001, "/no/such/folder", "~nobody-of-this-name/x"])
def test_what_is_no_folder_is_refused(typed: str) -> None:
    with pytest.raises(GramLoopError, match="is no folder"):
        allowed_folder(AppSettings(ANY), typed)


def test_the_page_is_the_report_and_is_made_again_when_files_change(stored_results: Path) -> None:
    folder = stored_results / "semantic"
    page = report_page(folder)
    assert page.lower().startswith("<!doctype html>")
    assert "median" in page
    assert "data:image/png;base64," in page
    before = app_page._made_page.cache_info()
    assert report_page(folder) is page
    assert app_page._made_page.cache_info().hits == before.hits + 1
    (folder / "note.txt").write_text("changed")
    report_page(folder)
    assert app_page._made_page.cache_info().misses == before.misses + 1
    with pytest.raises(GramLoopError, match="holds no results"):
        report_page(folder / "units")
