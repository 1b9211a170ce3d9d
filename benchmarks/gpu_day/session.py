"""A session on a GPU machine: the deadline, the rows that are done, and the file to which each is written at once."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.gpu_day.inputs import Inputs

PART_SECONDS = 480.0
"""Most that a part takes."""

LEAST_SECONDS = 15.0
"""No row begins with less time left."""

ROUNDS = 3
"""Epochs or calls that are timed; the median is reported."""

VERSIONS = ("torch", "torchvision", "transformers", "sentence-transformers", "numpy")
UNFINISHED = {"left_out", "cut", "missing"}
"""Keys of a row that the next session measures again."""

Result = dict[str, Any]


class OutOfTime(BaseException):
    """The time of a row is over. Not an Exception, so that no library swallows it."""


@dataclass(frozen=True)
class Row:
    """One measurement.

    ``run`` yields parts of the result as soon as they are known. ``workload``: module and class, with ``params`` and
    what differs in its ``runtime``. ``options`` are read by ``run``. ``needs``: packages. ``seconds``: most that it
    takes.
    """

    name: str
    run: Callable[[Row, Session], Iterator[Result]]
    workload: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: Sequence[str] = ()
    seconds: float = 120.0

    def load(self) -> type[Any]:
        """The workload's class."""
        module, _, name = self.workload.partition(":")
        workload: type[Any] = getattr(importlib.import_module(module), name)
        return workload


class Session:
    """Measures rows until the deadline. Those that the file of the same commit and device has are not repeated."""

    def __init__(self, out: Path, commit: str, minutes: float, inputs: Inputs, dry: bool = False) -> None:
        import torch

        self.dry = dry
        self.rounds = 1 if dry else ROUNDS
        self.inputs = inputs
        self.device = torch.device("cuda", 0)
        self.ends = time.monotonic() + 60 * minutes
        self._row_ends = self.ends
        here = environment("virtual" if dry else torch.cuda.get_device_name(0), commit)
        self.device_name = here["device"]
        self._repeats = commit == "unknown" or commit.endswith("-dirty")
        code = commit[:12] + "-dirty" * commit.endswith("-dirty")
        self.file = out / f"gpu-day-{_plain(self.device_name)}-{_plain(code)}.json"
        self._record: Result = {"not_run": "NCCL: one GPU", "environments": [], "rows": []}
        if self.file.exists():
            self._record = json.loads(self.file.read_text())
        if here not in self._record["environments"]:
            self._record["environments"].append(here)
        self._environment = self._record["environments"].index(here)
        out.mkdir(parents=True, exist_ok=True)
        self._write()

    def run_part(self, part: str, rows: Sequence[Row]) -> None:
        """Measure the rows of a part that are not done."""
        ends = self.ends if self.dry else min(self.ends, time.monotonic() + PART_SECONDS)
        for row in rows:
            earlier = next(
                (one for one in self._record["rows"] if (one["part"], one["name"]) == (part, row.name)), None
            )
            if earlier and not self._repeats and not UNFINISHED & earlier.keys():
                continue
            result = {"part": part, "name": row.name, "environment": self._environment, **self._measured(row, ends)}
            if earlier:
                self._record["rows"].remove(earlier)
            self._record["rows"].append(result)
            print(json.dumps(result), flush=True)
            self._write()

    def left(self) -> float:
        """Seconds that the current row still has."""
        return self._row_ends - time.monotonic()

    def _measured(self, row: Row, ends: float) -> Result:
        from workloads import memory

        if absent := missing(row.needs):
            return {"missing": absent}
        left = ends - time.monotonic()
        if left < LEAST_SECONDS:
            return {"left_out": "no time"}
        most = left if self.dry else row.seconds
        result: Result = {}
        started = time.monotonic()
        self._row_ends = started + min(left, most)
        try:
            with time_limit(min(left, most)):
                for piece in row.run(row, self):
                    result |= piece
        except OutOfTime:
            # What is slow will be slow again; what met the deadline will not.
            result |= {"error": f"more than {most:g} s"} if most < left else {"cut": "no time"}
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        memory.release(self.device)
        return result | {"seconds": round(time.monotonic() - started, 1)}

    def _write(self) -> None:
        draft = self.file.with_suffix(".part")
        draft.write_text(json.dumps(self._record, indent=1) + "\n")
        draft.replace(self.file)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the block, in the main thread, once it has run that long; between two bytecodes."""

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 5.0)  # again, where a library swallowed it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def environment(device: str, commit: str) -> Result:
    """Device, commit and versions."""
    import torch

    return {
        "device": device, "commit": commit, "python": platform.python_version(), **harness.versions(*VERSIONS),
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "driver": _driver(),
    }  # fmt: skip


def current_commit() -> str:
    """The commit by git, or ``unknown``."""
    return harness.commit() or "unknown"


def missing(packages: Sequence[str]) -> list[str]:
    """The packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


def _plain(text: str) -> str:
    """Text for a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
