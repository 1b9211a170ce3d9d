"""The training loop: content and times of reports, decisions, checkpoints and the end of a stream."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.config.objectives import Unreported
from orchestrator.config.plan import Plan
from orchestrator.engine.loop import Diverged, EpochReport, Progress, Row, better, run_epochs
from orchestrator.engine.method_results import NoResult
from tests.support.toy import BEST_EPOCH, Clock, Params, PretrainedToy, Toy
from tests.support.waiting import HANG_SECONDS
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Split

pytestmark = pytest.mark.usefixtures("clock")


def build(cls: type[Toy] = Toy, *, holdout: bool = True, **params: Any) -> Toy:
    return cls(Params(**params), Runtime(torch.device("cpu"), Path(), seed=1, epochs=12, holdout=holdout))


def rows_of(reports: list[EpochReport]) -> list[int]:
    return [row.epoch for report in reports for row in report.rows]


def epochs_of(reports: list[EpochReport]) -> list[int]:
    return [report.epoch for report in reports]


# Before training


def test_pretrained_weights_are_evaluated_before_the_first_epoch() -> None:
    workload = build(PretrainedToy)
    best: list[float] = []
    reports = list(
        run_epochs(workload, Plan(epochs=2), on_best=lambda seen: best.append(seen.metrics["error"]), every_epoch=True)
    )
    assert rows_of(reports) == epochs_of(reports) == [0, 1, 2]
    assert workload.calls == ["validation", "train 1", "validation", "train 2", "validation"]
    assert reports[0].rows[0].metrics == {"validation/error": 9.0, "validation/x": 4.0}
    assert reports[0].progress.best_value == best[0] == 9.0


def test_a_longer_interval_delays_no_rung_and_loses_no_row() -> None:
    plan = Plan(epochs=11, decide_at=(1, 4))
    usual = list(run_epochs(build(slow=0.6), plan))
    rationed = list(run_epochs(build(slow=0.6), plan, report_seconds=lambda: 3.0))
    assert epochs_of(rationed) == [1, 4, 9, 11]
    assert {1, 4, 11} <= set(epochs_of(usual))
    assert len(usual) > len(rationed)
    assert rows_of(rationed) == rows_of(usual) == list(range(1, 12))
    metrics = [[row.metrics for report in reports for row in report.rows] for reports in (usual, rationed)]
    assert metrics[0] == metrics[1]


def test_pretrained_weights_that_training_makes_worse_are_the_best_epoch() -> None:
    last = list(run_epochs(build(PretrainedToy, start=1.0), Plan(epochs=5, patience=2)))[-1]
    assert (last.progress.best_epoch, last.progress.best_value) == (0, 0.0)
    assert (last.epoch, last.ended) == (2, "patience"), "two evaluations are not better than epoch 0"


def test_epoch_0_does_not_change_the_later_epochs() -> None:
    plain = [row.metrics for report in run_epochs(build(), Plan(epochs=4)) for row in report.rows]
    with_0 = [row.metrics for report in run_epochs(build(PretrainedToy), Plan(epochs=4)) for row in report.rows]
    assert with_0[1:] == plain


@pytest.mark.parametrize("progress", [Progress(), Progress(epoch=2, best_epoch=2, best_value=0.5)])
def test_a_resume_does_not_evaluate_epoch_0_again(progress: Progress) -> None:
    assert rows_of(list(run_epochs(build(PretrainedToy), Plan(epochs=4), progress)))[0] == progress.epoch + 1


def test_a_refit_has_no_epoch_0() -> None:
    workload = build(PretrainedToy, holdout=False)
    assert rows_of(list(run_epochs(workload, Plan(epochs=2), validate=False))) == [1, 2]


def test_workload_with_pretrained_false_has_no_epoch_0() -> None:
    class FromScratch(Toy):
        pretrained = False

    assert rows_of(list(run_epochs(build(FromScratch), Plan(epochs=2)))) == [1, 2]


# Reports


def test_epochs_count_from_one_and_every_row_is_handed_over_once() -> None:
    workload = build()
    reports = list(run_epochs(workload, Plan(epochs=5)))
    assert rows_of(reports) == [1, 2, 3, 4, 5]
    assert [call for call in workload.calls if call.startswith("train")] == [f"train {n}" for n in range(1, 6)]
    assert reports[-1].epoch == reports[-1].progress.epoch == 5


def test_short_epochs_are_reported_about_once_a_second() -> None:
    reports = list(run_epochs(build(slow=0.25), Plan(epochs=10)))
    assert [[row.epoch for row in report.rows] for report in reports] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_long_epochs_are_reported_one_by_one() -> None:
    reports = list(run_epochs(build(slow=3600), Plan(epochs=3)))
    assert [[row.epoch for row in report.rows] for report in reports] == [[1], [2], [3]]


def test_time_of_the_consumer_does_not_trigger_a_report(clock: Clock) -> None:
    seen = []
    for report in run_epochs(build(slow=0.25), Plan(epochs=8)):
        seen.append(len(report.rows))
        clock.sleep(100)
    assert seen == [4, 4]


def test_rows_hold_all_values_under_full_names_and_their_own_time(clock: Clock) -> None:
    start = clock.time()
    (report,) = run_epochs(build(slow=0.25), Plan(epochs=2))
    assert [set(row.metrics) for row in report.rows] == [{"train/loss", "validation/error", "validation/x"}] * 2
    assert [row.time for row in report.rows] == [start + 0.25, start + 0.5]


def test_train_epoch_may_return_an_evaluation_with_tables() -> None:
    class WithTables(Toy):
        def train_epoch(self, epoch: int) -> Evaluation:  # type: ignore[override]
            return Evaluation(super().train_epoch(epoch), tables={"curve": {"x": np.arange(3)}})

    (report,) = run_epochs(build(WithTables), Plan(epochs=1))
    assert "train/loss" in report.rows[0].metrics


def test_the_state_at_a_yield_is_that_of_the_reported_epoch() -> None:
    workload = build(slow=0.4)
    for report in run_epochs(workload, Plan(epochs=11, decide_at=(4,))):
        assert workload.epoch == report.epoch == report.rows[-1].epoch
        assert report.rows[-1].metrics["validation/x"] == float(workload.x)


def test_loop_trains_only_when_the_next_report_is_requested() -> None:
    workload = build(slow=1)
    stream = run_epochs(workload, Plan(epochs=4))
    for epoch in (1, 2, 3, 4):
        assert len(workload.calls) == 2 * (epoch - 1)
        assert next(stream).epoch == epoch
        assert workload.calls[-2:] == [f"train {epoch}", "validation"]
    assert next(stream, None) is None
    assert len(workload.calls) == 8


# Evaluation and decisions


def test_evaluation_follows_evaluate_every_and_includes_the_last_epoch() -> None:
    workload = build()
    (report,) = run_epochs(workload, Plan(epochs=7, evaluate_every=3))
    assert [row.epoch for row in report.rows if "validation/error" in row.metrics] == [3, 6, 7]
    assert workload.calls.count("validation") == 3


def test_report_ends_at_decide_at_and_that_epoch_is_evaluated() -> None:
    plan = Plan(epochs=9, evaluate_every=4, decide_at=(1, 3))
    reports = list(run_epochs(build(), plan))
    assert [[row.epoch for row in report.rows] for report in reports] == [[1], [2, 3], [4, 5, 6, 7, 8, 9]]
    evaluated = [row.epoch for report in reports for row in report.rows if "validation/error" in row.metrics]
    assert evaluated == [1, 3, 4, 8, 9]
    assert [report.ended for report in reports] == [None, None, "epochs"]


def test_the_best_epoch_is_selected_on_validation() -> None:
    *_, last = run_epochs(build(), Plan(epochs=12))
    assert last.progress.best_epoch == BEST_EPOCH
    best = next(row for row in last.rows if row.epoch == BEST_EPOCH)
    assert last.progress.best_value == best.metrics["validation/error"]
    assert last.progress.best_metrics == {k: v for k, v in best.metrics.items() if k.startswith("validation/")}
    assert last.progress.stale == 12 - BEST_EPOCH


def test_objective_with_direction_max_selects_the_highest_value() -> None:
    class Upwards(Toy):
        objective = Objective("x", "max")

    *_, last = run_epochs(build(Upwards), Plan(epochs=12))
    assert last.progress.best_epoch == 1  # x falls from the first epoch on


@pytest.mark.parametrize(("direction", "value", "expected"), [("max", 2, True), ("min", 2, False), ("max", 1, False)])
def test_better_requires_a_strict_improvement(direction: Any, value: float, expected: bool) -> None:
    assert better(value, 1, Objective("m", direction)) is expected
    assert better(value, None, Objective("m", direction))


def test_first_of_several_objectives_selects_the_best_epoch() -> None:
    class Two(Toy):
        objective = (Objective("x", "max"), Objective("error", "min"))

    *_, last = run_epochs(build(Two), Plan(epochs=6))
    assert last.progress.best_epoch == 1


def test_on_best_is_called_while_the_workload_holds_the_best_state() -> None:
    workload = build()
    states: list[tuple[int, float]] = []
    (report,) = run_epochs(
        workload, Plan(epochs=12), on_best=lambda _: states.append((workload.epoch, float(workload.x)))
    )
    assert [epoch for epoch, _ in states] == [1, 2, BEST_EPOCH]
    assert states[-1][1] == report.rows[BEST_EPOCH - 1].metrics["validation/x"]


def test_a_refit_is_never_validated() -> None:
    workload = build(holdout=False)
    (report,) = run_epochs(workload, Plan(epochs=3), validate=False, prefix="refit")
    assert workload.calls == ["train 1", "train 2", "train 3"]
    assert [set(row.metrics) for row in report.rows] == [{"refit/loss"}] * 3


def test_sealed_test_values_are_logged_and_not_used_for_selection() -> None:
    class Sealed(Toy):
        objective = Objective("error", "min", test_epochs=(2, 4))

    workload = build(Sealed)
    sealed: list[int] = []
    (report,) = run_epochs(
        workload, Plan(epochs=5, evaluate_every=5), on_test_epoch=lambda row, evaluation: sealed.append(row.epoch)
    )
    assert [row.epoch for row in report.rows if "test/error" in row.metrics] == sealed == [2, 4]
    assert workload.calls.count("test") == 2
    assert report.progress.best_epoch == 5
    assert not any(name.startswith("test/") for name in report.progress.best_metrics)

    workload = build(Sealed)
    (report,) = run_epochs(workload, Plan(epochs=5))
    assert "test" not in workload.calls  # there is no callback for the values
    assert not any(name.startswith("test/") for row in report.rows for name in row.metrics)


# Ends


def test_only_the_last_report_has_ended() -> None:
    reports = list(run_epochs(build(slow=0.6), Plan(epochs=9)))
    assert [report.ended for report in reports] == [None] * (len(reports) - 1) + ["epochs"]
    assert len(reports) > 2


@pytest.mark.parametrize(("evaluate_every", "last"), [(1, BEST_EPOCH + 2), (2, 8)])
def test_patience_counts_evaluations(evaluate_every: int, last: int) -> None:
    # With evaluate_every=2, the evaluations at epochs 2 and 4 improve, and those at 6 and 8 are worse.
    *_, report = run_epochs(build(), Plan(epochs=12, patience=2, evaluate_every=evaluate_every))
    assert (report.epoch, report.ended) == (last, "patience")


def test_patience_is_reset_by_every_improvement() -> None:
    class Uneven(Toy):
        def evaluate(self, split: Split) -> Evaluation:
            return Evaluation({"error": [5.0, 6, 4, 5, 3, 4, 5, 6][self.epoch - 1]})

    *_, report = run_epochs(build(Uneven), Plan(epochs=8, patience=2))
    assert (report.epoch, report.ended, report.progress.best_epoch) == (7, "patience", 5)


def test_report_of_a_stop_is_due_for_a_checkpoint_and_not_ended() -> None:
    workload = build()
    reports = list(run_epochs(workload, Plan(epochs=9), stop=lambda: workload.epoch == 4))
    assert rows_of(reports) == [1, 2, 3, 4]
    assert (reports[-1].ended, reports[-1].checkpoint_due) == (None, True)
    assert workload.calls[-2:] == ["train 4", "validation"]


def test_stop_at_the_last_epoch_has_no_effect() -> None:
    workload = build()
    *_, last = run_epochs(workload, Plan(epochs=4), stop=lambda: workload.epoch == 4)
    assert (last.ended, last.checkpoint_due) == ("epochs", False)


def test_resume_from_a_progress_equals_the_uninterrupted_training() -> None:
    whole, part = build(), build()
    expected = [row for report in run_epochs(whole, Plan(epochs=6)) for row in report.rows]
    (first,) = run_epochs(part, Plan(epochs=6), stop=lambda: part.epoch == 4)
    fresh = build()
    fresh.load_state_dict(part.state_dict())
    progress = Progress.from_json(first.progress.to_json())
    (second,) = run_epochs(fresh, Plan(epochs=6), progress)
    assert [row.epoch for row in second.rows] == [5, 6]
    assert [row.metrics for row in (*first.rows, *second.rows)] == [row.metrics for row in expected]
    assert second.progress.best_epoch == BEST_EPOCH


@pytest.mark.parametrize("plan", [Plan(epochs=5), Plan(epochs=50, patience=2)], ids=["epochs", "patience"])
def test_resume_of_an_ended_training_reports_the_end_without_training(plan: Plan) -> None:
    *_, last = run_epochs(build(), plan)
    restored = build()
    (again,) = run_epochs(restored, plan, last.progress)
    assert (again.rows, again.ended, again.progress) == ((), last.ended, last.progress)
    assert restored.calls == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["train", "validation"])
def test_non_finite_metric_raises_diverged_with_the_pending_rows(value: float, where: str) -> None:
    class Breaking(Toy):
        def train_epoch(self, epoch: int) -> Metrics:
            metrics = dict(super().train_epoch(epoch))
            return metrics | {"norm": value if where == "train" and epoch == 4 else 1.0}

        def evaluate(self, split: Split) -> Evaluation:
            found = super().evaluate(split)
            bad = where == "validation" and self.epoch == 4
            return Evaluation({**found.metrics, "calibration": value if bad else 0.0})

    stream = run_epochs(build(Breaking, slow=0.6), Plan(epochs=9))
    assert [row.epoch for row in next(stream).rows] == [1, 2]
    with pytest.raises(Diverged) as caught:
        next(stream)
    assert [row.epoch for row in caught.value.rows] == [3], "without a report, because the state is that of epoch 4"
    name = "train/norm" if where == "train" else "validation/calibration"
    assert (caught.value.epoch, caught.value.metric) == (4, name)
    assert str(caught.value) == f"{name} is {value} at epoch 4"


def test_diverged_first_epoch_has_no_pending_rows() -> None:
    with pytest.raises(Diverged, match="train/loss is nan at epoch 1") as caught:
        next(run_epochs(build(nan_at=1), Plan(epochs=9)))
    assert caught.value.rows == ()


def test_a_model_that_diverged_is_not_evaluated() -> None:
    class Fragile(Toy):
        def evaluate(self, split: Split) -> Evaluation:
            raise RuntimeError("this is not for such a state")

    with pytest.raises(Diverged, match="train/loss is nan at epoch 1"):
        next(run_epochs(build(Fragile, nan_at=1), Plan(epochs=9)))


def test_an_evaluation_without_metrics_is_refused_at_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "evaluate", lambda self, split: Evaluation({}))
    workload = build()
    with pytest.raises(NoResult, match=r"No metric of validation is reported.*: got only train/loss\. Return"):
        next(run_epochs(workload, Plan(epochs=9)))
    assert workload.calls == ["train 1"]


def test_diverged_is_unchanged_by_pickling() -> None:
    rows = (Row(2, 1.5, {"train/loss": 0.5}),)
    copy = pickle.loads(pickle.dumps(Diverged(3, "train/loss", math.inf, rows)))
    assert (type(copy), copy.epoch, copy.metric, copy.value, copy.rows) == (Diverged, 3, "train/loss", math.inf, rows)


@pytest.mark.parametrize("objective", ["x:max,eror:min", "eror:min,x:max"])
def test_unreported_objective_is_refused_at_the_first_evaluation(objective: str) -> None:
    workload = build()
    with pytest.raises(Unreported, match=r"got 'eror'; allowed: error, x. Did you mean 'error'\?"):
        next(run_epochs(workload, Plan(epochs=9, evaluate_every=2, objective=objective)))
    assert workload.calls == ["train 1", "train 2", "validation"]


# Checkpoints


@pytest.mark.parametrize(
    ("slow", "every", "due"),
    [
        (2.0, 1, [3, 6, 9, 12]),  # 5 s are longer than an epoch
        (2.0, 4, [4, 8, 12]),  # four epochs are longer than 5 s
        (2.0, 7, [7, 12]),  # the last epoch is due, to save the epochs since 7
        (3600.0, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (0.1, 1, []),
    ],
)
def test_checkpoint_is_due_after_the_later_of_checkpoint_every_and_5_s(slow: float, every: int, due: list[int]) -> None:
    reports = run_epochs(build(slow=slow), Plan(epochs=12, checkpoint_every=every, refit=True))
    assert [report.epoch for report in reports if report.checkpoint_due] == due


def test_checkpoints_of_short_epochs_are_due_within_6_3_seconds() -> None:
    reports = list(run_epochs(build(slow=0.3), Plan(epochs=60, refit=True)))
    due = [report.epoch for report in reports if report.checkpoint_due]
    assert due
    assert all(0 < (later - earlier) * 0.3 <= 6.3 for earlier, later in zip([0, *due], due))


@pytest.mark.parametrize(("refit", "due"), [(False, True), (True, False)])
def test_checkpoint_is_due_at_the_end_only_without_a_refit(refit: bool, due: bool) -> None:
    *_, last = run_epochs(build(), Plan(epochs=3, refit=refit))
    assert last.checkpoint_due is due


def test_training_seconds_exclude_the_time_of_the_consumer(clock: Clock) -> None:
    for report in run_epochs(build(slow=1.5), Plan(epochs=4)):
        assert report.progress.train_seconds == 1.5 * report.epoch
        clock.sleep(100)


# Ranks


class Group:
    """A process group of threads: ``broadcast`` gives rank 0's value to every rank, and fails where one is missing."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=HANG_SECONDS)
        self._value: Any = None

    def agree(self, rank: int) -> Callable[[Any], Any]:
        def exchange(value: Any) -> Any:
            if rank == 0:
                self._value = value
            self._barrier.wait()
            found = self._value
            self._barrier.wait()
            return found

        return exchange


def streams(slow: tuple[float, ...], agree: Callable[[int], Callable[[Any], Any]]) -> list[list[Any]]:
    """The reports of each rank; the clocks of the ranks have different speeds, and only rank 0 requests the stop."""
    seen: list[list[Any]] = [[] for _ in slow]

    def consume(rank: int) -> None:
        workload = build(slow=slow[rank])
        stop = (lambda: workload.epoch == 37) if rank == 0 else (lambda: False)
        for report in run_epochs(workload, Plan(epochs=40, decide_at=(5,)), broadcast=agree(rank), stop=stop):
            seen[rank].append((report.epoch, len(report.rows), report.checkpoint_due, report.ended))

    threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(len(slow))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    return seen


def test_ranks_whose_clocks_differ_yield_alike() -> None:
    group = Group(2)
    first, second = streams((0.3, 1.7), group.agree)
    assert first == second
    assert first[-1] == (37, first[-1][1], True, None)
    assert sum(due for _, _, due, _ in first) > 1
    # Without the broadcast the reports differ, so the comparison above is not vacuous.
    alone = streams((0.3, 1.7), lambda rank: lambda value: value)
    assert alone[0] != alone[1]


def test_ranks_with_different_validation_values_end_at_the_same_epoch() -> None:
    """Without agreement, one rank would end by patience while the other waits for it."""
    group = Group(2)
    ends: list[Any] = [None, None]
    best: tuple[list[int], list[int]] = ([], [])

    def consume(rank: int) -> None:
        workload = build()
        evaluate = workload.evaluate

        def rounded(split: Split) -> Evaluation:
            found = evaluate(split)
            last = workload.epoch if rank else -workload.epoch  # one rank improves, the other one does not
            return Evaluation({name: value + 1e3 * last for name, value in found.metrics.items()}, found.units)

        workload.evaluate = rounded  # type: ignore[method-assign]

        def keep(evaluation: Evaluation) -> None:
            best[rank].append(workload.epoch)

        plan = Plan(epochs=20, patience=2)
        for report in run_epochs(workload, plan, broadcast=group.agree(rank), on_best=keep):
            ends[rank] = (report.epoch, report.ended, report.progress.best_epoch)

    threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert ends[0] == ends[1]
    assert ends[0] is not None
    assert best[0] == best[1], "each rank takes part in collecting the best weights"


def test_broadcast_is_called_once_per_epoch() -> None:
    asked: list[Any] = []

    def agree(value: Any) -> Any:
        asked.append(value)
        return value

    assert len(list(run_epochs(build(slow=0.1), Plan(epochs=15), broadcast=agree))) < 15
    assert len(asked) == 15
