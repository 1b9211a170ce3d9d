"""A sweep on a terminal of 80 columns: its live view, and Ctrl-C as the terminal sends it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.text import Text

from orchestrator.errors import INTERRUPTED
from tests.support.commands import ROOT, SPACES, THIRD_PARTY
from tests.support.waiting import HANG_SECONDS, until

COLUMNS, LINES = 80, 24


class Terminal:
    """A command on a pseudo-terminal. ``text`` is its output."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the terminal signals its session
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(THIRD_PARTY), str(ROOT)]), "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self._master, 65536)
            except OSError:  # the command has closed its side
                return
            self.text += content.decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def close(self) -> None:
        """Close the terminal, as a lost connection does: its session gets SIGHUP, and writing fails."""
        os.close(self._master)

    def end(self) -> int:
        try:
            code = self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it hangs after: {self.text[-4000:]}")
        self._reader.join(HANG_SECONDS)
        return code

    def lines(self) -> list[str]:
        """The whole output, in lines, without escape sequences."""
        return [Text.from_ansi(line).plain.rstrip() for line in self.text.replace("\r", "\n").split("\n")]


@contextmanager
def sweeping() -> Iterator[Terminal]:
    """A sweep ``s`` with a live view, whose trial 1 is complete."""
    space = ["--space", f"{SPACES}:space", "--trials", "500", "--scheduler", "none"]
    terminal = Terminal("sweep", "toy", "slow=0.05", "epochs=4", *space, "--local", "--tracking", "none", "--name", "s")
    try:
        until(lambda: "1 complete" in terminal.text, HANG_SECONDS)
        yield terminal
    finally:
        terminal.process.kill()


@pytest.mark.faults
@pytest.mark.usefixtures("third_party")
def test_live_view_fits_80_columns_and_ctrl_c_interrupts_the_sweep(home: Path) -> None:
    with sweeping() as terminal:
        terminal.press(b"\x03")
        assert terminal.end() == INTERRUPTED, terminal.text
    lines = terminal.lines()
    view = [line.partition("^C")[0].rstrip() for line in lines if "/500 trials" in line or line.startswith("trial   ")]
    assert [line for line in view if len(line) > COLUMNS] == [], "a line would wrap"
    assert any(line.split()[:2] == ["trial", "epoch"] for line in lines), "the head of the view is missing"
    assert any("/500 trials" in line for line in lines)
    assert any("Press Ctrl-C again to end at once." in line for line in lines)
    assert any("orchestrator sweep --resume s" in line for line in lines)


@pytest.mark.faults
@pytest.mark.usefixtures("third_party")
def test_a_terminal_that_closes_interrupts_a_sweep(home: Path) -> None:
    with sweeping() as terminal:
        terminal.close()
        assert terminal.end() == INTERRUPTED
    folder = home / "storage" / "s"
    assert json.loads((folder / "record.json").read_text())["status"] == "interrupted"
    assert "Stopping at the end of this epoch and saving." in (folder / "log.txt").read_text()


@pytest.mark.faults
@pytest.mark.usefixtures("third_party")
def test_a_terminal_that_closes_does_not_end_the_local_ray_cluster(home: Path) -> None:
    terminal = Terminal("run", "toy", "slow=0.05", "epochs=10000", "--tracking", "none", "--name", "r")
    folder = home / "storage" / "r"
    try:
        until(lambda: re.search(r"[1-9]\d*/10000 epochs", terminal.text), HANG_SECONDS, why=lambda: terminal.text)
        os.killpg(terminal.process.pid, signal.SIGHUP)  # as a shell does
        assert terminal.end() == INTERRUPTED
    finally:
        terminal.process.kill()
    assert "ended" in json.loads((folder / "record.json").read_text())


@pytest.mark.faults
@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_signal_that_also_ends_the_local_ray_cluster_interrupts(home: Path, verb: str) -> None:
    """Without a check of the cluster Ray aborts the process 60 s later, with exit code 1."""
    search = ["--trials", "50", "--space", f"{SPACES}:space"] if verb == "sweep" else []
    terminal = Terminal(verb, "toy", "slow=0.05", "epochs=10000", *search, "--tracking", "none", "--name", "r")
    try:
        until(lambda: re.search(r"[1-9]\d*/10000", terminal.text), HANG_SECONDS, why=lambda: terminal.text)
        os.killpg(terminal.process.pid, signal.SIGTERM)  # as `timeout` does
        assert terminal.end() == INTERRUPTED
    finally:
        terminal.process.kill()
    assert json.loads((home / "storage" / "r" / "record.json").read_text())["status"] == "interrupted"
    assert any(f"Continue with: orchestrator {verb} --resume r" in line for line in terminal.lines())
