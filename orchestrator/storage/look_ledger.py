"""Ledger of looks: before the test split of a dataset is evaluated, a row is added to the dataset's chain.

A chain is a folder of the storage with a file a row: ``000001.json``, ``000002.json`` ... Each row has the SHA-256 of
the one before it. A row is created only where there is none of that number, by a hard link on a file system and by
``If-None-Match`` on S3, so two drivers never write the same one, and a killed one leaves a whole row or none. A store
without conditional writes has a random suffix in the names; two rows may then have the same number.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.storage import conditional, remote
from orchestrator.storage.conditional import Changed

FOLDER = ".looks"
"""Folder of all chains in the storage. No run can have this name."""

FORMAT = 1

RETRY_SECONDS = (1.0, 4.0)
"""Pauses before a row is written again to an object store that has failed."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a row says of the run that opens a test split.

    ``dataset`` is the parameter of this name, ``fingerprint`` that of the data, None where the workload reads none of
    the package's datasets. ``selection`` says how parameters and epochs were chosen, ``spec`` is the fingerprint of the
    experiment.
    """

    storage: Path
    workload: str
    dataset: str | None
    fingerprint: str | None
    run: str
    kind: str
    selection: str
    spec: str
    seed: int
    by: str
    host: str

    @property
    def chain(self) -> str:
        """Name of the dataset's chain."""
        identity = self.fingerprint or f"{self.workload} {self.dataset}"
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "storage"}


@dataclass(frozen=True)
class Row:
    """A row as it is stored."""

    name: str
    content: bytes = field(repr=False)

    @property
    def number(self) -> int:
        return int(self.name[:6])

    @property
    def digest(self) -> str:
        """SHA-256 of the stored bytes, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The row's fields; empty if it is damaged."""
        with suppress(ValueError):
            values = json.loads(self.content)
            return values if isinstance(values, dict) else {}
        return {}


def append(look: Look, epoch: int) -> Row:
    """Add a row for an evaluation of the test split with the model of ``epoch``. Raises OSError."""
    token = secrets.token_hex(8)
    pauses = list(RETRY_SECONDS if remote.location_of(look.storage) else ())
    row = None
    while True:
        try:
            chain = _Chain(look.storage, look.chain)
            names = chain.names()
            if row and row.name in names and chain.read(row.name) == row:  # only the answer to the write was lost
                return row
            row = _next_row(chain, names, look, epoch, token)
            chain.create(row)
            return row
        except (FileExistsError, Changed):  # another process was faster, or the answer to this write was lost
            continue
        except OSError:
            if not pauses:
                raise
            time.sleep(pauses.pop(0))


def chains(storage: Path) -> list[str]:
    """Names of the chains of a storage. Raises OSError."""
    if location := remote.location_of(storage):
        return (location / FOLDER).folders()
    return sorted(folder.name for folder in (storage / FOLDER).glob("*/"))


def rows(storage: Path, name: str) -> list[Row]:
    """The rows of a chain in order. Raises OSError."""
    chain = _Chain(storage, name)
    return [chain.read(one) for one in chain.names()]


def faults(rows: list[Row]) -> list[str]:
    """What shows that rows of a chain were changed or removed, a sentence each. Its end may be missing unseen."""
    sentences = []
    digests: dict[int, set[str]] = {}
    for row in rows:
        digests.setdefault(row.number, set()).add(row.digest)
    for number in range(1, max(digests, default=0)):
        if number not in digests:
            sentences.append(f"row {number} is missing")
    for row in rows:
        fields = row.fields
        previous = fields.get("previous")
        if fields.get("number") != row.number:
            sentences.append(f"row {row.number} is damaged")
        elif fields.get("format") != FORMAT:
            sentences.append(f"row {row.number} is of another format: {fields.get('format')}")
        elif row.number > 1 and row.number - 1 in digests and previous not in digests[row.number - 1]:
            sentences.append(f"row {row.number - 1} is not the one that row {row.number} follows")
        elif row.number == 1 and previous is not None:
            sentences.append("row 1 follows another row")
    return sentences


def _next_row(chain: _Chain, names: list[str], look: Look, epoch: int, token: str) -> Row:
    """The row that follows those of ``names``."""
    last = chain.read(names[-1]) if names else None
    number = last.number + 1 if last else 1
    values = {
        "format": FORMAT,
        "number": number,
        "looks_before": len(names),
        "previous": last and last.digest,
        "split": "test",
        "epoch": epoch,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "token": token,
        **look.to_json(),
    }
    suffix = "" if chain.exclusive else f"-{token}"
    return Row(f"{number:06d}{suffix}.json", json.dumps(values, indent=1).encode())


class _Chain:
    """The files of one chain, in a folder or on an object store."""

    def __init__(self, storage: Path, name: str) -> None:
        location = remote.location_of(storage)
        self._storage = storage
        self._folder = storage / FOLDER / name
        self._location = location / FOLDER / name if location else None
        self._objects = conditional.objects(self._location) if self._location else None

    @property
    def exclusive(self) -> bool:
        """Whether a row's number is taken by one writer only."""
        return self._location is None or self._objects is not None

    def names(self) -> list[str]:
        names = self._location.files() if self._location else (file.name for file in self._folder.glob("*.json"))
        return sorted(name for name in names if name[:6].isdigit())

    def read(self, name: str) -> Row:
        content = self._location.read(name) if self._location else (self._folder / name).read_bytes()
        return Row(name, content or b"")

    def create(self, row: Row) -> None:
        """Raises Changed or FileExistsError if there is such a row."""
        if self._objects:
            self._objects.write(row.name, row.content, None)
        elif self._location:
            self._location.write(row.name, row.content)
        else:
            self._make_folder()
            partial = self._folder / f".{row.name}.{secrets.token_hex(4)}"
            partial.write_bytes(row.content)
            with suppress(OSError):  # a file system without modes
                partial.chmod(self._storage.stat().st_mode & 0o644)  # all who may add the next row read this one
            try:
                os.link(partial, self._folder / row.name)
            finally:
                partial.unlink()

    def _make_folder(self) -> None:
        """Make the chain's folder with the mode of the storage, so that all its users may add rows."""
        for folder in (self._folder.parent, self._folder):
            with suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(self._storage.stat().st_mode & 0o7777)
