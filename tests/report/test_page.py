"""The page as text: what it holds, what it escapes, what it forbids."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gramloop.evaluate.answer import Answer, MethodGain
from gramloop.metrics.bootstrap import Interval
from gramloop.report.document import Document, RenderedFigure, Section
from gramloop.report.page import render
from gramloop.report.write import whole_markdown
from gramloop.util.table import Column, Table
from small_document import ROWS, small_document


class Parsed(HTMLParser):
    """Elements with their attributes and the text inside, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        element = (tag, dict(attrs), [])
        self.elements.append(element)
        if tag not in ("meta", "link", "img", "line", "circle", "br"):
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1][0] == tag, f"</{tag}> closes <{self._open[-1][0]}>"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element[2].append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return render(
        small_document(), {"figures/gains.png", "figures/gains.pdf", "tables/scores.csv", "other.txt"}
    )


@pytest.fixture(scope="module")
def parsed(page: str) -> Parsed:
    return Parsed(page)


def test_nothing_points_outside_but_the_files_beside_the_page(parsed: Parsed):
    sources = [
        attributes[name]
        for _, attributes, _ in parsed.elements
        for name in ("src", "href")
        if name in attributes
    ]
    local = {"figures/gains.png", "figures/gains.pdf", "tables/scores.csv"}
    assert {each for each in sources if not each.startswith(("data:", "#"))} == local
    ids = {attributes.get("id") for _, attributes, _ in parsed.elements}
    assert {each[1:] for each in sources if each.startswith("#")} <= ids
    assert not any(
        name.startswith("on") or name == "style"
        for _, attributes, _ in parsed.elements
        for name in attributes
    )


def test_the_policy_lets_only_the_written_script_and_style_through(parsed: Parsed):
    policy = next(
        a["content"] for a, _ in parsed.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag in ("style", "script"):
        [(_, text)] = parsed.all(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "http:" not in policy
    assert "unsafe" not in policy


def test_what_a_document_says_is_text_and_never_markup(page: str, parsed: Parsed):
    assert "<b>at all</b>" not in page
    assert any("3 images could not be decoded <b>at all</b>." in text for _, text in parsed.all("li"))
    assert ("fog <3>") in [text for attributes, text in parsed.all("th") if attributes.get("scope") == "row"]
    assert parsed.all("h1")[0][1] == "GramLoop on scenes-c & friends"


@given(st.text(min_size=1, max_size=40))
def test_any_text_comes_through_whole(text: str):
    table = Table(text, (Column("a", text, "text"),), ((text,),), key="k", caption=text)
    section = Section("k", text, "", (table,))
    parsed = Parsed(
        render(
            Document(text, {text: text}, (Answer(text, text),), (), (text,), (section,), {text: {text: text}})
        )
    )
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    for tag in ("li", "h2", "dd"):
        assert any(
            shown.replace("\r\n", "\n").replace("\r", "\n").strip() == expected.strip()
            for _, shown in parsed.all(tag)
        ), tag


def test_cells_keep_their_full_values(parsed: Parsed):
    cells = [attributes.get("data-value") for attributes, _ in parsed.all("td")][: 4 * len(ROWS)]
    flat = [cell.estimate if isinstance(cell, Interval) else cell for row in ROWS for cell in row[1:]]
    assert cells == [None if cell is None or cell != cell else repr(cell) for cell in flat]


def test_the_best_is_marked_and_gains_have_their_tone(parsed: Parsed):
    cells = {text: attributes["class"] for attributes, text in parsed.all("td")[: 4 * len(ROWS)]}
    assert cells["100.00"].split() == ["number", "best"]
    assert "gain" in cells["+1.23"].split()
    assert "loss" in cells["−0.75"].split()
    assert cells["+0.00"].split() == ["number"]
    assert cells["[−1.50, −0.20]"].split() == ["number"]


def test_means_stand_in_the_foot_and_long_tables_in_a_frame(page: str):
    assert re.findall(r"<tfoot>.*?</tfoot>", page, re.S)[0].count("<tr>") == 1
    assert [("long" in each) for each in re.findall(r'<figure class="(table[^"]*)"', page)] == [False, True]


def test_headings_go_down_one_step_at_a_time(parsed: Parsed):
    levels = [int(tag[1]) for tag, _, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_figures_have_words_and_their_printed_size(parsed: Parsed):
    images = [attributes for attributes, _ in parsed.all("img") if attributes["alt"]]
    assert [(each["alt"], each["width"], each["height"]) for each in images] == [
        ("Bars", "550", "138"),
        ("A row of dots", "1100", "413"),  # 1600 x 600 pixels, 192 to the inch, shown at 132
        ("Two bars", "275", "206"),
    ]


def test_the_answer_comes_first_and_everything_else_is_folded(page: str, parsed: Parsed):
    order = [
        "Use gramloop: mIoU rises.",
        "figure-chart",
        "gramloop predict photos",
        "<details",
        "table-scores",
    ]
    places = [page.index(each) for each in order]
    assert places == sorted(places)
    assert [("open" in attributes) for attributes, _ in parsed.all("details")] == [True, False, False, False]
    assert [text for _, text in parsed.all("dt")[:2]] == ["Model", "Command"]


def test_an_empty_document_is_a_page_too():
    parsed = Parsed(render(Document("Nothing yet")))
    assert [text for _, text in parsed.all("h1")] == ["Nothing yet"]
    assert not parsed.all("h2")


HOSTILE = "=x](http://evil) <img src=x onerror=alert(1)> **b** `c` # [l](javascript:1) - | 1. \n\n# title"


def test_a_report_in_markdown_shows_hostile_names_as_text():
    interval = Interval(1.0, 0.5, 2.0)
    figure = RenderedFigure("f", HOSTILE, HOSTILE, b"", None, HOSTILE)
    section = Section("s", HOSTILE, HOSTILE, (), (figure,))
    gain = MethodGain(HOSTILE, 2.0, 1.0, interval)
    answer = Answer(HOSTILE, HOSTILE, "mIoU", "", (gain,), (), (HOSTILE,))
    document = Document(
        HOSTILE, {"Model": HOSTILE}, (answer,), (), (HOSTILE,), (section,), {HOSTILE: {HOSTILE: HOSTILE}}
    )
    tokens = MarkdownIt("commonmark").parse(whole_markdown(document))
    inline = [each for token in tokens for each in token.children or ()]
    assert {token.type for token in tokens if "html" in token.type or "code" in token.type} == set()
    assert {each.type for each in inline} == {"text", "softbreak", "image"}
    assert [each.attrs["src"] for each in inline if each.type == "image"] == ["figures/f.png"]
    headings = [token.tag for token in tokens if token.type == "heading_open"]
    assert headings == ["h1", "h2", "h2", "h2", "h3", "h2", "h3"]
