"""One run at a time: the second is refused in a sentence, and a killed one leaves no lock behind."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from gramloop.errors import GramLoopError
from gramloop.io.atomic import TEMPORARY
from gramloop.io.lock import LOCK, is_taken, locked

fcntl = pytest.importorskip("fcntl")

HOLDER = (
    "import sys, time, pathlib\nfrom gramloop.io.lock import locked\n"
    "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
)


def try_it(folder):
    with locked(folder):
        pass


def test_a_second_run_is_refused_until_the_first_is_over(tmp_path):
    out = tmp_path / "deep" / "out"
    with locked(out), pytest.raises(GramLoopError, match=f"another gramloop is writing to {out}"):
        try_it(out)
    try_it(out)
    with pytest.raises(ZeroDivisionError), locked(out):
        raise ZeroDivisionError
    try_it(out)
    with locked(tmp_path / "one"), locked(tmp_path / "other"):
        pass


def test_the_lock_of_another_process_goes_with_it(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(GramLoopError, match="another gramloop is writing"):
            try_it(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert (tmp_path / LOCK).exists()
    try_it(tmp_path)


def test_a_folder_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(GramLoopError, match=f"cannot write to the folder {tmp_path / 'file'}"):
        try_it(tmp_path / "file")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GramLoopError, match=f"cannot write to the folder {tmp_path / 'out'}"):
        try_it(tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_a_lock_and_unfinished_files_are_no_content(tmp_path):
    assert not is_taken(tmp_path / "new")
    for name in (LOCK, f"{TEMPORARY}host-1-0", "scenes"):
        (tmp_path / name).touch()
    assert is_taken(tmp_path)
    assert not is_taken(tmp_path, "scenes")
    (tmp_path / "thesis.txt").touch()
    assert is_taken(tmp_path, "scenes")
