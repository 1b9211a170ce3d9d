"""What benchmarks/scale.py measures: items by kind of data, and how a cost is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

MIB = 2**20


@dataclass
class Cost:
    """What one run takes: seconds, peak of the process' memory above what it held before, and bytes written."""

    seconds: float = 0.0
    memory: int = 0
    written: int = 0


Measure = Callable[[int, Path], Cost]


@dataclass(frozen=True)
class Item:
    """Something whose cost grows. ``measure`` takes a size and an empty folder."""

    what: str
    unit: str
    sizes: Sequence[int]
    measure: Measure


@contextmanager
def measured(folder: Path, private: bool = False) -> Iterator[Cost]:
    """Measure what happens inside, on Linux.

    The peak is this process' resident memory (``VmHWM``, reset before). If ``private``, pages of mapped files, which
    the system can take back, do not count: ``RssAnon``, read every 5 ms.
    """
    cost = Cost()
    before = bytes_in(folder)
    Path("/proc/self/clear_refs").write_text("5")
    held = memory("RssAnon" if private else "VmRSS")
    peaks = [held]
    done = Event()

    def sample() -> None:
        while not done.wait(0.005):
            peaks[0] = max(peaks[0], memory("RssAnon"))

    sampler = Thread(target=sample)
    if private:
        sampler.start()
    started = time.monotonic()
    try:
        yield cost
    finally:  # the process of an item that fails ends
        cost.seconds = time.monotonic() - started
        done.set()
    if private:
        sampler.join()
        peaks[0] = max(peaks[0], memory("RssAnon"))
    cost.memory = (peaks[0] if private else memory("VmHWM")) - held
    cost.written = bytes_in(folder) - before


def memory(name: str) -> int:
    """``VmRSS``, ``VmHWM`` or ``RssAnon`` of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def bytes_in(folder: Path) -> int:
    """Bytes on disk below a folder; a file with several names counts once."""
    files = {(status.st_dev, status.st_ino): status.st_size for status in map(os.stat, files_in(folder))}
    return sum(files.values())


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
