"""Record what the present format looks like on disk, for test_formats.py: python -m tests.recorded.record

A run and a sweep of the toy whose drivers were killed, small, and without a trace of the machine they ran on. Only
when the format of checkpoints changes is there something to record again, into a folder of the new format's name.
With the word ``finished`` it records a run and a sweep that have finished, without their models.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.engine import checkpoint
from orchestrator.tracking.journal import Journal
from tests.support.commands import SPACES, Command

HERE = Path(__file__).parent
KEPT = ("record.json", "study.jsonl", "history.jsonl", "events.jsonl", "**/checkpoint-*/*")
KEPT_AT_END = (
    *("record.json", "spec.json", "sweep.json", "study.jsonl", "history.jsonl", "events.jsonl", "curves.jsonl"),
    *("units.jsonl", "trials.json", "best.json", "winner/spec.json", "winner/trial.json", "**/outcome.json"),
    "**/*.parquet",
)
SPACE, STORAGE = "SPACES", "STORAGE"
"""Stand for the place of the tests' search spaces, and for the storage."""


def killed() -> None:
    target = HERE / f"format-{checkpoint.FORMAT}"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        os.environ.update(ORCHESTRATOR_HOME=str(home), ORCHESTRATOR_CACHE=f"{scratch}/cache")
        common = ["epochs=30", "slow=0.3", "--local", "--tracking", "none"]
        sweep = ["--space", f"{SPACES}:space", "--scheduler", "none", "--trials", "2", *common]
        for words in (["run", "toy", *common, "--name", "run"], ["sweep", "toy", *sweep, "--name", "sweep"]):
            command = Command(home, *words)
            command.until(lambda: list(home.glob(f"storage/{words[0]}/**/checkpoint-*/checkpoint.json")))  # noqa: B023
            command.kill()
            keep(home / "storage" / words[0], target / words[0], KEPT)
    journal = Journal(target / "run" / "tracking.jsonl")
    journal.put(op="start", key="run", name="run", params={"lr": "0.1"}, tags={}, parent=None, time=1_700_000_000_000)
    journal.put(op="log", key="run", rows=[[1, 1_700_000_001_000, {"train/loss": 0.5}]])
    journal.close()


def finished() -> None:
    target = HERE / "finished"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        os.environ.update(ORCHESTRATOR_HOME=str(home), ORCHESTRATOR_CACHE=f"{scratch}/cache")
        common = ["epochs=3", "--local", "--tracking", "none"]
        sweep = ["--space", f"{SPACES}:space", "--scheduler", "none", "--trials", "2", *common]
        for words in (["run", "toy", *common, "--name", "run"], ["sweep", "toy", *sweep, "--name", "sweep"]):
            assert Command(home, *words).end() == 0
            keep(home / "storage" / words[0], target / words[0], KEPT_AT_END)


def keep(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy what is read later, anonymous."""
    for file in {file for name in names for file in source.glob(name)}:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    for file in target.glob("*.json"):
        text = file.read_text().replace(str(SPACES), SPACE).replace(str(source.parent), STORAGE)
        anonymous = {"user": "somebody", "host": "somewhere", "pid": 4_000_000} if file.name == "record.json" else {}
        values = json.loads(text)
        file.write_text(json.dumps(values | anonymous if anonymous else values, indent=1) + "\n")


if __name__ == "__main__":
    finished() if sys.argv[1:] == ["finished"] else killed()
