"""The order of methods by their means, with a paired test over seeds and users, images or queries between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from orchestrator.report import statistics
from orchestrator.report.statistics import Difference
from orchestrator.reproduce.run_cache import Done
from orchestrator.runs import worker

Entrant = tuple[str, Mapping[str, Sequence[float]], Sequence[Done]]
"""A method: its name, its values over seeds by metric, and its runs, one a seed."""


@dataclass(frozen=True)
class Step:
    """Two methods with the ``difference`` of their means.

    A ``named`` pair was chosen before the values were known; its ``p`` is corrected by Holm over the named pairs.
    Neighbours in the order were chosen by the tested values themselves; their ``p`` is corrected over all pairs.
    ``pairs`` is the number of pairs in the correction.
    """

    metric: str
    better: str
    worse: str
    difference: Difference
    p: float | None
    named: bool
    pairs: int


def order(
    entrants: Sequence[Entrant],
    metric: str,
    *,
    lower: bool = False,
    reference: str | None = None,
    named: Sequence[tuple[str, str]] = (),
) -> list[Step]:
    """Compare the ``named`` pairs, and all other pairs of neighbours in the order of means, best first.

    With a ``reference`` each method is compared with it instead, and there are no neighbours. Methods without values
    are left out, and so is a reference without values. The test is over units and seeds; over means of units alone for
    few units, one seed or different numbers of seeds; over seeds alone (Welch's t) without values of units.
    """
    with_values = [one for one in entrants if one[1]]
    ranked = sorted(with_values, key=lambda one: statistics.summary(one[1][metric]).mean, reverse=not lower)
    pairs = list(combinations(ranked, 2))  # the better one first
    wanted = {frozenset(pair) for pair in named}
    reference = reference if any(reference == one[0] for one in ranked) else None
    if reference is not None:
        wanted = {frozenset((reference, one[0])) for one in ranked if one[0] != reference}
    named_pairs = [pair for pair in pairs if frozenset((pair[0][0], pair[1][0])) in wanted]
    steps = _steps(named_pairs, metric, lower, named=True)
    if reference is not None or len(named_pairs) == len(pairs):
        return steps
    neighbours = {(a[0], b[0]) for a, b in pairwise(ranked)} - {(a[0], b[0]) for a, b in named_pairs}
    every = _steps(pairs, metric, lower, named=False) if neighbours else []
    return steps + [step for step in every if (step.better, step.worse) in neighbours]


def _steps(pairs: Sequence[tuple[Entrant, Entrant]], metric: str, lower: bool, *, named: bool) -> list[Step]:
    """A step for each pair, with p corrected by Holm over them."""
    differences = [_ahead(a, b, metric, lower) for a, b in pairs]
    tested = [number for number, difference in enumerate(differences) if difference.p is not None]
    corrected = dict(zip(tested, statistics.holm([differences[number].p or 0.0 for number in tested])))
    return [
        Step(metric, a[0], b[0], difference, corrected.get(number), named, len(tested))
        for number, (difference, (a, b)) in enumerate(zip(differences, pairs))
    ]


def _ahead(better: Entrant, worse: Entrant, metric: str, lower: bool) -> Difference:
    """The difference of two methods, positive if the first is better."""
    a, b = (worse, better) if lower else (better, worse)
    units_a = _by_unit(a, metric)
    units_b = _by_unit(b, metric)
    if units_a is None or units_b is None or not units_a[0].equals(units_b[0]):
        return statistics.over_seeds(a[1][metric], b[1][metric], "welch")
    seeds, units = units_a[1].shape
    if units_a[1].shape == units_b[1].shape and seeds > 1 and units >= statistics.RESAMPLED_FROM:
        return statistics.over_units_and_seeds(units_a[1], units_b[1])
    return statistics.over_units(units_a[1].mean(axis=0), units_b[1].mean(axis=0))


def _by_unit(entrant: Entrant, metric: str) -> tuple[Any, Any] | None:
    """Ids of the units and their values, (seeds, units); None if the runs do not have them."""
    import numpy as np
    import pyarrow.parquet as pq

    files = [done.folder / worker.TEST_UNITS for done in entrant[2]]
    if not files or any(not file.exists() or metric not in pq.read_schema(file).names for file in files):
        return None
    tables = [pq.read_table(file, columns=["id", metric]).sort_by("id") for file in files]
    if any(not table["id"].equals(tables[0]["id"]) for table in tables):
        return None
    return tables[0]["id"], np.stack([table[metric].to_numpy().astype(np.float64) for table in tables])
