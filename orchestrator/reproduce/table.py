"""Reproduce tables: settings selected on validation, final models over seeds, each evaluated once on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from orchestrator.config.spec import ExperimentSpec
from orchestrator.console import Console, show
from orchestrator.errors import RunFailed, UserError, plural, unknown
from orchestrator.reproduce import ranking, table_runs
from orchestrator.reproduce.ranking import Step
from orchestrator.reproduce.run_cache import Done
from orchestrator.reproduce.table_runs import Choice, ReproductionBudget, Runner
from orchestrator.storage.settings import Settings
from workloads.published import Method, Row, Table


@dataclass(frozen=True)
class Measured:
    """The values of a row over seeds by metric; empty, with a ``failure``, if a run failed."""

    row: Row
    choice: Choice | None
    values: Mapping[str, Sequence[float]]
    runs: tuple[Done, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Block:
    """The rows of one block, and their order by the table's metrics."""

    where: Mapping[str, str]
    rows: tuple[Measured, ...]
    order: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table; ``missing`` lists datasets that are not present, and how to get them."""

    table: Table
    budget: ReproductionBudget
    blocks: tuple[Block, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.missing and not any(row.failure for block in self.blocks for row in block.rows)


def run(
    table: Table,
    settings: Settings,
    budget: ReproductionBudget,
    console: Console,
    *,
    where: Mapping[str, Sequence[str]],
    methods: Sequence[str],
) -> Reproduction:
    """Run what the table needs; finished runs are reused.

    ``where`` gives values of the parameters that define a block, published or not. Without a dataset all present
    datasets of the table are used; a named one must be present.

    Raises UserError before anything is run, and Interrupted. A row whose run fails has a ``failure``.
    """
    budget = budget.limited()
    table_runs.check_reads_test(table.id, table.reads_test, budget)
    if budget.as_published and not (table.reads_test or table.regime.refit):
        raise UserError(f"The source of {table.id} does not select on test", fix="Leave out --as-published")
    named = where.get("dataset", ())
    wanted = list(dict.fromkeys(named or table.datasets))
    here, missing = table_runs.present(table.regime.workload, wanted, settings, named=bool(named))
    row_groups = [_chosen(table.rows(*key), methods) for dataset in here for key in block_keys(table, dataset, where)]
    runner = Runner(table.regime, settings, budget)
    for rows in row_groups:  # raises all errors before anything runs
        for row in rows:
            runner.search_spec(row.settings)
    with table_runs.on_cluster(settings, budget.local):
        blocks = [_block(table, rows, runner, console) for rows in row_groups]
    return Reproduction(table, budget, tuple(blocks), missing)


def _block(table: Table, rows: Sequence[Row], runner: Runner, console: Console) -> Block:
    measured = tuple(_measure(table, row, runner, console) for row in rows)
    entrants = [(one.row.method, one.values, one.runs) for one in measured]
    steps = [
        step
        for metric in dict.fromkeys((table.compared_by, *table.tested))
        for step in ranking.order(
            entrants, metric, lower=metric in table.lower, reference=table.reference, named=table.named
        )
    ]
    return Block(rows[0].where, measured, tuple(steps))


def _measure(table: Table, row: Row, runner: Runner, console: Console) -> Measured:
    console.say(" ".join([*row.where.values(), row.method]))
    choice = None
    done: list[Done] = []
    try:
        choice = runner.choose(row.settings)
        values: dict[str, list[float]] = {}
        for seed in range(runner.budget.seeds):
            models = [
                (runner.train(spec, reads_test=runner.budget.as_published), spec)
                for spec in final_specs(row.settings, choice, seed, runner)
            ]
            columns = table.columns_on(row.where["dataset"])
            measured = [_values(table, row, each, spec, runner) for each, spec in models]
            better = {metric: min if metric in table.lower else max for metric in (table.compared_by, *columns)}
            best = better[table.compared_by](range(len(models)), key=lambda at: measured[at][table.compared_by])
            done.append(models[best][0])
            for metric in columns:  # as published, each metric takes its best model
                values.setdefault(metric, []).append(better[metric](each[metric] for each in measured))
    except RunFailed as error:
        console.say(f"  failed: {error}")
        return Measured(row, choice, {}, tuple(done), str(error))
    mean = sum(values[table.compared_by]) / len(values[table.compared_by])
    reused = sum(run.reused for run in done)
    console.say(
        f"  {table.compared_by} {show(mean)} over {plural(len(done), 'seed')}, {choice.epochs} epochs"
        + (f" ({reused} of them reused)" if reused else "")
    )
    return Measured(row, choice, values, tuple(done))


def final_specs(method: Method, choice: Choice, seed: int, runner: Runner) -> list[ExperimentSpec]:
    """The spec of a seed's final model; as published, one for each number of epochs that is compared on test.

    Settings that are published completely include the number of epochs; the author's code takes the last one.
    """
    budget = runner.budget
    several = budget.as_published and method.searched
    ladder = table_runs.ladder(budget.epochs(method.epochs)) if several else [choice.epochs]
    return [runner.final_spec(method, choice.params, epochs, seed) for epochs in ladder]


def _values(table: Table, row: Row, done: Done, spec: ExperimentSpec, runner: Runner) -> Mapping[str, float]:
    """The values of the table's columns for one model. Raises RunFailed if one is missing."""
    trained = runner.trained(done, spec)
    values: dict[str, float] = {}
    if table.measure is not None:
        values |= runner.evaluate(table.measure, [done], trained)
    else:
        test = done.result["metrics"]
        values |= {name.removeprefix("test/"): value for name, value in test.items() if name.startswith("test/")}
    if further := table.further.get(row.where["dataset"]):
        values |= runner.evaluate(further.measure, [done], trained)
    if absent := [metric for metric in table.columns_on(row.where["dataset"]) if metric not in values]:
        raise RunFailed(done.id, f"it has no {', '.join(absent)} on test")
    return values


def block_keys(table: Table, dataset: str, where: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """The blocks on a dataset as in the table, with the values of ``where``; for other datasets as on its first."""
    published = [key for key in table.places if key[0] == dataset] or [(dataset, *table.places[0][1:])]
    keys = [
        (dataset, *rest)
        for key in published
        for rest in product(*(where.get(name) or (own,) for name, own in zip(table.by[1:], key[1:])))
    ]
    return list(dict.fromkeys(keys))


def _chosen(rows: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """The rows of the named methods, by default all. Raises UserError for an unknown method."""
    if not rows:
        raise UserError("The table has no method for this block", fix="Choose another --dataset or block")
    by_name = {row.method.lower(): row for row in rows}
    for name in methods:
        if name.lower() not in by_name:
            raise unknown("method of the table", name, [row.method for row in rows])
    return [by_name[name] for name in dict.fromkeys(map(str.lower, methods))] or list(rows)
