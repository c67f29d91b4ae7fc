"""A model hub on this machine: as much of its protocol as a download asks for, with a token that it wants to see."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(repository: str, folder: Path, token: str) -> Iterator[str]:
    """The address of a hub that holds one repository, and gives it to whoever has the token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            path = self.path.split("?")[0]
            if self.headers.get("Authorization") != f"Bearer {token}":
                self._send(401, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
            elif path.startswith(f"/api/models/{repository}"):
                files = [{"rfilename": each.name} for each in sorted(folder.iterdir())]
                about = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": files}
                tree = [
                    {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": "0" * 40}
                    for each in sorted(folder.iterdir())
                ]
                self._send(200, json.dumps(tree if "/tree/" in path else about).encode(), {}, with_body)
            elif path.startswith(f"/{repository}/resolve/"):
                content = (folder / path.rsplit("/", 1)[1]).read_bytes()
                tag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                self._send(200, content, tag, with_body)
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
