"""Runs and sweeps side by side: grouped by any parameter, with mean, spread and significance over seeds or units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.console import show
from orchestrator.errors import UserError, unknown
from orchestrator.report import statistics
from orchestrator.report.samples import Entry, entries
from orchestrator.report.statistics import Difference, Summary, TestName
from orchestrator.storage.records import RunFolder
from workloads.contract import Objective, Split

Key = tuple[str, ...]
"""A group: the values, as text, of the parameters that groups are made by."""

NEITHER = ("id", "trial", "seed", "objective", "checkpoint_every")
"""What makes no group by itself: identity, luck, and what leaves the numbers alone."""


@dataclass(frozen=True)
class Row:
    """One group's values of one metric; ``difference`` is to the reference group, None for the reference itself.

    ``p`` is corrected by Holm over the comparisons of the metric.
    """

    metric: str
    group: Key
    values: tuple[float, ...]
    summary: Summary
    difference: Difference | None
    p: float | None


@dataclass(frozen=True)
class Comparison:
    """Rows by metric, in each the groups in their order; ``notes`` say what the numbers cannot."""

    split: Split
    by: tuple[str, ...]
    reference: Key
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def name(self, group: Key) -> str:
        """``loss=bcl dim=32``."""
        return " ".join(f"{name}={brief(value)}" for name, value in zip(self.by, group)) or "all"


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
    """Compare what the folders hold in ``metrics`` (unset: the objectives), against ``baseline`` or the best group.

    Without ``by`` a sweep counts by its winner, and groups are made by the parameters that were asked for and
    differ (but the seed). With ``by``, all complete trials of a sweep take part on validation. The best group is the
    one of the best mean of the first objective.
    Raises UserError for an unknown parameter, metric or baseline, with the nearest, and, unless ``mixed``, for values
    that cannot be compared: of other workloads or other data.
    """
    distinct = {folder.id: folder for folder in folders}.values()
    found = [entry for folder in distinct for entry in entries(folder, split, every=bool(by))]
    if not mixed:
        _check_comparable(found)
    keys = tuple(by) or _differing(found)
    for name in keys:
        known = {known for entry in found for known in entry.params}
        if name not in known:
            raise unknown("parameter", name, known)
    chosen = list(metrics) or [objective.metric for objective in found[0].objectives]
    for metric in chosen:
        _check_metric(metric, found)
    groups: dict[Key, list[Entry]] = {}
    for entry in sorted(found, key=lambda e: [_order(e.params.get(name)) for name in keys]):
        groups.setdefault(tuple(_text(entry.params.get(name)) for name in keys), []).append(entry)
    reference = _best(groups, found[0].objectives[0]) if baseline is None else _named(groups, baseline)
    rows = tuple(row for metric in chosen for row in _rows(groups, metric, reference, test))
    return Comparison(split, keys, reference, rows, tuple(_notes(groups, keys, rows, baseline is None)))


def brief(text: str) -> str:
    """A value's text with its digits cut: 0.00123456789 is 0.001235."""
    try:
        return text if "." not in text else show(float(text))
    except ValueError:
        return text


def _check_comparable(found: Sequence[Entry]) -> None:
    for what, name in (("workloads", "workload"), ("data", "data")):
        kinds = {str(getattr(entry, name)): entry.source for entry in found}
        if len(kinds) > 1:
            (a, one), (b, other) = list(kinds.items())[:2]
            raise UserError(
                f"{one} and {other} are of different {what}, so their values cannot be compared", got=f"{a} and {b}",
                fix="Leave one away, or compare them nevertheless with --mixed",
            )  # fmt: skip


def _differing(found: Sequence[Entry]) -> tuple[str, ...]:
    """The parameters that were asked for, not searched, and differ; the ids where sweeps differ in none."""
    searched = {name for entry in found for name in entry.searched}
    names = dict.fromkeys(name for entry in found for name in entry.params if name not in NEITHER)
    free = [name for name in names if name not in searched and _differs(name, found)]
    return tuple(free) or (("id",) if searched and _differs("id", found) else ())


def _differs(name: str, found: Sequence[Entry]) -> bool:
    return len({_text(entry.params.get(name)) for entry in found}) > 1


def _check_metric(metric: str, found: Sequence[Entry]) -> None:
    for entry in found:
        if metric not in entry.metrics:
            known = {name for other in found for name in other.metrics}
            if metric not in known:
                raise unknown("metric", metric, known)
            raise UserError(f"{entry.name} has no {metric}", allowed=sorted(entry.metrics))


def _best(groups: Mapping[Key, Sequence[Entry]], objective: Objective) -> Key:
    try:
        means = {g: statistics.summary([e.metrics[objective.metric] for e in f]).mean for g, f in groups.items()}
    except KeyError:
        raise UserError(f"Not all have {objective.metric}, which names the best", fix="Name a --baseline") from None
    return (max if objective.direction == "max" else min)(means, key=means.__getitem__)


def _named(groups: Mapping[Key, Sequence[Entry]], baseline: str) -> Key:
    """The group of ``bpr``, ``loss=bpr`` or, by two parameters, ``bpr,32``."""
    wanted = [part.rpartition("=")[2].strip() for part in baseline.split(",")]
    for group in groups:
        if wanted in ([*group], [brief(value) for value in group]):
            return group
    raise unknown("baseline", baseline, [",".join(map(brief, group)) for group in groups])


def _rows(groups: Mapping[Key, Sequence[Entry]], metric: str, reference: Key, test: TestName) -> list[Row]:
    differences = {
        group: _difference(found, groups[reference], metric, test)
        for group, found in groups.items()
        if group != reference
    }
    tested = {group: d.p for group, d in differences.items() if d.p is not None}
    corrected = dict(zip(tested, statistics.holm(list(tested.values()))))
    rows = []
    for group, found in groups.items():
        values = tuple(entry.metrics[metric] for entry in found)
        summary = statistics.summary(values)
        rows.append(Row(metric, group, values, summary, differences.get(group), corrected.get(group)))
    return rows


def _difference(a: Sequence[Entry], b: Sequence[Entry], metric: str, test: TestName) -> Difference:
    if len(a) == len(b) == 1 and (units := _common_units(a[0], b[0], metric)) is not None:
        return statistics.over_units(*units)
    return statistics.over_seeds([e.metrics[metric] for e in a], [e.metrics[metric] for e in b], test)


def _common_units(a: Entry, b: Entry, metric: str) -> tuple[Any, Any] | None:
    """A metric's values unit by unit, where both have kept them and were evaluated on the very same ones."""
    if a.units is None or b.units is None or a.evaluated_on != b.evaluated_on:
        return None
    import pyarrow.parquet as pq

    if any(metric not in pq.read_schema(file).names for file in (a.units, b.units)):
        return None
    ours, theirs = (pq.read_table(file, columns=["id", metric]).sort_by("id") for file in (a.units, b.units))
    return (ours[metric].to_numpy(), theirs[metric].to_numpy()) if ours["id"].equals(theirs["id"]) else None


def _notes(
    groups: Mapping[Key, Sequence[Entry]], keys: Sequence[str], rows: Sequence[Row], chosen_here: bool
) -> list[str]:
    """What a reader must know so as not to be misled."""
    notes = []
    tests = list(dict.fromkeys(row.difference.test for row in rows if row.difference and row.difference.test))
    if tests:
        notes.append(
            f"Test: {', '.join(tests)}; two-sided, p corrected by Holm over the comparisons of a metric, intervals not."
        )
        if chosen_here and len(groups) > 2:
            notes.append("The reference is the best group, chosen by these very values: the p values flatter it.")
    if any(test.startswith("paired") for test in tests):
        notes.append("The paired test is over the units of one seed each: it says nothing of other seeds.")
    within = [
        name
        for name in dict.fromkeys(name for found in groups.values() for name in found[0].params)
        if name not in (*NEITHER, *keys) and any(_differs(name, found) for found in groups.values())
    ]
    if within:
        notes.append(f"Within a group {', '.join(within)} differ too: the spread is over them, not over seeds alone.")
    copies = Counter(_identity(entry) for found in groups.values() for entry in found)
    if repeated := sum(n - 1 for n in copies.values()):
        notes.append(f"{repeated} of them repeat another's parameters and seed: they are no further seeds.")
    return notes


def _identity(entry: Entry) -> tuple[str, ...]:
    return tuple(f"{k}={v}" for k, v in sorted(entry.params.items()) if k == "seed" or k not in NEITHER)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, before texts."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, str(value))
