"""Record what the present format looks like on disk, for test_formats.py: python -m tests.recorded.record

A run and a sweep of the toy whose drivers were killed, small, and without a trace of the machine they ran on. Only
when the format of checkpoints changes is there something to record again, into a folder of the new format's name.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from orchestrator.engine import checkpoint
from orchestrator.tracking.journal import Journal
from tests.support.commands import SPACES, Command

HERE = Path(__file__).parent
KEPT = ("record.json", "study.jsonl", "history.jsonl", "events.jsonl")
SPACE = "SPACES"
"""Stands for the place of the tests' search spaces."""


def main() -> None:
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
            keep(home / "storage" / words[0], target / words[0])
    journal = Journal(target / "run" / "tracking.jsonl")
    journal.put(op="start", key="run", name="run", params={"lr": "0.1"}, tags={}, parent=None, time=1_700_000_000_000)
    journal.put(op="log", key="run", rows=[[1, 1_700_000_001_000, {"train/loss": 0.5}]])
    journal.close()


def keep(source: Path, target: Path) -> None:
    """Copy what a resume reads, anonymous."""
    files = [source / name for name in KEPT] + sorted(source.glob("**/checkpoint-*/*"))
    for file in files:
        if file.exists():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    text = (target / "record.json").read_text().replace(str(SPACES), SPACE)
    record = json.loads(text) | {"user": "somebody", "host": "somewhere", "pid": 4_000_000}
    (target / "record.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
