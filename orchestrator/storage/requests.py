"""Requests to the driver of a run: files in its folder, which every machine with access to the storage can add.

They stay there. The driver records which ones it has applied, and a request to a run without a driver waits for the
next one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.provenance import private_files
from orchestrator.storage import disk, lease, remote
from orchestrator.storage.remote import Remote

FOLDER = "requests"


def send(folder: Path, values: Mapping[str, Any]) -> str:
    """Add a request to the run in ``folder``. Returns its id. Raises OSError if the storage cannot be written."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    location = remote.location_of(folder)
    if location is not None and not lease.driven_here(folder):
        (location / FOLDER).write(f"{name}.json", json.dumps(values).encode())
        return name
    private_files.make_folder(folder / FOLDER)
    disk.write_json(folder / FOLDER / f"{name}.json", values)
    return name


def read(folder: Path, known: Container[str] = ()) -> list[tuple[str, dict[str, Any]]]:
    """Id and values of every request to the run in ``folder`` that is not ``known``, the oldest first.

    Damaged files are skipped.
    """
    requests = []
    for file in sorted((folder / FOLDER).glob("*.json")):
        if file.stem in known:
            continue
        with suppress(OSError):
            if (values := private_files.read_json(file)) is not None:
                requests.append((file.stem, values))
    return requests


def fetch(folder: Path, storage: Remote) -> None:
    """Copy new requests from the storage of the run in ``folder``. Raises OSError if it cannot be read.

    An object that is not directly below its folder is no request: its name could lead out of the run's folder.
    """
    for name in (storage / FOLDER).files():
        if name.endswith(".json") and "/" not in name and not (folder / FOLDER / name).exists():
            (storage / FOLDER).fetch(name, folder / FOLDER / name)
