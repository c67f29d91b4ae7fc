import os
import signal
import subprocess
import sys
import time

import pytest

from gramloop.errors import GramLoopError
from gramloop.io.atomic import write_whole


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(GramLoopError, match="taken cannot be written"):
        write_whole(tmp_path / "taken", b"data")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GramLoopError, match="cannot be made"):
        write_whole(tmp_path / "file" / "below", b"data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_new_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "result"
    program = (
        "import sys, pathlib\nfrom gramloop.io.atomic import write_whole\n"
        "while True:\n    for letter in b'ab':\n"
        "        write_whole(pathlib.Path(sys.argv[1]), bytes([letter]) * 8_000_000)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], env=os.environ)
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    data = path.read_bytes()
    assert len(data) == 8_000_000
    assert data in (b"a" * len(data), b"b" * len(data))
