"""Audit of a dataset's test split: the rows of its ledger, what contradicts them, and what the values are worth.

Each run notes the digests of its rows, in its folder and as a tag of its MLflow run. A row that was changed, or removed
from the end of the chain, is missing there. What the audit cannot know is in :data:`UNKNOWN`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from orchestrator.console import aligned, show
from orchestrator.errors import UserError, one_line, plural, unknown
from orchestrator.provenance.record import recorded_environment
from orchestrator.registry import models as registry
from orchestrator.report.statistics import standard_error
from orchestrator.runs import worker
from orchestrator.search import recorded
from orchestrator.search.winners import WINNER
from orchestrator.storage import look_ledger, remote, run_lookup
from orchestrator.storage.look_ledger import Row
from orchestrator.storage.names import TEST_UNITS
from orchestrator.storage.records import SETTLED, RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.tracking.client import all_pages, all_runs

LEVEL = 0.95

COLUMNS = {
    "number": "LOOK",
    "at": "AT",
    "run": "RUN",
    "kind": "KIND",
    "epoch": "EPOCHS",
    "by": "BY",
    "selection": "SELECTION",
}
"""Fields of a row that are shown."""

UNKNOWN = (
    "The audit does not see who reads the dataset's files by other means (a script, a workload's own code, a search "
    "space), runs in other storages, or a chain that was removed together with all its runs"
)


@dataclass(frozen=True)
class Value:
    """A run's test value of its objective, with two intervals of 95%: for itself, and for all looks at once."""

    run: str
    metric: str
    value: float
    alone: tuple[float, float]
    together: tuple[float, float]


@dataclass(frozen=True)
class Audit:
    """The audit of one chain.

    ``faults`` contradict the ledger: something was changed or removed. ``notes`` are looks that deserve attention.
    """

    dataset: str | None
    fingerprint: str | None
    rows: Sequence[Row]
    faults: Sequence[str]
    notes: Sequence[str]
    values: Sequence[Value]

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "fingerprint": self.fingerprint,
            "looks": [row.fields | {"digest": row.digest} for row in self.rows],
            "faults": list(self.faults),
            "notes": list(self.notes),
            "values": [vars(value) for value in self.values],
        }


def audits(settings: Settings, dataset: str) -> list[Audit]:
    """The audits of the chains of ``dataset``, one for each fingerprint of its data.

    Raises UserError for a dataset without a chain, with the nearest, and (exit 3) if the storage cannot be used.
    """
    with remote.answering(remote.uri_of(settings.storage) or str(settings.storage)):
        chains = {name: look_ledger.rows(settings.storage, name) for name in look_ledger.chains(settings.storage)}
    folders = list(run_lookup.folders(settings.storage))
    names = {name: _first(rows, "dataset") or _first(rows, "workload") for name, rows in chains.items()}
    for folder in folders:  # a chain may have been removed
        for look in _noted(folder):
            spec = recorded.spec(folder)
            params = {**spec.get("params", {}), **spec.get("fixed", {})}
            names.setdefault(look["chain"], params.get("dataset") or folder.record["workload"])
    if dataset not in names.values():
        raise unknown("dataset in the ledger of looks", dataset, {name for name in names.values() if name})
    return [_audit(settings, name, chains.get(name, []), folders) for name in names if names[name] == dataset]


def _audit(settings: Settings, chain: str, rows: list[Row], folders: Sequence[RunFolder]) -> Audit:
    fingerprint = _first(rows, "fingerprint")
    faults, notes = look_ledger.faults(rows), _notes(rows)
    digests = {row.digest for row in rows}
    values = []
    for folder in folders:
        noted = [look for look in _noted(folder) if look["chain"] == chain]
        faults += _missing(noted, digests, f"The folder of {folder.id}")
        notes += [f"{folder.id} could not write its row: {one['unrecorded']}" for one in noted if "unrecorded" in one]
        if noted:
            faults += _edited(folder)
            if "--as-published" in folder.record["command"]:
                notes.append(f"{folder.id} was selected on test, as its source does (--as-published)")
            values += [value for value in [_value(folder, len(rows))] if value]
        elif fingerprint and recorded_environment(folder.path).get("data") == fingerprint and _tested(folder):
            notes.append(f"{folder.id} has test values and no row: it is of an earlier version")
    tracked, trouble = _tracked(settings, fingerprint)
    for run, noted in tracked:
        faults += _missing([look for look in noted if look.get("chain") == chain], digests, f"MLflow's run of {run}")
    return Audit(_first(rows, "dataset"), fingerprint, rows, list(dict.fromkeys(faults)), [*notes, *trouble], values)


def _first(rows: Sequence[Row], name: str) -> str | None:
    return next((row.fields[name] for row in rows if row.fields.get(name)), None)


def _noted(folder: RunFolder) -> list[dict[str, Any]]:
    """The looks that a run has noted in its folder."""
    return [look for part in _outcomes(folder) for look in worker.looks_of(part)]


def _outcomes(folder: RunFolder) -> tuple[Path, Path]:
    """Folders in which a run, or a sweep's winner, notes its looks."""
    return folder.path, folder.path / WINNER


def _notes(rows: Sequence[Row]) -> list[str]:
    """Runs that looked more than once."""
    notes = []
    looks = Counter((row.fields.get("run"), row.fields.get("spec"), row.fields.get("epoch")) for row in rows)
    notes += [
        f"{run} looked {count} times with the same model: it was resumed after a look"
        for (run, _, _), count in looks.items()
        if count > 1
    ]
    models: dict[Any, set[Any]] = {}
    for row in rows:
        models.setdefault(row.fields.get("run"), set()).add(row.fields.get("spec"))
    notes += [f"{run} looked with {len(specs)} configurations" for run, specs in models.items() if len(specs) > 1]
    return notes


def _missing(noted: Sequence[Mapping[str, Any]], digests: set[str], where: str) -> list[str]:
    return [
        f"{where} has row {look['number']}, and the chain does not: it was cut or changed"
        for look in noted
        if "digest" in look and look["digest"] not in digests
    ]


def _tested(folder: RunFolder) -> dict[str, float]:
    """The test values in a run's record."""
    metrics = (folder.record.get("result") or {}).get("metrics", {})
    return {name: value for name, value in metrics.items() if name.startswith("test/")}


def _edited(folder: RunFolder) -> list[str]:
    """Contradictions between a run's record and the outcome that its workers wrote."""
    outcome = next(filter(None, map(worker.outcome_of, _outcomes(folder))), None)
    recorded = _tested(folder)
    if folder.status() not in SETTLED or outcome is None:
        return []
    return [
        f"The record of {folder.id} has {name} {show(value)}, its outcome {show(outcome['metrics'].get(name))}"
        for name, value in recorded.items()
        if outcome["metrics"].get(name) != value
    ]


def _value(folder: RunFolder, looks: int) -> Value | None:
    """The run's test value with its intervals; None where it has no units."""
    import pyarrow.parquet as pq

    metric = recorded.objectives(folder)[0].metric
    value = _tested(folder).get(f"test/{metric}")
    for file in (part / TEST_UNITS for part in _outcomes(folder)):
        if value is None or not file.exists() or metric not in pq.read_schema(file).names:
            continue
        error = standard_error(pq.read_table(file, columns=[metric])[metric].to_numpy())
        if error is not None:
            alone, together = (
                NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / count) * error for count in (1, max(looks, 1))
            )
            return Value(folder.id, metric, value, (value - alone, value + alone), (value - together, value + together))
    return None


def _tracked(settings: Settings, fingerprint: str | None) -> tuple[list[tuple[str, list[Any]]], list[str]]:
    """The looks that MLflow's runs have noted, by run; and why there are none, if MLflow does not answer."""
    if settings.tracking is None or fingerprint is None:
        return [], []
    looks, cut = [], []
    try:
        for run, tag in _tags(settings, fingerprint):
            try:
                looks.append((run, json.loads(tag)))
            except ValueError:
                cut.append(f"MLflow has cut the looks of {run}: only its folder has them all")
        return looks, cut
    except UserError as error:
        return [], [f"MLflow's runs were not compared: {one_line(error)}"]
    except registry.outage_errors() as error:
        return [], [f"MLflow's runs were not compared: {one_line(error)}"]


def _tags(settings: Settings, fingerprint: str) -> Iterator[tuple[str, str]]:
    client = registry.client(settings)
    experiments = [one.experiment_id for one in all_pages(client.search_experiments)]
    for run in all_runs(client.search_runs, experiments, f"tags.`orchestrator.data_fingerprint` = '{fingerprint}'"):
        if looks := run.data.tags.get("orchestrator.looks"):
            yield run.data.tags.get("orchestrator.id") or run.info.run_id, looks


def as_text(audit: Audit) -> str:
    """An audit for a terminal."""
    runs = {row.fields.get("run") for row in audit.rows}
    looks = plural(len(audit.rows), "look")
    fingerprint = (audit.fingerprint or "no fingerprint")[:12]
    lines = [f"{audit.dataset} ({fingerprint}): {looks} at the test split by {plural(len(runs), 'run')}"]
    cells = [[str(row.fields.get(name, "?")) for name in COLUMNS] for row in audit.rows]
    lines += [aligned([list(COLUMNS.values()), *cells])]
    lines += [f"FAULT: {fault}" for fault in audit.faults] or ["The chain is whole, and every run's rows are in it"]
    lines += audit.notes
    if audit.values:
        lines.append(f"Test values with 95% intervals, for all {looks} at once and for a single one:")
        cells = [
            [one.run, one.metric, f"{one.value:.4f}", _interval(one.together), _interval(one.alone)]
            for one in audit.values
        ]
        lines.append(aligned([["RUN", "METRIC", "VALUE", "ALL LOOKS", "SINGLE LOOK"], *cells]))
    return "\n".join([*lines, UNKNOWN])


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"
