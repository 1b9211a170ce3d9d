"""What crosses from a process that trains to the driver, and from there to the user: reports, and last words."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.config.objectives import Unreported
from orchestrator.engine.loop import Diverged, EpochReport, Row
from orchestrator.errors import UNAVAILABLE, RunFailed, UserError, one_line
from orchestrator.runs.heartbeat import TrialTimeout
from orchestrator.storage.records import RunFolder
from workloads.data.errors import DataError

if TYPE_CHECKING:
    from ray.exceptions import RayTaskError


OUT_OF_MEMORY = "out of memory"
"""What such a cause begins with, whoever noticed it."""


class DeviceLost(Exception):
    """The process has lost its accelerator: every further call on the device fails until another process begins."""


def check_device(error: Exception) -> None:
    """Raises DeviceLost where ``error`` is of the accelerator and not of its memory: the process must end."""
    if isinstance(error, DeviceLost):
        raise error
    if _is(error, "torch", "AcceleratorError") and OUT_OF_MEMORY not in str(error):
        place = ""
        if sys.modules.get("ray"):  # in-process training needs no Ray, and may have none installed
            from orchestrator.cluster.lost_devices import this_device

            place = f" ({found})" if (found := this_device()) else ""
        raise DeviceLost(f"the accelerator was lost{place}: {one_line(error)}") from error


def payload(report: EpochReport) -> dict[str, Any]:
    """A report as the plain dict that crosses the process border."""
    progress = report.progress
    return {
        "rows": [row.to_json() for row in report.rows],
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_value": progress.best_value,
        "best_metrics": dict(progress.best_metrics),
        "train_seconds": progress.train_seconds,
        "ended": report.ended,
        "done": report.ended is not None,
    }


def rows_from_json(rows: list[Any]) -> Iterator[Row]:
    return (Row(*row) for row in rows)


def send(inbox: IO[str], payload: Mapping[str, Any]) -> None:
    """Append a report for whoever reads the file as it grows, with :func:`receive`."""
    inbox.write(json.dumps(payload) + "\n")
    inbox.flush()


def receive(inbox: IO[str]) -> Iterator[dict[str, Any]]:
    """The whole reports that :func:`send` has written since the last call."""
    while True:
        place = inbox.tell()
        line = inbox.readline()
        if not line.endswith("\n"):  # half a line: its writer is still at it
            inbox.seek(place)
            return
        yield json.loads(line)


def failure_payload(error: Exception, rows: Sequence[Row] = (), cause: str | None = None) -> dict[str, Any]:
    """The last payload of a trial that failed, with the ``rows`` it had not yet told.

    ``cause`` is what there is to say where the error does not say it itself. ``refused`` is the exit code of
    what would meet every other trial of the sweep alike.
    """
    untold = (*rows, *(error.rows if isinstance(error, Diverged) else ()))
    refused = None
    if isinstance(error, UserError) and (isinstance(error, Unreported) or error.code == UNAVAILABLE):
        refused = error.code
    return {
        "rows": [row.to_json() for row in untold],
        "error": cause or describe(error),
        "refused": refused,
        "done": True,
    }


def failed(folder: RunFolder, error: Exception, trace: str = "") -> UserError | RunFailed:
    """What the user of the run in ``folder`` is told of ``error``; ``trace`` as in :func:`describe`."""
    return error if isinstance(error, UserError) else RunFailed(folder.id, describe(error, trace), str(folder.log))


def failed_there(folder: RunFolder, error: RayTaskError) -> UserError | RunFailed:
    """The same of an error that a Ray task or actor's method has raised."""
    return failed(folder, cause(error), str(error))  # its traceback_str is gone where it is of its cause's class too


def cause(error: RayTaskError) -> Exception:
    """What was raised there, without Ray's wrapping."""
    return error.cause if isinstance(error.cause, Exception) else error


def describe(error: Exception, trace: str = "") -> str:
    """One line for what the user did or what diverged; the place in the code for everything else.

    An error that crossed a process has lost its traceback: ``trace`` is the text that came along, if any.
    """
    if isinstance(error, UserError | Diverged | DataError | TrialTimeout):
        return one_line(error)
    if _is(error, "ray", "OutOfMemoryError"):
        return death_cause(str(error))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        told = f" ({one_line(error)})" if str(error) else ""
        return f"{OUT_OF_MEMORY}{told}: fewer trials at once (--concurrency) or a smaller batch_size need less"
    if _is(error, "torch", "OutOfMemoryError"):
        return f"it does not fit into its share of the GPU's memory (--gpus-per-worker, batch_size): {one_line(error)}"
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    frames = frames or re.findall(r'File "([^"]+)", line (\d+)', trace)
    place = f" ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else ""
    return f"{type(error).__name__}: {one_line(error)}{place}"


def death_cause(told: str) -> str:
    """What has happened to a process that Ray has lost, by Ray's words for it; begins a sentence."""
    if told.startswith(OUT_OF_MEMORY):
        return told.splitlines()[0]
    if lost := re.search(rf"\b{DeviceLost.__name__}: (.+)", told):
        return lost[1]
    if "running low on memory" in told:
        used = re.search(r"was (\S+) used / (\S+) limit", told)
        node = f" ({used[1]} of the node's {used[2]} were used)" if used else ""
        return f"{OUT_OF_MEMORY}{node}: its process was killed by Ray's memory monitor"
    return "its process died"


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether it is of the class ``name`` of a package that may not be there to be asked."""
    return any(base.__module__.split(".")[0] == module and base.__name__ == name for base in type(error).__mro__)
