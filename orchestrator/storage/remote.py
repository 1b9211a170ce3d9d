"""Object storage at a URI, and its local mirror folder.

The URI is any that pyarrow supports. Objects cannot be appended to, locked or renamed, and their endpoint may be out of
reach. So a run is always in a plain folder; with a URI as its storage that folder is a local copy, in the home, under
a name made from the URI. Credentials come from the environment only (``AWS_ACCESS_KEY_ID``, a profile, the role of an
instance ...).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.provenance import private_files
from workloads.data.stores import file_system

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

MIRROR = "mirror"
"""Folder in the home with the local copies of object storages."""

CONNECT_SECONDS, REQUEST_SECONDS = 2.0, 10.0
CHECK_SECONDS = 5.0
"""Time limit of :meth:`Remote.check`."""

REASONS = {
    "NO_SUCH_BUCKET": ("there is no such bucket", "Make it, or correct --storage"),
    "ACCESS_DENIED": ("permission denied", "Check the credentials in the environment and the bucket's rights"),
    "INVALID_ACCESS_KEY_ID": ("the access key is not known", "Check the credentials in the environment"),
    "SIGNATURE_DOES_NOT_MATCH": ("the secret key is wrong", "Check the credentials in the environment"),
    "NETWORK_CONNECTION": ("nothing answers", "Start it, or correct AWS_ENDPOINT_URL_S3"),
}
"""Error texts of the AWS client, with an explanation and a fix."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Size of an object in bytes and the time it was written, by the storage's clock (Unix seconds)."""

    size: int
    time: float


@dataclass(frozen=True, slots=True)
class Remote:
    """Objects below ``uri``, by their relative names. Every error of the storage is an OSError."""

    uri: str
    request_seconds: float = REQUEST_SECONDS

    def __truediv__(self, name: str) -> Remote:
        return replace(self, uri=f"{self.uri}/{name}")

    def files(self) -> dict[str, Stored]:
        """All objects below, at any depth."""
        system, base = self._opened()
        return {
            entry.path[len(base) + 1 :]: _stored(entry)
            for entry in system.get_file_info(_selector(base, recursive=True))
            if entry.is_file
        }

    def folders(self) -> list[str]:
        """Names of the folders directly below."""
        system, base = self._opened()
        entries = system.get_file_info(_selector(base, recursive=False))
        return sorted(entry.base_name for entry in entries if not entry.is_file)

    def find(self, name: str) -> Stored | None:
        system, base = self._opened()
        entry = system.get_file_info(f"{base}/{name}")
        return _stored(entry) if entry.is_file else None

    def read(self, name: str) -> bytes | None:
        """Content of an object; None if it does not exist."""
        system, base = self._opened()
        try:
            with system.open_input_stream(f"{base}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with self._output(name) as stream:
            stream.write(content)

    def send(self, file: Path, name: str) -> None:
        """Write the object ``name`` from a file. Raises FileNotFoundError if the file does not exist."""
        with file.open("rb") as source, self._output(name) as stream:
            shutil.copyfileobj(source, stream, 1 << 22)

    def fetch(self, name: str, file: Path) -> None:
        """Write ``file`` atomically from the object ``name``. Raises FileNotFoundError if it does not exist."""
        system, base = self._opened()
        partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
        private_files.make_folder(file.parent)
        try:
            with system.open_input_stream(f"{base}/{name}") as source, private_files.open_file(partial, "wb") as stream:
                shutil.copyfileobj(source, stream, 1 << 22)
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""
        system, base = self._opened()
        with suppress(FileNotFoundError):
            system.delete_file(f"{base}/{name}")

    def remove_folder(self, name: str) -> None:
        """Remove all objects below ``name``."""
        system, base = self._opened()
        with suppress(FileNotFoundError):
            system.delete_dir(f"{base}/{name}")

    def now(self) -> float:
        """Time of the storage's clock (Unix seconds). Writes and removes an object."""
        name = f".probe-{os.getpid()}-{threading.get_ident()}"
        self.write(name, b"probe")
        probe = self.find(name)
        self.remove(name)
        if probe is None:
            raise OSError("what was written is not there")
        return probe.time

    def check(self) -> None:
        """Write, find and remove an object. Raises UserError (exit 3) within seconds if that fails."""
        outcome: list[OSError] = []
        hasty = replace(self, request_seconds=CHECK_SECONDS - 2)

        def probe() -> None:
            try:
                hasty.find("probe")  # a request fails sooner than a write if the endpoint does not answer
                hasty.now()
            except OSError as error:
                outcome.append(error)

        # In a thread, since an endpoint may accept the connection and never answer.
        asking = threading.Thread(target=probe, name="storage-check", daemon=True)
        asking.start()
        asking.join(CHECK_SECONDS)
        if asking.is_alive():
            raise unusable(self.uri, TimeoutError(f"no answer within {CHECK_SECONDS:g} s"))
        if outcome:
            raise unusable(self.uri, outcome[0])

    def _output(self, name: str) -> Any:
        system, base = self._opened()
        path = f"{base}/{name}"
        if system.type_name not in ("s3", "gcs", "abfs"):
            system.create_dir(str(PurePosixPath(path).parent), recursive=True)
        return system.open_output_stream(path)

    def _opened(self) -> tuple[FileSystem, str]:
        scheme, _, below = self.uri.partition("://")
        host, _, path = below.partition("/")
        system, base = _open(f"{scheme}://{host or '/'}", self.request_seconds)
        return system, f"{base.rstrip('/')}/{path}".rstrip("/")


def normal(uri: str) -> str:
    """The URI without trailing slashes. Raises UserError if it contains a secret or is not a storage."""
    parts = urlsplit(uri.strip())
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "The storage address may contain only scheme, bucket and prefix",
            got=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}, with more around it",
            allowed="s3://BUCKET/PREFIX",
            fix="Credentials and endpoint come from the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3",
        )
    text = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    if not parts.netloc or len(_slug(text)) > 200:
        raise UserError("The storage address is not valid", got=repr(uri), allowed="s3://BUCKET/PREFIX")
    return text


def mirror_of(uri: str, home: Path) -> Path:
    """Local folder of the storage ``uri``."""
    return home / MIRROR / _slug(uri)


def uri_of(storage: Path) -> str | None:
    """URI of a storage's local folder; None for a plain folder."""
    if storage.parent.name != MIRROR or "~3A~2F~2F" not in storage.name:
        return None
    return unquote(storage.name.replace("~", "%"))


def location_of(path: Path) -> Remote | None:
    """Storage of ``path``, a storage's local folder or a path below it; None for a plain path."""
    for parent in (path, *path.parents):
        if uri := uri_of(parent):
            below = path.relative_to(parent).as_posix()
            return Remote(uri) if below == "." else Remote(uri) / below
    return None


def run_folder(path: Path) -> Path | None:
    """Folder of the run or sweep that contains ``path``; None outside a storage's local folder."""
    return next((parent for parent in (path, *path.parents) if uri_of(parent.parent)), None)


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Convert the errors of the storage at ``uri`` to UserError (exit 3)."""
    try:
        yield
    except OSError as error:
        raise unusable(uri, error) from None


def unusable(uri: str, error: OSError) -> UserError:
    what, fix = reason(error)
    return UserError(f"The storage {uri} cannot be used: {what}", fix=fix, code=UNAVAILABLE)


def reason(error: Exception) -> tuple[str, str]:
    """Explanation of an error, and its fix."""
    text = str(error)
    if words := next((text_and_fix for code, text_and_fix in REASONS.items() if code in text), None):
        return words
    message = re.search(r"Message: (.*?)(?: \(Request ID|$)", text) or re.search(
        r"operation: (.*?)(?: \(Request ID|$)", text
    )
    fix = "Check the endpoint and the credentials in the environment"
    return (message[1].strip() if message else one_line(error)), fix


def _slug(uri: str) -> str:
    return quote(uri, safe="").replace("~", "%7E").replace("%", "~")


def _selector(base: str, *, recursive: bool) -> Any:
    from pyarrow.fs import FileSelector

    return FileSelector(base, recursive=recursive, allow_not_found=True)


def _stored(entry: FileInfo) -> Stored:
    return Stored(entry.size, (entry.mtime_ns or 0) / 1e9)


@lru_cache
def _open(uri: str, request_seconds: float) -> tuple[FileSystem, str]:
    """File system of a bucket, and the path in it. Raises OSError."""
    return file_system(uri, connect=CONNECT_SECONDS, request=request_seconds, attempts=1)  # callers retry
