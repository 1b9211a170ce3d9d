"""Trust in workloads, search spaces, samplers and schedulers of users: only code that this home's user has named runs.

The record of a run or sweep may come from another user, through shared storage or MLflow. Executing a file or module
that it names would run their code. So those that a user names are remembered, and no others are executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.config import user_code
from orchestrator.config.spec import Search
from orchestrator.errors import UserError, short_repr
from orchestrator.provenance import private_files

KINDS = {"space": "search space", "workload": "workload"}
"""The names of kinds of code that differ from their options."""


def trust(named: str, home: Path) -> None:
    """Remember the file of ``file.py:name`` or ``module:name``, which the user has named. Ours need no trust."""
    user_code.allow(named)
    for mark in user_code.marks(named, home) if user_code.is_named(named) else ():
        with suppress(OSError):  # the user is asked again
            private_files.make_folder(home)
            mark.parent.mkdir(mode=0o700, exist_ok=True)  # write access would decide what is executed
            mark.touch(mode=0o600)


def check(named: str, home: Path, whose: str, kind: str = "space") -> None:
    """Raise UserError for recorded code whose file was never named here, by path or by content.

    ``kind`` is its option on the command line: space, sampler or scheduler; or workload.
    """
    marks = user_code.marks(named, home) if user_code.is_named(named) else []
    if marks and not user_code.has_mark(named, home):
        what = KINDS.get(kind, kind)
        code = "a file" if user_code.is_file(named) else "a module"
        raise UserError(
            f"The {what} of {whose} is {code}, and running it would run code that was never named here",
            got=named,
            fix="Read it; if you trust it, name it: "
            + (f"orchestrator workloads {named}" if kind == "workload" else f"--{kind} {named}"),
        )  # fmt: skip


def choose(search: Search, given: Mapping[str, str | None], home: Path, whose: str) -> Search:
    """``search`` with the space, sampler and scheduler that the user names in ``given``.

    Code that only the record of ``whose`` names is checked. Raises UserError, also for another sampler or scheduler and
    for a missing file.
    """
    for kind in ("space", "sampler", "scheduler"):
        original = getattr(search, kind)
        named = given.get(kind)
        if named is None:
            check(original, home, whose, kind)
            continue
        if kind != "space" and original.rpartition(":")[2] != named.rpartition(":")[2]:
            raise UserError(f"{whose} has another {kind}", got=named, allowed=original)
        named = user_code.absolute(named)
        user_code.check_exists(named, KINDS.get(kind, kind))
        trust(named, home)
        search = search.model_copy(update={kind: named})
    return search


def named_workload(name: str | None, home: Path) -> str | None:
    """The name of a workload that the user has given. A file of the user's gets consent and its whole path.

    Raises UserError for an object in the place of its name.
    """
    if name is None:
        return None
    if not isinstance(name, str | Path):
        raise UserError(
            "The workload is not given by its name",
            got=short_repr(name),
            fix="Name it by a string, such as mine.py:Mine",
        )
    name = str(name)
    if not user_code.is_named(name):
        return name
    name = user_code.absolute(name)
    trust(name, home)
    return name
