"""Compare runs and sweeps, grouped by any parameter: mean, spread and significance over seeds or units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.console import show
from orchestrator.errors import UserError, unknown
from orchestrator.report import power, statistics
from orchestrator.report.power import Power
from orchestrator.report.samples import Sample, entries
from orchestrator.report.statistics import Difference, Summary, TestName
from orchestrator.search import unit_values
from orchestrator.search.unit_values import UnitValues
from orchestrator.storage.records import RunFolder
from workloads.contract import Objective, Split

Key = tuple[str, ...]
"""A group: the values of the grouping parameters, as text."""

NEITHER = ("id", "trial", "seed", "objective", "checkpoint_every", "log_every")
"""Entries that do not define a group by default: identity, seed, and settings that do not affect values."""


@dataclass(frozen=True)
class Row:
    """The values of one metric in one group.

    ``difference`` is relative to the reference group, None for the reference itself; ``p`` is corrected by Holm over
    the comparisons of the metric. ``seeds_error`` is the standard error of the difference over seeds, on the same
    units; ``units_error`` that over units, with the same seeds, None unless every seed has values of the same units.
    """

    metric: str
    group: Key
    values: tuple[float, ...]
    summary: Summary
    difference: Difference | None
    p: float | None
    power: Power | None = None
    seeds_error: float | None = None
    units_error: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Rows by metric, then by group, with notes on how to read them."""

    split: Split
    by: tuple[str, ...]
    reference: Key
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def name(self, group: Key) -> str:
        """``loss=bcl dim=32``."""
        return _label(self.by, group)


def compare(
    folders: Sequence[RunFolder],
    *,
    by: Sequence[str] = (),
    metrics: Sequence[str] = (),
    split: Split = "validation",
    baseline: str | None = None,
    test: TestName = "welch",
    mixed: bool = False,
) -> Comparison:
    """Compare runs and sweeps in ``metrics`` (default: the objectives), against ``baseline`` or the best group.

    Without ``by`` a sweep is represented by its winner, and the groups are defined by the fixed parameters that
    differ, except the seed. With ``by`` all complete trials of a sweep are used on validation. The best group has the
    best mean of the first objective. Of samples of a group with equal parameters and seed, the first one counts.

    Raises UserError for an unknown parameter, metric or baseline, with the nearest, and, unless ``mixed``, for values
    that cannot be compared since workload or data differ.
    """
    distinct = {folder.id: folder for folder in folders}.values()
    samples = [entry for folder in distinct for entry in entries(folder, split, every=bool(by))]
    if not mixed:
        _check_comparable(samples)
    keys = tuple(by) or _differing(samples)
    for name in keys:
        names = {name for entry in samples for name in entry.params}
        if name not in names:
            raise unknown("parameter", name, names)
    chosen = list(metrics) or [objective.metric for objective in samples[0].objectives]
    for metric in chosen:
        _check_metric(metric, samples)
    grouped: dict[Key, dict[tuple[str, ...], Sample]] = {}
    for entry in sorted(samples, key=lambda e: [_order(e.params.get(name)) for name in keys]):
        group = grouped.setdefault(tuple(_text(entry.params.get(name)) for name in keys), {})
        group.setdefault(_identity(entry), entry)
    groups = {key: [*group.values()] for key, group in grouped.items()}
    repeated = len(samples) - sum(map(len, groups.values()))
    reference = _best(groups, samples[0].objectives[0]) if baseline is None else _named(groups, baseline)
    rows = tuple(row for metric in chosen for row in _rows(groups, metric, reference, test))
    notes = _notes(groups, keys, rows, baseline is None)
    if repeated:
        notes.append(f"Left out: {repeated} with the parameters and seed of another. They are no additional seeds.")
    return Comparison(split, keys, reference, rows, tuple(notes))


def brief(text: str) -> str:
    """The text of a value, rounded: 0.00123456789 is 0.001235."""
    try:
        return text if "." not in text else show(float(text))
    except ValueError:
        return text


def _check_comparable(samples: Sequence[Sample]) -> None:
    for what, name in (("workloads", "workload"), ("data", "data")):
        kinds = {str(getattr(entry, name)): entry.source for entry in samples}
        if len(kinds) > 1:
            (a, one), (b, other) = list(kinds.items())[:2]
            raise UserError(
                f"{one} and {other} are of different {what}, so their values cannot be compared", got=f"{a} and {b}",
                fix="Leave one out, or compare them nevertheless with --mixed",
            )  # fmt: skip


def _differing(samples: Sequence[Sample]) -> tuple[str, ...]:
    """The parameters that are not searched and differ; if there are none, the ids of sweeps."""
    searched = {name for entry in samples for name in entry.searched}
    names = dict.fromkeys(name for entry in samples for name in entry.params if name not in NEITHER)
    free = [name for name in names if name not in searched and _differs(name, samples)]
    return tuple(free) or (("id",) if searched and _differs("id", samples) else ())


def _differs(name: str, samples: Sequence[Sample]) -> bool:
    return len({_text(entry.params.get(name)) for entry in samples}) > 1


def _check_metric(metric: str, samples: Sequence[Sample]) -> None:
    for entry in samples:
        if metric not in entry.metrics:
            names = {name for other in samples for name in other.metrics}
            if metric not in names:
                raise unknown("metric", metric, names)
            raise UserError(f"{entry.name} has no {metric}", allowed=sorted(entry.metrics))


def _best(groups: Mapping[Key, Sequence[Sample]], objective: Objective) -> Key:
    try:
        means = {g: statistics.summary([e.metrics[objective.metric] for e in f]).mean for g, f in groups.items()}
    except KeyError:
        raise UserError(f"Not all have {objective.metric}, which selects the best", fix="Name a --baseline") from None
    return (max if objective.direction == "max" else min)(means, key=means.__getitem__)


def _named(groups: Mapping[Key, Sequence[Sample]], baseline: str) -> Key:
    """The group for a baseline such as ``bpr``, ``loss=bpr`` or, with two parameters, ``bpr,32``."""
    wanted = [part.rpartition("=")[2].strip() for part in baseline.split(",")]
    for group in groups:
        if wanted in ([*group], [brief(value) for value in group]):
            return group
    raise unknown("baseline", baseline, [",".join(map(brief, group)) for group in groups])


def _rows(groups: Mapping[Key, Sequence[Sample]], metric: str, reference: Key, test: TestName) -> list[Row]:
    differences = {
        group: _difference(samples, groups[reference], metric, test)
        for group, samples in groups.items()
        if group != reference
    }
    tested = {group: d.p for group, d in differences.items() if d.p is not None}
    corrected = dict(zip(tested, statistics.holm(list(tested.values()))))
    summaries = {group: statistics.summary([e.metrics[metric] for e in samples]) for group, samples in groups.items()}
    pooled = power.pooled_spread(summaries.values())
    rows = []
    for group, samples in groups.items():
        values = tuple(entry.metrics[metric] for entry in samples)
        row = Row(metric, group, values, summaries[group], differences.get(group), corrected.get(group))
        if group != reference:
            row = replace(
                row,
                power=power.power(summaries[group], summaries[reference], pooled),
                seeds_error=_seeds_error(summaries[group], summaries[reference]),
                units_error=_units_error(samples, groups[reference], metric),
            )
        rows.append(row)
    return rows


def _seeds_error(a: Summary, b: Summary) -> float | None:
    if a.spread is None or b.spread is None:
        return None
    return math.sqrt(a.spread**2 / a.n + b.spread**2 / b.n)


def _units_error(a: Sequence[Sample], b: Sequence[Sample], metric: str) -> float | None:
    """Standard error over units of the difference of two groups' means over their seeds.

    From the units that a sweep keeps it is that of all units.
    """
    pairs = [_common_units(entry, b[0], metric) for entry in (*a, *b)]
    values = [pair[0] for pair in pairs if pair is not None]
    share = 1.0
    if len(values) < len(pairs):
        kept = [_kept(entry, metric) for entry in (*a, *b)]
        if len({one and (one.total, one.ids) for one in kept}) > 1 or kept[0] is None:
            return None
        if len({entry.evaluated_on for entry in (*a, *b)}) > 1:
            return None
        values = [one.values for one in kept if one]
        share = len(values[0]) / kept[0].total
    error = statistics.standard_error(sum(values[: len(a)]) / len(a) - sum(values[len(a) :]) / len(b))
    return error and error * math.sqrt(share)


def _kept(entry: Sample, metric: str) -> UnitValues | None:
    """The values of the units that a sweep keeps, of a run those that it would keep. None if there are none."""
    if entry.kept is not None:
        return entry.kept if metric == entry.objectives[0].metric else None
    if entry.units is None:
        return None
    import pyarrow.parquet as pq

    if metric not in pq.read_schema(entry.units).names:
        return None
    table = pq.read_table(entry.units, columns=["id", metric])
    values = table[metric].to_numpy()
    encoded = unit_values.encode({"id": table["id"].to_numpy(), metric: values}, float(values.mean()))
    return unit_values.decode(encoded) if encoded else None


def _difference(a: Sequence[Sample], b: Sequence[Sample], metric: str, test: TestName) -> Difference:
    if len(a) == len(b) == 1:
        if (units := _common_units(a[0], b[0], metric)) is not None:
            return statistics.over_units(*units)
        ours, theirs = _kept(a[0], metric), _kept(b[0], metric)
        same = ours and theirs and ours.ids == theirs.ids and a[0].evaluated_on == b[0].evaluated_on
        if ours and theirs and same and ours.total == len(ours.values):  # all units are kept
            return statistics.over_units(ours.values, theirs.values)
    return statistics.over_seeds([e.metrics[metric] for e in a], [e.metrics[metric] for e in b], test)


def _common_units(a: Sample, b: Sample, metric: str) -> tuple[Any, Any] | None:
    """A metric's values of each unit for two models; None unless both have them, for the same units."""
    if a.units is None or b.units is None or a.evaluated_on != b.evaluated_on:
        return None
    import pyarrow.parquet as pq

    if any(metric not in pq.read_schema(file).names for file in (a.units, b.units)):
        return None
    ours, theirs = (pq.read_table(file, columns=["id", metric]).sort_by("id") for file in (a.units, b.units))
    return (ours[metric].to_numpy(), theirs[metric].to_numpy()) if ours["id"].equals(theirs["id"]) else None


def _notes(
    groups: Mapping[Key, Sequence[Sample]], keys: Sequence[str], rows: Sequence[Row], chosen_here: bool
) -> list[str]:
    """Notes on how to read the comparison."""
    notes = []
    tests = list(dict.fromkeys(row.difference.test for row in rows if row.difference and row.difference.test))
    if tests:
        notes.append(
            f"Test: {', '.join(tests)}; two-sided, p corrected by Holm over the comparisons of a metric, intervals not."
        )
        if chosen_here and len(groups) > 2:
            notes.append("The reference is the best group, chosen by these very values: its p values are too small.")
    if any(row.power for row in rows):
        notes.append(
            f"detects: the difference found with probability {power.POWER:g} by Welch's t-test with these seeds; seeds "
            f"needed: in each group, to find the observed difference. Level {power.LEVEL:g}, not corrected."
        )
    if any(row.units_error is not None for row in rows):
        notes.append(
            "se (seeds) and se (units): standard errors of the difference for other seeds on the same units, and for "
            "other units with the same seeds. More seeds do not reduce the second one."
        )
        if open_ones := [_label(keys, row.group) for row in rows if _needs_units(row)]:
            notes.append(
                f"No number of seeds settles {', '.join(dict.fromkeys(open_ones))}: the difference is below 2 se "
                "(units), so it may be another one on other units."
            )
    if any(test.startswith("paired") for test in tests):
        notes.append("The paired test is over the units of one seed each: it does not hold for other seeds.")
    within = [
        name
        for name in dict.fromkeys(name for samples in groups.values() for name in samples[0].params)
        if name not in (*NEITHER, *keys) and any(_differs(name, samples) for samples in groups.values())
    ]
    if within:
        notes.append(f"Within a group {', '.join(within)} differ too: the spread is not over seeds alone.")
    return notes


def _needs_units(row: Row) -> bool:
    """Whether the part of the noise that more seeds cannot remove explains the difference."""
    return (
        row.units_error is not None and row.difference is not None and abs(row.difference.value) < 2 * row.units_error
    )


def _label(keys: Sequence[str], group: Key) -> str:
    return " ".join(f"{name}={brief(value)}" for name, value in zip(keys, group)) or "all"


def _identity(entry: Sample) -> tuple[str, ...]:
    """Equal for repetitions of one experiment: on the same data, with the same parameters and seed."""
    params = (f"{k}={v}" for k, v in sorted(entry.params.items()) if k == "seed" or k not in NEITHER)
    return (entry.workload, entry.data, *params)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    """Sort key: numbers by value, before texts."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, str(value))
