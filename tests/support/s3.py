"""A local S3 server with a proxy that can be closed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow.fs import FileSelector, S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
BUCKET = "experiments"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test", "AWS_REGION": "us-east-1"}


class _OneAtATime:
    """moto's application, a request after the other: moto changes its objects without locks."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            return list(self._application(environ, start_response))


class _Silent(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextmanager
def in_this_process() -> Iterator[str]:
    """moto's S3 in threads of this process. Yields its endpoint."""
    server = make_server("127.0.0.1", 0, _OneAtATime(), threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)  # looks for its end so often
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Server:
    """moto's S3 in a separate process, with one empty bucket."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._log = (folder / "s3.log").open("w")
        words = [sys.executable, "-m", __name__, str(self.port)]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=self._log, stderr=self._log, start_new_session=True)
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                break
            assert time.monotonic() < deadline, (folder / "s3.log").read_text()
            time.sleep(0.1)
        self.files = S3FileSystem(
            access_key=KEYS["AWS_ACCESS_KEY_ID"],
            secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region=KEYS["AWS_REGION"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            allow_bucket_creation=True,
        )
        self.files.create_dir(BUCKET)

    def names(self, below: str) -> set[str]:
        """Objects below a prefix of the bucket, by relative names."""
        base = f"{BUCKET}/{below}"
        found = self.files.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
        return {entry.path[len(base) + 1 :] for entry in found if entry.is_file}

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{BUCKET}/{name}") as stream:
            return bytes(stream.read())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class Door:
    """Proxy port; when closed it refuses or, if ``mute``, never answers."""

    def __init__(self, server: Server) -> None:
        self._server, self.port = server, free_port()
        self._open: list[socket.socket] = []
        self._mute = False
        self._listener: socket.socket | None = None
        self.open()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        self.shut()
        self._mute = False
        self._listen()

    def shut(self, *, mute: bool = False) -> None:
        listener, self._listener = self._listener, None
        if listener:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        connections, self._open = self._open, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._mute = mute
        if mute:
            self._listen()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                knocking, _ = listener.accept()
                self._open.append(knocking)
                if not self._mute:
                    beyond = socket.create_connection(("127.0.0.1", self._server.port))
                    self._open.append(beyond)
                    for source, target in ((knocking, beyond), (beyond, knocking)):
                        threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(1 << 16):
            target.sendall(block)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), _OneAtATime(), threaded=True).serve_forever()
