"""What runs and sweeps bring to a comparison: one entry a seed, with its parameters and its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config.plan import PLAN_KEYS
from orchestrator.errors import UserError
from orchestrator.report import trials
from orchestrator.search.ranking import ranked
from orchestrator.storage.names import TEST_UNITS, VALIDATION_UNITS
from orchestrator.storage.records import SETTLED, RunFolder
from workloads.contract import Objective, Split

UNITS: Mapping[Split, str] = {"validation": VALIDATION_UNITS, "test": TEST_UNITS}

ON_WHAT = ("dataset", "split", "eval")
"""How parameters begin that say what is evaluated on; every other one may differ between two models."""

LEARNT_FROM = ("calibration_part",)
"""Parameters that name a part which a model learns its confidence from: on that split, its values flatter it."""


@dataclass(frozen=True)
class Entry:
    """One trained model's values on one split.

    ``params`` are complete: parameters, plan, seed, the ``id`` of its run or sweep, and its ``trial``. ``searched``
    are those that a sweep drew. ``units`` is the file of values a user, query or pair, where there is one.
    """

    source: str
    trial: int | None
    split: Split
    workload: str
    data: str
    params: Mapping[str, Any]
    searched: frozenset[str]
    metrics: Mapping[str, float]
    units: Path | None
    objectives: tuple[Objective, ...]

    @property
    def name(self) -> str:
        return self.source if self.trial is None else f"trial {self.trial} of {self.source}"

    @property
    def evaluated_on(self) -> tuple[Any, ...]:
        """Equal where two models were evaluated on the very same examples."""
        about = sorted((k, str(v)) for k, v in on_what(self.params, self.split).items())
        return (self.workload, self.data, *about)


def on_what(params: Mapping[str, Any], split: Split = "validation") -> dict[str, Any]:
    """The parameters that say what a model is evaluated on, and whether it has learnt from that very split."""
    return {
        name: value
        for name, value in params.items()
        if name.startswith(ON_WHAT) or (name in LEARNT_FROM and value == split)
    }


def entries(folder: RunFolder, split: Split, *, every: bool) -> list[Entry]:
    """A run's one entry; of a sweep the winner's, or with ``every`` and on validation those of all complete trials.

    A configuration that was repeated gives an entry a seed. Raises UserError where there is nothing yet.
    """
    if folder.record["kind"] == "run":
        return [_run(folder, split)]
    found = list(_trials(folder) if every and split == "validation" else _winner(folder, split))
    if not found:
        raise UserError(f"{folder.id} has no complete trial", fix=f"See: orchestrator status {folder.id}")
    return found


def _run(folder: RunFolder, split: Split) -> Entry:
    spec = trials.spec(folder)
    plan = {name: spec["plan"].get(name) for name in PLAN_KEYS}
    params = {**spec["params"], **plan, "seed": spec["seed"], "id": folder.id}
    return _entry(folder, split, None, params, frozenset(), _settled(folder, split), _units(folder.path, split))


def _winner(folder: RunFolder, split: Split) -> Iterator[Entry]:
    """Its validation values are those of its trial, a seed each; its test values are of the one model that is kept."""
    found = trials.own(trials.study(folder))
    best = trials.best(folder, found, trials.objectives(folder)[0])
    if best is None:
        return
    if split == "validation":
        for number, metrics in enumerate(_over_seeds(best)):
            units = None if number else _units(folder.path / "winner", split)  # they are the first seed's
            yield _trial(folder, split, best, number, metrics, units)
    else:
        yield _trial(folder, split, best, 0, _settled(folder, split), _units(folder.path / "winner", split))


def _trials(folder: RunFolder) -> Iterator[Entry]:
    for trial in ranked(trials.own(trials.study(folder)), trials.objectives(folder)[0]):
        for number, metrics in enumerate(_over_seeds(trial)):
            yield _trial(folder, "validation", trial, number, metrics, None)


def _trial(
    folder: RunFolder, split: Split, trial: Any, number: int, metrics: Mapping[str, float], units: Path | None
) -> Entry:
    spec = trials.spec(folder)
    own = trial.user_attrs["params"]
    with suppress(UserError):  # the defaults of a workload that is not installed here stay unknown
        own = preflight.parameters(spec["workload"], own)
    plan = {name: spec["plan"].get(name) for name in PLAN_KEYS}
    params = {**own, **plan, "seed": number, "id": folder.id, "trial": trial.number}
    return _entry(folder, split, trial.number, params, frozenset(trial.params), metrics, units)


def _entry(
    folder: RunFolder,
    split: Split,
    trial: int | None,
    params: Mapping[str, Any],
    searched: frozenset[str],
    metrics: Mapping[str, float],
    units: Path | None,
) -> Entry:
    data = str(trials.environment(folder).get("data") or params.get("dataset"))
    return Entry(
        folder.id, trial, split, folder.record["workload"], data, params, searched, metrics, units,
        trials.objectives(folder),
    )  # fmt: skip


def _over_seeds(trial: Any) -> list[dict[str, float]]:
    """The validation metrics of each seed of a complete trial, without their split."""
    return [_of(result["best_metrics"], "validation") for result in trials.over_seeds(trial) or [trial.user_attrs]]


def _settled(folder: RunFolder, split: Split) -> dict[str, float]:
    metrics = _of((folder.record.get("result") or {}).get("metrics", {}), split)
    if not metrics:
        state = folder.status()
        finished = state in SETTLED
        raise UserError(
            f"{folder.id} has no values on {split}" + ("" if finished else f": it is {state}"),
            fix="Compare on the other one: orchestrator compare --split" if finished else "Leave it away",
        )
    return metrics


def _of(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    return {k.removeprefix(f"{split}/"): v for k, v in metrics.items() if k.startswith(f"{split}/")}


def _units(folder: Path, split: Split) -> Path | None:
    file = folder / UNITS[split]
    return file if file.exists() else None
