"""Run ``orchestrator ...`` as a process or in this one, and read MLflow's store."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.cli import app

ROOT = Path(__file__).resolve().parents[2]
THIRD_PARTY = ROOT / "tests" / "third_party"
COMMAND_SECONDS = 600.0
"""Seconds after which a command counts as hung, also on a machine with load 10 per core."""
SPACES = THIRD_PARTY / "toy_plugin.py"


class Command:
    """A running command with its output in a file, in its own process group as on a terminal."""

    program = ("-m", "orchestrator")

    def __init__(self, home: Path, *words: str) -> None:
        home.mkdir(exist_ok=True)
        self.output = home / f"output-{time.monotonic_ns()}.txt"
        path = os.pathsep.join([str(THIRD_PARTY), str(ROOT)])
        with self.output.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *words],
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=home,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )

    def text(self) -> str:
        return self.output.read_text()

    def until(self, condition: Callable[[], Any], seconds: float = COMMAND_SECONDS) -> Any:
        """Wait for a true ``condition()``. Fails if the command ends first or time runs out."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := condition():
                return found
            assert self.process.poll() is None, f"ended too early:\n{self.text()}"
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s in vain:\n{self.text()}")

    def end(self, seconds: float = COMMAND_SECONDS) -> int:
        return self.process.wait(seconds)

    def ctrl_c(self) -> None:
        """Send SIGINT to the whole group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM to the driver."""
        self.process.terminate()

    def kill(self) -> None:
        """Kill the driver with SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def workers(self, name: str) -> list[psutil.Process]:
        """Ray's worker processes of this command's cluster with ``name`` in their title."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if any(name in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def completed(self) -> int:
        """Number of trials that the output reports as complete."""
        return sum(line.startswith("trial ") and " complete " in line for line in self.text().splitlines())


def typed(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``orchestrator ...`` in this process, which has imported PyTorch and MLflow already.

    For tests of start-up, signals and death use a :class:`Command`.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        patch.setattr(sys, "argv", ["orchestrator", *words])
        code = app.run(list(words))
    return subprocess.CompletedProcess(list(words), code, out.getvalue(), err.getvalue())


Start = Callable[..., Command]
"""Type of the fixture ``start``: from words to a started command."""


@contextmanager
def starting(home: Path, *always: str) -> Iterator[Start]:
    """Starts ``orchestrator`` with given words and ``always``. Kills what is still running at the end."""
    started: list[Command] = []

    def begin(*words: str, machine: Path = home) -> Command:
        started.append(Command(machine, *words, *always))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.kill()


class Store:
    """The embedded MLflow store in ``home``, read directly from its database."""

    def __init__(self, home: Path) -> None:
        self._file = home / "mlflow.db"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        with sqlite3.connect(self._file) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:  # the schema is being created
                return []

    def tag(self, name: str) -> list[str]:
        return [value for (value,) in self.query(f"select value from tags where key = '{name}'")]

    def check(self) -> None:
        """Check that each key has one run, no step is repeated, and nothing is left running."""
        keys = self.tag("orchestrator.key")
        assert keys
        assert len(keys) == len(set(keys)), Counter(keys).most_common(3)
        assert self.query("select run_uuid from runs where status = 'RUNNING'") == []
        twice = "select run_uuid, key, step from metrics group by run_uuid, key, step having count(*) > 1"
        assert self.query(twice) == []

    def check_trials(self, count: int, epochs: int) -> None:
        """Check that the sweep has ``count`` trials, and each the rows of all epochs."""
        trials = {key: steps for key, steps in self.steps().items() if "/" in key}
        assert len(trials) == count
        assert all(steps == list(range(1, epochs + 1)) for steps in trials.values()), f"lost or doubled rows: {trials}"

    def steps(self, metric: str = "train/loss") -> dict[str, list[int]]:
        """Steps of a metric in each run, by our key."""
        sql = (
            "select t.value, m.step from metrics m join tags t on t.run_uuid = m.run_uuid "
            f"where t.key = 'orchestrator.key' and m.key = '{metric}' order by m.step"
        )
        steps: dict[str, list[int]] = {}
        for key, step in self.query(sql):
            steps.setdefault(key, []).append(step)
        return steps


def trials(home: Path) -> list[dict[str, Any]]:
    """Trials of the only sweep in ``home``."""
    (file,) = home.glob("storage/*/trials.json")
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows
