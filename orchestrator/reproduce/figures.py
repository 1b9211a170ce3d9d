"""Reproduce figures as data: each curve is from runs with settings selected on validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from statistics import median
from typing import Any

from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import Console
from orchestrator.errors import RunFailed, UserError, unknown
from orchestrator.report import statistics
from orchestrator.reproduce import table_runs
from orchestrator.reproduce.run_cache import Done
from orchestrator.reproduce.table_runs import Choice, ReproductionBudget, Runner
from orchestrator.storage import history
from orchestrator.storage.settings import Settings
from workloads.published import Computation, Curve, Draw, Drawn, Figure, Kind, Line, Method, Panel, Point

TIMED_EPOCHS = 6
WATCHED: Mapping[str, Any] = {"refit": False, "patience": 0, "evaluate_every": 1}
"""Plan of models that are evaluated on validation after every epoch."""


@dataclass(frozen=True)
class Redrawn:
    """A reproduced figure or computation; ``missing`` and ``failed`` list what it lacks, and why.

    ``sees_test``: whether training used the test part as published; None if the source does not use it.
    """

    figure: Figure | Computation
    budget: ReproductionBudget
    drawn: Drawn
    missing: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    sees_test: bool | None = None


@dataclass(frozen=True)
class Work:
    """A line of a panel on a dataset, with its runner; ``kind`` is that of its figure."""

    runner: Runner
    kind: Kind | Draw
    dataset: str
    panel: Panel
    line: Line
    common: Mapping[str, Any]
    reads_test: bool

    @property
    def method(self) -> Method:
        where = {"dataset": self.dataset, **self.line.where}
        method = self.line.method
        return replace(method, params={**where, **method.params, **self.common})

    @property
    def search_spec(self) -> SweepSpec | None:
        """The search for the settings of the line, or None without one. Raises UserError."""
        spec = self.runner.search_spec(self.method)
        return None if self.kind == "seconds" else spec

    def choose(self) -> Choice:
        """The settings of the line, the same for all its points. Raises RunFailed and Interrupted."""
        return self.runner.given(self.method) if self.kind == "seconds" else self.runner.choose(self.method)

    def specs(self, choice: Choice) -> list[list[ExperimentSpec]]:
        """The specs of the runs at each point, one a seed. Raises UserError."""
        epochs = self.runner.budget.epochs
        if self.kind == "seconds":
            return [self._at(choice, Point(), TIMED_EPOCHS)]
        if self.kind == "epochs":
            return [self._at(choice, Point(), epochs(self.line.method.epochs), **WATCHED)]
        return [
            self._at(choice, point, choice.epochs if point.epochs is None else epochs(point.epochs))
            for point in self.line.points
        ]

    def _at(self, choice: Choice, point: Point, epochs: int, **plan: Any) -> list[ExperimentSpec]:
        params = {**choice.params, **point.params}
        seeds = range(self.runner.budget.seeds)
        return [self.runner.final_spec(self.method, params, epochs, seed, **plan) for seed in seeds]

    def runs(self, specs: Sequence[ExperimentSpec]) -> list[Done]:
        return [self.runner.train(spec, reads_test=self.reads_test) for spec in specs]

    def curve(self, x: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
        """The curve of means, from one or more values at each x."""
        summaries = [statistics.summary(one) for one in values]
        means = [one.mean for one in summaries]
        spreads = [one.spread for one in summaries]
        return self.labelled(Curve(list(x), means, spreads, by_seed=[list(one) for one in values]))

    def labelled(self, curve: Curve) -> Curve:
        """A curve with labels from its line and panel."""
        panel = self.panel
        return replace(
            curve, dataset=self.dataset, panel=curve.panel or panel.metric, name=curve.name or self.line.name,
            x_label=curve.x_label or panel.x, y_label=curve.y_label or panel.metric,
        )  # fmt: skip


def redraw(
    figure: Figure,
    settings: Settings,
    budget: ReproductionBudget,
    console: Console,
    *,
    where: Mapping[str, Sequence[str]],
    methods: Sequence[str],
) -> Redrawn:
    """Run what the figure needs, by default on the regime's dataset; finished runs are reused.

    Without ``as_published`` training does not use the test part. Raises UserError before anything is run, and
    Interrupted. A line whose run fails is left out and listed.
    """
    budget = budget.limited()
    named = where.get("dataset", ())
    here, missing = table_runs.present(
        figure.regime.workload, named or (figure.regime.dataset,), settings, named=bool(named)
    )
    every = work(figure, settings, budget, here, where, methods)
    if not every:
        raise _nothing(figure, where)
    for one in every:  # raises all errors before anything runs
        one.runner.search_spec(one.method)
        one.specs(one.runner.given(one.method))
    curves: list[Curve] = []
    failed = []
    with table_runs.on_cluster(settings, budget.local):
        for one in every:
            console.say(f"{one.dataset} {one.panel.metric}: {one.line.name}")
            try:
                curves += list(_kind(figure)(one))
            except RunFailed as error:
                console.say(f"  failed: {error}")
                failed.append(f"{one.dataset} {one.line.name}: {error}")
    return Redrawn(figure, every[0].runner.budget, Drawn(curves), missing, tuple(failed), _sees_test(figure, budget))


def work(
    figure: Figure,
    settings: Settings,
    budget: ReproductionBudget,
    datasets: Sequence[str],
    where: Mapping[str, Sequence[str]],
    methods: Sequence[str] = (),
) -> list[Work]:
    """The selected lines of each panel on each dataset; nothing is run."""
    if figure.seeds is not None:
        budget = replace(budget, seeds=min(budget.seeds, figure.seeds))
    runner = Runner(figure.regime, settings, budget)
    sees_test = _sees_test(figure, budget)
    blind = {} if sees_test else figure.blind
    return [
        Work(
            runner,
            figure.draw,
            dataset,
            panel,
            figure.line_on(dataset, line),
            {**figure.common, **figure.on.get(dataset, {}), **blind},
            bool(sees_test),
        )
        for dataset in datasets
        for panel in figure.panels
        for line in _chosen(panel.lines, figure.by[1:], where, methods)
    ]


def _sees_test(figure: Figure, budget: ReproductionBudget) -> bool | None:
    """Whether training uses the test part as published; None if the source does not use it."""
    return budget.as_published if figure.blind else None


def _kind(figure: Figure) -> Callable[[Work], Iterator[Curve]]:
    if not callable(figure.draw):
        return KINDS[figure.draw]
    draw = figure.draw

    def own(work: Work) -> Iterator[Curve]:
        """The curves that the workload computes from the runs of each point."""
        specs = work.specs(work.choose())
        distinct = {tuple(spec.fingerprint() for spec in each): each for each in specs}
        for each in distinct.values():  # with ``quick`` several points may have the same runs
            done = work.runs(each)
            trained = [work.runner.trained(*one) for one in zip(done, each)]
            yield from map(work.labelled, work.runner.evaluate(lambda runs: list(draw(runs)), done, trained))

    return own


def _values(work: Work) -> Iterator[Curve]:
    """A metric on test over a parameter."""
    metric = f"test/{work.panel.metric}"
    values = [[done.result["metrics"][metric] for done in work.runs(specs)] for specs in work.specs(work.choose())]
    yield work.curve([point.x for point in work.line.points], values)


def _epochs(work: Work) -> Iterator[Curve]:
    """A metric over epochs."""
    (specs,) = work.specs(work.choose())
    by_epoch: dict[int, dict[str, float]] = {}
    for one in work.runs(specs):
        for row in history.read(one.folder):
            if work.panel.metric in row:
                by_epoch.setdefault(row["epoch"], {})[one.id] = row[work.panel.metric]
    epochs = sorted(by_epoch)
    yield work.curve([float(epoch) for epoch in epochs], [list(by_epoch[epoch].values()) for epoch in epochs])


def _seconds(work: Work) -> Iterator[Curve]:
    """Median seconds of an epoch of training, without the first one, which warms up."""
    (specs,) = work.specs(work.choose())
    rows = (history.read(one.folder) for one in work.runs(specs))
    ends = [sorted({row["epoch"]: row["time"] for row in some}.values()) for some in rows]
    yield work.curve([0.0], [[median(b - a for a, b in pairwise(times)) for times in ends]])


KINDS: Mapping[Kind, Callable[[Work], Iterator[Curve]]] = {"values": _values, "epochs": _epochs, "seconds": _seconds}


def _chosen(
    lines: Sequence[Line], by: Sequence[str], where: Mapping[str, Sequence[str]], methods: Sequence[str]
) -> list[Line]:
    """The selected lines whose methods apply; a value in ``where`` that the figure does not have replaces its own.

    Raises UserError for an unknown name of a line.
    """
    names = {line.name.lower() for line in lines}
    for name in methods:
        if name.lower() not in names:
            raise unknown("line of the figure", name, [line.name for line in lines])
    selected = [line for line in lines if not methods or line.name.lower() in {name.lower() for name in methods}]
    for name in by:
        if not (wanted := where.get(name)):
            continue
        values = {line.where.get(name) for line in selected}
        if values & set(wanted) or len(values) > 1:
            selected = [line for line in selected if line.where.get(name) in wanted]
        else:
            selected = [replace(line, where={**line.where, name: value}) for value, line in product(wanted, selected)]
    return [
        line for line in selected
        if all(line.where.get(name, allowed[0]) in allowed for name, allowed in line.method.only.items())
    ]  # fmt: skip


def _nothing(figure: Figure, where: Mapping[str, Sequence[str]]) -> UserError:
    """The error for a selection without lines."""
    given = ", ".join(
        f"{name}={value}" for name, values in where.items() for value in values if name in figure.confined
    )
    allowed = ", ".join(f"{name}={value}" for name, values in figure.confined.items() for value in values)
    names = " and ".join(f"--{name.replace('_', '-')}" for name in figure.confined)
    return UserError(f"{figure.id} has no such line", got=given, allowed=allowed, fix=f"Leave out {names}")
