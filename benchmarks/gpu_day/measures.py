"""What rows run: tests, training steps, packs and training to the end. Each yields parts of its result."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_day.session import Result, Row, Session
from benchmarks.gpu_day.traffic import step_bytes

ROOT = Path(__file__).resolve().parents[2]

PEAKS = {
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "bytes": 4.8e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "bytes": 3.35e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "bytes": 2.0e12},
}
"""Dense operations and bytes a second by the vendor's data sheets."""

EPOCHS = 200
"""Planned epochs of what is not trained to the end: those that are not counted, timed, traced and counted."""

MOST_CALLS = 80
"""Most epochs that are run before the timed ones, and most that are timed."""


def tests(row: Row, session: Session) -> Iterator[Result]:
    """The workloads' tests that need a GPU, or in a dry run their collection."""
    files = sorted(map(str, gpu_tests()), key=len)  # that of all workloads first
    # Without the project's configuration and fixtures, which need plugins and MLflow.
    plain = ["-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plain, "-v", "--tb=short", "-m", "gpu", *files]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # carried packages are there
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            [*command, *(["--collect-only"] if session.dry else [])], cwd=ROOT, env=settings,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=max(1.0, session.left() - 5),
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        yield {"cut": "no time", "output": _last_lines(error.stdout)}
    else:
        yield {"exit": done.returncode, "output": _last_lines(done.stdout)}


def gpu_tests() -> list[Path]:
    """Files of the workloads' tests with the marker ``gpu``."""
    files = sorted((ROOT / "tests" / "unit" / "workloads").rglob("test_*.py"))
    return [file for file in files if "mark.gpu" in file.read_text()]


def _last_lines(output: bytes | None) -> list[str]:
    """Without the paths of the machine."""
    text = (output or b"").decode(errors="replace")
    for folder in (ROOT, sys.prefix):
        text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    return text.splitlines()[-150:]


def build(row: Row, session: Session, **params: Any) -> Any:
    """The workload of a row, with further parameters, on the session's device."""
    from workloads.contract import Runtime

    workload = row.load()
    settings = {"seed": 1, "epochs": EPOCHS, **row.runtime}
    runtime = Runtime(device=session.device, data=session.inputs.data, **settings)
    return workload(workload.Params(**{**session.inputs.resolve(row.params), **params}), runtime)


def step(row: Row, session: Session) -> Iterator[Result]:
    """Time, memory, share of the peak, kernels and waits of a training step."""
    from workloads.precision import training_precision

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    built = build(row, session)
    steps = row.runtime["steps_per_epoch"]
    precision = built.runtime.precision
    with training_precision(precision):
        epochs = count(1)
        seconds = median_seconds(lambda: built.train_epoch(next(epochs)), session.rounds) / steps
        rate = built.params.batch_size / seconds
        yield {
            "step_ms": seconds * 1e3,
            "rows_per_second": rate,
            "memory_gib": _memory_gib(),
        }
        if not session.dry:
            yield _profile(lambda: built.train_epoch(next(epochs)), steps)
        bytes_moved = step_bytes(built)
        if "compile" in row.load().Params.model_fields:  # the counter does not see compiled kernels
            del built
            built = build(row, session, compile=False)
        flops = operations(lambda: built.train_epoch(next(epochs))) / steps
    peaks = next((peaks for name, peaks in PEAKS.items() if name in session.device_name), None)
    yield {"flops": flops} | ({"bytes": bytes_moved} if bytes_moved else {})
    yield shares(seconds, {precision: flops, "bytes": bytes_moved}, peaks)


def _memory_gib() -> float:
    """The most that was allocated since the last reset."""
    return float(torch.cuda.max_memory_allocated() / 2**30)


def shares(seconds: float, amounts: Mapping[str, float], peaks: Mapping[str, float] | None) -> Result:
    """The larger of a step's shares of the peaks, and of which peak it is; nothing for an unknown device.

    Args:
        seconds: of the step.
        amounts: operations by precision, and ``bytes``.
        peaks: the same a second.
    """
    if peaks is None:
        return {}
    by_peak = {name: amount / seconds / peaks[name] for name, amount in amounts.items()}
    largest = max(by_peak, key=lambda name: by_peak[name])
    return {"share_of_peak": by_peak[largest], "peak": largest}


def operations(run: Callable[[], object]) -> int:
    """Operations of matrix products, convolutions and attention in a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _profile(run: Callable[[], object], steps: int) -> Result:
    """Kernels, copies included, and waits of a step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = list(profiler.events())
    return {
        "kernels": sum(event.device_type.name == "CUDA" for event in events) / steps,
        "waits": sum("Synchronize" in event.name for event in events) / steps,
    }


def median_seconds(run: Callable[[], object], rounds: int) -> float:
    """Median seconds of the calls of a second, ``rounds`` at least, after a second of calls that are not counted.

    What is compiled or chosen once is, in the first ones, and the processes that compiled it have ended. One call of
    each where ``rounds`` is 1.
    """
    least = 1.0 if rounds > 1 else 0.0
    _timed(run, 1, least)
    return statistics.median(_timed(run, rounds, least))


def _timed(run: Callable[[], object], rounds: int, least: float) -> list[float]:
    """Seconds of each of some calls: ``rounds``, and further ones until ``least`` seconds have passed."""
    seconds: list[float] = []
    while len(seconds) < rounds or (sum(seconds) < least and len(seconds) < MOST_CALLS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


def pack(row: Row, session: Session) -> Iterator[Result]:
    """Seconds of an epoch of one trial, of several trained together."""
    torch.cuda.reset_peak_memory_stats()
    members = row.options["members"]
    workload = row.load()
    params = workload.Params(**session.inputs.resolve(row.params))
    first = build(row, session)
    if members > 1 and first.pack_shape() is None:
        yield {"not_packed": f"{workload.__name__} with {dict(row.params)} has no pack_shape"}
        return
    epochs = count(1)
    if members == 1:
        seconds = median_seconds(lambda: first.train_epoch(next(epochs)), session.rounds)
    else:
        trials = [first, *(workload(params, replace(first.runtime, seed=seed)) for seed in range(2, 1 + members))]
        together = workload.pack(trials)
        seconds = median_seconds(lambda: together.train_epoch([next(epochs)] * members), session.rounds)
    yield {"epoch_seconds_per_trial": seconds / members, "memory_gib": _memory_gib()}


def quality(row: Row, session: Session) -> Iterator[Result]:
    """Validation by epoch, and test at the end, once."""
    from orchestrator.config.plan import Plan
    from orchestrator.engine.loop import run_epochs

    built = build(row, session)
    epochs = row.runtime["epochs"]
    plan = Plan(epochs=epochs, evaluate_every=max(1, epochs // 10), precision=built.runtime.precision, refit=False)
    curve: Result = {}
    ended = None
    yield {"dataset": session.inputs.images_source}
    for report in run_epochs(built, plan, stop=lambda: session.left() < 20):
        for epoch in report.rows:
            if (value := epoch.metrics.get("validation/knn_top1")) is not None:
                curve[str(epoch.epoch)] = value
        ended = report.ended
        yield {"validation_knn_top1": curve}
    yield {"test": dict(built.evaluate("test").metrics)} if ended else {"cut": "no time"}
