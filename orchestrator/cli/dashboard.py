"""Serve optuna-dashboard on a copy of a sweep's journal: its page can delete a study."""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from orchestrator.cli.ui import check_port
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.search.journal import JOURNAL
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings

HOST = "127.0.0.1"
"""The page has no login."""

LOOK_SECONDS = 2.0


def serve(settings: Settings, reference: str, port: int) -> None:
    """Serve the trials of a sweep until Ctrl-C. Raises UserError (exit 3) without optuna-dashboard or a free port."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise UserError(
            "The dashboard needs optuna-dashboard, which is not installed here",
            fix="Install ray-experiment-orchestrator[dashboard]", code=UNAVAILABLE,
        )  # fmt: skip
    folder = run_lookup.find(settings.storage, reference, "sweep")
    original = folder.path / JOURNAL
    if not original.exists():
        raise UserError(f"{folder.id} has no trial yet", fix="Wait for the first one")
    check_port(HOST, port)
    from optuna_dashboard import run_server

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="dashboard-") as scratch:
        copy = JournalCopy(original, Path(scratch) / JOURNAL)
        print(f"Trials of {folder.id}, a copy: http://{HOST}:{port}  (Ctrl-C stops it)", flush=True)
        try:
            with suppress(KeyboardInterrupt):
                run_server(JournalStorage(JournalFileBackend(str(copy.file))), host=HOST, port=port)
        finally:
            copy.close()


class JournalCopy:
    """Copy of a journal that follows the original, until something else writes to the copy. Never writes to it."""

    def __init__(self, original: Path, file: Path) -> None:
        self.file = file
        self._original = original
        self._size = 0
        self._closing = threading.Event()
        file.touch()
        self.follow()
        self._thread = threading.Thread(target=self._run, name="journal copy", daemon=True)
        self._thread.start()

    def follow(self) -> bool:
        """Append the lines that the original has got. False once the copy has lines of its own."""
        if self.file.stat().st_size != self._size:
            return False
        with self._original.open("rb") as source:
            source.seek(self._size)
            lines = source.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        with self.file.open("ab") as target:
            target.write(whole)
        self._size += len(whole)
        return True

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            with suppress(OSError):  # the sweep's folder was removed
                if not self.follow():
                    return
