"""Numbers and addresses that cannot be meant are refused before anything is drawn or written."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gramloop.cli import main
from gramloop.errors import GramLoopError

COMMANDS = {
    "evaluate": ["evaluate", "--suite", "scenes-c", "--out"],
    "tune": ["tune", "--suite", "scenes-c", "--out"],
    "demo": ["demo", "--out"],
}
CASES = [
    ("evaluate", "--threads", "100000", "1 to "),
    ("evaluate", "--threads", "0", "1 to "),
    ("evaluate", "--images", "0", "1 or more"),
    ("evaluate", "--images", "-3", "1 or more"),
    ("evaluate", "--workers", "0", "1 to "),
    ("evaluate", "--workers", "1000000", "1 to "),
    ("evaluate", "--jobs", "0", "1 or more"),
    ("evaluate", "--shards", "0", "1 or more"),
    ("evaluate", "--pictures", "-1", "0 or more"),
    ("tune", "--threads", "100000", "1 to "),
    ("tune", "--images", "0", "1 or more"),
    ("tune", "--workers", "0", "1 to "),
    ("demo", "--workers", "0", "1 to "),
    ("demo", "--scenes", "0", "1 or more"),
]


@pytest.mark.parametrize(("command", "option", "value", "right"), CASES)
def test_a_number_out_of_range_writes_nothing(tmp_path: Path, capsys, command, option, value, right):
    out = tmp_path / "out"
    assert main([*COMMANDS[command], str(out), option, value]) == 2
    assert f"gramloop {command}: {option} is {value}; it is {right}" in capsys.readouterr().err
    assert not out.exists()


def test_the_same_holds_from_python(tmp_path: Path):
    import gramloop

    for wrong in ({"images": 0}, {"workers": 0}):
        with pytest.raises(GramLoopError, match="is 0; it is 1 "):
            gramloop.evaluate("tiny", suite="scenes-c", out=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["evaluate", "tune"])
def test_a_folder_of_something_else_gets_no_scenes_and_no_lock(tmp_path: Path, capsys, command: str):
    (tmp_path / "plan.json").write_text('{"layout": 2, "mine": true}')
    (tmp_path / "notes.txt").write_text("mine")
    assert main([*COMMANDS[command], str(tmp_path), "--images", "2"]) == 2
    assert "plan.json" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "plan.json"]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where somebody listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def dead() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ray_at_a_dead_address_is_told_at_once(tmp_path: Path, capsys, dead: int):
    pytest.importorskip("ray")
    began = time.monotonic()
    asked = [
        *COMMANDS["evaluate"],
        str(tmp_path / "out"),
        "--engine",
        "ray",
        "--address",
        f"127.0.0.1:{dead}",
    ]
    assert main(asked) == 2
    assert f"there is no Ray cluster at 127.0.0.1:{dead}: Connection refused" in capsys.readouterr().err
    assert time.monotonic() - began < 30
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ray_gives_up_where_nobody_answers(silent: int):
    ray = pytest.importorskip("ray")
    from gramloop.evaluate.ray_engine import _connect

    began = time.monotonic()
    with pytest.raises(
        GramLoopError, match=f"no Ray cluster at 127.0.0.1:{silent}: it did not answer in 20 s"
    ):
        _connect(ray, f"127.0.0.1:{silent}")
    assert time.monotonic() - began < 30
