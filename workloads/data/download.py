"""One file from its official URL, verified before it takes its place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from workloads.data.cache import file_lock, replacing
from workloads.data.errors import DataError, DataUnreachable
from workloads.data.source import SourceFile

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


def download(source: SourceFile, folder: Path) -> Path:
    """Fetch one file into the dataset's folder and return its path. Until it is verified nothing is replaced.

    Raises:
        DataUnreachable: no network, no answer, or the transfer broke off.
        DataError: the bytes are not the expected ones, or the folder can not be written.
    """
    target = folder / source.path
    found, size = hashlib.sha256(), 0
    try:
        with file_lock(folder / ".fetch.lock"), replacing(target) as file:
            for chunk in _chunks(source.url, folder):
                found.update(chunk)
                size += len(chunk)
                file.write(chunk)
                if size > source.size:  # enough to know that it is not the file
                    break
            if (size, found.hexdigest()) != (source.size, source.sha256):
                raise DataError(
                    f"what {source.url} sends is not the file of the dataset",
                    got=f"{'at least ' * (size > source.size)}{size} bytes, sha256 {found.hexdigest()}",
                    expected=f"{source.size} bytes, sha256 {source.sha256}",
                    fix="Nothing was changed; try again, and if it stays so the source has changed",
                )
    except OSError as error:
        raise DataError(
            f"the download can not be written ({error.strerror or error})",
            file=target,
            fix="Set ORCHESTRATOR_DATA to a folder that can be written",
        ) from error
    return target


def _chunks(url: str, folder: Path) -> Iterator[bytes]:
    # Imported here: urllib.request costs a start-up that most commands do not owe.
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            remaining = int(answer.headers.get("Content-Length", 0))
            while chunk := answer.read(_CHUNK_BYTES):
                remaining -= len(chunk)
                yield chunk
            if remaining > 0:
                raise ConnectionError(f"the transfer broke off {remaining} bytes before its end")
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataUnreachable(
            f"{url} can not be downloaded ({reason})",
            fix=f"Connect to the network and try again, or copy the dataset's files to {folder}",
        ) from error
