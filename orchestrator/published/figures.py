"""Published figures once more, as data: each curve from runs at settings that were chosen on validation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.console import Console
from orchestrator.errors import RunFailed, unknown
from orchestrator.published.once import Done
from orchestrator.published.table import Choice, Effort, choose, final_spec, on_cluster, present, search_spec, train
from orchestrator.results import statistics
from orchestrator.session import HISTORY
from orchestrator.settings import Settings
from workloads.recommender.published import Figure, Line, Method, Panel, Point

if TYPE_CHECKING:
    from workloads.recommender.published.scores import Densities

TIMED_EPOCHS = 6


@dataclass(frozen=True)
class Curve:
    """A line of a panel: ``y`` over ``x``, means over seeds with ``sd`` where there are several values."""

    dataset: str
    panel: str
    name: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    sd: Sequence[float | None]
    note: str = ""


@dataclass(frozen=True)
class Redrawn:
    """A figure as it came out; ``missing`` and ``failed`` say what is not in it, and why."""

    figure: Figure
    effort: Effort
    curves: tuple[Curve, ...]
    missing: Mapping[str, str]
    failed: tuple[str, ...]
    told_by_test: bool


@dataclass(frozen=True)
class _Work:
    """What every kind of curve needs."""

    settings: Settings
    effort: Effort
    dataset: str
    panel: Panel
    line: Line
    common: Mapping[str, Any]
    reads_test: bool

    @property
    def method(self) -> Method:
        where = {"dataset": self.dataset, "backbone": self.line.backbone}
        method = self.line.method
        return replace(method, params={**where, **method.params, **self.common})

    def runs(self, choice: Choice, point: Point, epochs: int, **plan: Any) -> list[Done]:
        """A run a seed."""
        params = {**choice.params, **point.params}
        specs = [
            final_spec(params, epochs, seed, self.settings, self.effort, **plan) for seed in range(self.effort.seeds)
        ]
        return [train(spec, self.settings, self.effort, reads_test=self.reads_test) for spec in specs]

    def curve(self, x: Sequence[float], values: Sequence[Sequence[float]], note: str = "") -> Curve:
        """The line, with one value or more at each x."""
        found = [statistics.summary(one) for one in values]
        return Curve(
            self.dataset, self.panel.metric, self.line.name, self.panel.x, self.panel.metric, list(x),
            [one.mean for one in found], [one.spread for one in found], note,
        )  # fmt: skip


def redraw(
    figure: Figure,
    settings: Settings,
    effort: Effort,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    backbones: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> Redrawn:
    """Run what the figure needs and is not there yet; ML-100K where no dataset is named.

    Without ``as_published`` false negatives are told by the validation part, not by the test part. Raises UserError
    before anything is run, and Interrupted; a line whose run fails is left out, and named.
    """
    effort = effort.settled()
    by_test = figure.reads_test and effort.as_published
    common = {**figure.common, **({"truth": "validation"} if figure.reads_test and not by_test else {})}
    if figure.kind == "theory":
        return Redrawn(figure, replace(effort, quick=False), tuple(_theory()), {}, (), told_by_test=False)
    here, missing = present(datasets or ("ml-100k",), settings, named=bool(datasets))
    work = [
        _Work(settings, effort, dataset, panel, line, common, by_test)
        for dataset in here
        for panel in figure.panels
        for line in _chosen(panel.lines, backbones, methods)
    ]
    for one in work:
        _check(one)
    curves, failed = [], []
    with on_cluster(settings, effort):
        for one in work:
            console.say(f"{one.dataset} {one.panel.metric}: {one.line.name}")
            try:
                curves += list(KINDS[figure.kind](one))
            except RunFailed as error:
                console.say(f"  failed: {error}")
                failed.append(f"{one.dataset} {one.line.name}: {error}")
    return Redrawn(figure, effort, tuple(curves), missing, tuple(failed), by_test)


def _check(work: _Work) -> None:
    """Raises UserError for a line that could not be run."""
    search_spec(work.method, work.settings, work.effort)
    for point in work.line.points:
        final_spec({**work.method.params, **point.params}, 1, 0, work.settings, work.effort)


def _values(work: _Work) -> Iterator[Curve]:
    """A metric on test over a parameter."""
    choice = choose(work.method, work.settings, work.effort)
    values = [
        [done.result["metrics"][f"test/{work.panel.metric}"] for done in work.runs(choice, point, choice.epochs)]
        for point in work.line.points
    ]
    yield work.curve([point.x for point in work.line.points], values)


def _epochs(work: _Work) -> Iterator[Curve]:
    """A metric of every epoch, of models that keep their validation part to the end."""
    choice = choose(work.method, work.settings, work.effort)
    epochs = work.effort.epochs(work.line.method.epochs)
    done = work.runs(choice, Point(0.0), epochs, refit=False)
    by_epoch: dict[int, dict[str, float]] = {}
    for one in done:
        for row in _history(one):
            if work.panel.metric in row:
                by_epoch.setdefault(row["epoch"], {})[one.id] = row[work.panel.metric]
    known = sorted(by_epoch)
    yield work.curve([float(epoch) for epoch in known], [list(by_epoch[epoch].values()) for epoch in known])


def _seconds(work: _Work) -> Iterator[Curve]:
    """Seconds of training an epoch: the median, without the first one, which warms up."""
    done = work.runs(Choice(work.method.params, TIMED_EPOCHS, None), Point(0.0), TIMED_EPOCHS)
    ends = [sorted({row["epoch"]: row["time"] for row in _history(one)}.values()) for one in done]
    yield work.curve([0.0], [[median(b - a for a, b in pairwise(times)) for times in ends]])


def _history(done: Done) -> Iterator[dict[str, Any]]:
    """The rows of a run; a resume states its last ones again."""
    return map(json.loads, (done.folder / HISTORY).read_text().splitlines())


def _credence(work: _Work) -> Iterator[Curve]:
    """The ROC of the first seed, and the AUC of all."""
    from workloads.recommender.published.trust import judge

    choice = choose(work.method, work.settings, work.effort)
    done = work.runs(choice, Point(0.0), choice.epochs)
    found = [judge(one.folder / "model", choice.params, work.settings.data) for one in done]
    auc = statistics.summary([one.auc for one in found])
    note = f"AUC {auc.mean:.4f}" + (f" ± {auc.spread:.4f}" if auc.spread is not None else "")
    x, y = found[0].false_positives.tolist(), found[0].true_positives.tolist()
    yield work.curve(x, [[value] for value in y], note=note)


def _scores(work: _Work) -> Iterator[Curve]:
    """Densities after some epochs, of the first seed."""
    from workloads.recommender.published.scores import of_model

    choice = choose(work.method, work.settings, work.effort)
    first = replace(work, effort=replace(work.effort, seeds=1))
    for epochs in sorted({work.effort.epochs(int(point.x)) for point in work.line.points}):
        done = first.runs(choice, Point(epochs), epochs)
        found = of_model(done[0].folder / "model", choice.params, work.settings.data)
        yield from _densities(work.dataset, f"after {epochs} epoch{'s' * (epochs > 1)}", found)


def _theory() -> Iterator[Curve]:
    from workloads.recommender.published.scores import in_theory

    for law, found in in_theory().items():
        yield from _densities("", law, found)


def _densities(dataset: str, panel: str, found: Densities) -> Iterator[Curve]:
    for name, density in (("true negatives", found.true), ("false negatives", found.false)):
        mean = float((found.x * density).sum() / density.sum())
        none = [None] * len(density)
        yield Curve(dataset, panel, name, "score", "density", found.x.tolist(), density.tolist(), none,
                    f"mean {mean:.3f}")  # fmt: skip


KINDS: Mapping[str, Callable[[_Work], Iterator[Curve]]] = {
    "values": _values,
    "epochs": _epochs,
    "seconds": _seconds,
    "credence": _credence,
    "scores": _scores,
}


def _chosen(lines: Sequence[Line], backbones: Sequence[str], methods: Sequence[str]) -> list[Line]:
    """The lines asked for; a backbone that the figure does not have is put in their place. Raises UserError."""
    names = {line.name.lower() for line in lines}
    for name in methods:
        if name.lower() not in names:
            raise unknown("line of the figure", name, [line.name for line in lines])
    wanted = [line for line in lines if not methods or line.name.lower() in {name.lower() for name in methods}]
    if not backbones:
        return wanted
    having = {line.backbone for line in wanted}
    if having & set(backbones) or len(having) > 1:
        return [line for line in wanted if line.backbone in backbones]
    return [replace(line, backbone=backbone) for backbone in backbones for line in wanted]
