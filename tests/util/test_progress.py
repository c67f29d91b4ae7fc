"""A bar is for a person at a terminal: elsewhere it is silent, and it never touches what is printed."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gramloop.util.progress import progress_bar, tracked, use_screen

pty = pytest.importorskip("pty")


def on_a_terminal(program: str) -> tuple[str, str]:
    """What a program writes to its standard output, which is a pipe, and to its standard error, a terminal."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            break
        shown += part
    os.close(master)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown.decode()
    return printed.decode(), shown.decode()


def test_a_bar_without_a_terminal_prints_nothing(capfd):
    with progress_bar("drawing", 10) as advance:
        for number in range(10):
            advance(f"picture {number}")
    assert list(tracked("abc", "reading", 3)) == ["a", "b", "c"]
    with progress_bar("report", None) as advance:
        advance(steps=7)
    with use_screen() as free:
        assert not free
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_counts_says_what_is_done_and_vanishes():
    printed, shown = on_a_terminal("""
        import sys, time
        from gramloop.util.progress import progress_bar
        with progress_bar("drawing", 8) as advance:
            for number in range(5):
                advance(f"picture {number}")
                print("result", number)
                time.sleep(0.05)
            advance("picture 7", 3)
            time.sleep(0.3)
        print("the end", file=sys.stderr)
    """)
    assert printed == "".join(f"result {number}\n" for number in range(5))
    assert "result" not in shown
    for words in ("drawing", "picture 7", "8/8", "0:00:00"):
        assert words in shown
    erased, _, after = shown.rpartition("\x1b[2K")
    assert "8/8" in erased
    assert after.strip() == "the end"


@pytest.mark.parametrize("total", [0, 1])
def test_one_step_needs_no_bar(total):
    _, shown = on_a_terminal(f"""
        import time
        from gramloop.util.progress import progress_bar
        with progress_bar("drawing", {total}) as advance:
            advance()
            time.sleep(0.3)
    """)
    assert shown == ""


def test_only_the_outermost_bar_is_shown():
    _, shown = on_a_terminal("""
        import time
        from gramloop.util.progress import progress_bar, tracked, use_screen
        for number in range(2):
            with progress_bar(f"outer {number}", 2) as advance:
                for _ in tracked("ab", "inner", 2):
                    time.sleep(0.15)
                    advance()
        with use_screen() as free:
            assert free
            for _ in tracked("ab", "inner", 2):
                time.sleep(0.15)
    """)
    assert "outer 0" in shown
    assert "outer 1" in shown
    assert "inner" not in shown


def test_a_worker_shows_no_bar_of_its_own():
    _, shown = on_a_terminal(f"""
        import sys
        from gramloop.util.processes import process_context, process_pool
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_progress import show
        if __name__ == "__main__":
            show("parent")
            with process_pool(1, process_context("gramloop.util.progress")) as pool:
                pool.submit(show, "worker").result()
    """)
    assert "parent" in shown
    assert "worker" not in shown


def show(description: str) -> None:
    with progress_bar(description, 3) as advance:
        advance()
        time.sleep(0.3)


def test_work_goes_on_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress_bar("drawing", 3) as advance:
        advance()
    assert list(tracked(range(3), "reading", 3)) == [0, 1, 2]


def test_an_error_frees_the_screen():
    _, shown = on_a_terminal("""
        import time
        from gramloop.util.progress import progress_bar
        try:
            with progress_bar("failing", 3):
                raise KeyError
        except KeyError:
            pass
        with progress_bar("again", 3) as advance:
            advance()
            time.sleep(0.3)
    """)
    assert "again" in shown
