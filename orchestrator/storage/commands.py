"""Commands for a run or sweep, as the output suggests them."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.storage import generations, remote, settings

SUBMITTED = ("run", "sweep", "sync")
"""Verbs that are suggested as a job to a reader of a job's log, who is not on the cluster."""


def for_run(folder: Path, verb: str, *more: str) -> str:
    """``orchestrator VERB ID MORE`` for the run or sweep in ``folder``, with the option that finds it there.

    ``verb`` may end with an option that takes the id, such as ``run --resume``.
    """
    run = shlex.quote(generations.run_id(folder.name))
    in_job = os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") and verb.split()[0] in SUBMITTED
    program = "orchestrator submit --" if in_job else "orchestrator"
    return " ".join([program, verb, run, *more]) + storage_option(_text(folder.parent))


def storage_option(storage: str) -> str:
    """`` --storage STORAGE`` for a folder or URI; empty for the one that is used without the option."""
    with suppress(UserError):  # a setting here is not valid
        if _text(settings.default_storage()) == storage:
            return ""
    return f" --storage {shlex.quote(storage)}"


def _text(storage: Path) -> str:
    return remote.uri_of(storage) or str(storage)
