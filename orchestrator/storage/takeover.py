"""Taking over a run whose earlier driver may still be alive: the successor continues in another folder."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.storage import generations, sync_state
from orchestrator.storage.lease import Lease
from orchestrator.storage.names import RECORD
from orchestrator.storage.object_sync import STOP


def may_be_shared(folder: Path, record: Mapping[str, Any], stored: Mapping[str, Any], claim: Lease | None) -> bool:
    """Whether an earlier driver may still write to ``folder``, whose lock this process holds, or to its storage.

    ``record`` is the folder's record, ``stored`` the storage's, ``claim`` the lease that was taken. Without a lease the
    folder itself is the storage.
    """
    of_this_host = record.get("host") == socket.gethostname()
    if claim is None:
        # The server of a network file system drops the locks of a host that has been silent for a while. A record of
        # an earlier version has no generation: such a run continues in its folder.
        return "generation" in record and record["status"] == "running" and not of_this_host
    if claim.predecessor is None:
        last = int(stored.get("holds", 0))
        left_open = stored.get("status") == "running"
    else:
        last = claim.predecessor.generation
        left_open = not claim.predecessor.is_gone
    was_this_copy = of_this_host and sync_state.manifest(folder)[0] == last  # the lock shows that its driver has ended
    return left_open and not was_this_copy


def rename(folder: Path, claim: Lease) -> Path:
    """Rename the copy of a stored run to the lease's generation. Everything in it must be stored again."""
    token = "" if claim.exclusive else claim.token
    name = generations.folder_name(generations.run_id(folder.name), claim.generation, token)
    renamed = folder.rename(folder.with_name(name))
    sync_state.remember(renamed, 0, {})
    return renamed


def copy(folder: Path, number: int) -> Path:
    """Copy all files but the record to a folder of generation ``number`` or higher. It is not read before that.

    Raises OSError, and FileExistsError if another process claims the same generation.
    """
    run = generations.run_id(folder.name)
    number = max(number, 1 + generations.generation(generations.of_run(folder.parent, run)[0]))
    target = folder.with_name(generations.folder_name(run, number))
    target.mkdir()
    try:
        for name in sync_state.scan(folder).keys() - {RECORD, STOP}:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # the other driver has removed it since
                shutil.copy2(folder / name, target / name)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target
