"""Published tables and figures as plain data: settings of the runs, printed values, and functions that compute values.

A workload's ``published`` package holds a tuple of :class:`Table`, :class:`Figure` and :class:`Computation`, named by
the workload's entry in the catalog. It must be cheap to import: its functions import PyTorch when they are called.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Regime:
    """How the published rows of a workload are run; shared by its tables and figures.

    Names of runs consist of ``source`` and the values of the parameters ``named_by``. ``space`` is the search space of
    the parameters that methods leave open: a preset of the workload's search spaces, ``module:function`` below
    ``search_spaces``, or a file. ``plan`` holds plan settings of every run, ``quick`` further ones for a quick check.
    With ``refit`` a final model is trained on train + validation for the number of epochs that the search chose;
    without, it is selected on validation. ``dataset`` is the default of a figure, ``unit`` what the test metrics are
    averaged over. ``seeds`` and ``trials`` are default numbers. ``cost`` gives rough seconds of an epoch and of an
    evaluation with complete parameters, for plans.
    """

    workload: str
    source: str
    dataset: str
    space: str = "space"
    named_by: tuple[str, ...] = ("dataset", "loss")
    plan: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    refit: bool = False
    unit: str = "unit"
    seeds: int = 5
    trials: int = 8
    cost: Callable[[Mapping[str, Any], Path], tuple[float, float]] | None = None


@dataclass(frozen=True)
class Method:
    """How a published method is run.

    ``params`` are parameters of the workload, with the published value where one is printed. ``searched`` names those
    that a search on validation chooses, around the given values; ``epochs`` is the maximum. ``resources`` are set where
    a method needs certain hardware; ``only`` limits the method to some values of a block's parameters.
    """

    params: Mapping[str, Any]
    searched: tuple[str, ...] = ()
    epochs: int = 100
    resources: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Doubt:
    """Why published values are doubted: an erratum's ``tag`` and a sentence. An empty field means all values."""

    tag: str
    why: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def concerns(self, row: Row, metric: str | None = None) -> bool:
        """Whether it applies to a row, or to one of its values."""
        if any(row.where[name] not in values for name, values in self.where.items()):
            return False
        if self.methods and row.method not in self.methods:
            return False
        return not self.metrics or metric is None or metric in self.metrics


@dataclass(frozen=True)
class Row:
    """A row of a table, or a row of ``ours`` added to it; ``published`` is empty where no value is published.

    ``where`` holds the values of the parameters that define its block.
    """

    where: Mapping[str, str]
    method: str
    settings: Method
    published: Mapping[str, float] = field(default_factory=dict)
    ours: bool = False


@dataclass(frozen=True)
class Trained:
    """A finished run, as passed to functions that measure or draw.

    ``model`` is the folder of its exported model, ``tables`` that of its evaluation's tables on test, one
    ``NAME.parquet`` each. ``epochs`` is its maximum. ``metrics`` carry their split: ``test/ndcg_at_20``.
    ``data`` is the data root.
    """

    model: Path
    tables: Path
    params: Mapping[str, Any]
    epochs: int
    seed: int
    metrics: Mapping[str, float]
    data: Path


Measure: TypeAlias = Callable[[Trained], Mapping[str, float]]
"""Computes a table's columns for one run, where they are not test metrics. Raises ValueError with one sentence where
this is not possible for the run."""


@dataclass(frozen=True)
class Further:
    """Columns of ours that a table has on one dataset, in addition to its own, and the function that computes them."""

    metrics: tuple[str, ...]
    measure: Measure


@dataclass(frozen=True)
class Table:
    """A table of methods, published or ours, with its rows in blocks, one or more for each dataset.

    ``by`` names the parameters that define a block, ``dataset`` first. ``values`` is a CSV of the printed values with
    columns ``by``, ``method`` and the metrics; a cell may be empty. Without it, ``blocks`` and ``metrics`` define what
    is run and shown. ``methods`` holds the settings of each row, ``common`` those of all rows, and ``on`` those of a
    dataset or a ``dataset method``; later ones override earlier ones. ``epochs`` overrides the methods' epochs on a
    dataset. ``extra`` are methods of ours that are run in addition, each with the published one that it is compared
    with, or None.

    Rows are ordered by ``compared_by``. For it and each metric in ``tested``, tests compare the pairs ``named`` (those
    that the source compares), then neighbours in the order; or, with a ``reference``, every row with that one. Metrics
    in ``lower`` are better when lower. ``reads_test``: training uses the test part, as in the source. ``gap``: the rows
    of a baseline and of an oracle; the report shows the share of their gap that each row closes. ``further``: columns
    of ours by dataset.
    """

    id: str
    title: str
    source: str
    regime: Regime
    methods: Mapping[str, Method]
    compared_by: str
    by: tuple[str, ...] = ("dataset",)
    values: Path | None = None
    blocks: tuple[tuple[str, ...], ...] = ()
    metrics: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()
    reference: str | None = None
    named: tuple[tuple[str, str], ...] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, str | None] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    measure: Measure | None = None
    reads_test: bool = False
    gap: tuple[str, str] | None = None
    further: Mapping[str, Further] = field(default_factory=dict)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The metrics shown, in the order of the source."""
        return self.metrics or tuple(self._lines[0])[len(self.by) + 1 :]

    def columns_on(self, dataset: str) -> tuple[str, ...]:
        """The metrics shown on a dataset: those of the source, then ours."""
        return (*self.columns, *(self.further[dataset].metrics if dataset in self.further else ()))

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The blocks, each by the values of ``by``, in the order of the source."""
        return tuple(dict.fromkeys(tuple(line[name] for name in self.by) for line in self._lines)) or self.blocks

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block[0] for block in self.places))

    def rows(self, *block: str) -> tuple[Row, ...]:
        """The rows of a block, in the order of the source; without values where it published none."""
        where = dict(zip(self.by, block, strict=True))
        here = [line for line in self._lines if all(line[name] == value for name, value in where.items())]
        printed = {line["method"]: {m: float(line[m]) for m in self.columns if line[m]} for line in here}
        named = [line["method"] for line in self._lines] or [name for name in self.methods if name not in self.extra]
        rows = (
            Row(where, name, self._settings(where, name), printed.get(compared or "", {}), name != compared)
            for name, compared in {**{name: name for name in named}, **self.extra}.items()
        )
        return tuple(row for row in rows if all(where.get(name) in only for name, only in row.settings.only.items()))

    def why(self, row: Row, metric: str | None = None) -> tuple[Doubt, ...]:
        """The doubts about a row, or about one of its values."""
        return tuple(doubt for doubt in self.doubts if row.published and doubt.concerns(row, metric))

    @cached_property
    def _lines(self) -> list[dict[str, str]]:
        if self.values is None:
            return []
        with self.values.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def _settings(self, where: Mapping[str, str], method: str) -> Method:
        chosen = self.methods[method]
        dataset = where["dataset"]
        here = {**self.common, **self.on.get(dataset, {}), **self.on.get(f"{dataset} {method}", {})}
        epochs = self.epochs.get(dataset, chosen.epochs)
        return Method({**where, **chosen.params, **here}, chosen.searched, epochs, chosen.resources, chosen.only)


@dataclass(frozen=True)
class Curve:
    """A drawn line: ``y`` over ``x``; of several values at an x, ``y`` is the mean and ``sd`` the standard deviation.

    ``by_seed`` holds the values at each x. ``log`` names the logarithmic axes: ``x``, ``y`` or ``xy``. In a figure that
    is run, empty fields are taken from its panel and line.
    """

    x: Sequence[float]
    y: Sequence[float]
    sd: Sequence[float | None] = ()
    name: str = ""
    panel: str = ""
    x_label: str = ""
    y_label: str = ""
    dataset: str = ""
    note: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    by_seed: Sequence[Sequence[float]] = ()


Cells: TypeAlias = Sequence[Mapping[str, Any]]
"""A computed table: one dict per row, all with the same keys; values are numbers, text or None."""


@dataclass(frozen=True)
class Drawn:
    """Computed curves, drawn panel by panel, and tables by name."""

    curves: Sequence[Curve] = ()
    tables: Mapping[str, Cells] = field(default_factory=dict)


def size_table(
    sizes: Sequence[str], printed: Mapping[str, Sequence[float | None]], count: Callable[[str], Sequence[float]]
) -> Drawn:
    """Two rows a dataset: ours, by ``count``, empty where the dataset is not here, and the printed one, if any."""
    from workloads.data.errors import DataError

    rows: list[dict[str, Any]] = []
    for name, values in printed.items():
        ours: Sequence[float] = ()
        with suppress(DataError):
            ours = count(name)
        for of, side in (("ours", ours), ("printed", values)):
            if side or of == "ours":
                rows.append({"dataset": name, "of": of, **dict.fromkeys(sizes), **dict(zip(sizes, side))})
    return Drawn(tables={"sizes": rows})


Draw: TypeAlias = Callable[[Sequence[Trained]], Iterable[Curve]]
"""Computes the curves of one point of a line from its runs, one per seed. Raises ValueError like :data:`Measure`."""

Kind: TypeAlias = Literal["values", "epochs", "seconds"]
"""What the engine draws without a function: test metrics over a parameter, a metric per epoch, seconds per epoch."""


@dataclass(frozen=True)
class Point:
    """A value on the x axis and the parameters of its runs; ``epochs`` is set where the figure varies it."""

    x: float = 0.0
    params: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None


@dataclass(frozen=True)
class Line:
    """One curve: a method whose searched parameters are chosen once for all points. ``where`` holds its values of the
    figure's ``by``."""

    name: str
    method: Method
    points: tuple[Point, ...] = (Point(),)
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``metric`` is a test metric or, with its split, a metric per epoch."""

    x: str
    metric: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """A figure drawn from runs. ``draw`` is a kind, or a function of the workload.

    ``common`` holds parameters of all runs, ``on`` those of a dataset; ``epochs`` overrides the methods' epochs on a
    dataset. ``blind`` holds parameters that keep the test part out of training; they are applied unless the source's
    own protocol is requested. ``seeds`` is the largest number needed. ``by`` names parameters that a user may choose.
    """

    id: str
    title: str
    source: str
    regime: Regime
    draw: Kind | Draw
    panels: tuple[Panel, ...]
    common: Mapping[str, Any] = field(default_factory=dict)
    blind: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    by: tuple[str, ...] = ("dataset",)
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def confined(self) -> Mapping[str, tuple[str, ...]]:
        """Parameters of ``by`` that all methods limit to certain values, with these values."""
        methods = [line.method for panel in self.panels for line in panel.lines]
        every = [name for name in self.by if all(name in method.only for method in methods)]
        return {name: tuple(dict.fromkeys(v for method in methods for v in method.only[name])) for name in every}

    def line_on(self, dataset: str, line: Line) -> Line:
        """A line with the epochs of a dataset."""
        return replace(line, method=replace(line.method, epochs=self.epochs.get(dataset, line.method.epochs)))


@dataclass(frozen=True)
class Computation:
    """A figure or table that needs no training. ``compute(quick)`` is a function of the workload; with ``quick`` it
    computes just enough to check that it works."""

    id: str
    title: str
    source: str
    workload: str
    compute: Callable[[bool], Drawn]


Published: TypeAlias = Table | Figure | Computation
