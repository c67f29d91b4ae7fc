"""The app in a real browser: an upload, sliders, both tabs, a bad file, a narrow window, two people at once."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import PATIENCE, started_browser

pytest.importorskip("gradio")

UPLOAD = 400_000  # bytes that this server takes


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def app(small_model: Path, stored_results: Path) -> Iterator[Any]:
    from gramloop.app.page import serving
    from gramloop.app.trial import AppSettings, Limits, OfferedModel
    from gramloop.models.tiny import WEIGHTS

    models = (
        OfferedModel("tiny", {"folder": str(WEIGHTS)}),
        OfferedModel("small", {"folder": str(small_model)}),
    )
    limits = Limits(upload_bytes=UPLOAD, upload_pixels=1_000_000, longest_side=256)
    with serving(AppSettings(models, (stored_results,), limits=limits), port=0) as running:
        yield running


@pytest.fixture
def visit(browser: Any, app: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; the test fails if one of them complained or asked another host for anything."""
    opened: list[Any] = []
    complaints: list[str] = []
    asked: list[str] = []

    def visit(width: int = 1280, tolerated: str = "^$") -> Any:
        page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: _complain(message, complaints, tolerated))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(app.url)
        page.get_by_role("tab", name="Try an image").click()  # given results, the app opens them first
        page.wait_for_selector("#trial figure")
        opened.append(page)
        return page

    yield visit
    for page in opened:
        assert "Traceback" not in page.content()
        page.context.close()
    assert not complaints
    own = (app.url, "data:", f"blob:{app.url}")
    assert [url for url in asked if not url.startswith(own)] == []


def _complain(message: Any, complaints: list[str], tolerated: str) -> None:
    if message.type == "error" and not re.search(tolerated, message.text):
        complaints.append(message.text)


def line(page: Any) -> str:
    """The line that names the trial."""
    return str(page.locator("#trial .gl-line").inner_text())


def says(page: Any, words: str) -> None:
    page.locator("#trial .gl-line", has_text=words).wait_for()


def turn(page: Any, control: str, value: object) -> None:
    """Set a slider by its number."""
    number = page.locator(f"#{control} input[type=number]")
    number.fill(str(value))
    number.press("Tab")


def pick(page: Any, control: str, choice: str) -> None:
    page.locator(f"#{control} input").first.click()
    page.get_by_role("option", name=choice, exact=True).click()


def upload(page: Any, name: str, content: bytes) -> None:
    remove = page.locator("#image button[aria-label='Clear'], #image button[title='Clear']")
    if remove.count():
        remove.first.click()
    page.set_input_files(
        "#image input[type=file]", {"name": name, "mimeType": "image/png", "buffer": content}
    )


def photo(seed: int, height: int = 60, width: int = 90) -> tuple[np.ndarray, bytes]:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return pixels, buffer.getvalue()


def numbers(page: Any) -> dict[str, list[str]]:
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".gl-table tbody tr").all()]
    return {name: values for name, *values in rows}


def test_the_first_page_shows_a_trial(visit: Any) -> None:
    page = visit()
    assert line(page).startswith("tiny · semantic · impulse noise 3 · denoise+levels+replay:window=")
    titles = page.locator("#trial figcaption b").all_inner_texts()
    wanted = ["clean image", "shifted image", "clean prediction", "baseline", "mitigated", "drift and gate"]
    assert titles == wanted
    loaded = "all => all.every(image => image.complete && image.naturalWidth > 100 && image.alt.length > 4)"
    assert page.eval_on_selector_all("#trial img", loaded)
    assert page.locator(".gl-legend li").count() > 3
    found = numbers(page)
    assert found["blocks executed"] == ["12", "29", "2.42 ×"]
    assert float(found["milliseconds"][0]) > 0
    before, after = map(float, found["agreement, mIoU (%)"][:2])
    assert 0 < before < after <= 100  # what the scene was chosen for
    assert page.locator("#trial .gl-hint").count() == 0  # it is a drawn scene


def test_controls_change_the_trial(visit: Any) -> None:
    page = visit()
    turn(page, "severity", 4)
    says(page, "impulse noise 4")
    box = page.locator("#replay textarea, #replay input").first
    assert box.input_value() == "window=6-6"
    box.fill("window=6-6,replays=1,strength=0.6")
    says(page, "strength=0.6")


@pytest.mark.slow
def test_an_upload_is_tried_with_every_choice(visit: Any, app: Any) -> None:
    page = visit()
    pixels, content = photo(1)
    upload(page, "mine.png", content)
    page.wait_for_function("document.querySelector('#trial img')?.naturalWidth === 90")
    assert page.evaluate("document.querySelector('#trial img').naturalHeight") == pixels.shape[0]
    pick(page, "task", "detection")
    says(page, "tiny · detection · impulse noise 3")
    pick(page, "shift", "rotate (perturbation)")
    says(page, "detection · rotate 3")
    pick(page, "model", "small")
    page.locator("#trial [role=alert]", has_text="Levels needs").wait_for()
    box = page.locator("#mitigations input")
    box.click()
    for _ in range(2):
        box.press("Backspace")
    says(page, "small · semantic · rotate 3 · denoise")
    assert page.locator("#task input").input_value() == "semantic"


def test_mitigations_are_chosen_typed_and_refused(visit: Any) -> None:
    page = visit()
    box = page.locator("#mitigations input")
    box.click()
    box.fill("recentre:0.4")
    box.press("Enter")
    says(page, "denoise+levels+replay:window=6-6+recentre:0.4")
    box.fill("replay:/etc/passwd.json")
    box.press("Enter")
    alert = page.locator("#trial [role=alert]")
    alert.wait_for()
    assert alert.inner_text().startswith("Files cannot be named here")
    box.press("Backspace")
    says(page, "recentre:0.4")


def test_a_bad_file_gets_a_message(visit: Any, app: Any) -> None:
    page = visit(tolerated="Failed to load resource|Response")  # of the 413, which the page tells too
    alert = page.locator("#trial [role=alert]")
    buffer = io.BytesIO()
    Image.new("RGB", (1000, 1100)).save(buffer, format="png")
    flat = buffer.getvalue()
    for name, content, message in (
        (
            "broken.png",
            photo(2)[1][:300],
            "Broken.png cannot be read as an image",
        ),
        ("words.png", b"these are words", "Words.png cannot be read as an image"),
        ("huge.png", flat, "Huge.png is refused: it has 1000 x 1100 pixels"),
    ):
        upload(page, name, content)
        page.locator("#trial [role=alert]", has_text=message[:12]).wait_for()
        assert alert.inner_text().startswith(message)
    heavy = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(heavy).save(buffer, format="png")
    assert len(buffer.getvalue()) > UPLOAD
    upload(page, "heavy.png", buffer.getvalue())
    page.get_by_text(re.compile("maximum allowed size")).first.wait_for()
    upload(page, "fine.png", photo(4)[1])
    page.wait_for_function("document.querySelector('#trial img')?.naturalWidth === 90")
    assert "Tiny knows drawn scenes only" in page.locator("#trial .gl-hint").inner_text()


@pytest.mark.slow
def test_two_people_at_once_see_their_own(visit: Any, app: Any) -> None:
    first, second = visit(), visit()
    upload(first, "one.png", photo(5, 60, 90)[1])
    upload(second, "two.png", photo(6, 60, 120)[1])
    first.wait_for_function("document.querySelector('#trial img')?.naturalWidth === 90")
    second.wait_for_function("document.querySelector('#trial img')?.naturalWidth === 120")
    for severity in (1, 5, 2):
        turn(first, "severity", severity)
        turn(second, "severity", 6 - severity)
        says(first, f"impulse noise {severity}")
        says(second, f"impulse noise {6 - severity}")
    assert first.evaluate("document.querySelector('#trial img').naturalWidth") == 90
    assert second.evaluate("document.querySelector('#trial img').naturalWidth") == 120


def test_results_are_the_report_of_a_folder(visit: Any, stored_results: Path) -> None:
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


def test_a_narrow_window_needs_no_sideways_scrolling(visit: Any) -> None:
    page = visit(width=390)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 390
    widths = page.eval_on_selector_all(
        "#trial figure", "all => all.map(each => each.getBoundingClientRect().width)"
    )
    assert min(widths) >= 120
    page.get_by_role("tab", name="Open results").click()
    page.wait_for_selector("#report iframe")
    assert page.evaluate(wide) <= 390
