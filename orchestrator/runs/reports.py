"""Reports from a training process to the driver, and the error messages that reach the user."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.config.objectives import Unreported
from orchestrator.engine.loop import Diverged, EpochReport, Row
from orchestrator.errors import UNAVAILABLE, RunFailed, UserError, mask, one_line, plural
from orchestrator.search import unit_values
from orchestrator.storage.records import RunFolder
from workloads.data.errors import DataError

if TYPE_CHECKING:
    from ray.exceptions import RayTaskError


OUT_OF_MEMORY = "out of memory"
"""Prefix of every such cause."""

_OF_HOST = "can't allocate memory"
_OF_LIBRARIES = (
    _OF_HOST, "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED", "unable to find an engine",
    "'out of memory'", "cuda: out of memory",  # of NCCL and of gloo
)  # fmt: skip
"""In messages of libraries for which there was no memory: on the host, and on a GPU for their work space."""

_OF_DEVICE = (
    "_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR", "illegal memory access", "illegal instruction",
    "device-side assert", "unspecified launch failure", "misaligned address", "invalid program counter",
    "hardware stack error", "not supported on global/shared address space", "launch timed out", "uncorrectable ECC",
    "unknown error", "CUDA-capable device",
)  # fmt: skip
"""In errors after which every further call on the device fails: a context with such an error cannot be used again."""

_OF_ACCELERATOR = ("CUDA", "CUBLAS", "CUDNN", "NCCL", "HIP", "Cuda failure")
"""One of these is in every error of an accelerator and its libraries."""

_ADVICE = ("CUDA kernel errors might", "For debugging", "Compile with", "Search for", "Device-side assert")
"""Beginnings of lines that PyTorch adds to all errors of an accelerator."""

_OF_CALL = ("invalid argument", "invalid configuration argument", "no kernel image", "not supported", "capture")
"""In errors of PyTorch's class for accelerators that concern one call: the device goes on."""


LOST = "lost"
"""Key of the cause in the payload of a trial that goes on after it has lost a process."""

HELD = "held"
"""Key in the payload of a trial of several workers that now has its devices."""

SAVED = "saved"
"""Key in the payload of a trial that has saved and ended since the sweep was stopped."""


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

_INSTALLED = re.compile(rf"<|{re.escape(sysconfig.get_path('stdlib'))}|.*/(site|dist)-packages/")
"""Matches the files of Python and of installed packages."""


class TrialTimeout(Exception):
    """A silent trial was killed, or a worker did not answer the others of its group.

    The message has the time without a report or an answer and, if known, the line where it hung.

    A process that is to start the trial again must not.
    """


class DeviceLost(Exception):
    """The process has lost its accelerator: every further call on the device fails until a new process starts."""


def check_device(error: Exception) -> None:
    """Raise DeviceLost if ``error`` is an accelerator error other than out of memory: the process must end."""
    if isinstance(error, DeviceLost):
        raise error
    if is_out_of_memory(error):
        return
    text = "\n".join(line for line in str(error).splitlines() if not line.startswith(_ADVICE))
    of_device = any(words in text for words in _OF_ACCELERATOR) and any(words in text for words in _OF_DEVICE)
    named = isinstance(error, RuntimeError) and of_device
    of_call = any(words in text for words in _OF_CALL)
    if named or (_is(error, "torch", "AcceleratorError") and not of_call):
        raise device_lost(error) from error


def device_lost(error: Exception) -> DeviceLost:
    """The loss of this process' accelerator, which ``error`` has shown. Its message names the device."""
    device = ""
    if sys.modules.get("ray"):  # in-process training needs no Ray, and may have none installed
        from orchestrator.cluster.lost_devices import this_device

        device = f" ({name})" if (name := this_device()) else ""
    return DeviceLost(f"the accelerator was lost{device}: {one_line(error)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation on the device or on the host has failed, or Ray has killed the process for its memory."""
    if isinstance(error, MemoryError) or _is(error, "torch", "OutOfMemoryError") or killed_for_memory(error):
        return True
    if _is(error, "torch", "AcceleratorError"):
        return OUT_OF_MEMORY in str(error)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_LIBRARIES)


def killed_for_memory(error: BaseException) -> bool:
    """Whether the error is the death of a process that Ray's memory monitor has killed."""
    return _is(error, "ray", "RayError") and death_cause(str(error)).startswith(OUT_OF_MEMORY)


def payload(report: EpochReport, measured: Mapping[str, float] | None = None) -> dict[str, Any]:
    """A report as a plain dict, to be sent to another process. ``measured`` was measured of the model, if anything."""
    progress = report.progress
    return {
        "units": unit_values.encode(report.units, progress.best_value) if report.units else None,
        "measured": dict(measured or {}),
        "rows": [row.to_json() for row in report.rows],
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        "best_value": progress.best_value,
        "best_metrics": dict(progress.best_metrics),
        "train_seconds": progress.train_seconds,
        "ended": report.ended,
        "done": report.ended is not None,
    } | ({} if report.accumulate is None else {"accumulate": report.accumulate})


def rows_from_json(rows: list[Any]) -> Iterator[Row]:
    return (Row(*row) for row in rows)


def send(inbox: IO[str], payload: Mapping[str, Any]) -> None:
    """Append a report to a file that :func:`receive` reads."""
    inbox.write(json.dumps(payload) + "\n")
    inbox.flush()


def receive(inbox: IO[str]) -> Iterator[dict[str, Any]]:
    """Complete reports that :func:`send` has written since the last call."""
    while True:
        position = inbox.tell()
        line = inbox.readline()
        if not line.endswith("\n"):  # a partial line is still being written
            inbox.seek(position)
            return
        yield json.loads(line)


def failure_payload(error: Exception, rows: Sequence[Row] = (), cause: str | None = None) -> dict[str, Any]:
    """The last payload of a failed trial, with the ``rows`` it had not yet reported.

    ``cause`` replaces the description of the error. The payload's ``refused`` is the exit code of an error that every
    other trial of the sweep would raise too, else None.
    """
    unreported = (*rows, *(error.rows if isinstance(error, Diverged) else ()))
    refused = None
    if isinstance(error, UserError) and (isinstance(error, Unreported) or error.code == UNAVAILABLE):
        refused = error.code
    return {
        "rows": [row.to_json() for row in unreported],
        "error": cause or describe(error),
        "refused": refused,
        "done": True,
    }


def failed(folder: RunFolder, error: Exception, trace: str = "") -> UserError | RunFailed:
    """The error to raise for ``error`` of the run in ``folder``. ``trace`` as in :func:`describe`."""
    return error if isinstance(error, UserError) else RunFailed(folder.id, describe(error, trace), str(folder.log))


def failed_there(folder: RunFolder, error: RayTaskError) -> UserError | RunFailed:
    """As :func:`failed` for an error raised in a Ray task or actor."""
    # Its traceback_str is lost if the error has the class of its cause.
    return failed(folder, without_ray_wrapper(error), str(error))


def without_ray_wrapper(error: RayTaskError) -> Exception:
    """The original error without Ray's wrapper."""
    return error.cause if isinstance(error.cause, Exception) else error


def describe(error: Exception, trace: str = "") -> str:
    """Describe an error in one line, with its place in the code unless it is the user's or a divergence.

    The place is the last one outside installed packages, if there is one. An error from another process has lost its
    traceback; ``trace`` is the text that came with it, if any.
    """
    if isinstance(error, UserError | Diverged | DataError | TrialTimeout | DeviceLost):
        return one_line(error)
    if killed_for_memory(error):
        return death_cause(str(error))
    if is_out_of_memory(error):
        message = f" ({one_line(error)})" if str(error) else ""
        on_host = isinstance(error, MemoryError) or _OF_HOST in str(error)
        also = "fewer trials at once (--concurrency)" if on_host else "a larger --gpus-per-worker, precision=bf16"
        return f"{OUT_OF_MEMORY}{message}: accumulate=auto, a smaller batch_size or {also} may fit"
    message = f"{type(error).__name__}: {one_line(error)}"
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    frames = frames or _FRAME.findall(trace)
    if "\nOriginal Traceback (most recent call last):\n" in str(error):  # from a process of a DataLoader
        message += f" {mask(str(error).strip().splitlines()[-1])}"
        frames += _FRAME.findall(str(error))
    own = [frame for frame in frames if not _INSTALLED.match(frame[0])]
    line = "".join(f" ({Path(file).name}:{number})" for file, number in (own or frames)[-1:])
    return message + line


def death_cause(message: str) -> str:
    """Why Ray has lost a process, from Ray's message. Can start a sentence."""
    if message.startswith(OUT_OF_MEMORY):
        return message.splitlines()[0]
    if lost := re.search(rf"\b{DeviceLost.__name__}: (.+)", message):
        return lost[1]
    if "running low on memory" in message:
        used = re.search(r"was (\S+) used / (\S+) limit", message)
        node = f" ({used[1]} of the node's {used[2]} were used)" if used else ""
        advice = "accumulate=auto, a smaller batch_size, precision=bf16 or fewer trials at once (--concurrency) may fit"
        return f"{OUT_OF_MEMORY}{node}, killed by Ray's memory monitor: {advice}"
    return "its process died"


def repeated(cause: str, times: int) -> str:
    """The cause of a process' death with the number of deaths. One of memory ends with its advice, without a number."""
    return cause if cause.startswith(OUT_OF_MEMORY) else f"{cause} {plural(times, 'time')}"


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether the error has the class ``name`` of a package that may not be installed."""
    return any(base.__module__.split(".")[0] == module and base.__name__ == name for base in type(error).__mro__)
