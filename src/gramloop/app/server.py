"""The server of the page: a private folder for uploads, one known host name, and nothing from other hosts."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramloop.app.settings import AppSettings
from gramloop.errors import GramLoopError

PORTS = range(7860, 7960)  # searched for a free one
_GRADIO = {  # otherwise gradio summarises all remembered requests after each one
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "1",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9),
}
_PATIENCE = 60.0  # seconds until the server must listen
_HEADERS = (  # nothing may come from, or go to, another host; gradio needs inline scripts and styles
    (
        b"content-security-policy",
        b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; "
        b"form-action 'self'; base-uri 'self'; frame-ancestors 'self'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    bench: Any  # gramloop.app.trial.Bench
    server: Any  # uvicorn.Server
    thread: threading.Thread
    first_trial: threading.Thread


class Shield:
    """Answers requests that name one of ``hosts`` (any if empty), with headers that keep browsers on this host.

    A web site that points its own host name at this machine is refused.
    """

    def __init__(self, app: Any, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(each for each in _HEADERS if each[0] not in names),
                ]
            await send(message)

        if scope["type"] == "http" and self._hosts and _host(scope) not in self._hosts:
            text = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 421, "headers": text})
            await send({"type": "http.response.body", "body": b"This page has another address.\n"})
        else:
            await self._app(scope, receive, with_headers)


def _host(scope: Any) -> str:
    """The host name of a request, without a port."""
    given = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    name, _, port = given.rpartition(":")
    return (name if port.isdigit() else given).strip("[]").lower()


def open_socket(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port, the first free one; with 0, any."""
    for each in PORTS if port is None else (port,):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, each, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise GramLoopError(f"--host {host} is no address of this machine; 127.0.0.1 is") from error
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(address)
            found.listen(128)
        except (OSError, OverflowError) as error:
            found.close()
            if port is not None or getattr(error, "errno", None) == 99:  # not an address of this machine
                reason = getattr(error, "strerror", None) or error
                raise GramLoopError(f"cannot listen on {host}, port {each}: {reason}") from error
            continue
        return found
    raise GramLoopError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on {host}; name one with --port")


@contextmanager
def serving(settings: AppSettings, port: int | None = None) -> Iterator[Running]:
    """The app for a ``with`` block; uploads are deleted at its end.

    Args:
        settings: What the page is built from.
        port: None for the first free one from 7860 on, 0 for any.
    """
    listening = open_socket(settings.host, port)
    private = tempfile.mkdtemp(prefix="gramloop-app-")  # readable by this user alone
    variables = {**_GRADIO, "GRADIO_TEMP_DIR": private}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        running = _start(settings, listening, Path(private))
        try:
            yield running
        finally:
            running.server.should_exit = True
            running.thread.join(timeout=10)
            running.first_trial.join(timeout=30)  # torch aborts the process if it ends amid a prediction
            gc.unfreeze()
    finally:
        listening.close()
        shutil.rmtree(private, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _start(settings: AppSettings, listening: socket.socket, private: Path) -> Running:
    import uvicorn

    from gramloop.app.trial import Bench

    bench = Bench(settings)
    host, number = listening.getsockname()[:2]
    scenes = _write_scenes(private)
    options: Any = {"log_level": "warning", "access_log": False, "ws": "none"}
    app = _application(settings, bench, scenes, number)
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    begin = time.monotonic()
    while not server.started:
        if not thread.is_alive() or time.monotonic() - begin > _PATIENCE:
            raise GramLoopError("the server of the page did not start; the lines above say more")
        time.sleep(0.01)
    first = threading.Thread(target=_first_trial, args=(bench, scenes[0], server), daemon=True)
    first.start()
    name = f"[{host}]" if ":" in host else host
    shown = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(name, name)
    return Running(f"http://{shown}:{number}/", bench, server, thread, first)


def _first_trial(bench: Any, scene: Path, server: Any) -> None:
    """Compute what a new page shows, and exempt what is in memory by then from every later garbage collection."""
    from gramloop.app.page import try_first

    try_first(bench, scene)
    if not server.should_exit:
        gc.collect()
        gc.freeze()


def _application(settings: AppSettings, bench: Any, scenes: list[Path], port: int) -> Any:
    import gradio as gr
    from fastapi import FastAPI

    from gramloop.app.page import CSS, build, theme

    undocumented: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    mounted = gr.mount_gradio_app(
        FastAPI(**undocumented),
        build(bench, scenes),
        path="/",
        server_name=settings.host,
        server_port=port,
        app_kwargs=undocumented,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        max_file_size=settings.limits.upload_bytes,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=CSS,
    )
    hosts = {"127.0.0.1", "localhost", "::1", settings.host} if settings.local else set()
    return Shield(mounted, frozenset(hosts))


def _write_scenes(private: Path) -> list[Path]:
    """The scenes that the page offers, as files."""
    from PIL import Image

    from gramloop.app.trial import example_scenes

    (private / "scenes").mkdir()
    paths = []
    for number, picture in enumerate(example_scenes(), start=1):
        paths.append(private / "scenes" / f"scene-{number}.png")
        Image.fromarray(picture.pixels).save(paths[-1])
    return paths
