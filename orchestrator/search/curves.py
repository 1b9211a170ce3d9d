"""Learning curves of a sweep's trials in a file next to the study: the metrics of each epoch, one row per epoch.

The study has only the values at rungs, and MLflow may not be reachable. Values within epochs are not recorded.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from orchestrator.engine.loop import Row
from orchestrator.storage import disk

CURVES = "curves.jsonl"

Curve = list[tuple[int, float]]
"""(epoch, value), by epoch."""


class Curves:
    """Writer of the curves. When the disk is full, only curves are lost."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / CURVES

    def add(self, number: int, rows: Iterable[Row], seed: int = 0) -> None:
        """Write a trial's rows. ``seed`` counts the repeats of one configuration."""
        lines = [
            json.dumps({"trial": number, "seed": seed, "epoch": row.epoch, "time": row.time, **row.metrics}) + "\n"
            for row in rows
        ]
        with suppress(OSError):
            disk.append_lines(self._file, lines)


def read(folder: Path, name: str) -> dict[tuple[int, int], Curve]:
    """The curve of ``name`` (such as ``validation/ndcg_at_20``) by (trial, seed). Of repeated rows the last one counts.

    Empty for a sweep without the file. Partial and damaged lines are skipped.
    """
    curves: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for row in disk.json_lines(folder / CURVES):
        with suppress(ValueError, KeyError, TypeError):
            curves[row["trial"], row["seed"]][row["epoch"]] = float(row[name])
    return {key: sorted(curve.items()) for key, curve in curves.items()}


def rows(folder: Path, number: int, seed: int = 0) -> list[Row]:
    """The rows of a trial by epoch. Repeated and damaged lines as in :func:`read`.

    Sweeps of earlier versions recorded no times, which are then those of the call, and only objectives and the training
    loss.
    """
    by_epoch: dict[int, Row] = {}
    now = time.time()
    for row in disk.json_lines(folder / CURVES):
        with suppress(ValueError, KeyError, TypeError):
            if (row.pop("trial"), row.pop("seed")) == (number, seed):
                epoch, moment = row.pop("epoch"), row.pop("time", now)
                by_epoch[epoch] = Row(epoch, moment, {name: float(value) for name, value in row.items()})
    return [row for _, row in sorted(by_epoch.items())]


@dataclass(frozen=True, slots=True)
class SeedPoint:
    """Mean and sample standard deviation of ``n`` seeds at an epoch."""

    epoch: int
    n: int
    mean: float
    spread: float


def over_seeds(curves: Mapping[tuple[int, int], Curve], trials: Collection[int]) -> list[SeedPoint]:
    """The curve of a trial over its seeds, or of a finalist and its repeats, at the epochs that two or more reached."""
    values: dict[int, list[float]] = defaultdict(list)
    for (number, _), curve in curves.items():
        if number in trials:
            for epoch, value in curve:
                values[epoch].append(value)
    return [
        SeedPoint(epoch, len(each), fmean(each), stdev(each)) for epoch, each in sorted(values.items()) if len(each) > 1
    ]
