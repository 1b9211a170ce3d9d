"""Learning curves of a sweep's trials: the objectives and the training loss, an epoch a row, beside the study.

The study keeps values at a scheduler's rungs alone, MLflow keeps everything but may be far away.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.engine.loop import Row
from orchestrator.storage import disk
from workloads.contract import Objective

CURVES = "curves.jsonl"

Curve = list[tuple[int, float]]
"""(epoch, value), by epoch."""


class Curves:
    """The writer. One driver at a time; a full disk costs curves only."""

    def __init__(self, folder: Path, objectives: Iterable[Objective]) -> None:
        self._file = folder / CURVES
        self._names = [f"validation/{objective.metric}" for objective in objectives] + ["train/loss"]
        disk.drop_half_line(self._file)

    def add(self, number: int, rows: Iterable[Row], seed: int = 0) -> None:
        """Keep what is drawn of a trial's rows; ``seed`` counts the repeats of one configuration."""
        lines = []
        for row in rows:
            values = {name: row.metrics[name] for name in self._names if name in row.metrics}
            lines.append(json.dumps({"trial": number, "seed": seed, "epoch": row.epoch, **values}) + "\n")
        with suppress(OSError), self._file.open("a") as stream:
            stream.writelines(lines)


def read(folder: Path, name: str) -> dict[tuple[int, int], Curve]:
    """(trial, seed) -> the curve of ``name`` (``validation/ndcg_at_20``); a resume states rows again, the last counts.

    Empty for a sweep that has no such file. Half a line, or a damaged one, is passed over.
    """
    found: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    with suppress(FileNotFoundError), (folder / CURVES).open(errors="replace") as stream:
        for line in stream:
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found[row["trial"], row["seed"]][row["epoch"]] = float(row[name])
    return {key: sorted(curve.items()) for key, curve in found.items()}
