"""The order of methods by their means, with a paired test over users, images or queries between them."""

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
    """``better`` ahead of ``worse`` by ``difference`` of the metric; ``p`` is corrected by Holm over the steps of one
    order."""

    metric: str
    better: str
    worse: str
    difference: Difference
    p: float | None


def order(entrants: Sequence[Entrant], metric: str, *, lower: bool = False, reference: str | None = None) -> list[Step]:
    """From the best mean to the worst, a step for each two neighbours, or for each method and the ``reference``.

    Methods without values are left out. Each unit's value is its mean over the seeds, so that the units are resampled,
    not the seeds; where runs keep no values by unit, the seeds are compared (Welch's t).
    """
    having = [one for one in entrants if one[1]]
    ranked = sorted(having, key=lambda one: statistics.summary(one[1][metric]).mean, reverse=not lower)
    pairs = list(pairwise(ranked)) if reference is None else _beside(ranked, reference)
    differences = [_ahead(a, b, metric, lower) for a, b in pairs]
    tested = [number for number, difference in enumerate(differences) if difference.p is not None]
    corrected = dict(zip(tested, statistics.holm([differences[number].p or 0.0 for number in tested])))
    return [
        Step(metric, a[0], b[0], difference, corrected.get(number))
        for number, (difference, (a, b)) in enumerate(zip(differences, pairs))
    ]


def _beside(ranked: Sequence[Entrant], reference: str) -> list[tuple[Entrant, Entrant]]:
    """Each method and the reference, the better one first; nothing where the reference has no values."""
    places = {one[0]: place for place, one in enumerate(ranked)}
    if reference not in places:
        return []
    at = places[reference]
    return [(ranked[min(at, place)], ranked[max(at, place)]) for place in range(len(ranked)) if place != at]


def _ahead(better: Entrant, worse: Entrant, metric: str, lower: bool) -> Difference:
    """By how much the better one is better, whichever direction that is."""
    a, b = (worse, better) if lower else (better, worse)
    ours, theirs = _by_unit(a, metric), _by_unit(b, metric)
    if ours is None or theirs is None or not ours[0].equals(theirs[0]):
        return statistics.over_seeds(a[1][metric], b[1][metric], "welch")
    return statistics.over_units(ours[1], theirs[1])


def _by_unit(entrant: Entrant, metric: str) -> tuple[Any, Any] | None:
    """Ids and the mean over seeds of each unit's value; None where they are not kept."""
    import numpy as np
    import pyarrow.parquet as pq

    files = [done.folder / worker.TEST_UNITS for done in entrant[2]]
    if not files or any(not file.exists() or metric not in pq.read_schema(file).names for file in files):
        return None
    tables = [pq.read_table(file, columns=["id", metric]).sort_by("id") for file in files]
    if any(not table["id"].equals(tables[0]["id"]) for table in tables):
        return None
    return tables[0]["id"], np.mean([table[metric].to_numpy().astype(np.float64) for table in tables], axis=0)
