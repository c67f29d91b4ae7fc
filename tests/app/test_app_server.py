"""The server: its address, which requests it answers, what it discloses, and that it leaves nothing behind."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")


from gramloop.app.page import image_input, serving, with_messages
from gramloop.app.trial import AppSettings, OfferedModel
from gramloop.cli import main
from gramloop.errors import GramLoopError


@pytest.fixture(scope="module")
def url(small_model: Path) -> Iterator[str]:
    source = OfferedModel("small", {"folder": str(small_model)})
    with serving(AppSettings((source,)), port=0) as running:
        yield running.url


def get(address: str, **headers: str) -> tuple[int, dict[str, str], str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode(errors="replace")


def test_the_page_names_no_other_host_to_load_from(url: str) -> None:
    status, headers, page = get(url)
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    for mark in ("src=", "href="):
        for part in page.split(mark)[1:]:
            assert not part.lstrip("\"'").startswith(("http", "//")), part[:80]
    assert json.loads(get(f"{url}config")[2])["analytics_enabled"] is False
    assert "googleapis" not in get(f"{url}theme.css")[2]


def test_only_its_own_host_name_is_answered(url: str) -> None:
    port = url.rstrip("/").rpartition(":")[2]
    assert get(url, Host="evil.example")[0] == 421
    assert get(url, Host=f"evil.example:{port}")[0] == 421
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
        assert get(url, Host=f"{name}:{port}")[0] == 200


def test_no_file_of_the_machine_is_served(url: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    for path in (secret, "/etc/passwd", Path(__file__).resolve(), "../../../../etc/passwd"):
        status, _, body = get(f"{url}gradio_api/file={path}")
        assert status in (403, 404)
        assert "hidden" not in body
        assert "root:" not in body
    assert json.loads(get(f"{url}gradio_api/info")[2])["named_endpoints"] == {}
    for page in ("docs", "redoc", "openapi.json", "monitoring"):
        assert get(url + page)[0] in (403, 404), page


def test_addresses_are_not_fetched() -> None:
    import gradio as gr

    with gr.Blocks(analytics_enabled=False):
        image = image_input()
    for address in ("http://127.0.0.1:1/x.png", "https://example.org/x.png", "FTP://example.org/x.png"):
        with pytest.raises(gr.Error, match="addresses are not fetched"):
            asyncio.run(image.async_move_resource_to_block_cache(address))


def test_failures_become_messages(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> str:
        raise error

    safely = with_messages(fail)
    assert "The file &lt;b&gt; is odd." in safely(GramLoopError("the file <b> is odd"))
    shown = safely(ZeroDivisionError("at /home/user/secret.py"))
    assert "unexpected error" in shown
    assert "secret" not in shown
    assert "ZeroDivisionError" in capsys.readouterr().err  # for whoever runs the app


def test_a_port_that_is_taken(small_model: Path) -> None:
    settings = AppSettings((OfferedModel("small", {"folder": str(small_model)}),))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(GramLoopError, match=rf"cannot listen on --host 127\.0\.0\.1, --port {port}"):
            serving(settings, port).__enter__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "--port is 70000; it is 0 to 65535"),
        (["--model", "no-such-model"], "there is no model 'no-such-model'"),
        (["--results", "/no/such"], "--results /no/such is no folder"),
        (["--backbone", "x.pth"], "--head FILE is missing"),
        (["--device", "abacus"], "abacus"),
        (["--calibration", "no.json"], "--calibration no.json is no file"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_the_command_refuses_wrong_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["app", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_the_command_starts_and_ends(tmp_path: Path) -> None:
    """From the shell: it prints its address, and a signal ends it and deletes uploads."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))",
    ]
    command += ["app", "--port", "0"]
    process: Any = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    address = process.stdout.readline().split()[0]
    assert get(address)[0] == 200
    assert list(tmp_path.glob("gramloop-app-*"))
    process.terminate()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "Traceback" not in error
    assert not list(tmp_path.glob("gramloop-app-*"))
