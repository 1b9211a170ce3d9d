"""``--profile STEPS``: a trace of some steps of training, and what they spend their time on."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import train
from orchestrator.storage import disk
from workloads import memory
from workloads.contract import Workload

if TYPE_CHECKING:
    import torch
    from torch.autograd.profiler_util import FunctionEvent

FOLDER = "profile"
TRACE = "trace.json.gz"
"""Chrome's format: for chrome://tracing and https://ui.perfetto.dev."""

SUMMARY = "summary.json"
LARGEST = 3

Build = Callable[[ExperimentSpec], Workload]
"""Creates a new workload of a spec on this process' device."""


def trace(build: Build, spec: ExperimentSpec, steps: int, device: torch.device, folder: Path | None) -> None:
    """Train twice ``steps`` steps of a new workload, the second time under PyTorch's profiler.

    The workload is discarded. A workload that does not know virtual epochs trains whole ones. With a process group
    every rank calls this; ``folder`` is None on all but one. Nothing is done where the trace exists.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    plan = spec.plan.model_copy(update={"epochs": max(2, spec.plan.epochs), "steps_per_epoch": steps})
    workload = build(spec.model_copy(update={"plan": plan}))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    train(workload, plan, 1)
    with profile(activities=activities) as profiler:
        started = time.perf_counter()
        train(workload, plan, 2)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    del workload  # before the run builds its own, so that its memory is free
    memory.release(device)
    if folder is None:
        return
    with disk.writing(folder):
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / FOLDER / TRACE))
        values = {"steps": steps, "seconds": seconds, **summary(profiler.events(), seconds, device.type == "cuda")}
        (folder / FOLDER / SUMMARY).write_text(json.dumps(values, indent=1))


def summary(events: Iterable[FunctionEvent], seconds: float, cuda: bool) -> dict[str, Any]:
    """Shares of ``seconds``: ``waiting`` (no operation runs: data and Python), ``collectives``, and the ``largest``.

    On CUDA also ``syncs``, the number of times that the host waited for the device, and the share of time in which the
    device was ``idle``. Collectives and the largest are kernels there, since the host only launches them; else
    operations, the largest without those that they call.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    measured = [
        event for event in events if not event.is_user_annotation
    ]  # else a span of several kernels counts as one
    on_host = [event for event in measured if event.device_type == DeviceType.CPU]
    on_device = [event for event in measured if event.device_type == DeviceType.CUDA]
    main = Counter(event.thread for event in on_host).most_common(1)[0][0] if on_host else 0
    busy = _covered([event for event in on_host if event.thread == main])
    prefixes = ("nccl",) if cuda else ("c10d::", "gloo:", "record_param")
    collectives = [event for event in (on_device if cuda else on_host) if event.name.startswith(prefixes)]
    times: Counter[str] = Counter()
    for event in on_device if cuda else on_host:
        times[event.name] += event.time_range.end - event.time_range.start if cuda else event.self_cpu_time_total
    values: dict[str, Any] = {
        "waiting": max(0.0, 1 - busy / seconds),
        "collectives": min(1.0, _covered(collectives) / seconds),
        "largest": [[name, microseconds / 1e6 / seconds] for name, microseconds in times.most_common(LARGEST)],
    }
    if cuda:
        values["syncs"] = sum("Synchronize" in event.name for event in on_host)
        values["idle"] = max(0.0, 1 - _covered(on_device) / seconds)
    return values


def _covered(events: Iterable[FunctionEvent]) -> float:
    """Seconds in which at least one of the events ran."""
    covered = end = 0.0
    for start, stop in sorted((event.time_range.start, event.time_range.end) for event in events):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered / 1e6


def sentence(folder: Path) -> str | None:
    """What the trace in ``folder`` shows, in one sentence; None without one."""
    file = folder / FOLDER / SUMMARY
    if not file.exists():
        return None
    values = json.loads(file.read_text())
    parts = [f"waiting for data and Python {values['waiting']:.0%}", f"collectives {values['collectives']:.0%}"]
    if "idle" in values:
        parts += [f"{values['syncs']} host syncs", f"device idle {values['idle']:.0%}"]
    largest = ", ".join(f"{name} {share:.0%}" for name, share in values["largest"])
    return f"Profile of {values['steps']} steps in {values['seconds']:.3g} s: {', '.join(parts)}; largest: {largest}"


def files(folder: Path) -> list[Path]:
    """The trace and its summary, where they exist."""
    return [file for name in (TRACE, SUMMARY) if (file := folder / FOLDER / name).exists()]
