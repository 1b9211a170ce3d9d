"""Tables once more: settings chosen on validation, final models over seeds, test opened once for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from orchestrator.config.spec import ExperimentSpec
from orchestrator.console import Console, show
from orchestrator.errors import RunFailed, UserError, unknown
from orchestrator.reproduce import ranking, table_runs
from orchestrator.reproduce.ranking import Step
from orchestrator.reproduce.run_cache import Done
from orchestrator.reproduce.table_runs import Choice, ReproductionBudget, Runner
from orchestrator.storage.settings import Settings
from workloads.published import Row, Table


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
    """The rows of one place, and their order by the table's metrics."""

    where: Mapping[str, str]
    rows: tuple[Measured, ...]
    order: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """A table as it came out; ``missing`` says which datasets are not here, and where to get them."""

    table: Table
    effort: ReproductionBudget
    blocks: tuple[Block, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.missing and not any(row.failure for block in self.blocks for row in block.rows)


def run(
    table: Table,
    settings: Settings,
    effort: ReproductionBudget,
    console: Console,
    *,
    where: Mapping[str, Sequence[str]] | None = None,
    methods: Sequence[str] = (),
) -> Reproduction:
    """Run what the table needs and is not there yet.

    ``where`` are values of the parameters that make a block. Without a dataset it is all of the table's that are here;
    one that is named has to be. What is named may be published or not.

    Raises UserError before anything is run, and Interrupted; a row whose run fails is kept with its failure.
    """
    effort, where = effort.settled(), where or {}
    table_runs.check_reads_test(table.id, table.reads_test, effort)
    if effort.as_published and not (table.reads_test or table.regime.refit):
        raise UserError(f"{table.id} takes no look at the test part as published", fix="Leave --as-published away")
    named = where.get("dataset", ())
    here, missing = table_runs.present(table.regime.workload, named or table.datasets, settings, named=bool(named))
    blocks = [_chosen(table.rows(*place), methods) for dataset in here for place in _places(table, dataset, where)]
    runner = Runner(table.regime, settings, effort)
    for rows in blocks:  # all that can be wrong is said before anything runs
        for row in rows:
            runner.search_spec(row.settings)
    with table_runs.on_cluster(settings, effort.local):
        found = [_block(table, rows, runner, console) for rows in blocks]
    return Reproduction(table, effort, tuple(found), missing)


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
    choice, done = None, []
    try:
        choice = runner.choose(row.settings)
        values: dict[str, list[float]] = {}
        for seed in range(runner.effort.seeds):
            one = list(_trained(choice, seed, row, runner))
            found = [_values(table, each, spec, runner) for each, spec in one]
            better = {metric: min if metric in table.lower else max for metric in (table.compared_by, *table.columns)}
            best = better[table.compared_by](range(len(one)), key=lambda at: found[at][table.compared_by])
            done.append(one[best][0])
            for metric in table.columns:  # of several models, as published, the best by each metric
                values.setdefault(metric, []).append(better[metric](each[metric] for each in found))
    except RunFailed as error:
        console.say(f"  failed: {error}")
        return Measured(row, choice, {}, tuple(done), str(error))
    mean = sum(values[table.compared_by]) / len(values[table.compared_by])
    again = sum(run.found for run in done)
    console.say(
        f"  {table.compared_by} {show(mean)} over {len(done)} seed{'s' * (len(done) > 1)}, {choice.epochs} epochs"
        + (f" ({again} of them from before)" if again else "")
    )
    return Measured(row, choice, values, tuple(done))


def _trained(choice: Choice, seed: int, row: Row, runner: Runner) -> Iterator[tuple[Done, ExperimentSpec]]:
    """The final model of a seed; as published, one for each epoch count that is compared on test.

    Settings that are printed whole come with their number of epochs: the author's code for them takes the last one.
    """
    method, effort = row.settings, runner.effort
    several = effort.as_published and method.searched
    for epochs in table_runs.ladder(effort.epochs(method.epochs)) if several else [choice.epochs]:
        spec = runner.final_spec(method, choice.params, epochs, seed)
        yield runner.train(spec, reads_test=effort.as_published), spec


def _values(table: Table, done: Done, spec: ExperimentSpec, runner: Runner) -> Mapping[str, float]:
    """What the table's columns are for one model. Raises RunFailed for a run without one of them."""
    if table.measure is not None:
        found = runner.asked(table.measure, [done], runner.trained(done, spec))
    else:
        test = done.result["metrics"]
        found = {name.removeprefix("test/"): value for name, value in test.items() if name.startswith("test/")}
    if absent := [metric for metric in table.columns if metric not in found]:
        raise RunFailed(done.id, f"it has no {', '.join(absent)} on test")
    return found


def _places(table: Table, dataset: str, where: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """The blocks on a dataset: those of the table; on one of the user's, like its first. What is named counts."""
    known = [place for place in table.places if place[0] == dataset] or [(dataset, *table.places[0][1:])]
    found = [
        (dataset, *rest)
        for place in known
        for rest in product(*(where.get(name) or (own,) for name, own in zip(table.by[1:], place[1:])))
    ]
    return list(dict.fromkeys(found))


def _chosen(rows: Sequence[Row], methods: Sequence[str]) -> list[Row]:
    """The rows of the named methods; all where none is named. Raises UserError for an unknown one."""
    if not rows:
        raise UserError("No method of the table is for this", fix="Choose another --dataset or block")
    known = {row.method.lower(): row for row in rows}
    for name in methods:
        if name.lower() not in known:
            raise unknown("method of the table", name, [row.method for row in rows])
    return [known[name.lower()] for name in methods] or list(rows)
