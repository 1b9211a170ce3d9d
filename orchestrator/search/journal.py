"""The journal file of a study: read whole by its driver, and without suggestions by processes that count trials."""

from __future__ import annotations

import gc
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from orchestrator.errors import UserError, one_line
from orchestrator.storage import disk
from orchestrator.storage.names import STUDY

JOURNAL = STUDY

SUGGESTIONS = re.compile(rb'\{"op_code":(?:5|7),|[^{]*\{?[^{]*"user_attr":\{"(?:params|best_metrics|decision)":')
"""Beginning of a line with a suggested parameter, a value at an epoch, or an attribute made of these."""

CREATE_TRIAL = 4
"""Optuna's number of the operation."""

RUNNING = TrialState.RUNNING.value
ENDED = frozenset(state.value for state in TrialState if state.is_finished())

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Journal(JournalFileBackend):  # type: ignore[misc]
    """Optuna's journal file. At first it is decoded in one call and :func:`condensed`, later only what is new is read.

    For one reader: Optuna's storage, which asks for the logs after those that it knows.
    """

    def __init__(self, file: Path) -> None:
        self._file_lock = JournalFileSymlinkLock(str(file))
        super().__init__(str(file), self._file_lock)
        self._file = file
        self._stream: BinaryIO | None = None
        """The file while it is locked by :meth:`together`."""
        self._bytes = 0
        """Bytes of the file that were read."""
        self._logs = 0
        """Logs that Optuna got for them."""
        self._left_out = 0
        """Lines that it did not get, because they were condensed."""

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        if log_number_from == 0:
            self._bytes = self._logs = self._left_out = 0
        elif log_number_from != self._logs:  # an error has stopped it among the last ones
            return iter(super().read_logs(log_number_from + self._left_out))
        try:
            new, size = decoded(self._file, self._bytes)
        except ValueError:  # Optuna says which line
            return iter(super().read_logs(log_number_from + self._left_out))
        logs = new if self._logs else condensed(new)
        self._bytes += size
        self._logs += len(logs)
        self._left_out += len(new) - len(logs)
        return iter(logs)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self._stream is None:
            with self.together():
                self.append_logs(logs)
        else:
            self._stream.writelines(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
            self._stream.flush()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Lock the file and wait for the disk once for all that the block appends, not for each log.

        Of a log that a full disk cuts off nothing is left: the next one would be appended to it, and both be lost.
        """
        self._file_lock.acquire()
        try:
            with self._file.open("ab") as self._stream:
                try:
                    yield
                finally:
                    os.fsync(self._stream.fileno())
        except OSError:
            with suppress(OSError):
                disk.drop_half_line(self._file)
            raise
        finally:
            self._stream = None
            self._file_lock.release()


class Summary(BaseJournalBackend):  # type: ignore[misc]
    """What a journal file held when it was opened, without :data:`SUGGESTIONS`: a third of the lines. Read only."""

    def __init__(self, file: Path) -> None:
        self._logs = condensed(decoded(file, without=SUGGESTIONS)[0])

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return iter(self._logs[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise AssertionError("a summary is read only")


def decoded(file: Path, start: int = 0, without: re.Pattern[bytes] | None = None) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of a file of JSON lines from byte ``start`` on, but for those that begin with ``without``.

    Returns them with their number of bytes. A last line without an end is still being written. Raises ValueError.
    """
    with file.open("rb") as stream:
        stream.seek(start)
        data = stream.read()
    size = data.rfind(b"\n") + 1
    lines = data[:size].split(b"\n")[:-1]
    if without is not None:
        lines = [line for line in lines if not without.match(line)]
    logs: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    return logs, size


def condensed(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``logs`` with all of an ended trial in the log that creates it. Optuna would copy the trial for each of them."""
    shorter: list[dict[str, Any]] = []
    created: list[dict[str, Any]] = []
    changes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for log in logs:
        if "trial_id" in log:
            changes[log["trial_id"]].append(log)
            continue
        shorter.append(log)
        if log["op_code"] == CREATE_TRIAL:
            created.append(log)
    for number, trial in enumerate(created):
        if any(change.get("state") in ENDED for change in (trial, *changes[number])):
            _merge(trial, changes[number])
        else:
            shorter += changes[number]
    return shorter


def _merge(trial: dict[str, Any], changes: Iterable[dict[str, Any]]) -> None:
    """Make the changes of a trial, up to its end, in the log that creates it."""
    for change in changes:
        state = trial.get("state", RUNNING)
        if state in ENDED:
            return
        if "state" in change:
            if change["state"] != state:
                names = ("state", "values", "datetime_start", "datetime_complete")
                trial |= {name: change[name] for name in names if change.get(name) is not None}
        elif "param_name" in change:
            name = change["param_name"]
            trial.setdefault("params", {})[name] = change["param_value_internal"]
            trial.setdefault("distributions", {})[name] = change["distribution"]
        elif "step" in change:
            trial.setdefault("intermediate_values", {})[change["step"]] = change["intermediate_value"]
        else:
            for kind in ("user_attr", "system_attr"):
                trial.setdefault(f"{kind}s", {}).update(change.get(kind, {}))


def open_study(
    folder: Path, directions: Sequence[str] | None = None, *, summary: bool = False, backend: Journal | None = None
) -> optuna.Study:
    """The Optuna study in ``folder``, created if ``directions`` are given. Raises UserError when it cannot be read.

    With ``summary`` its trials lack their suggested parameters and their values at epochs, and nothing can be written.
    ``backend`` is the folder's journal, by default a new object for it.
    """
    journal = folder / JOURNAL
    collects = gc.isenabled()
    gc.disable()  # saves a tenth of the time: nothing read here is garbage
    try:
        storage = JournalStorage(Summary(journal) if summary else backend or Journal(journal))
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
