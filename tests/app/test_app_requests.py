"""Requests that the page would not send: each is answered by a message, and the terminal stays quiet."""

import gc
import json
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

from gramloop.app.page import serving
from gramloop.app.trial import AppSettings, OfferedModel

NOTICE = '<p class="gl-notice gl-problem" role="alert">'


class Visitor:
    """Speaks with the server as a page does, with any values in its controls."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.config = self.ask("config")
        parts = {each["id"]: each["props"] for each in self.config["components"]}
        self.trial = next(
            each
            for each in self.config["dependencies"]
            if [event for _, event in each["targets"]] == ["load"]
        )
        self.controls = [parts[number] for number in self.trial["inputs"]]
        self.calls = 0

    def ask(self, path: str, sent: object = None) -> Any:
        body = None if sent is None else json.dumps(sent).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def try_with(self, **changed: object) -> str:
        """What the page is told to show; controls are named by their element or label."""
        names = [str(each.get("elem_id") or each["label"]) for each in self.controls]
        assert set(changed) <= set(names)
        data = [
            changed.get(name, control["value"]) for name, control in zip(names, self.controls, strict=True)
        ]
        self.calls += 1
        session = f"visitor{self.calls}"
        self.ask(
            "gradio_api/queue/join",
            {"data": data, "fn_index": self.trial["id"], "session_hash": session, "event_data": None},
        )
        with urllib.request.urlopen(
            f"{self.url}gradio_api/queue/data?session_hash={session}", timeout=120
        ) as lines:
            for line in lines:
                message = json.loads(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}
                if message.get("msg") == "process_completed":
                    assert message["success"], message
                    return str(message["output"]["data"][0])
        raise AssertionError("the server ended the conversation")


@pytest.fixture(scope="module")
def visitor(small_model: Path) -> Iterator[Visitor]:
    source = OfferedModel("small", {"folder": str(small_model)})
    with serving(AppSettings((source,)), port=0) as running:
        yield Visitor(running.url)


def test_visitors_who_left_are_forgotten(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio keeps what every visitor was shown last; that of a few is kept, whoever comes."""
    from gradio.state_holder import SessionState

    known: list[weakref.ref[SessionState]] = []
    begin = SessionState.__init__

    def noted(session: SessionState, blocks: Any) -> None:
        begin(session, blocks)
        known.append(weakref.ref(session))

    monkeypatch.setattr(SessionState, "__init__", noted)
    for _ in range(20):
        assert "<figure>" in visitor.try_with()
    gc.collect()
    assert len(known) == 20
    assert sum(each() is not None for each in known) <= 16


def test_what_the_page_sends_is_tried(visitor: Visitor) -> None:
    assert "<figure>" in visitor.try_with()
    assert "<figure>" in visitor.try_with(severity=5.0, replay="window=2-3,replays=2,strength=0")
    assert "<figure>" in visitor.try_with(mitigations=None, replay="", shift=None)


@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("replay", "replays=-1", "replays"),
        ("replay", "window=0-3,replays=1000", "times the work of a baseline pass"),
        ("replay", "strength=1.5", "strength"),
        ("replay", "window=0-99", "window"),
        ("replay", "gate=ajar", "gate"),
        ("task", "no such", "no such"),
        ("mitigations", ["no such"], "no such"),
    ],
)
def test_wrong_values_get_a_message(
    visitor: Visitor, control: str, value: object, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = visitor.try_with(**{control: value})
    assert shown.startswith(NOTICE), shown[:200]
    assert message.lower() in shown.lower()
    assert len(shown) < 600
    assert "unexpected" not in shown
    assert capfd.readouterr().err == ""
