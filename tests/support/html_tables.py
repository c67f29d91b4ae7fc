"""A table of HTML as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = '<script>alert("x")</script>&amp;<img src=x onerror=alert(1)>'


class Reader(HTMLParser):
    """The rows of a table, its caption and notes, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.caption, self.notes, self._inside = "", [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self._inside = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "p":
            self.notes.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.rows[-1][-1] += data
        elif self._inside == "caption":
            self.caption += data
        elif self._inside == "p":
            self.notes[-1] += data
