"""The samples of a comparison: one entry a seed of a run or sweep, with its parameters and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config.plan import PLAN_KEYS
from orchestrator.config.spec import SweepSpec, evaluation_data, parse
from orchestrator.errors import UserError
from orchestrator.provenance.record import recorded_environment
from orchestrator.report import trials
from orchestrator.search import recorded, unit_values, winners
from orchestrator.search.ranking import REPEAT, ranked, repeats
from orchestrator.search.unit_values import UnitValues
from orchestrator.storage import commands
from orchestrator.storage.names import TEST_UNITS, VALIDATION_UNITS
from orchestrator.storage.records import SETTLED, RunFolder
from workloads.contract import Objective, Split

UNITS: Mapping[Split, str] = {"validation": VALIDATION_UNITS, "test": TEST_UNITS}

LEARNT_FROM = ("calibration_part",)
"""Parameters that name a split from which a model learns its confidence: its values on that split are too good."""


@dataclass(frozen=True)
class Sample:
    """The values of one trained model on one split.

    ``params`` includes parameters, plan, seed, the ``id`` of the run or sweep, and the ``trial``. ``searched`` are
    those that a sweep drew. ``units`` is the file with the values of each unit (user, query or pair), or None.
    ``kept`` are the first objective's values of the units that a sweep keeps of each seed, or None.
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
    kept: UnitValues | None = None

    @property
    def name(self) -> str:
        return self.source if self.trial is None else f"trial {self.trial} of {self.source}"

    @property
    def evaluated_on(self) -> tuple[Any, ...]:
        """A key that is equal for two models evaluated on the same examples."""
        about = sorted((k, str(v)) for k, v in evaluated_on(self.params, self.split).items())
        return (self.workload, self.data, *about)


def evaluated_on(params: Mapping[str, Any], split: Split = "validation") -> dict[str, Any]:
    """The parameters that define the evaluation data, and whether the model has learned from that split."""
    own = {name: value for name, value in params.items() if name not in PLAN_KEYS}  # such as evaluate_every
    return evaluation_data(own) | {name: split for name in LEARNT_FROM if params.get(name) == split}


def entries(folder: RunFolder, split: Split, *, every: bool) -> list[Sample]:
    """The entry of a run; for a sweep that of the winner, or on validation with ``every`` those of all complete trials.

    A configuration with several seeds has an entry a seed. Raises UserError if there are no values yet.
    """
    if folder.record["kind"] == "run":
        return [_run(folder, split)]
    samples = list(_trials(folder) if every and split == "validation" else _winner(folder, split))
    if not samples:
        raise UserError(f"{folder.id} has no complete trial", fix=f"See: {commands.for_run(folder.path, 'status')}")
    return samples


def _run(folder: RunFolder, split: Split) -> Sample:
    spec = recorded.spec(folder)
    plan = {name: spec["plan"].get(name) for name in PLAN_KEYS}
    params = {**spec["params"], **plan, "seed": spec["seed"], "id": folder.id}
    return _entry(folder, split, None, params, frozenset(), _settled(folder, split), _units(folder.path, split))


def _winner(folder: RunFolder, split: Split) -> Iterator[Sample]:
    """The winner's entries: on validation one for each seed of its trial, on test one for its final model."""
    every = recorded.trials(folder)
    best = trials.best(folder, every, recorded.objectives(folder)[0])
    if best is None:
        return
    if split == "validation":
        kept = unit_values.read(folder.path)
        # Otherwise the units in the folder are an earlier winner's.
        is_held = winners.trial_of_outcome(folder) in (None, best.number)
        for number, metrics in enumerate(_over_seeds(best, every)):
            # All metrics of units are kept of the first seed only.
            units = _units(folder.path / "winner", split) if is_held and not number else None
            run = _seed_run(best, every, number)
            yield replace(_trial(folder, split, best, run, metrics, units), kept=kept.get((run[0].number, run[1])))
    else:
        yield _trial(folder, split, best, (best, 0), _settled(folder, split), _units(folder.path / "winner", split))


def _trials(folder: RunFolder) -> Iterator[Sample]:
    every = recorded.trials(folder)
    kept = unit_values.read(folder.path)
    again = [trial for trial in every if REPEAT in trial.user_attrs]
    for trial in ranked(every, recorded.objectives(folder)[0]):
        for number, metrics in enumerate(_over_seeds(trial, again)):
            run = _seed_run(trial, again, number)
            entry = _trial(folder, "validation", trial, run, metrics, None)
            yield replace(entry, kept=kept.get((run[0].number, run[1])))


def _seed_run(trial: Any, every: list[Any], number: int) -> tuple[Any, int]:
    """Trial and seed that trained seed ``number`` of a configuration: of a finalist the trial that repeats it."""
    further = repeats(every, trial)
    return (further[number - 1], 0) if further and number else (trial, number)


def _trial(
    folder: RunFolder,
    split: Split,
    trial: Any,
    run: tuple[Any, int],
    metrics: Mapping[str, float],
    units: Path | None,
) -> Sample:
    """The entry of a trial; ``run`` is the trial and the seed that gave its values, see :func:`_seed_run`."""
    spec = recorded.spec(folder)
    own = trial.user_attrs["params"]
    with suppress(UserError):  # the defaults are unknown if the workload is not installed
        own = preflight.parameters(spec["workload"], own)
    plan = {name: spec["plan"].get(name) for name in PLAN_KEYS}
    by, number = run
    seed = parse(SweepSpec, spec, folder.id).trial_seed(by.user_attrs.get("seed_of", by.number), number)
    params = {**own, **plan, "seed": seed, "id": folder.id, "trial": trial.number}
    return _entry(folder, split, trial.number, params, frozenset(trial.params), metrics, units)


def _entry(
    folder: RunFolder,
    split: Split,
    trial: int | None,
    params: Mapping[str, Any],
    searched: frozenset[str],
    metrics: Mapping[str, float],
    units: Path | None,
) -> Sample:
    data = str(recorded_environment(folder.path).get("data") or params.get("dataset"))
    return Sample(
        folder.id, trial, split, folder.record["workload"], data, params, searched, metrics, units,
        recorded.objectives(folder),
    )  # fmt: skip


def _over_seeds(trial: Any, every: list[Any]) -> list[dict[str, float]]:
    """The validation metrics of each seed of a complete trial, without the prefix of the split."""
    return [
        _of(result["best_metrics"], "validation") for result in trials.over_seeds(trial, every) or [trial.user_attrs]
    ]


def _settled(folder: RunFolder, split: Split) -> dict[str, float]:
    metrics = _of(folder.result().get("metrics", {}), split)
    if not metrics:
        state = folder.status()
        finished = state in SETTLED
        raise UserError(
            f"{folder.id} has no values on {split}" + ("" if finished else f": it is {state}"),
            fix="Compare on the other one: orchestrator compare --split" if finished else "Leave it out",
        )
    return metrics


def _of(metrics: Mapping[str, float], split: str) -> dict[str, float]:
    return {k.removeprefix(f"{split}/"): v for k, v in metrics.items() if k.startswith(f"{split}/")}


def _units(folder: Path, split: Split) -> Path | None:
    file = folder / UNITS[split]
    return file if file.exists() else None
