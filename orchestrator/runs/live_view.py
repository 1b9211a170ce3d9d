"""Live view of a run or sweep on a terminal, as rich's renderables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.console import duration, show
from orchestrator.runs.driver_status import DriverStatus

ROWS = 12
"""Maximum number of running trials with a row of their own."""

BAR = 16
"""Width of a progress bar in columns."""

OPTUNA_STATES = {"fail": "failed"}
"""Words for Optuna's states that differ from them."""


@dataclass(slots=True)
class RunningTrial:
    """A trial, or one seed of it, that holds devices. ``value`` is that of its last epoch, ``best`` the best one."""

    name: str
    params: str
    epochs: int
    epoch: int = 0
    value: float | None = None
    best: float | None = None
    since: float = field(default_factory=lambda: time.monotonic())

    def __str__(self) -> str:
        return f"{self.name} {self.epoch}/{self.epochs}" + ("" if self.value is None else f" {show(self.value)}")


def settings_text(params: Mapping[str, Any]) -> str:
    """``lr=0.01 dim=64``."""
    return " ".join(f"{name}={show(value)}" for name, value in params.items())


def sweep_view(
    status: DriverStatus, running: Sequence[RunningTrial], metric: str, started: float, seeds: int = 1
) -> Group:
    """Running trials with epoch and value, then counts, the best trial, device time and time left.

    ``started`` is when the sweep began, on the monotonic clock. ``seeds`` is the number of runs of each trial.
    """
    now = time.monotonic()
    lines: list[RenderableType] = [_running_table(running, metric, now)] if running else []
    if len(running) > ROWS:
        lines.append(Text(f"and {len(running) - ROWS} more", style="dim"))
    states = ((OPTUNA_STATES.get(state, state), count) for state, count in sorted(status.trials.items()))
    counts = ", ".join(f"{count} {state}" for state, count in states if state != "waiting")
    counts = counts or ("" if running else "no trial has started yet")
    left = _seconds_left(status, running, seeds, now)
    lines.append(_progress_line("trials", status, counts, left, now - started))
    if best := status.best:
        at = f"trial {best['trial']}" + (f": {settings_text(status.best_params)}" if status.best_params else "")
        lines.append(Text(f"best {metric} {show(best[metric])}, {at}", overflow="ellipsis", no_wrap=True))
    if status.expected_gain:
        lines.append(Text(status.expected_gain, overflow="ellipsis", no_wrap=True))
    if status.trouble:
        lines.append(Text(f"last failure: {status.trouble}", style="red", overflow="ellipsis", no_wrap=True))
    return Group(*lines)


def run_view(status: DriverStatus, noun: str, values: Mapping[str, float], seconds: float) -> Group:
    """Epoch, last values, best value, device time and time left of a run.

    ``noun`` is "epochs" or "refit epochs", ``seconds`` the time since the run began.
    """
    best = [f"best {name} {show(value)}" for name, value in (status.best or {}).items()]
    text = "  ".join([*(f"{name} {value:.4g}" for name, value in values.items()), *best])
    line = _progress_line(noun, status, "", status.seconds_left, seconds)
    return Group(line, Text(text, overflow="ellipsis", no_wrap=True))


def _running_table(running: Sequence[RunningTrial], metric: str, now: float) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("trial", "epoch", metric, "best", "time"):
        table.add_column(name, justify="left" if name == "trial" else "right", no_wrap=True)
    table.add_column("parameters", no_wrap=True, overflow="ellipsis", ratio=1)
    for trial in running[:ROWS]:
        epoch = f"{trial.epoch}/{trial.epochs}" if trial.epoch else "starts"
        cells = (trial.name.removeprefix("trial "), epoch, show(trial.value), show(trial.best))
        table.add_row(*map(Text, (*cells, duration(now - trial.since), trial.params)))
    return table


def _progress_line(noun: str, status: DriverStatus, detail: str, left: float | None, seconds: float) -> RenderableType:
    held = status.device_seconds
    devices = [
        f"{duration(held[kind])} {kind[:-1].upper()} time" for kind in ("gpus", "cpus") if held.get(kind, 0) >= 1
    ]
    times = [f"{duration(seconds)} passed", f"{duration(left)} left" if left is not None else "", *devices[:1]]
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(max(1, status.target), status.done, width=BAR),
        Text(f"{status.done}/{status.target} {noun}", style="bold"),
        Text(", ".join(filter(None, [detail, *times])), overflow="ellipsis", no_wrap=True),
    )
    return line


def _seconds_left(status: DriverStatus, running: Sequence[RunningTrial], seeds: int, now: float) -> float | None:
    """Time left: the status' estimate or, before a trial has ended, one from the running trials; never less than their
    own remaining time."""
    paces = [((now - trial.since) / trial.epoch, trial) for trial in running if trial.epoch]
    if not paces:
        return status.seconds_left
    rest = max(pace * (trial.epochs - trial.epoch) for pace, trial in paces)
    if status.seconds_left is not None:
        return max(status.seconds_left, rest)
    usual = sum(pace * trial.epochs for pace, trial in paces) / len(paces)
    waiting = max(0, (status.target - status.done) * seeds - len(running))
    return rest + waiting / len(running) * usual
