"""The site builds strictly, asks nobody for anything, and is read in a real browser."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import PATIENCE, started_browser

ROOT = Path(__file__).parents[2]
ROOMS = [
    "",
    *sorted(
        path.parent.name
        for path in (ROOT / "src" / "gramloop").glob("*/__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    ),
]
RESOURCE = re.compile(
    r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*?(?:src|data)=[\"']?((?:https?:)?//[^\"'> ]+)"
    r"|<link\b(?=[^>]*rel=[\"']?(?:stylesheet|preload|preconnect|icon))[^>]*href=[\"']?((?:https?:)?//[^\"'> ]+)"
    r"|url\([\"']?((?:https?:)?//[^)]+)\)",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    """A page at a desktop's width; the test fails if it complained, or asked another host for anything."""
    with started_browser() as browser:
        opened = browser.new_page(viewport={"width": 1360, "height": 900})
        opened.set_default_timeout(PATIENCE)
        asked: list[str] = []
        complaints: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        yield opened
        assert not complaints
        assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room or "gramloop")
def test_every_public_name_is_in_the_reference(site: Path, room: str) -> None:
    module = importlib.import_module(f"gramloop.{room}".rstrip("."))
    text = (site / "reference" / f"{room or 'gramloop'}.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="([\w.]+)"', text))
    assert {f"{module.__name__}.{name}" for name in module.__all__} <= shown


def test_no_page_asks_another_host(site: Path) -> None:
    asking = {
        f"{path.relative_to(site)}: {next(filter(None, found.groups()))}"
        for path in site.rglob("*")
        if path.suffix in (".html", ".css", ".svg")
        for found in RESOURCE.finditer(path.read_text(encoding="utf-8"))
    }
    assert not asking


def test_notebooks_are_pages_with_their_pictures(site: Path) -> None:
    for notebook in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        text = (site / "examples" / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        pictures = re.findall(rf'src="({notebook.stem}-\d+\.jpeg)"', text)
        assert len(pictures) == notebook.read_text(encoding="utf-8").count('"image/jpeg"')
        for name in pictures:
            Image.open(site / "examples" / "notebooks" / name).verify()


def test_a_reader_searches_and_finds_the_reference(page: Any, address: str) -> None:
    page.goto(address)
    assert page.locator("h1").first.inner_text().startswith("GramLoop")
    page.locator(".md-search__input").first.click()
    ready = page.locator(".md-search-result__meta", has_text="Type to start searching")
    ready.wait_for()  # words that come before the index is read are not looked for
    page.locator(".md-search__input").first.press_sequentially("recentre")  # keys, as it listens to them
    page.locator(".md-search-result__link[href*='reference/gramloop.html']").first.wait_for(state="attached")
    page.goto(f"{address}reference/gramloop.html#gramloop.attach")
    heading = page.locator('[id="gramloop.attach"]')
    heading.wait_for()
    assert "attach" in heading.inner_text()
    assert page.locator("code", has_text="this_thread").count() > 0


def test_the_drawing_of_a_forward_is_shown(page: Any, address: str) -> None:
    page.goto(f"{address}method.html")
    drawing = page.locator("img[src$='forward.svg']")
    drawing.wait_for()
    assert drawing.evaluate("image => image.naturalWidth") > 500
    assert (ROOT / "docs" / "images" / "forward.svg").read_text(encoding="utf-8") == _drawn()


def _drawn() -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import draw_forward; print(draw_forward.drawing(), end='')"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
