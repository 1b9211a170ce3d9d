"""Published tables once more: settings chosen on validation, models refitted over seeds, test opened once for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import search_spaces
from orchestrator import preflight, request
from orchestrator.console import Console, show
from orchestrator.errors import RunFailed, UserError
from orchestrator.published import once, standing
from orchestrator.published.once import Done
from orchestrator.published.standing import Step
from orchestrator.registry import models as registry
from orchestrator.settings import Settings
from orchestrator.spec import ExperimentSpec, SweepSpec
from workloads.recommender.published import Method, Row, Table

WORKLOAD = "recommender"
SPACE = Path(search_spaces.__file__).with_name("recommender_published.py")
QUICK_EPOCHS, QUICK_TRIALS, QUICK_SEEDS = 2, 2, 2

PATIENCE = 3
"""Evaluations without improvement after which a trial of a search has peaked; there are twenty of them."""

LADDER = 5
"""Of a selection on test: into how many parts the epochs are cut, at whose ends a model is tested."""


@dataclass(frozen=True)
class Effort:
    """How much is run. ``trials`` of 0 takes the settings as they stand in the table's data.

    ``as_published`` repeats what the thesis' own code does with the test part: it takes the best epoch of each
    metric there, and trains with an oracle that reads it. The runs say so.
    """

    seeds: int = 5
    trials: int = 8
    quick: bool = False
    local: bool = False
    as_published: bool = False

    def settled(self) -> Effort:
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
class Measured:
    """A row's values over seeds by metric; empty, with a ``failure``, where a run failed."""

    row: Row
    choice: Choice | None
    values: Mapping[str, Sequence[float]]
    runs: tuple[Done, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Block:
    """The rows on one dataset and backbone, and their order by the table's metric."""

    dataset: str
    backbone: str
    rows: tuple[Measured, ...]
    order: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """A table as it came out; ``missing`` says which datasets are not here, and where to get them."""

    table: Table
    effort: Effort
    blocks: tuple[Block, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.missing and not any(row.failure for block in self.blocks for row in block.rows)


def run(
    published: Table,
    settings: Settings,
    effort: Effort,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    backbones: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> Reproduction:
    """Run what the table needs and is not there yet. Without ``datasets`` it is all of the published ones that are
    here; one that is named has to be. What is named may be published or not.

    Raises UserError before anything is run, and Interrupted; a row whose run fails is kept with its failure.
    """
    effort = effort.settled()
    check_reads_test(published.id, published.reads_test, effort)
    here, missing = present(datasets or published.datasets, settings, named=bool(datasets))
    blocks = [
        (dataset, backbone, _chosen(published.rows(dataset, backbone), methods))
        for dataset in here
        for backbone in backbones or _backbones(published, dataset)
    ]
    for _, _, rows in blocks:  # all that can be wrong is said before anything runs
        for row in rows:
            search_spec(row.settings, settings, effort)
    found = []
    with on_cluster(settings, effort):
        for dataset, backbone, rows in blocks:
            measured = tuple(_measure(published, row, settings, effort, console) for row in rows)
            order = standing.order([(one.row.method, one.values, one.runs) for one in measured], published.compared_by)
            found.append(Block(dataset, backbone, measured, tuple(order)))
    return Reproduction(published, effort, tuple(found), missing)


def check_reads_test(name: str, reads_test: bool, effort: Effort) -> None:
    """Raises UserError for what would train with the test part in sight, unless that was asked for."""
    if reads_test and not effort.as_published:
        raise UserError(
            f"{name} looks at the test part while it trains", fix="Say that this is meant with --as-published"
        )


def present(datasets: Sequence[str], settings: Settings, *, named: bool) -> tuple[list[str], dict[str, str]]:
    """The datasets that are here, and of the others what is wrong. Raises UserError where one was named, or none is."""
    here, missing = [], {}
    for dataset in datasets:
        try:
            preflight.dataset({"dataset": dataset}, settings.data)
        except UserError as error:
            if named:
                raise
            missing[dataset] = str(error)
        else:
            here.append(dataset)
    if not here:
        raise UserError("None of the datasets is here", got=", ".join(datasets), fix=next(iter(missing.values())))
    return here, missing


def on_cluster(settings: Settings, effort: Effort) -> Any:
    """One Ray for all runs; nothing with ``local``."""
    if effort.local:
        return nullcontext()
    from orchestrator.cluster import cluster

    return cluster(settings.ray_address)


def choose(method: Method, settings: Settings, effort: Effort) -> Choice:
    """Settings by a search on validation, which is not repeated. Raises RunFailed and Interrupted."""
    spec = search_spec(method, settings, effort)
    if spec is None:
        return Choice(method.params, effort.epochs(method.epochs), None)
    done = once.sweep(spec, settings, effort.local, about(method.params))
    return Choice(done.result["best_params"], done.result["epochs"], done.id)


def search_spec(method: Method, settings: Settings, effort: Effort) -> SweepSpec | None:
    """The search for a method's settings; None where nothing is to be searched. Raises UserError."""
    params = preflight.parameters(WORKLOAD, method.params)
    if not effort.trials or not method.searched:
        return None
    fixed = {name: value for name, value in params.items() if name not in method.searched}
    epochs = effort.epochs(method.epochs)
    plan = {"epochs": epochs, "evaluate_every": max(1, epochs // 20), "patience": PATIENCE}
    # No scheduler: at an early rung the fastest learner leads, which is not the best one in the end.
    search = {"space": f"{SPACE}:around", "trials": effort.trials, "scheduler": "none"}
    return request.sweep(WORKLOAD, settings, overrides={**fixed, **plan}, search=search, local=effort.local)


def final_spec(
    params: Mapping[str, Any], epochs: int, seed: int, settings: Settings, effort: Effort, **plan: Any
) -> ExperimentSpec:
    """A model of these settings, trained on train + validation for so many epochs unless ``plan`` says otherwise."""
    overrides = {**params, "epochs": epochs, "refit": "only", **plan}
    resources = {"gpus_per_worker": 0} if params.get("optimizer") == "sgd" else {}  # it is for a CPU
    return request.experiment(
        WORKLOAD, settings, overrides=overrides, seed=seed, resources=resources, local=effort.local
    )


def train(spec: ExperimentSpec, settings: Settings, effort: Effort, *, reads_test: bool) -> Done:
    """The run of ``spec``, tagged where it or its selection looks at the test part as published."""
    done = once.run(spec, settings, effort.local, about(spec.params))
    if reads_test and not done.found and done.result["run_id"] and settings.tracking:
        with suppress(*registry.trouble()):  # where MLflow is away the record's command still says so
            registry.client(settings).set_tag(done.result["run_id"], "orchestrator.reads_test", "as published")
    return done


def about(params: Mapping[str, Any]) -> str:
    """``thesis-ml-100k-mf-bpr-dns``: the head of the names of its runs."""
    dataset = str(params["dataset"]).rpartition("/")[2]
    words = [dataset, params["backbone"], params["loss"], params["sampler"]]
    return "-".join(["thesis", *("".join(c if c.isalnum() or c in "-_" else "-" for c in word) for word in words)])


def ladder(epochs: int) -> list[int]:
    """The epochs at which a model is tested where the best of them is taken."""
    return sorted({-(-epochs * step // LADDER) for step in range(1, LADDER + 1)})


def _measure(published: Table, row: Row, settings: Settings, effort: Effort, console: Console) -> Measured:
    console.say(f"{row.dataset} {row.backbone} {row.method}")
    choice, done = None, []
    try:
        choice = choose(row.settings, settings, effort)
        values: dict[str, list[float]] = {}
        for seed in range(effort.seeds):
            one = list(_trained(choice, seed, row.settings, settings, effort))
            found = [_values(published, choice, each, settings) for each in one]
            done.append(max(zip(found, one), key=lambda each: each[0][published.compared_by])[1])
            for metric in published.metrics:  # of several models, as published, the best by each metric
                values.setdefault(metric, []).append(max(each[metric] for each in found))
    except RunFailed as error:
        console.say(f"  failed: {error}")
        return Measured(row, choice, {}, tuple(done), str(error))
    mean = sum(values[published.compared_by]) / len(values[published.compared_by])
    again = sum(run.found for run in done)
    console.say(
        f"  {published.compared_by} {show(mean)} over {len(done)} seed{'s' * (len(done) > 1)}, {choice.epochs} epochs"
        + (f" ({again} of them from before)" if again else "")
    )
    return Measured(row, choice, values, tuple(done))


def _trained(choice: Choice, seed: int, method: Method, settings: Settings, effort: Effort) -> Iterator[Done]:
    """The final model of a seed; as published, one for each epoch count that is compared on test.

    Settings that are printed whole come with their number of epochs: the author's code for them takes the last one.
    """
    several = effort.as_published and method.searched
    lengths = ladder(effort.epochs(method.epochs)) if several else [choice.epochs]
    for epochs in lengths:
        spec = final_spec(choice.params, epochs, seed, settings, effort)
        yield train(spec, settings, effort, reads_test=effort.as_published)


def _values(published: Table, choice: Choice, done: Done, settings: Settings) -> dict[str, float]:
    """What the table's columns are for one model."""
    if published.measure == "credence":
        from workloads.recommender.published.trust import judge

        return {"credence_auc": judge(done.folder / "model", choice.params, settings.data).auc}
    test = done.result["metrics"]
    return {name.removeprefix("test/"): value for name, value in test.items() if name.startswith("test/")}


def _backbones(published: Table, dataset: str) -> list[str]:
    """Those with values on the dataset; on one of the user's, the first of the table."""
    having = [name for name in published.backbones if any(row.published for row in published.rows(dataset, name))]
    return having or [published.backbones[0]]


def _chosen(rows: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """The rows of the named methods; all where none is named. Raises UserError for an unknown one."""
    from orchestrator.errors import unknown

    known = {row.method.lower(): row for row in rows}
    for name in methods:
        if name.lower() not in known:
            raise unknown("method of the table", name, [row.method for row in rows])
    return [known[name.lower()] for name in methods] or list(rows)
