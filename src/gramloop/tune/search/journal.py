"""What has been measured, kept as it comes: one line of JSON per trial, each with the plan's hash and a checksum.

A line is there or it is not. One that was torn by a kill is dropped when the search goes on, and its trial is run
again. A journal of another plan is refused, never mixed in.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.util.files import RESUME_HINT, atomic_write, remove_leftovers
from gramloop.util.json_files import checked, first_difference, read_json

PLAN, TRIALS = "plan.json", "trials.jsonl"
_UNDECIDED = ("where", "begun")  # entries of a plan that do not decide the outcome


class Journal:
    """The finished trials of one plan; in memory alone where no folder is given."""

    def __init__(self, plan: Mapping[str, Any], folder: Path | None = None) -> None:
        self.hash = plan_hash(plan)
        self.done: dict[str, dict[str, Any]] = {}
        self._stream: Any = None
        self._path = None if folder is None else folder / TRIALS
        if folder is not None:
            self._begin(folder, plan)

    def add(self, result: dict[str, Any]) -> None:
        """Keep a finished trial, on disk before anything else happens."""
        self.done[result["job"]] = result
        if self._stream is None:
            return
        try:
            self._stream.write(_line(self.hash, result))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise GramLoopError(f"cannot write {self._path}: {error.strerror}; {RESUME_HINT}") from error

    def close(self) -> None:
        """Let go of the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _begin(self, folder: Path, plan: Mapping[str, Any]) -> None:
        assert self._path is not None
        if check_folder(folder, plan) is None:
            atomic_write(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode(), durable=True)
        remove_leftovers(folder)
        # without a torn line, so that the next one begins afresh
        atomic_write(self._path, b"".join(self._read()), durable=True)
        try:
            self._stream = self._path.open("ab")
        except OSError as error:
            raise GramLoopError(f"cannot write {self._path}: {error.strerror}") from error

    def _read(self) -> list[bytes]:
        assert self._path is not None
        kept = []
        for line in self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []:
            owner, result = _parsed(line)
            if result is None:
                continue
            if owner != self.hash:
                raise GramLoopError(f"{self._path} holds trials of the plan {owner}, not of {self.hash}")
            self.done[result["job"]] = result
            kept.append(line)
        return kept


def check_folder(folder: Path, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan in a folder, None where there is none; refuse one that another search was begun in. Nothing is written."""
    found = read_search_plan(folder)
    if found is not None and plan_hash(found) != plan_hash(plan):
        raise GramLoopError(
            f"{folder} holds a search with {first_difference(found, plan, skip=_UNDECIDED)}; choose another folder, "
            "or ask for what it was begun with"
        )
    if found is None and (folder / TRIALS).exists():
        raise GramLoopError(f"{folder} has {TRIALS} but no {PLAN}; choose another folder")
    return found


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over everything that decides the outcome; where files lie and the day do not."""
    content = {name: value for name, value in plan.items() if name not in _UNDECIDED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_search_plan(folder: Path) -> dict[str, Any] | None:
    """The plan in a folder, None where there is none."""
    path = folder / PLAN
    if not path.is_file():
        return None
    what = "a plan written by gramloop tune"
    plan: dict[str, Any] = checked(read_json(path, what), dict[str, Any], str(path), what)
    if plan.get("kind") != "gramloop tune":
        raise GramLoopError(f"{path} is not {what}: it is of the kind {plan.get('kind')!r}")
    return plan


def _line(owner: str, result: Mapping[str, Any]) -> bytes:
    text = json.dumps(result, separators=(",", ":"))
    return f"{owner} {_checksum(text)} {text}\n".encode()


def _parsed(line: bytes) -> tuple[str, dict[str, Any] | None]:
    parts = line.decode(errors="replace").split(" ", 2)
    if len(parts) != 3 or not line.endswith(b"\n") or _checksum(parts[2].rstrip("\n")) != parts[1]:
        return "", None
    return parts[0], json.loads(parts[2])


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
