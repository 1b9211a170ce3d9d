"""Runs for published rows and curves: settings selected on validation, final models over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import search_spaces
from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.errors import RunFailed, UserError
from orchestrator.registry import models as registry
from orchestrator.reproduce import run_cache
from orchestrator.reproduce.run_cache import Done
from orchestrator.runs import worker
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import request
from workloads.published import Method, Regime, Trained

T = TypeVar("T")

QUICK_EPOCHS, QUICK_TRIALS, QUICK_SEEDS = 2, 2, 2

PATIENCE = 3
"""Evaluations without improvement after which a trial of a search stops; a full trial has about 20 evaluations."""

LADDER = 5
"""Number of models with different epochs that a selection on test compares."""


@dataclass(frozen=True)
class ReproductionBudget:
    """How much to run. ``trials`` of 0 uses the given settings without a search.

    ``as_published`` uses the test part as the source does: it takes the best epoch of each metric on test, or trains
    with an oracle that reads test. Such runs are tagged.
    """

    seeds: int = 5
    trials: int = 8
    quick: bool = False
    local: bool = False
    as_published: bool = False

    def limited(self) -> ReproductionBudget:
        """The budget with the limits of ``quick``, which tests that everything works; its values mean nothing."""
        if not self.quick:
            return self
        return replace(self, seeds=min(self.seeds, QUICK_SEEDS), trials=min(self.trials, QUICK_TRIALS))

    def epochs(self, most: int) -> int:
        return min(most, QUICK_EPOCHS) if self.quick else most


@dataclass(frozen=True)
class Choice:
    """Settings for the final models; ``search`` is the id of the sweep that selected them, or None.

    ``trials`` is the number of its trials, and ``failed`` that of those that failed.
    """

    params: Mapping[str, Any]
    epochs: int
    search: str | None
    trials: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Runner:
    """Runs the searches and final models of a regime; finished ones are reused."""

    regime: Regime
    settings: Settings
    budget: ReproductionBudget

    def search_spec(self, method: Method) -> SweepSpec | None:
        """The search for a method's settings, or None without one. Raises UserError."""
        params = preflight.parameters(self.regime.workload, method.params)
        if not self.budget.trials or not method.searched:
            return None
        fixed = {name: value for name, value in params.items() if name not in method.searched}
        # No scheduler: at early rungs the fastest learner leads, which often is not the best in the end.
        search = {"space": space(self.regime), "trials": self.budget.trials, "scheduler": "none"}
        plan = {**self._plan(method), "refit": False}  # the final models are trained for each seed
        return request.sweep(
            self.regime.workload, self.settings, overrides={**fixed, **plan}, search=search,
            resources=method.resources, local=self.budget.local,
        )  # fmt: skip

    def choose(self, method: Method) -> Choice:
        """Select settings by a search on validation; a finished search is reused. Raises RunFailed and Interrupted."""
        spec = self.search_spec(method)
        if spec is None:
            return self.given(method)
        return self.chosen(spec, run_cache.run(spec, self.settings, self.budget.local, self._name(method.params)))

    def given(self, method: Method) -> Choice:
        """The settings of a method as they are given, without a search."""
        return Choice(method.params, self._epochs(method), None)

    def chosen(self, spec: SweepSpec, done: Done) -> Choice:
        """The settings that a finished search has selected."""
        epochs = done.result["epochs"] if self.regime.refit else spec.plan.epochs
        return Choice(done.result["best_params"], epochs, done.id, done.result["trials"], done.result["failed"])

    def name_of(self, spec: ExperimentSpec | SweepSpec) -> str:
        """The name of the search or run of ``spec``."""
        about = self._name(spec.fixed if isinstance(spec, SweepSpec) else spec.params)
        return run_cache.name_of(spec, self.settings, about)

    def final_spec(
        self, method: Method, params: Mapping[str, Any], epochs: int, seed: int, **plan: Any
    ) -> ExperimentSpec:
        """Spec of a final model: trained on train + validation for ``epochs``, or without refit selected on validation.

        ``plan`` overrides keys of the plan. Raises UserError.
        """
        refit = {**self._always, "refit": "only"} if self.regime.refit else {**self._plan(method), "refit": False}
        return request.experiment(
            self.regime.workload, self.settings, overrides={**params, **refit, "epochs": epochs, **plan}, seed=seed,
            resources=method.resources, local=self.budget.local,
        )  # fmt: skip

    def train(self, spec: ExperimentSpec, *, reads_test: bool) -> Done:
        """Run ``spec``; tag the run if it or its selection uses the test part as published."""
        done = run_cache.run(spec, self.settings, self.budget.local, self._name(spec.params))
        if reads_test and not done.reused and done.result["run_id"] and self.settings.tracking:
            with suppress(*registry.outage_errors()):  # during an outage the recorded command still shows it
                client = registry.client(self.settings)
                client.set_tag(done.result["run_id"], "orchestrator.reads_test", "as published")
        return done

    def trained(self, done: Done, spec: ExperimentSpec) -> Trained:
        """A run of ``spec`` in the form that the workload's functions take."""
        return Trained(
            done.folder / worker.MODEL, done.folder / worker.TABLES, spec.params, spec.plan.epochs, spec.seed,
            done.result["metrics"], self.settings.data,
        )  # fmt: skip

    def evaluate(self, function: Callable[[Any], T], runs: Sequence[Done], about: Trained | Sequence[Trained]) -> T:
        """Apply a workload's function to runs. Raises RunFailed if it raises ValueError."""
        try:
            return function(about)
        except ValueError as error:
            raise RunFailed(runs[0].id, str(error)) from error

    def _plan(self, method: Method) -> dict[str, Any]:
        """The plan of a run that selects on validation."""
        epochs = self._epochs(method)
        return {"evaluate_every": max(1, epochs // 20), "patience": PATIENCE, **self._always, "epochs": epochs}

    def _epochs(self, method: Method) -> int:
        """Maximum number of epochs; with ``quick`` that of the regime, since not every method works with two."""
        least = self.regime.quick.get("epochs") if self.budget.quick else None
        return self.budget.epochs(method.epochs) if least is None else min(method.epochs, int(least))

    @property
    def _always(self) -> dict[str, Any]:
        return {**self.regime.plan, **(self.regime.quick if self.budget.quick else {})}

    def _name(self, params: Mapping[str, Any]) -> str:
        """The prefix of the names of its runs: ``thesis-ml-100k-mf-bpr-dns``."""
        complete = preflight.parameters(self.regime.workload, params)
        words = [str(complete[name]).rstrip("/").rpartition("/")[2] for name in self.regime.named_by]
        return "-".join([self.regime.source, *map(plain, words)])


def plain(word: str) -> str:
    """A word with all characters replaced that the name of a run cannot have."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in word)


def space(regime: Regime) -> str:
    """The regime's search space in the form of ``--space``: a name, a file and function, or a module and function."""
    module, colon, _ = regime.space.rpartition(":")
    return f"{search_spaces.__name__}.{regime.space}" if colon and "/" not in module else regime.space


def check_reads_test(name: str, reads_test: bool, budget: ReproductionBudget) -> None:
    """Raise UserError if training would use the test part without ``as_published``."""
    if reads_test and not budget.as_published:
        raise UserError(f"{name} uses the test part in training", fix="Confirm it with --as-published")


def present(
    workload: str, datasets: Sequence[str], settings: Settings, *, named: bool
) -> tuple[list[str], dict[str, str]]:
    """The datasets that are present, and errors about the others.

    Raises UserError if a ``named`` one is missing, or all are.
    """
    here: list[str] = []
    missing: dict[str, str] = {}
    for dataset in datasets:
        try:
            preflight.dataset(workload, {"dataset": dataset}, settings.data)
        except UserError as error:
            if named:
                raise
            missing[dataset] = str(error)
        else:
            here.append(dataset)
    if not here:
        raise UserError("None of the datasets is present", got=", ".join(datasets), fix=next(iter(missing.values())))
    return here, missing


def on_cluster(settings: Settings, local: bool) -> Any:
    """Context of one Ray connection for all runs; does nothing with ``local``."""
    if local:
        return nullcontext()
    from orchestrator.cluster.connection import cluster

    return cluster(settings.ray_address)


def ladder(epochs: int) -> list[int]:
    """The numbers of epochs that a selection on test compares."""
    return sorted({-(-epochs * step // LADDER) for step in range(1, LADDER + 1)})
