"""Published tables and figures as plain data: what is run, what was printed, what is measured, and who computes it.

A workload's ``published`` package holds a tuple of :class:`Table`, :class:`Figure` and :class:`Computation`, which its
entry in the catalog names. Importing it must stay cheap: functions in it import PyTorch when they are called.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Regime:
    """How a workload's published rows are run: one object, shared by its tables and figures.

    ``source`` begins the names of the runs, and the values of the parameters ``named_by`` follow. ``space`` searches
    what methods leave open: a preset of the workload's search spaces, ``module:function`` below ``search_spaces``, or
    a file's. ``plan`` are plan settings of every run, and ``quick`` those on top of them for a quick look, where two
    epochs are much. With ``refit`` a final model is trained on train + validation
    for the number of epochs that the search chose; without, it is selected on validation. ``dataset`` is what a figure
    is drawn on where nobody names another, ``unit`` what the test metrics are averages of. ``seeds`` and ``trials``
    are run unless somebody says otherwise.
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


@dataclass(frozen=True)
class Method:
    """How a published method is run.

    ``params`` are the workload's, with the published value where one is printed. ``searched`` are those that a
    validation search chooses, around the values given; ``epochs`` the most it may train for. ``resources`` are what
    its models are trained on, where that matters; ``only`` says for which values of a block's parameters it exists.
    """

    params: Mapping[str, Any]
    searched: tuple[str, ...] = ()
    epochs: int = 100
    resources: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Doubt:
    """Why published values are doubted: an erratum's ``tag`` in a sentence. Empty fields stand for all there are."""

    tag: str
    why: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def concerns(self, row: Row, metric: str | None = None) -> bool:
        """Whether it is about a row, or about one of its values."""
        if any(row.where[name] not in values for name, values in self.where.items()):
            return False
        if self.methods and row.method not in self.methods:
            return False
        return not self.metrics or metric is None or metric in self.metrics


@dataclass(frozen=True)
class Row:
    """A line of a table, or one of ``ours`` that stands beside them; ``published`` is empty where nothing is.

    ``where`` are the values of the parameters that make its block.
    """

    where: Mapping[str, str]
    method: str
    settings: Method
    published: Mapping[str, float] = field(default_factory=dict)
    ours: bool = False


@dataclass(frozen=True)
class Trained:
    """A finished run as a function that measures or draws sees it.

    ``model`` is the folder of its exported model, ``tables`` that of its evaluation's tables on test, one
    ``NAME.parquet`` each. ``epochs`` are those it had at most. ``metrics`` carry their split: ``test/ndcg_at_20``.
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
"""The values of a table's columns for one run, where they are not its metrics on test. Raises ValueError, in one
sentence, where they can not be told of this one."""


@dataclass(frozen=True)
class Table:
    """A table of methods, published or ours; its rows stand in blocks, one for each dataset.

    ``by`` are the parameters that make a block, ``dataset`` first. ``values`` is a CSV of what was printed, its columns
    ``by``, ``method`` and the metrics; a cell may be empty. Where nothing was printed, ``blocks`` and ``metrics`` say
    what is run and shown. ``methods`` settle each row; ``common`` goes on top, and ``on`` what is particular to a
    dataset, or to a ``dataset method``; ``epochs`` are those on a dataset, in place of the methods'. ``extra`` are
    methods of ours that are run beside the published ones, each with the published one that it is compared with, or
    None.

    Rows are ordered by ``compared_by``, and tested for it and each metric ``tested``: the pairs ``named``, which the
    source compares, then neighbours with each other; or, with a ``reference``, every row with that one. Metrics in
    ``lower`` are better when they are lower. ``reads_test``: training itself looks at the test part, as the source's
    does.
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

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The metrics that are shown, in the order of the source."""
        return self.metrics or tuple(self._lines[0])[len(self.by) + 1 :]

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """The blocks, each by the values of ``by``, in the order of the source."""
        return tuple(dict.fromkeys(tuple(line[name] for name in self.by) for line in self._lines)) or self.blocks

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place[0] for place in self.places))

    def rows(self, *place: str) -> tuple[Row, ...]:
        """The methods of a block, in the order of the source; without values where it published none."""
        where = dict(zip(self.by, place, strict=True))
        here = [line for line in self._lines if all(line[name] == value for name, value in where.items())]
        printed = {line["method"]: {m: float(line[m]) for m in self.columns if line[m]} for line in here}
        named = [line["method"] for line in self._lines] or [name for name in self.methods if name not in self.extra]
        rows = (
            Row(where, name, self._settings(where, name), printed.get(beside or "", {}), name != beside)
            for name, beside in {**{name: name for name in named}, **self.extra}.items()
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
        chosen, dataset = self.methods[method], where["dataset"]
        here = {**self.common, **self.on.get(dataset, {}), **self.on.get(f"{dataset} {method}", {})}
        epochs = self.epochs.get(dataset, chosen.epochs)
        return Method({**where, **chosen.params, **here}, chosen.searched, epochs, chosen.resources, chosen.only)


@dataclass(frozen=True)
class Curve:
    """A drawn line: ``y`` over ``x``, means over seeds with ``sd`` where there are several values, at each x those
    ``by_seed``.

    ``log`` are the axes with a logarithmic scale: ``x``, ``y`` or ``xy``. Of a figure that is run, what a function
    leaves empty is its panel's and its line's.
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
"""A table that was computed: a dict a row, all with the same keys; numbers, text or None."""


@dataclass(frozen=True)
class Drawn:
    """What was computed: curves, which are drawn panel by panel, and tables by their names."""

    curves: Sequence[Curve] = ()
    tables: Mapping[str, Cells] = field(default_factory=dict)


Draw: TypeAlias = Callable[[Sequence[Trained]], Iterable[Curve]]
"""The curves of one point of a line, from its runs, one a seed. Raises ValueError as a measure does."""

Kind: TypeAlias = Literal["values", "epochs", "seconds"]
"""What the engine can draw by itself: metrics on test over a parameter, a metric of every epoch, seconds an epoch."""


@dataclass(frozen=True)
class Point:
    """A place on the x axis, and the parameters of the runs there; ``epochs`` is how long they train, where it is what
    the figure varies."""

    x: float = 0.0
    params: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None


@dataclass(frozen=True)
class Line:
    """One curve: a method whose open parameters are chosen once, for all of its points. ``where`` are its values of the
    figure's ``by``."""

    name: str
    method: Method
    points: tuple[Point, ...] = (Point(),)
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``metric`` is a metric on test, or with its split one of an epoch."""

    x: str
    metric: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """A figure that runs redraw. ``draw`` is a kind, or the workload's own function.

    ``common`` are parameters of all runs, ``on`` those particular to a dataset, and ``epochs`` what it has in place of
    the methods'. ``blind``, where there are any, keep the test part out of training's sight: they go on top unless the
    source's way was asked for. ``seeds``: the most that are needed. ``by``: further parameters whose values a user may
    choose.
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
        """The parameters for which none of its methods exists with any value, and those that there are."""
        methods = [line.method for panel in self.panels for line in panel.lines]
        every = [name for name in self.by if all(name in method.only for method in methods)]
        return {name: tuple(dict.fromkeys(v for method in methods for v in method.only[name])) for name in every}

    def line_on(self, dataset: str, line: Line) -> Line:
        """A line with the epochs that a dataset has."""
        return replace(line, method=replace(line.method, epochs=self.epochs.get(dataset, line.method.epochs)))


@dataclass(frozen=True)
class Computation:
    """A figure or table that no training is needed for. ``compute(quick)`` is a function of the workload's; ``quick``
    asks for just enough of it to see that it works."""

    id: str
    title: str
    source: str
    workload: str
    compute: Callable[[bool], Drawn]


Published: TypeAlias = Table | Figure | Computation
