"""The journal file of a study: read whole by its driver, and without suggestions by processes that count trials."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from orchestrator.errors import UserError, one_line
from orchestrator.storage.names import STUDY

JOURNAL = STUDY

SUGGESTIONS = re.compile(rb'\{"op_code":(?:5|7),|[^{]*\{?[^{]*"user_attr":\{"(?:params|best_metrics|decision)":')
"""Beginning of a line with a suggested parameter, a value at an epoch, or an attribute made of these."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Journal(JournalFileBackend):  # type: ignore[misc]
    """Optuna's journal file, whose lines are first decoded in one call. Line by line takes a third longer."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        try:
            logs = decoded(self._file) if log_number_from == 0 else None
        except ValueError:  # Optuna says which line
            logs = None
        return iter(super().read_logs(log_number_from) if logs is None else logs)


class Summary(BaseJournalBackend):  # type: ignore[misc]
    """What a journal file held when it was opened, without :data:`SUGGESTIONS`: a third of the lines. Read only."""

    def __init__(self, file: Path) -> None:
        self._logs = decoded(file, SUGGESTIONS)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return iter(self._logs[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise AssertionError("a summary is read only")


def decoded(file: Path, without: re.Pattern[bytes] | None = None) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON lines, but for those that begin with ``without``. Raises ValueError."""
    lines = file.read_bytes().split(b"\n")[:-1]  # a last one without an end is still being written
    if without is not None:
        lines = [line for line in lines if not without.match(line)]
    logs: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    return logs


def open_study(folder: Path, directions: Sequence[str] | None = None, *, summary: bool = False) -> optuna.Study:
    """The Optuna study in ``folder``, created if ``directions`` are given. Raises UserError when it cannot be read.

    With ``summary`` its trials lack their suggested parameters and their values at epochs, and nothing can be written.
    """
    journal = folder / JOURNAL
    collects = gc.isenabled()
    gc.disable()  # saves a tenth of the time: nothing read here is garbage
    try:
        storage = JournalStorage(Summary(journal) if summary else Journal(journal))
        if directions is None or optuna.get_all_study_names(storage):
            return optuna.load_study(study_name=None, storage=storage)
        return optuna.create_study(storage=storage, study_name="sweep", directions=list(directions))
    except Exception as error:
        raise UserError(
            f"The sweep's journal {journal} cannot be read: {one_line(error)}", fix="Restore it, or start a new sweep"
        ) from None
    finally:
        if collects:
            gc.enable()
