"""The server of the page: its own socket, its own folder for uploads, and no word to anybody else."""

from __future__ import annotations

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

from gramloop.app.memory import release, settle
from gramloop.app.settings import AppSettings
from gramloop.errors import GramLoopError

PORTS = range(7860, 7960)  # where a free one is looked for
_SCENES = (10, 7, 4, 21, 1, 12, 26, 17)  # of the split "val"
# without these it sums up all requests that it remembers after each one, for a page that is not offered here
_GRADIO = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_MAX_EVENTS": "1",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9),
}
_PATIENCE = 60.0  # seconds until the server must listen; a busy machine is no reason to fail


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    bench: Any  # gramloop.app.trial.Bench
    server: Any  # uvicorn.Server
    thread: threading.Thread


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
    """The app for a ``with`` block; uploads are deleted at its end."""
    listening = open_socket(settings.host, port)
    private = tempfile.mkdtemp(prefix="gramloop-app-")  # for this user's eyes alone
    told = {**_GRADIO, "GRADIO_TEMP_DIR": private}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        running = _start(settings, listening, Path(private))
        try:
            yield running
        finally:
            running.server.should_exit = True
            running.thread.join(timeout=10)
            release()
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
    scenes = _draw_scenes(private)
    app = _asgi(settings, bench, scenes, number)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    begin = time.monotonic()
    while not server.started:
        if not thread.is_alive() or time.monotonic() - begin > _PATIENCE:
            raise GramLoopError("the server of the page did not start; the lines above say more")
        time.sleep(0.01)
    threading.Thread(target=_first_trial, args=(bench, scenes[0], server), daemon=True).start()
    name = f"[{host}]" if ":" in host else host
    shown = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(name, name)
    return Running(f"http://{shown}:{number}/", bench, server, thread)


def _first_trial(bench: Any, scene: Path, server: Any) -> None:
    """What a new page shows, so that its first visitor waits less; what is in memory then is there to stay."""
    from gramloop.app.try_tab import try_once

    try_once(bench, scene)
    if not server.should_exit:
        settle()


def _asgi(settings: AppSettings, bench: Any, scenes: list[Path], port: int) -> Any:
    """The page as an application, shielded."""
    import gradio as gr
    from fastapi import FastAPI

    from gramloop.app.page import CSS, build, look
    from gramloop.app.shielding import Shield

    page = build(bench, scenes)
    undocumented: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    mounted = gr.mount_gradio_app(
        FastAPI(**undocumented),
        page,
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
        theme=look(),
        css=CSS,
    )
    hosts = frozenset({"127.0.0.1", "localhost", "::1", settings.host}) if settings.local else frozenset()
    return Shield(mounted, hosts)


def _draw_scenes(private: Path) -> list[Path]:
    """The embedded scenes as files."""
    from PIL import Image

    from gramloop.data.scenes.drawing import scene

    folder = private / "scenes"
    folder.mkdir()
    paths = []
    for index in _SCENES:
        path = folder / f"scene-{index:04d}.png"
        Image.fromarray(scene(index, split="val").image).save(path)
        paths.append(path)
    return paths
