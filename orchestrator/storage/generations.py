"""Folders of a run's successive drivers, so that an overtaken driver cannot replace what its successor stores.

A driver that is stopped, or cut off from the storage, for longer than its lease lasts does not know that another one
has taken over. Once it goes on it may complete a write that it began before, however often it looks at the lease: no
storage makes the write of one object depend on another object. So a driver whose predecessor may still live does not
share a folder with it. It goes on from a copy in a sibling, ``ID@GENERATION``, and readers take the folder with the
highest generation that has a record (a record is stored last). What the predecessor writes, replaces or removes stays
in the folder of its own generation. A predecessor that is known to be gone (its record says how it ended, or its
process was of this machine) leaves its folder to the next driver; so most runs have one folder, ``ID``, which is
generation 0 and also the only one of earlier versions.

Shared between generations are two objects, in ``ID`` on an object store: the lease, which carries the generation, and
the record. On a store with conditional writes (:mod:`~orchestrator.storage.conditional`) each is replaced only where it
is what its writer last read, so one driver at most has a generation, and the record there never goes back to an earlier
driver's. On other stores a generation's folder has its driver's token in the name, too: ``ID@GENERATION-TOKEN``. On a
file system a generation is claimed by ``mkdir``, which succeeds once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.storage.names import RECORD

SIGN = "@"
"""Separator between a run's id, which cannot contain it, and the generation."""


def run_id(name: str) -> str:
    """Id of the run of a folder with this name."""
    return name.partition(SIGN)[0]


def generation(name: str) -> int:
    """Generation in a folder's name; 0 for the run's first folder."""
    digits = name.partition(SIGN)[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def folder_name(run: str, number: int, token: str = "") -> str:
    """``ID@GENERATION``, or ``ID@GENERATION-TOKEN``."""
    return f"{run}{SIGN}{number}" + (f"-{token}" if token else "")


def by_run(names: Iterable[str]) -> dict[str, list[str]]:
    """Folder names by run id, highest generation first."""
    grouped = defaultdict(list)
    for name in sorted(names, key=lambda name: (generation(name), name), reverse=True):
        grouped[run_id(name)].append(name)
    return dict(grouped)


def of_run(storage: Path, run: str) -> list[str]:
    """Names of the run's folders in ``storage``, with or without a record, highest generation first."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return by_run(name for name in os.listdir(storage) if run_id(name) == run).get(run, [])
    return []


def current(storage: Path, run: str) -> Path:
    """The run's folder of the highest generation with a record; ``storage / run`` if none has one."""
    paths = (storage / name for name in of_run(storage, run))
    return next((path for path in paths if os.path.exists(path / RECORD)), storage / run)


def is_superseded(folder: Path) -> bool:
    """Whether a folder of a higher generation exists here."""
    return generation(current(folder.parent, run_id(folder.name)).name) > generation(folder.name)
