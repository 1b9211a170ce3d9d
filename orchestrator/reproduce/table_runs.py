"""The runs behind published rows and curves: settings chosen on validation, final models over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
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
"""Evaluations without improvement after which a trial of a search has peaked; there are twenty of them."""

LADDER = 5
"""Of a selection on test: into how many parts the epochs are cut, at whose ends a model is tested."""


@dataclass(frozen=True)
class ReproductionBudget:
    """How much is run. ``trials`` of 0 takes the settings as they stand.

    ``as_published`` repeats what the source does with the test part: it takes the best epoch of each metric there, and
    trains with an oracle that reads it. The runs say so.
    """

    seeds: int = 5
    trials: int = 8
    quick: bool = False
    local: bool = False
    as_published: bool = False

    def settled(self) -> ReproductionBudget:
        """``quick`` spelt out: enough to see that everything works, too little for any number to mean something."""
        if not self.quick:
            return self
        return replace(self, seeds=min(self.seeds, QUICK_SEEDS), trials=min(self.trials, QUICK_TRIALS))

    def epochs(self, most: int) -> int:
        return min(most, QUICK_EPOCHS) if self.quick else most


@dataclass(frozen=True)
class Choice:
    """Settings for the final models; ``search`` is the sweep that chose them, None where none did."""

    params: Mapping[str, Any]
    epochs: int
    search: str | None


@dataclass(frozen=True)
class Runner:
    """Runs a regime's searches and final models; each is run once, and found again afterwards."""

    regime: Regime
    settings: Settings
    effort: ReproductionBudget

    def search_spec(self, method: Method) -> SweepSpec | None:
        """The search for a method's settings; None where nothing is to be searched. Raises UserError."""
        params = preflight.parameters(self.regime.workload, method.params)
        if not self.effort.trials or not method.searched:
            return None
        fixed = {name: value for name, value in params.items() if name not in method.searched}
        # No scheduler: at an early rung the fastest learner leads, which is not the best one in the end.
        search = {"space": space(self.regime), "trials": self.effort.trials, "scheduler": "none"}
        return request.sweep(
            self.regime.workload, self.settings, overrides={**fixed, **self._plan(method)}, search=search,
            resources=method.resources, local=self.effort.local,
        )  # fmt: skip

    def choose(self, method: Method) -> Choice:
        """Settings by a search on validation, which is not repeated. Raises RunFailed and Interrupted."""
        spec = self.search_spec(method)
        if spec is None:
            return Choice(method.params, self._epochs(method), None)
        done = run_cache.sweep(spec, self.settings, self.effort.local, self._name(method.params))
        epochs = done.result["epochs"] if self.regime.refit else spec.plan.epochs
        return Choice(done.result["best_params"], epochs, done.id)

    def final_spec(
        self, method: Method, params: Mapping[str, Any], epochs: int, seed: int, **plan: Any
    ) -> ExperimentSpec:
        """A final model of ``params``: on train + validation for so many epochs, or, where the regime knows no refit,
        selected on validation; ``plan`` says otherwise. Raises UserError."""
        refit = {**self._always, "refit": "only"} if self.regime.refit else {**self._plan(method), "refit": False}
        return request.experiment(
            self.regime.workload, self.settings, overrides={**params, **refit, "epochs": epochs, **plan}, seed=seed,
            resources=method.resources, local=self.effort.local,
        )  # fmt: skip

    def train(self, spec: ExperimentSpec, *, reads_test: bool) -> Done:
        """The run of ``spec``, tagged where it or its selection looks at the test part as published."""
        done = run_cache.run(spec, self.settings, self.effort.local, self._name(spec.params))
        if reads_test and not done.found and done.result["run_id"] and self.settings.tracking:
            with suppress(*registry.trouble()):  # where MLflow is away the record's command still says so
                client = registry.client(self.settings)
                client.set_tag(done.result["run_id"], "orchestrator.reads_test", "as published")
        return done

    def trained(self, done: Done, spec: ExperimentSpec) -> Trained:
        """A run of ``spec`` as the workload's own functions see it."""
        return Trained(
            done.folder / worker.MODEL, done.folder / worker.TABLES, spec.params, spec.plan.epochs, spec.seed,
            done.result["metrics"], self.settings.data,
        )  # fmt: skip

    def asked(self, function: Callable[[Any], T], runs: Sequence[Done], about: Trained | Sequence[Trained]) -> T:
        """What a workload's own function says about runs. Raises RunFailed where it cannot say it of these."""
        try:
            return function(about)
        except ValueError as error:
            raise RunFailed(runs[0].id, str(error)) from error

    def _plan(self, method: Method) -> dict[str, Any]:
        """Of whatever selects on validation."""
        epochs = self._epochs(method)
        return {"evaluate_every": max(1, epochs // 20), "patience": PATIENCE, **self._always, "epochs": epochs}

    def _epochs(self, method: Method) -> int:
        """The most it trains for; of a quick look what its regime says, for not everything can be cut to two."""
        least = self.regime.quick.get("epochs") if self.effort.quick else None
        return self.effort.epochs(method.epochs) if least is None else min(method.epochs, int(least))

    @property
    def _always(self) -> dict[str, Any]:
        return {**self.regime.plan, **(self.regime.quick if self.effort.quick else {})}

    def _name(self, params: Mapping[str, Any]) -> str:
        """``thesis-ml-100k-mf-bpr-dns``: the head of the names of its runs."""
        complete = preflight.parameters(self.regime.workload, params)
        words = [str(complete[name]).rstrip("/").rpartition("/")[2] for name in self.regime.named_by]
        return "-".join([self.regime.source, *map(plain, words)])


def plain(word: str) -> str:
    """A word as a name of files may hold it."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in word)


def space(regime: Regime) -> str:
    """The regime's search space as ``--space`` takes it: a preset's name, or a file and function."""
    module, colon, function = regime.space.rpartition(":")
    if not colon or "/" in module:
        return regime.space
    return f"{Path(search_spaces.__file__).with_name(module)}.py:{function}"


def check_reads_test(name: str, reads_test: bool, effort: ReproductionBudget) -> None:
    """Raises UserError for what would train with the test part in sight, unless that was asked for."""
    if reads_test and not effort.as_published:
        raise UserError(
            f"{name} looks at the test part while it trains", fix="Say that this is meant with --as-published"
        )


def present(
    workload: str, datasets: Sequence[str], settings: Settings, *, named: bool
) -> tuple[list[str], dict[str, str]]:
    """The datasets that are here, and of the others what is wrong. Raises UserError where one was named, or none is."""
    here, missing = [], {}
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
        raise UserError("None of the datasets is here", got=", ".join(datasets), fix=next(iter(missing.values())))
    return here, missing


def on_cluster(settings: Settings, local: bool) -> Any:
    """One Ray for all runs; nothing with ``local``."""
    if local:
        return nullcontext()
    from orchestrator.cluster.connection import cluster

    return cluster(settings.ray_address)


def ladder(epochs: int) -> list[int]:
    """The epochs at which a model is tested where the best of them is taken."""
    return sorted({-(-epochs * step // LADDER) for step in range(1, LADDER + 1)})
