"""Download a file from its official URL and verify it before it replaces the old one."""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from workloads.data.cache import file_lock, replacing
from workloads.data.errors import DataError, DataUnreachable
from workloads.data.source import SourceFile

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


def download(source: SourceFile, folder: Path) -> Path:
    """Download a file into the dataset's folder and return its path. Replaces nothing before it is verified.

    Raises:
        DataUnreachable: no network, no answer, or an interrupted transfer.
        DataError: the bytes are not the expected ones, or the folder cannot be written.
    """
    target = folder / source.path
    checksum = hashlib.sha256()
    size = 0
    try:
        with file_lock(folder / ".fetch.lock"), replacing(target) as file:
            for chunk in _member(source, folder) if source.member else _chunks(source.url, folder):
                checksum.update(chunk)
                size += len(chunk)
                file.write(chunk)
                if 0 < source.size < size:  # longer than the file
                    break
            if not source.accepts(size, checksum.hexdigest()):
                raise DataError(
                    f"the file from {source.url} is not the dataset's",
                    got=f"{'at least ' * (0 < source.size < size)}{size} bytes, sha256 {checksum.hexdigest()}",
                    expected=f"{source.size or 'some'} bytes" + f", sha256 {source.sha256}" * bool(source.sha256),
                    fix="Nothing was changed. Try again; if it happens again, the source has changed",
                )
    except OSError as error:
        raise DataError(
            f"the download cannot be written ({error.strerror or error})",
            file=target,
            fix="Set ORCHESTRATOR_DATA to a folder that can be written",
        ) from error
    return target


def _member(source: SourceFile, folder: Path) -> Iterator[bytes]:
    """Download one file of an archive."""
    with tempfile.TemporaryFile(dir=folder) as archive:
        for chunk in _chunks(source.url, folder):
            archive.write(chunk)
        try:
            with zipfile.ZipFile(archive) as opened, opened.open(source.member) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except (zipfile.BadZipFile, KeyError) as error:
            raise DataError(
                f"the file from {source.url} is not the dataset's archive",
                got=str(error),
                expected=f"a ZIP archive with {source.member}",
                fix="Nothing was changed. Try again; if it happens again, the source has changed",
            ) from error


def _chunks(url: str, folder: Path) -> Iterator[bytes]:
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
            f"{url} cannot be downloaded ({reason})",
            fix=f"Connect to the network and try again, or copy the dataset's files to {folder}",
        ) from error
