"""The app in a real browser: an upload, every control, both tabs, a bad file, a narrow window."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import PATIENCE, started_browser

pytest.importorskip("gradio")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def url(stored_results: Path) -> Iterator[str]:
    from gramloop.app import serving
    from gramloop.tasks.options import ModelOptions

    with serving(ModelOptions(), [stored_results]) as address:
        yield address


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Opens pages; the test fails if one of them complained or asked another host for anything."""
    opened: list[Any] = []
    complaints: list[str] = []
    asked: list[str] = []

    def visit(width: int = 1280) -> Any:
        page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        page.get_by_role("tab", name="Try an image").click()  # given results, the app opens them first
        page.wait_for_selector("#trial figure")
        opened.append(page)
        return page

    yield visit
    for page in opened:
        assert "Traceback" not in page.content()
        page.context.close()
    assert not complaints
    assert [address for address in asked if not address.startswith((url, "data:", f"blob:{url}"))] == []


def says(page: Any, words: str) -> None:
    """Wait for the line that names the trial."""
    page.locator("#trial p", has_text=words).wait_for()


def pick(page: Any, control: str, choice: str) -> None:
    page.locator(f"#{control} input").first.click()
    page.get_by_role("option", name=choice, exact=True).click()


def upload(page: Any, name: str, content: bytes) -> None:
    remove = page.locator("#image button[aria-label='Remove Image']")
    if remove.count():
        remove.first.click()
    file = {"name": name, "mimeType": "image/png", "buffer": content}
    page.set_input_files("#image input[type=file]", file)


def test_the_first_page_shows_a_trial(visit: Callable[..., Any]) -> None:
    page = visit()
    says(page, "tiny · semantic · impulse noise 3 · denoise+levels+replay:window=6-6")
    answer = page.locator("#trial .gl-answer").inner_text()
    assert answer.startswith(
        "Agreement with the clean prediction rises from "
    )  # what the scene was chosen for
    loaded = "all => all.length === 2 && all.every(image => image.complete && image.naturalWidth > 100)"
    assert page.eval_on_selector_all("#trial img", loaded)
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#trial tbody tr").all()]
    assert rows[1] == ["blocks executed", "12", "29", "2.42 ×"]
    assert page.locator("#trial .gl-hint").count() == 0  # it is a drawn scene


def test_an_upload_is_tried_with_every_choice(visit: Callable[..., Any]) -> None:
    page = visit()
    upload(page, "words.png", b"these are words")
    page.locator("#trial [role=alert]", has_text="words.png is not an image of a known format").wait_for()
    coarse = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((90, 60), Image.Resampling.BICUBIC).save(buffer, format="png")
    upload(page, "mine.png", buffer.getvalue())
    page.locator("#trial .gl-hint", has_text="knows drawn scenes only").wait_for()
    pick(page, "task", "detection")
    says(page, "tiny · detection · impulse noise 3")
    pick(page, "shift", "rotate (perturbation)")
    says(page, "detection · rotate 3")
    number = page.locator("#severity input[type=number]")
    number.fill("4")
    number.press("Tab")
    says(page, "detection · rotate 4")
    box = page.locator("#mitigations input")
    box.click()
    box.fill("recentre:0.4")
    box.press("Enter")
    says(page, "denoise+levels+replay:window=6-6+recentre:0.4")
    box.fill("sunshine")
    box.press("Enter")
    page.locator("#trial [role=alert]", has_text="There is no mitigation 'sunshine'").wait_for()


def test_results_are_the_report_of_a_folder(visit: Callable[..., Any], stored_results: Path) -> None:
    page = visit()
    page.get_by_role("tab", name="Open results").click()
    report = page.frame_locator("#report iframe")
    report.get_by_role("heading", level=1).wait_for()
    assert page.locator("#folder input").input_value() == str(stored_results / "detection")
    assert report.locator("table").count() > 2
    assert report.locator("img").first.evaluate("image => image.complete && image.naturalWidth > 100")
    report.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
    header = report.locator("th[data-kind=number]").first
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"  # the report's script runs
    pick(page, "folder", str(stored_results / "semantic"))
    report.get_by_text("mIoU").first.wait_for()
    folder = page.locator("#folder input")
    folder.fill("/etc")
    folder.press("Enter")
    page.locator("#report [role=alert]", has_text="holds no results").wait_for()


def test_a_narrow_window_needs_no_sideways_scrolling(visit: Callable[..., Any]) -> None:
    page = visit(width=390)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 390
    assert page.locator("#trial img").first.bounding_box()["width"] >= 700  # scrolls in its own box
    page.get_by_role("tab", name="Open results").click()
    page.wait_for_selector("#report iframe")
    assert page.evaluate(wide) <= 390
