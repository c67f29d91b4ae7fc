"""The page in a real browser: sorted, enlarged, printed, on a phone, and with nobody to ask."""

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from browser import PATIENCE, started_browser
from gramloop.report.page import render
from small_document import ORDERS, small_document

FILES = ("figures/gains.png", "figures/gains.pdf", "tables/scores.csv")
CONTRAST = """() => {
  const light = (c) => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const colour = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const found = colour(getComputedStyle(element).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "TEMPLATE"].includes(element.tagName)) continue;
    const pair = [luminance(colour(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    found.push([ratio, walker.currentNode.data.trim()]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    (folder / "index.html").write_text(render(small_document(), FILES), encoding="utf-8")
    return (folder / "index.html").as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The opened page at a desktop's width; the test fails if it complained or asked for anything."""
    opened = browser.new_page(viewport={"width": 1360, "height": 900})
    opened.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    opened.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    yield opened
    opened.close()
    assert not complaints
    assert [url for url in asked if not url.startswith("data:")] == [address]


def names(page: Any) -> list[str]:
    return page.locator("#table-scores tbody th").all_inner_texts()


def test_every_image_is_there(page):
    sizes = page.eval_on_selector_all(
        "main img", "all => all.map(image => [image.complete, image.naturalWidth])"
    )
    assert sizes == [[True, 800], [True, 1600], [True, 400]]


@pytest.mark.parametrize("column", sorted(ORDERS))
def test_tables_sort_by_value_and_back_again(page, column):
    before = names(page)
    header = page.locator("#table-scores thead th").nth(column)
    for direction, order in zip(("ascending", "descending", "none"), (*ORDERS[column], before), strict=True):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == direction
        assert names(page) == order
        assert page.locator("#table-scores tr").last.locator("th").inner_text() == "mean"
    others = page.locator("#table-scores thead th").evaluate_all("all => all.map(header => header.ariaSort)")
    assert others == ["none"] * len(ORDERS)


def test_the_keyboard_sorts_and_a_second_column_takes_over(page):
    headers = page.locator("#table-scores thead th")
    headers.nth(1).locator("button").focus()
    page.keyboard.press("Enter")
    assert names(page) == ORDERS[1][0]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert names(page) == ORDERS[2][0]
    assert [headers.nth(n).get_attribute("aria-sort") for n in (1, 2)] == ["none", "ascending"]
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "2px", "who uses the keyboard sees where they are"


@pytest.mark.parametrize("width", [320, 360, 400, 768, 1199, 1920])
def test_only_tables_scroll_sideways(page, width):
    page.set_viewport_size({"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    lines = page.locator("pre").all()
    assert all(each.evaluate("each => each.scrollWidth <= each.clientWidth") for each in lines)
    frame = page.locator("#table-scores .frame")
    inner, outer = frame.evaluate("frame => [frame.scrollWidth, frame.clientWidth]")
    assert inner > outer if width == 320 else inner == outer or width < 768


@pytest.mark.parametrize("width", [360, 1360])
def test_there_is_something_to_see(page, width, tmp_path):
    page.set_viewport_size({"width": width, "height": 900})
    page.screenshot(path=tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as shot:
        colours = sorted(((n, c) for n, c in shot.convert("RGB").getcolors(1 << 24)), reverse=True)
        paper = colours[0][0] / (shot.width * shot.height)
    assert shot.width == width
    assert 0.3 < paper < 0.97, "mostly paper, and something on it"
    assert len(colours) > 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(page, scheme):
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 100
    assert [pair for pair in found if pair[0] < 4.5] == []  # WCAG AA for text of any size


def test_it_prints_without_what_only_a_screen_needs(page):
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 2
    page.emulate_media(media="print")
    assert not page.locator(".offers").first.is_visible()
    scrolled = page.locator("#table-all .frame").evaluate("frame => frame.scrollHeight - frame.clientHeight")
    assert scrolled == 0, "on paper a long table is shown whole"


def test_nothing_can_be_fetched_even_by_a_script(browser, address):
    opened = browser.new_page()
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    refused = opened.evaluate(
        """async () => {
          const told = new Promise(resolve => document.addEventListener("securitypolicyviolation",
            event => resolve(event.effectiveDirective)));
          await fetch("http://127.0.0.1:9/").catch(() => 0);
          return Promise.race([told, new Promise(resolve => setTimeout(resolve, 2000, "allowed"))]);
        }"""
    )
    opened.close()
    assert refused == "connect-src"
    assert not [url for url in asked if url.startswith("http")]


def test_a_reader_without_scripts_sees_the_answer(browser, address):
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    said = opened.locator("main").inner_text()
    assert "Use gramloop: mIoU rises." in said
    assert "Summary" in said
    assert "noise 10" not in said, "what is folded takes a click, which needs no script"
    shot = Image.open(io.BytesIO(opened.locator("img").first.screenshot()))
    assert len(shot.convert("RGB").getcolors(1 << 24)) > 50
    context.close()
