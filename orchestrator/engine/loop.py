"""The training loop: turns a workload and a plan into a stream of reports. No Ray, MLflow or Optuna.

Every consumer (notebook, ``--local``, the Tune trial actor, each Ray Train worker, the tests) iterates over the same
stream. Only the engine names metrics, selects epochs, decides when to checkpoint, and ends the stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from orchestrator.config import objectives
from orchestrator.config.plan import Plan
from orchestrator.engine.method_results import NoResult, named
from workloads.contract import (
    Columns,
    Evaluation,
    Metrics,
    Objective,
    Pretrained,
    StepLogged,
    Workload,
)

REPORT_SECONDS = 1.0
CHECKPOINT_SECONDS = 5.0

End = Literal["epochs", "patience"]


@dataclass(frozen=True, slots=True)
class Row:
    """All values of one finished epoch, under their full names (``validation/ndcg_at_20``).

    Epoch 0 is the state before training, of a workload that starts from pretrained weights. ``steps`` are the values
    within the epoch, as (step, time, metrics), of a plan with ``log_every``.
    """

    epoch: int
    time: float
    metrics: Mapping[str, float]
    steps: Sequence[tuple[int, float, Mapping[str, float]]] = ()

    def to_json(self) -> list[Any]:
        """As ``Row(*row)`` takes it."""
        steps = [[step, moment, dict(metrics)] for step, moment, metrics in self.steps]
        return [self.epoch, self.time, dict(self.metrics), *([steps] if steps else [])]


class Diverged(Exception):
    """A metric is not finite, so the trial fails.

    ``rows`` are those since the last report. They are not reported separately: a report may require a checkpoint, and
    the workload's state is already that of the diverged epoch.
    """

    def __init__(self, epoch: int, metric: str, value: float, rows: tuple[Row, ...] = ()) -> None:
        self.epoch = epoch
        self.metric = metric
        self.value = value
        self.rows = rows
        super().__init__(f"{metric} is {value} at epoch {epoch}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Diverged, (self.epoch, self.metric, self.value, self.rows))


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a stream, as plain numbers that a checkpoint stores as JSON."""

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
    """A report: all rows since the last one, and what is due now.

    At the yield the workload's state is that of ``progress.epoch``: the generator does no work between a yield and the
    following ``next()``. ``units`` are ids and objective of the best epoch's units, in the last report of a sweep's
    trial; ``accumulate`` is the number of micro-batches where the plan leaves it open. Only ``ended`` marks completion.
    A stream that stops without it, and without an exception, was interrupted or pruned.
    """

    rows: tuple[Row, ...]
    progress: Progress
    checkpoint_due: bool
    ended: End | None
    units: Columns | None = None
    accumulate: int | None = None

    @property
    def epoch(self) -> int:
        return self.progress.epoch


def run_epochs(
    workload: Workload,
    plan: Plan,
    resume: Progress | None = None,
    *,
    validate: bool = True,
    broadcast: Callable[[Any], Any] = lambda value: value,
    stop: Callable[[], bool] = lambda: False,
    on_best: Callable[[Evaluation], None] = lambda evaluation: None,
    on_test_epoch: Callable[[Row, Evaluation | None], None] | None = None,
    before_test: Callable[[int], None] = lambda epoch: None,
    prefix: str = "train",
    every_epoch: bool = False,
    clock: Callable[[], float] | None = None,
    report_seconds: Callable[[], float] | None = None,
) -> Iterator[EpochReport]:
    """Train ``workload`` by ``plan`` and yield reports, about one per second and one at each rung.

    Args:
        resume: progress that the workload's loaded state belongs to.
        validate: False in a refit, which has no validation split.
        broadcast: broadcasts rank 0's value to all ranks.
        stop: called after each epoch on rank 0. When it returns True, the state is reported, due for a checkpoint, and
            the stream stops without ``ended``.
        on_best: called with the evaluation of a new best epoch while the workload has that epoch's state. A report may
            come some epochs later.
        on_test_epoch: called with the row of each epoch of ``test_epochs``, and its evaluation on validation if there
            is one. The test split is evaluated at these epochs. None unless the model is the final one.
        before_test: called with the epoch on every rank before the test split is evaluated.
        every_epoch: report each epoch by itself.
        clock: returns the seconds that training is charged with, if these are not those that pass: a member of a pack
            is charged its share. The checkpoint interval uses it too.
        report_seconds: returns the report interval, instead of one second.

    A :class:`~workloads.contract.Pretrained` workload, and one that starts from a model (``plan.init``), is first
    evaluated untrained, as epoch 0, which competes with the other epochs. Schedulers do not decide at it.

    Raises :class:`Diverged` when a metric is NaN or infinite, UserError when validation does not report an objective
    or a method returns no metrics.
    """
    spent = clock or time.monotonic
    progress = resume or Progress()
    if ended := progress.ended(plan):  # resumed after its last epoch: report the end again
        yield EpochReport((), progress, False, ended)
        return
    chosen = objectives.of_workload(workload, plan.objective)
    test_epochs = chosen[0].test_epochs if on_test_epoch else ()
    rows: list[Row] = []
    reported = time.monotonic()
    saved = spent()
    saved_epoch = progress.epoch
    trained = plan.init is not None or is_pretrained(workload)
    first = 0 if resume is None and validate and trained else progress.epoch + 1
    for epoch in range(first, plan.epochs + 1):
        started = spent()
        metrics = named(prefix, workload, "train_epoch", train(workload, plan, epoch)) if epoch else {}
        steps = _steps(prefix, workload) if epoch and plan.log_every else ()
        if bad := _not_finite(metrics):  # a diverged model may fail to evaluate
            raise Diverged(epoch, *bad, rows=tuple(rows))
        seen: dict[str, float] = {}
        evaluation = None
        if validate and plan.evaluates(epoch):
            evaluation = workload.evaluate("validation")
            seen = named("validation", workload, "evaluate", evaluation)
            if not seen:
                raise _unselectable(metrics)
        if epoch in test_epochs:
            before_test(epoch)
            metrics |= named("test", workload, "evaluate", workload.evaluate("test"))
        if bad := _not_finite(metrics | seen):
            raise Diverged(epoch, *bad, rows=tuple(rows))
        progress = _advance(progress, epoch, seen, chosen, spent() - started)
        rows.append(Row(epoch, time.time(), metrics | seen, steps))
        ended = progress.ended(plan)
        stopping = ended is None and stop()
        now = time.monotonic()
        interval = report_seconds() if report_seconds else REPORT_SECONDS
        report = bool(ended) or stopping or epoch in plan.decide_at or now - reported >= interval or every_epoch
        rested = spent() - saved >= CHECKPOINT_SECONDS and (ended or epoch - saved_epoch >= plan.checkpoint_every)
        # Without a refit, the last checkpoint has the weights to be tested.
        due = report and bool(stopping or rested or (ended and plan.refit is False))
        # The ranks' clocks differ, and their GPUs can round differently.
        report, due, stopping, progress, ended = broadcast((report, due, stopping, progress, ended))
        if evaluation is not None and progress.best_epoch == epoch:
            on_best(evaluation)  # collects the weights of all ranks
        if on_test_epoch and epoch in test_epochs:
            on_test_epoch(rows[-1], evaluation)
        if report:
            yield EpochReport(tuple(rows), progress, due, ended)
            rows = []
            reported = time.monotonic()
            if due:
                saved = spent()
                saved_epoch = epoch
        if ended or stopping:
            return


def train(workload: Workload, plan: Plan, epoch: int) -> Metrics | Evaluation:
    """Train an epoch in the plan's precision. An error gets the attribute ``in_training``, unless it has it."""
    from workloads.precision import training_precision  # imports PyTorch

    try:
        with training_precision(plan.precision):
            return workload.train_epoch(epoch)
    except Exception as error:
        error.in_training = getattr(error, "in_training", True)  # type: ignore[attr-defined]
        raise


def is_pretrained(workload: object) -> bool:
    """Whether a workload starts from pretrained weights."""
    return isinstance(workload, Pretrained) and workload.pretrained


def better(value: float, than: float | None, objective: Objective) -> bool:
    if than is None:
        return True
    return value > than if objective.direction == "max" else value < than


def _steps(prefix: str, workload: Workload) -> tuple[tuple[int, float, Mapping[str, float]], ...]:
    """The values within the last epoch, under names such as ``train_steps/loss``."""
    if not isinstance(workload, StepLogged):
        return ()
    return tuple(
        (one.step, one.time, {f"{prefix}_steps/{name}": float(value) for name, value in one.metrics.items()})
        for one in workload.take_steps()
    )


def _not_finite(metrics: Mapping[str, float]) -> tuple[str, float] | None:
    return next(((name, value) for name, value in metrics.items() if not math.isfinite(value)), None)


def _unselectable(metrics: Mapping[str, float]) -> NoResult:
    return NoResult(
        "No metric of validation is reported, so no epoch can be selected",
        got=f"only {', '.join(metrics)}" if metrics else "none",
        fix="Return metrics from evaluate: in a function use @ctx.evaluate, or yield names that begin with "
        "validation/; a Trainer needs an eval_dataset",
    )


def _advance(
    progress: Progress, epoch: int, seen: Mapping[str, float], chosen: Sequence[Objective], seconds: float
) -> Progress:
    progress = replace(progress, epoch=epoch, train_seconds=progress.train_seconds + seconds)
    if not seen:
        return progress
    values = [objectives.value(objective, seen) for objective in chosen]  # raises if one is missing
    value = values[0]  # the first objective selects
    if better(value, progress.best_value, chosen[0]):
        return replace(progress, best_epoch=epoch, best_value=value, best_metrics=dict(seen), stale=0)
    return replace(progress, stale=progress.stale + 1)
