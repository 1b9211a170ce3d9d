"""The form of a published table: its rows as parameters of the workload beside the values that were printed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

Measure = Literal["test", "credence"]
"""What a table's values are: of the ranking on the test part, or of the credence of training interactions."""


@dataclass(frozen=True)
class Method:
    """How a published method is run.

    ``params`` are the workload's, with the published value where one is printed. ``searched`` are those that a
    validation search chooses, around the values given; ``epochs`` the most it may train for.
    """

    params: Mapping[str, Any]
    searched: tuple[str, ...] = ("lr", "weight_decay")
    epochs: int = 100


@dataclass(frozen=True)
class Doubt:
    """Why published values are doubted: an erratum's ``tag`` in a sentence. Empty fields stand for all there are."""

    tag: str
    why: str
    datasets: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def concerns(self, row: Row, metric: str | None = None) -> bool:
        """Whether it is about a row, or about one of its values."""
        about = ((self.datasets, row.dataset), (self.backbones, row.backbone), (self.methods, row.method))
        if any(named and value not in named for named, value in about):
            return False
        return not self.metrics or metric is None or metric in self.metrics


@dataclass(frozen=True)
class Row:
    """A line of a table, or one of ``ours`` that stands beside them; ``published`` is empty where nothing is."""

    dataset: str
    backbone: str
    method: str
    settings: Method
    published: Mapping[str, float] = field(default_factory=dict)
    ours: bool = False


@dataclass(frozen=True)
class Table:
    """A published table.

    ``methods`` settle each row; ``common`` goes on top, and ``on`` what is particular to a dataset, or to a
    ``dataset method``. ``extra`` are methods of ours that are run beside the published ones, each with the published
    one that it is compared with, or None. ``reads_test``: training itself looks at the test part, as the thesis' does.
    """

    id: str
    title: str
    source: str
    methods: Mapping[str, Method]
    common: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extra: Mapping[str, str | None] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    compared_by: str = "ndcg_at_20"
    measure: Measure = "test"
    reads_test: bool = False

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The columns, in the order of the source."""
        return tuple(self._lines[0])[3:]

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Those with published values, in the order of the source."""
        return tuple(dict.fromkeys(line["dataset"] for line in self._lines))

    @cached_property
    def backbones(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line["backbone"] for line in self._lines))

    def rows(self, dataset: str, backbone: str) -> tuple[Row, ...]:
        """The methods on a dataset, in the order of the source; without values where it published none."""
        values = {
            line["method"]: {metric: float(line[metric]) for metric in self.metrics}
            for line in self._lines
            if (line["dataset"], line["backbone"]) == (dataset, backbone)
        }
        names = {line["method"]: line["method"] for line in self._lines} | dict(self.extra)
        rows = (
            Row(
                dataset,
                backbone,
                name,
                self._settings(dataset, backbone, name),
                values.get(beside or "", {}),
                name != beside,
            )
            for name, beside in names.items()
        )
        return tuple(row for row in rows if backbone == "mf" or row.settings.params.get("optimizer") != "sgd")

    def why(self, row: Row, metric: str | None = None) -> tuple[Doubt, ...]:
        """The doubts about a row, or about one of its values."""
        return tuple(doubt for doubt in self.doubts if row.published and doubt.concerns(row, metric))

    @cached_property
    def _lines(self) -> list[dict[str, str]]:
        file = Path(__file__).with_name(f"table-{self.id.removeprefix('thesis-')}.csv")
        with file.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def _settings(self, dataset: str, backbone: str, method: str) -> Method:
        chosen = self.methods[method]
        where = {"dataset": dataset, "backbone": backbone}
        here = {**self.common, **self.on.get(dataset, {}), **self.on.get(f"{dataset} {method}", {})}
        return Method({**where, **chosen.params, **here}, chosen.searched, chosen.epochs)
