"""The order of methods by their means, with a paired test over users between neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.published.once import Done
from orchestrator.results import statistics
from orchestrator.results.statistics import Difference
from orchestrator.training import worker

Entrant = tuple[str, Mapping[str, Sequence[float]], Sequence[Done]]
"""A method, its values over seeds by metric, and its runs, one a seed."""


@dataclass(frozen=True)
class Step:
    """``better`` ahead of ``worse`` by ``difference``; ``p`` is corrected by Holm over the steps of one order."""

    better: str
    worse: str
    difference: Difference
    p: float | None


def order(entrants: Sequence[Entrant], metric: str) -> list[Step]:
    """From the best mean to the worst, a step for each two neighbours; methods without values are left out.

    Each user's value is its mean over the seeds, so that the users are resampled, not the seeds; where runs keep no
    values by user, the seeds are compared (Welch's t).
    """
    ranked = sorted((one for one in entrants if one[1]), key=lambda one: _mean(one[1][metric]), reverse=True)
    differences = [_difference(a, b, metric) for a, b in pairwise(ranked)]
    tested = [number for number, difference in enumerate(differences) if difference.p is not None]
    corrected = dict(zip(tested, statistics.holm([differences[number].p or 0.0 for number in tested])))
    return [
        Step(a[0], b[0], difference, corrected.get(number))
        for number, (a, b, difference) in enumerate(zip(ranked, ranked[1:], differences))
    ]


def _mean(values: Sequence[float]) -> float:
    return statistics.summary(values).mean


def _difference(a: Entrant, b: Entrant, metric: str) -> Difference:
    ours, theirs = _by_user(a, metric), _by_user(b, metric)
    if ours is None or theirs is None or not ours[0].equals(theirs[0]):
        return statistics.over_seeds(a[1][metric], b[1][metric], "welch")
    return statistics.over_units(ours[1], theirs[1])


def _by_user(entrant: Entrant, metric: str) -> tuple[Any, Any] | None:
    """Ids and the mean over seeds of each user's value; None where they are not kept."""
    import numpy as np
    import pyarrow.parquet as pq

    files = [done.folder / worker.TEST_UNITS for done in entrant[2]]
    if not files or any(not file.exists() or metric not in pq.read_schema(file).names for file in files):
        return None
    tables = [pq.read_table(file, columns=["id", metric]).sort_by("id") for file in files]
    if any(not table["id"].equals(tables[0]["id"]) for table in tables):
        return None
    return tables[0]["id"], np.mean([table[metric].to_numpy().astype(np.float64) for table in tables], axis=0)
