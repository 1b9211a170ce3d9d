"""The loop: a workload and a plan become a stream of reports. No Ray, no MLflow, no Optuna.

Every consumer (notebook, ``--local``, the Tune trial actor, each Ray Train worker, the tests) iterates over the
same stream. The engine alone names metrics, selects, decides when to checkpoint, and ends the stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from orchestrator.config import objectives
from orchestrator.config.plan import Plan
from workloads.contract import Evaluation, Metrics, Objective, Pretrained, Workload

REPORT_SECONDS = 1.0
CHECKPOINT_SECONDS = 5.0

End = Literal["epochs", "patience"]


@dataclass(frozen=True, slots=True)
class Row:
    """All values of one finished epoch, under their full names (``validation/ndcg_at_20``).

    Epoch 0 is the state before training, of a workload that starts from pretrained weights.
    """

    epoch: int
    time: float
    metrics: Mapping[str, float]

    def to_json(self) -> list[Any]:
        """As ``Row(*row)`` takes it."""
        return [self.epoch, self.time, dict(self.metrics)]


class Diverged(Exception):
    """A metric of an epoch is not finite: the trial ends here, failed.

    ``rows`` are those since the last report. They are no report of their own: that would be due for a checkpoint,
    and the workload's state is already that of the epoch which diverged.
    """

    def __init__(self, epoch: int, metric: str, value: float, rows: tuple[Row, ...] = ()) -> None:
        self.epoch, self.metric, self.value, self.rows = epoch, metric, value, rows
        super().__init__(f"{metric} is {value} at epoch {epoch}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Diverged, (self.epoch, self.metric, self.value, self.rows))


class NoResult(objectives.Unreported):
    """What a workload's method has returned is not what the contract says: so it is in every trial."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream has come: plain numbers, so that a checkpoint carries it as JSON."""

    epoch: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    stale: int = 0
    best_metrics: Mapping[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0

    def ended(self, plan: Plan) -> End | None:
        if self.epoch >= plan.epochs:
            return "epochs"
        return "patience" if plan.patience and self.stale >= plan.patience else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What a consumer gets: all rows since the last report, and what is due now.

    The state of the workload at the yield is the state of ``progress.epoch``: the generator does no work
    between a yield and the next ``next()``. ``ended`` is the only mark of completeness: a stream that stops
    without it, and without an exception, was interrupted or pruned.
    """

    rows: tuple[Row, ...]
    progress: Progress
    checkpoint_due: bool
    ended: End | None

    @property
    def epoch(self) -> int:
        return self.progress.epoch


def run_epochs(
    workload: Workload,
    plan: Plan,
    resume: Progress | None = None,
    *,
    validate: bool = True,
    agree: Callable[[Any], Any] = lambda value: value,
    stop: Callable[[], bool] = lambda: False,
    on_best: Callable[[Evaluation], None] = lambda evaluation: None,
    on_sealed: Callable[[Row, Evaluation | None], None] | None = None,
    prefix: str = "train",
    every_epoch: bool = False,
    clock: Callable[[], float] | None = None,
    report_seconds: Callable[[], float] | None = None,
) -> Iterator[EpochReport]:
    """Train ``workload`` by ``plan`` and yield reports, at most about one a second unless somebody decides now.

    ``report_seconds`` returns another interval than a second.

    ``resume`` is the progress that the workload's loaded state belongs to. ``stop`` is asked after every epoch,
    on rank 0 (``agree`` tells the others); when it says yes the state is reported, due for a checkpoint, and
    the stream stops without ``ended``. ``on_best`` is given the evaluation of a new best epoch while the workload
    holds that epoch's state (a report may come some epochs later); likewise ``on_sealed`` the values of each epoch of
    ``test_epochs``, and its evaluation on validation where there was one. Test is evaluated at these epochs, and only
    where ``on_sealed`` is given: it is None where the model is not the final one. ``validate`` is False in a refit,
    where there is no validation split. ``every_epoch`` reports each epoch by itself. ``clock`` tells the seconds that
    training is charged with, where they are not those that pass: a member of a pack pays its share. Checkpoints go by
    it.

    A workload that is :class:`~workloads.contract.Pretrained` is first evaluated as it comes: epoch 0, which trains
    nothing and competes with all others. It is no epoch at which a scheduler decides.

    Raises :class:`Diverged` when a metric is NaN or infinite, UserError when validation does not report an objective
    or a method returns no metrics.
    """
    spent = clock or time.monotonic
    progress = resume or Progress()
    if ended := progress.ended(plan):  # restored after its last epoch: say so again, for whoever missed it
        yield EpochReport((), progress, False, ended)
        return
    chosen = objectives.chosen(workload.objective, plan.objective)
    test_epochs = chosen[0].test_epochs if on_sealed else ()
    rows: list[Row] = []
    reported, saved = time.monotonic(), spent()
    saved_epoch = progress.epoch
    first = 0 if resume is None and validate and is_pretrained(workload) else progress.epoch + 1
    for epoch in range(first, plan.epochs + 1):
        started = spent()
        metrics = named(prefix, workload, "train_epoch", workload.train_epoch(epoch)) if epoch else {}
        if bad := _not_finite(metrics):  # before a diverged model is evaluated, which may fail in its own way
            raise Diverged(epoch, *bad, rows=tuple(rows))
        seen: dict[str, float] = {}
        evaluation = None
        if validate and plan.evaluates(epoch):
            evaluation = workload.evaluate("validation")
            seen = named("validation", workload, "evaluate", evaluation)
        if epoch in test_epochs:
            metrics |= named("test", workload, "evaluate", workload.evaluate("test"))
        if bad := _not_finite(metrics | seen):
            raise Diverged(epoch, *bad, rows=tuple(rows))
        progress = _advance(progress, epoch, seen, chosen, spent() - started)
        if evaluation is not None and progress.best_epoch == epoch:
            on_best(evaluation)
        rows.append(Row(epoch, time.time(), metrics | seen))
        if on_sealed and epoch in test_epochs:
            on_sealed(rows[-1], evaluation)

        ended = progress.ended(plan)
        stopping = ended is None and stop()
        now, interval = time.monotonic(), report_seconds() if report_seconds else REPORT_SECONDS
        report = bool(ended) or stopping or epoch in plan.decide_at or now - reported >= interval or every_epoch
        rested = spent() - saved >= CHECKPOINT_SECONDS and (ended or epoch - saved_epoch >= plan.checkpoint_every)
        # Without a refit, the last checkpoint carries the weights that test will be opened on.
        due = report and bool(stopping or rested or (ended and plan.refit is False))
        report, due, stopping = agree((report, due, stopping))  # clocks differ between ranks; the barrier must not
        if report:
            yield EpochReport(tuple(rows), progress, due, ended)
            rows, reported = [], time.monotonic()
            if due:
                saved, saved_epoch = spent(), epoch
        if ended or stopping:
            return


def is_pretrained(workload: object) -> bool:
    """Whether a workload says that it starts from pretrained weights."""
    return isinstance(workload, Pretrained) and workload.pretrained


def better(value: float, than: float | None, objective: Objective) -> bool:
    if than is None:
        return True
    return value > than if objective.direction == "max" else value < than


def named(split: str, workload: Workload, method: str, result: Metrics | Evaluation) -> dict[str, float]:
    """The scalars of what a method has returned, under their full names. Raises :class:`NoResult`."""
    metrics = result.metrics if isinstance(result, Evaluation) else result
    try:
        if isinstance(metrics, Mapping) and (method != "evaluate" or isinstance(result, Evaluation)):
            return {f"{split}/{name}": float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        pass  # a value that is no number
    kinds = {"train_epoch": "a mapping of names to numbers, or an Evaluation", "evaluate": "an Evaluation of numbers"}
    raise NoResult(
        f"{type(workload).__module__}.{type(workload).__qualname__}.{method} has returned no result",
        got=" ".join(repr(result).split())[:200], allowed=kinds[method],
    )  # fmt: skip


def _not_finite(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    return next(((name, value) for name, value in metrics.items() if not math.isfinite(value)), None)


def _advance(
    progress: Progress, epoch: int, seen: Mapping[str, float], chosen: Sequence[Objective], seconds: float
) -> Progress:
    progress = replace(progress, epoch=epoch, train_seconds=progress.train_seconds + seconds)
    if not seen:
        return progress
    value, *_ = [objectives.value(objective, seen) for objective in chosen]  # all must be there; the first selects
    if better(value, progress.best_value, chosen[0]):
        return replace(progress, best_epoch=epoch, best_value=value, best_metrics=dict(seen), stale=0)
    return replace(progress, stale=progress.stale + 1)
