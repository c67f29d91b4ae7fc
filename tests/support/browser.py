"""A real browser for pages: whichever Chromium the machine has, driven without a network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PATIENCE = 180_000  # milliseconds; a busy machine is no reason to fail
QUIET = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


def find_browser() -> str | None:
    """The file to start: what GRAMLOOP_BROWSER names, or the first one found."""
    return os.environ.get("GRAMLOOP_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started_browser() -> Iterator[Any]:
    """A running browser; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = find_browser()
    if found is None:
        pytest.skip(
            f"no browser on this machine: none of {', '.join(NAMES)} (Debian: apt-get install chromium)"
        )
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(QUIET), timeout=PATIENCE)
        yield browser
        browser.close()
