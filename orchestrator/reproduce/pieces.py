"""All that a source publishes, in pieces: what each needs, what of it is finished, and the order to run them in.

A piece is a row of a table, a line of a figure or a computation. Its searches and final models are runs whose names
follow from their specs, so that what is finished is known from the results folder alone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.errors import UserError, unknown
from orchestrator.reproduce import figures, run_cache, table, table_runs
from orchestrator.reproduce.catalog import all_published, of_source
from orchestrator.reproduce.figures import Work
from orchestrator.reproduce.published import ReproductionRequest
from orchestrator.reproduce.table_report import FOLDER
from orchestrator.reproduce.table_runs import Choice, ReproductionBudget, Runner
from orchestrator.storage.settings import Settings
from workloads.published import Computation, Figure, Method, Published, Table

PIECE_SECONDS = 3600.0
"""Longest time that is spent on a piece before the states are written again."""

COMPUTATION_SECONDS = 10.0
"""What a computation is assumed to take."""


@dataclass(frozen=True)
class Unit:
    """A search or a final model by the name of its run.

    ``guess``: rough seconds by the workload's formula, None where it has none. ``measured``: of a finished one.
    """

    name: str
    guess: float | None = None
    done: bool = False
    measured: float | None = None
    search: bool = False


@dataclass(frozen=True)
class Piece:
    """A row, a line (by ``method``) or a computation. ``printed``: the number of its published values."""

    method: str | None
    units: tuple[Unit, ...]
    printed: int = 0

    @property
    def done(self) -> bool:
        return all(unit.done for unit in self.units)


@dataclass(frozen=True)
class Block:
    """The rows of a table's block, the lines of a figure on a dataset, or a computation.

    ``kept_from``: why it cannot be run, with ``no_data`` since its dataset is missing.
    """

    published: Published
    where: Mapping[str, str]
    budget: ReproductionBudget
    pieces: tuple[Piece, ...] = ()
    kept_from: str | None = None
    no_data: bool = False

    def command(self, methods: Sequence[str] = ()) -> str:
        """The command that runs it, or some of its rows, alone; without the options of addresses."""
        words = ["orchestrator", "reproduce", self.published.id]
        words += [word for name, value in self.where.items() for word in (f"--{name.replace('_', '-')}", value)]
        words += [word for name in methods for word in ("--method", name)]
        if not isinstance(self.published, Computation):
            words += ["--seeds", str(self.budget.seeds), "--trials", str(self.budget.trials)]
            words += ["--as-published"] * self.budget.as_published + ["--local"] * self.budget.local
        return shlex.join([*words, *["--quick"] * self.budget.quick])

    @property
    def name(self) -> str:
        return " ".join([self.published.id, *self.where.values()])

    @property
    def printed(self) -> int:
        return sum(piece.printed for piece in self.pieces)

    def request(self, methods: Iterable[str] = ()) -> ReproductionRequest:
        """The request of the block, or of some of its rows."""
        where = {name: (value,) for name, value in self.where.items()}
        return ReproductionRequest(self.published, where, tuple(methods))


@dataclass
class Estimates:
    """Seconds of what is left, by the workload's formula times what finished runs took compared with it."""

    factors: dict[bool, float] = field(default_factory=dict)

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Estimates:
        units = {unit.name: unit for block in blocks for piece in block.pieces for unit in piece.units}
        estimates = cls()
        for search in (False, True):
            finished = [u for u in units.values() if u.search == search and u.guess and u.measured is not None]
            if finished:
                measured = sum(unit.measured or 0.0 for unit in finished)
                estimates.factors[search] = measured / sum(unit.guess or 0.0 for unit in finished)
        return estimates

    def seconds(self, units: Iterable[Unit]) -> float | None:
        """Seconds that the unfinished ones take; None if one of them has no guess."""
        total = 0.0
        for unit in {unit.name: unit for unit in units if not unit.done}.values():
            if unit.guess is None:
                return None
            total += unit.guess * self.factors.get(unit.search, 1.0)
        return total


def blocks_of(
    source: str,
    settings: Settings,
    budget: ReproductionBudget,
    *,
    seeds: int | None,
    trials: int | None,
    where: Mapping[str, Sequence[str]],
    only: Sequence[str],
) -> list[Block]:
    """All blocks of a source in the order to run them in; nothing is run.

    Computations come first. Tables follow by the number of their printed values for each hour that is left, and
    figures by the hours that are left. ``seeds`` and ``trials`` replace those of the regimes. Without ``as_published``
    a table that trains on the test part is left out.

    Raises UserError for an unknown id in ``only``.
    """
    ids = of_source(source)
    for name in only:
        if name not in ids:
            raise unknown(f"result of {source}", name, ids)
    blocks = [
        block
        for one in (all_published()[name] for name in only or ids)
        for block in _blocks(one, settings, _budget(one, budget, seeds, trials), where)
    ]
    estimates = Estimates.of(blocks)
    return sorted(blocks, key=lambda block: _rank(block, estimates))


def _budget(one: Published, budget: ReproductionBudget, seeds: int | None, trials: int | None) -> ReproductionBudget:
    """The budget of a result: that of its regime, and as published only where the source trains on the test part."""
    if isinstance(one, Computation):
        return replace(budget, as_published=False)
    reads_test = one.reads_test if isinstance(one, Table) else bool(one.blind)
    own = replace(budget, seeds=seeds or one.regime.seeds, trials=one.regime.trials if trials is None else trials)
    return replace(own, as_published=budget.as_published and reads_test).limited()


def _rank(block: Block, estimates: Estimates) -> tuple[bool, int, float, float]:
    kind = 0 if isinstance(block.published, Computation) else 1 if isinstance(block.published, Table) else 2
    seconds = estimates.seconds(unit for piece in block.pieces for unit in piece.units)
    left = math.inf if seconds is None else seconds
    return block.kept_from is not None, kind, -block.printed / max(left, 1.0), left


def _blocks(
    one: Published, settings: Settings, budget: ReproductionBudget, where: Mapping[str, Sequence[str]]
) -> Iterator[Block]:
    if isinstance(one, Computation):
        if not where:
            block = Block(one, {}, budget)
            unit = Unit(one.id, COMPUTATION_SECONDS, stored(block, settings))
            yield replace(block, pieces=(Piece(None, (unit,)),))
        return
    for here in _places(one, where):
        try:
            preflight.dataset(one.regime.workload, {"dataset": here["dataset"]}, settings.data)
        except UserError as error:
            yield Block(one, here, budget, kept_from=str(error), no_data=True)
            continue
        try:
            if isinstance(one, Table):
                table_runs.check_reads_test(one.id, one.reads_test, budget)
            parts = _rows if isinstance(one, Table) else _lines
            if units := parts(one, here, settings, budget):
                yield Block(one, here, budget, tuple(units))
        except UserError as error:
            yield Block(one, here, budget, kept_from=str(error))


def _places(one: Table | Figure, where: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """The published blocks that have the values of ``where``, by the parameters that define them.

    Of a dataset without published values every table has its first block. A figure has its default dataset; a parameter
    that its lines do not set takes the values of ``where``.
    """
    wanted = {name: tuple(values) for name, values in where.items() if values}
    if isinstance(one, Table):
        keys = [
            *one.places,
            *(key for dataset in _unpublished(wanted) for key in table.block_keys(one, dataset, where)),
        ]
        blocks = [dict(zip(one.by, key)) for key in keys]
        return [block for block in blocks if all(block.get(n) in values for n, values in wanted.items())]
    if set(wanted) - set(one.by):
        return []
    values = {"dataset": wanted.get("dataset", (one.regime.dataset,))}
    for name in one.by[1:]:
        own = {line.where[name]: None for panel in one.panels for line in panel.lines if name in line.where}
        values[name] = tuple(v for v in own if v in wanted.get(name, own)) if own else wanted.get(name, ())
        if own and not values[name]:
            return []
    named = {name: each for name, each in values.items() if each}
    return [dict(zip(named, block)) for block in product(*named.values())]


def _unpublished(wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """The datasets that no table has."""
    published = {name for one in all_published().values() if isinstance(one, Table) for name in one.datasets}
    return [name for name in wanted.get("dataset", ()) if name not in published]


def _rows(one: Any, where: Mapping[str, str], settings: Settings, budget: ReproductionBudget) -> list[Piece]:
    """The rows of a table's block."""
    runner = Runner(one.regime, settings, budget)
    pieces = []
    for row in one.rows(*where.values()):
        method = row.settings

        def finals(choice: Choice, method: Method = method) -> Iterator[ExperimentSpec]:
            for seed in range(budget.seeds):
                yield from table.final_specs(method, choice, seed, runner)

        units = _units(runner, runner.search_spec(method), runner.given(method), finals)
        pieces.append(Piece(row.method, units, len(row.published)))
    return pieces


def _lines(one: Any, where: Mapping[str, str], settings: Settings, budget: ReproductionBudget) -> list[Piece]:
    """The lines of a figure, each with its points in all panels."""
    given = {name: (value,) for name, value in where.items()}
    units: dict[str, list[Unit]] = {}
    for each in figures.work(one, settings, budget, (where["dataset"],), given):
        units.setdefault(each.line.name, []).extend(_of_line(each))
    return [Piece(name, tuple(dict.fromkeys(each))) for name, each in units.items()]


def _of_line(work: Work) -> tuple[Unit, ...]:
    def finals(choice: Choice) -> Iterator[ExperimentSpec]:
        for specs in work.specs(choice):
            yield from specs

    return _units(work.runner, work.search_spec, work.runner.given(work.method), finals)


def _units(
    runner: Runner, search: SweepSpec | None, given: Choice, finals: Callable[[Choice], Iterator[ExperimentSpec]]
) -> tuple[Unit, ...]:
    """The search and the final models. Before the search is finished, final models have the given settings."""
    params = preflight.parameters(runner.regime.workload, given.params)
    if search is None:
        return tuple(_unit(runner, spec, params) for spec in finals(given))
    first = _unit(runner, search, params)
    done = run_cache.finished(first.name, runner.settings)
    if done is not None:
        return (first, *(_unit(runner, spec, params) for spec in finals(runner.chosen(search, done))))
    # What the search selects is not known yet, so no final model is finished.
    later = (Unit(f"{first.name} {spec.fingerprint()}", _guess(runner, spec, params)) for spec in finals(given))
    return (first, *later)


def _unit(runner: Runner, spec: ExperimentSpec | SweepSpec, params: Mapping[str, Any]) -> Unit:
    name = runner.name_of(spec)
    done = run_cache.finished(name, runner.settings)
    seconds = None if done is None else done.result.get("wall_seconds")
    return Unit(name, _guess(runner, spec, params), done is not None, seconds, isinstance(spec, SweepSpec))


def _guess(runner: Runner, spec: ExperimentSpec | SweepSpec, params: Mapping[str, Any]) -> float | None:
    """Rough seconds of a run, or of a search with all trials trained to their end."""
    if runner.regime.cost is None:
        return None
    epoch, evaluation = runner.regime.cost(params, runner.settings.data)
    plan = spec.plan
    evaluations = 1 if plan.refit == "only" else plan.epochs / plan.evaluate_every
    once = plan.epochs * epoch + evaluations * evaluation
    return once * (spec.search.trials if isinstance(spec, SweepSpec) else 1)


def stored(block: Block, settings: Settings) -> bool:
    """Whether the table, figure or computation of the whole block is written, with the block's seeds and trials."""
    name = block.request().name(block.budget)
    file = settings.home / FOLDER / name / f"{block.published.id}.json"
    try:
        effort = json.loads(file.read_text())["effort"]
    except (FileNotFoundError, json.JSONDecodeError):  # one that was cut off while it was written is written again
        return False
    wanted = {**vars(block.budget), "local": effort.get("local")}
    return all(wanted.get(key) == value for key, value in effort.items())


def folder(source: str, settings: Settings) -> Path:
    """The folder of the states of all blocks of a source."""
    return settings.home / FOLDER / f"{source}-all"
