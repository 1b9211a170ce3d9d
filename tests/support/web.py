"""A web server on loopback, for as long as a test asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Answers a GET by its method ``get``, a POST by ``post`` and so on, and writes no line for each."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("do_"):
            raise AttributeError(name)
        return getattr(self, name.removeprefix("do_").lower())

    def respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: SSLContext | None = None) -> Iterator[str]:
    """The address of a server that answers by ``handler``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
