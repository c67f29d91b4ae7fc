"""A file is there whole or not at all: links, killed and rival writers, full disks and shut folders."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gramloop.errors import GramLoopError
from gramloop.util import files
from gramloop.util.files import (
    LOCK,
    RESUME_HINT,
    TEMPORARY,
    atomic_write,
    file_digest,
    files_below,
    is_taken,
    locked,
    make_folder,
    remove_leftovers,
)

ENDLESS = (
    "import sys, pathlib\nfrom gramloop.util.files import atomic_write\n"
    "while True:\n    for letter in sys.argv[2].encode():\n"
    "        atomic_write(pathlib.Path(sys.argv[1]), bytes([letter]) * 8_000_000)\n"
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def endless_writers(path, letters):
    writers = [subprocess.Popen([sys.executable, "-c", ENDLESS, str(path), each]) for each in letters]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_written_is_read(tmp_path, durable):
    path = tmp_path / "deep" / "down" / ("n" * 255)  # as long as a name may be
    for data in (b"first", b"", b"second" * 100_000):
        atomic_write(path, data, durable=durable)
        assert path.read_bytes() == data
    assert names(path.parent) == [path.name]


def test_a_durable_file_is_on_the_disk_before_and_after_it_gets_its_name(tmp_path, monkeypatch):
    path, steps = tmp_path / "result", []
    really, rename = os.fsync, os.replace

    def synced(handle):
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        assert os.fstat(handle).st_size >= 4  # nothing is left in a buffer
        really(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("name"), rename(*names)))
    atomic_write(path, b"data")
    assert steps == ["name"]
    atomic_write(path, b"data", durable=True)
    assert steps == ["name", "file", "name", "folder"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, durable):
    (tmp_path / "taken").mkdir()
    with pytest.raises(GramLoopError) as caught:
        atomic_write(tmp_path / "taken", b"data", durable=durable)
    sentence = str(caught.value)
    assert sentence.startswith(f"cannot write {tmp_path / 'taken'}: ")
    assert (RESUME_HINT in sentence) == durable
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(GramLoopError, match=f"cannot write to the folder {tmp_path / 'file'}"):
        atomic_write(tmp_path / "file" / "below", b"data", durable=durable)
    with pytest.raises(GramLoopError, match="cannot write to the folder"):
        make_folder(tmp_path / "file" / "below")
    assert names(tmp_path) == ["file", "taken"]
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(GramLoopError, match=r"cannot write .*shut/file: Permission denied"):
        atomic_write(tmp_path / "shut" / "file", b"data")


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    atomic_write(tmp_path / "file", b"before")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "file", b"after", durable=True)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_new_files_have_the_usual_permissions(tmp_path, mask):
    before = os.umask(mask)
    try:
        (tmp_path / "plain").write_bytes(b"")
        atomic_write(tmp_path / "ours", b"", durable=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o666 & ~mask
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_where_the_temporary_file_would_be_is_not_followed(tmp_path, monkeypatch):
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_bytes(b"precious")
    out.mkdir()
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)  # guessed, for once
    planted = out / f"{TEMPORARY}{'0' * 32}"
    for target in (victim, tmp_path / "not there yet"):
        planted.symlink_to(target)
        with pytest.raises(GramLoopError, match=f"cannot write {out / 'result'}: File exists"):
            atomic_write(out / "result", b"data")
        assert names(out) == [planted.name]  # somebody else's: it is not ours to remove either
        planted.unlink()
    atomic_write(out / "result", b"data")
    assert names(out) == ["result"]
    assert victim.read_bytes() == b"precious"
    assert names(tmp_path) == ["out", "victim"]


def test_a_link_of_the_files_own_name_is_replaced(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "result").symlink_to(tmp_path / "victim")
    atomic_write(tmp_path / "result", b"data")
    assert not (tmp_path / "result").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_temporary_names_never_repeat(tmp_path, monkeypatch):
    seen, rename = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(old.name), rename(old, new)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: atomic_write(tmp_path / "one", b"%d" % number), range(100)))
    assert len(set(seen)) == 100
    assert all(name.startswith(TEMPORARY) for name in seen)
    assert names(tmp_path) == ["one"]


def test_two_writers_and_a_reader_see_whole_files(tmp_path):
    path = tmp_path / "result"
    with endless_writers(path, ["a", "b"]):
        seen = set()
        wait_for(lambda: path.exists())
        deadline = time.monotonic() + 30
        while len(seen) < 2 and time.monotonic() < deadline:
            data = path.read_bytes()
            assert len(data) == 8_000_000
            assert data.count(data[:1]) == len(data)
            seen.add(data[:1])
    assert seen == {b"a", b"b"}


def test_a_killed_writer_leaves_the_old_or_the_new_file_and_a_leftover_that_goes(tmp_path):
    path = tmp_path / "result"
    for _ in range(20):  # until a kill falls into the middle of a write
        with endless_writers(path, ["ab"]):
            wait_for(lambda: path.exists() and len(names(tmp_path)) == 2)
        data = path.read_bytes()
        assert len(data) == 8_000_000
        assert data in (b"a" * len(data), b"b" * len(data))
        if len(names(tmp_path)) > 1:
            break
    assert len(names(tmp_path)) == 2
    remove_leftovers(tmp_path, alone=True)
    assert names(tmp_path) == ["result"]


def test_an_unfinished_file_is_a_leftover_after_a_day_or_where_nobody_else_writes(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / f"{TEMPORARY}folder").mkdir()
    old, new, kept = (tmp_path / name for name in (f"below/{TEMPORARY}1", f"{TEMPORARY}2", "result"))
    for path in (old, new, kept):
        path.write_bytes(b"half")
    for path in (old, kept):
        os.utime(path, (time.time() - 90_000,) * 2)  # more than a day old
    remove_leftovers(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)
    remove_leftovers(tmp_path, alone=True)
    assert names(tmp_path) == [f"{TEMPORARY}folder", "below", "result"]


def test_a_leftover_that_is_a_link_costs_its_target_nothing(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{TEMPORARY}link").symlink_to(tmp_path / "victim")
    remove_leftovers(tmp_path / "out", alone=True)
    assert names(tmp_path / "out") == []
    assert (tmp_path / "victim").read_bytes() == b"precious"


fcntl = pytest.importorskip("fcntl")

HOLDER = (
    "import sys, time, pathlib\nfrom gramloop.util.files import locked\n"
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


def test_every_file_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b/2.png", "a.png", "b/c/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)] == [
        "a.png",
        "b/2.png",
        "b/c/1.png",
    ]


def test_what_vanishes_meanwhile_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is deleted between being seen and being looked into."""
    (tmp_path / "goes").mkdir()
    (tmp_path / "stays").mkdir()
    (tmp_path / "stays" / "file").touch()
    look_into = os.scandir

    def too_late(path: str) -> object:
        if Path(path).name == "goes":
            os.rmdir(path)
        return look_into(path)

    monkeypatch.setattr(os, "scandir", too_late)
    assert files_below(tmp_path) == [tmp_path / "stays" / "file"]
    assert not (tmp_path / "goes").exists()


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", refuse)  # tests may run as root, who may read everything
    with pytest.raises(GramLoopError, match=f"cannot list the folder {tmp_path}: Permission denied"):
        files_below(tmp_path)


def test_a_file_that_is_gone_has_no_checksum(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match=r"cannot read the file .*gone: No such file"):
        file_digest(tmp_path / "gone")
