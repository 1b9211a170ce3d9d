"""Selection, refit and one evaluation on test; a resume from any checkpoint gives the uninterrupted results."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine import checkpoint
from orchestrator.engine.experiment import Experiment, Outcome
from orchestrator.engine.loop import Diverged, EpochReport, Row
from orchestrator.engine.method_results import NoResult
from orchestrator.runs import worker
from orchestrator.runs.reports import describe
from tests.support.toy import BEST_EPOCH, TEST_OPTIMUM, CountedToy, Params, PretrainedToy, Toy
from workloads.contract import Evaluation, Objective, Runtime, Split, Workload

pytestmark = pytest.mark.usefixtures("clock")

EPOCHS = 8
IDENTITY = {"workload": "toy", "fingerprint": "0123456789abcdef"}


@dataclass
class Bench:
    """A builder of experiments over toys that keeps every toy it builds."""

    params: dict[str, Any] = field(default_factory=dict)
    cls: type[Toy] = Toy
    built: list[Toy] = field(default_factory=list)

    def experiment(self, refit: Any, **kwargs: Any) -> Experiment:
        plan = Plan(**{"epochs": EPOCHS, "refit": refit} | kwargs.pop("plan", {}))
        return Experiment(self._build, plan, IDENTITY, **kwargs)

    def _build(self, holdout: bool) -> Workload:
        self.built.append(toy(self.cls, holdout=holdout, **self.params))
        return self.built[-1]

    def calls(self, name: str) -> int:
        return sum(workload.calls.count(name) for workload in self.built)


def toy(cls: type[Toy] = Toy, *, holdout: bool = True, epochs: int = 0, **params: Any) -> Toy:
    """A toy that was trained for ``epochs`` by hand."""
    workload = cls(Params(**params), Runtime(torch.device("cpu"), Path(), seed=1, epochs=EPOCHS, holdout=holdout))
    for epoch in range(1, epochs + 1):
        workload.train_epoch(epoch)
    return workload


def finish(experiment: Experiment) -> Outcome:
    for _ in experiment.stream():
        pass
    assert experiment.outcome is not None
    return experiment.outcome


def error_on_test(workload: Toy) -> float:
    return (float(workload.x) - TEST_OPTIMUM) ** 2


# Selection, refit, test


def test_refit_model_of_the_best_number_of_epochs_is_evaluated_on_test() -> None:
    bench = Bench()
    outcome = finish(bench.experiment(True))
    selection, refit = bench.built
    assert (selection.runtime.holdout, refit.runtime.holdout) == (True, False)
    assert refit.calls == [*(f"train {n}" for n in range(1, BEST_EPOCH + 1)), "test"]
    assert (outcome.epochs, outcome.refitted, outcome.ended) == (BEST_EPOCH, True, "epochs")
    by_hand = toy(holdout=False, epochs=BEST_EPOCH)
    assert outcome.metrics["test/error"] == error_on_test(by_hand)
    assert outcome.metrics["validation/error"] == (float(toy(epochs=BEST_EPOCH).x) - 1) ** 2
    assert outcome.workload is refit


def test_best_epoch_is_evaluated_on_test_without_a_refit() -> None:
    bench = Bench()
    outcome = finish(bench.experiment(False))
    by_hand = toy(epochs=BEST_EPOCH)
    assert (outcome.epochs, outcome.refitted) == (BEST_EPOCH, False)
    assert outcome.metrics["test/error"] == error_on_test(by_hand)
    assert outcome.metrics["test/error"] != error_on_test(toy(epochs=EPOCHS))
    assert float(bench.built[0].x) == float(by_hand.x)
    assert outcome.test.units["error"][0] == error_on_test(by_hand)


def test_only_rank_0_keeps_the_best_state() -> None:
    sent: list[Any] = []

    def send(value: Any) -> Any:
        sent.append(value)
        return value

    first = Bench().experiment(refit=False, rank=0, broadcast=send, broadcast_state=send)
    expected = finish(first)
    assert expected.epochs < EPOCHS
    received = iter(sent)

    def take(value: Any) -> Any:
        return next(received)

    second = Bench().experiment(refit=False, rank=1, broadcast=take, broadcast_state=take)
    assert finish(second).metrics == expected.metrics
    assert first._best is not None
    assert second._best is None


def test_the_last_epoch_may_be_the_best() -> None:
    outcome = finish(Bench().experiment(False, plan={"epochs": BEST_EPOCH}))
    assert outcome.metrics["test/error"] == error_on_test(toy(epochs=BEST_EPOCH))


@pytest.mark.parametrize("refit", [False, True])
def test_pretrained_weights_are_selected_if_training_makes_them_worse(refit: bool) -> None:
    bench = Bench({"start": 1.0}, PretrainedToy)
    outcome = finish(bench.experiment(refit))
    assert (outcome.epochs, outcome.refitted) == (0, refit)
    assert outcome.metrics["validation/error"] == 0.0
    assert outcome.metrics["test/error"] == (1.0 - TEST_OPTIMUM) ** 2
    assert float(bench.built[-1].x) == 1.0
    assert bench.calls("train 1") == 1, "a refit of 0 epochs must not train"


def test_with_refit_only_nothing_is_evaluated_before_training() -> None:
    bench = Bench({"start": 1.0}, PretrainedToy)
    assert finish(bench.experiment("only")).epochs == EPOCHS
    assert bench.calls("validation") == 0


@pytest.mark.parametrize(
    ("refit", "final", "expected"),
    [
        (False, True, [1, 3, 6]),
        (True, True, [1, 3]),
        ("only", True, [1, 3, 6]),
        (False, False, []),
        (True, False, []),
    ],
)
def test_sealed_test_values_are_computed_only_for_the_final_model(
    refit: Any, final: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase that trains the final model computes them; in a trial, neither callback nor stream has a test value."""
    monkeypatch.setattr(Toy, "objective", Objective("error", "min", refit=True, test_epochs=(1, 3, 6)))
    seen: list[tuple[int, float, bool]] = []

    def look(workload: Workload, row: Row, evaluation: Evaluation | None) -> None:
        assert isinstance(workload, Toy)
        assert row.metrics["test/error"] == error_on_test(workload)
        seen.append((row.epoch, float(workload.x), evaluation is not None))

    bench = Bench()
    reports = list(bench.experiment(refit, final=final, on_test_epoch=look).stream())
    rows = [row.metrics for report in reports for row in report.rows]
    assert seen == [(epoch, float(toy(holdout=not refit, epochs=epoch).x), not refit) for epoch in expected]
    opened = [values for values in rows if any(name.startswith("test/") for name in values)]
    assert [values["test/error"] for values in opened] == [(x - TEST_OPTIMUM) ** 2 for _, x, _ in seen]
    assert all(("refit/loss" in values) is (refit is True) for values in opened)
    assert bench.calls("test") == len(expected) + final


def test_refit_only_selects_nothing() -> None:
    bench = Bench()
    outcome = finish(bench.experiment("only"))
    assert len(bench.built) == 1
    assert (bench.calls("validation"), bench.calls("test")) == (0, 1)
    assert outcome.metrics == {
        "test/error": error_on_test(toy(holdout=False, epochs=EPOCHS)),
        "test/x": outcome.metrics["test/x"],
    }
    assert (outcome.epochs, outcome.refitted, outcome.ended) == (EPOCHS, True, "epochs")


@pytest.mark.parametrize("refit", [True, False, "only"])
def test_test_split_is_evaluated_exactly_once(refit: Any) -> None:
    bench = Bench()
    finish(bench.experiment(refit))
    assert bench.calls("test") == 1
    assert bench.built[-1].calls[-1] == "test"


@pytest.mark.parametrize("refit", [True, False])
def test_trial_is_neither_evaluated_on_test_nor_refitted(refit: bool) -> None:
    bench = Bench()
    experiment = bench.experiment(refit, final=False)
    *_, last = experiment.stream()
    assert (last.ended, experiment.outcome, len(bench.built), bench.calls("test")) == ("epochs", None, 1, 0)


def test_trial_reports_units_of_its_best_epoch_and_measures_its_model() -> None:
    trial = Bench().experiment(True, final=False)
    *earlier, last = list(trial.stream())
    assert last.ended
    assert last.progress.best_epoch == BEST_EPOCH
    assert last.units is not None
    assert list(last.units) == ["id", "error"]
    assert float(last.units["error"].mean()) == pytest.approx(last.progress.best_value)
    assert all(report.units is None for report in earlier)
    assert trial.measured(()) == {}
    found = trial.measured(("parameters", "latency_ms"))
    assert found["parameters"] == 1
    assert 0 < found["latency_ms"] < 60_000
    assert not [name for name in sys.modules if name.startswith("measured_")]


def test_the_curves_of_selection_and_refit_have_different_names() -> None:
    names = [
        {name for report in Bench().experiment(refit).stream() for row in report.rows for name in row.metrics}
        for refit in (True, "only")
    ]
    assert names == [{"train/loss", "validation/error", "validation/x", "refit/loss"}, {"train/loss"}]


def test_decide_at_does_not_split_the_reports_of_a_refit() -> None:
    reports = [values(report) for report in Bench().experiment(True, plan={"decide_at": (1, 2)}).stream()]
    assert [len(rows) for rows in reports] == [1, 1, EPOCHS - 2, BEST_EPOCH]


def test_patience_ends_the_selection_before_the_refit() -> None:
    bench = Bench()
    outcome = finish(bench.experiment(True, plan={"epochs": 50, "patience": 2}))
    assert outcome.ended == "patience"
    assert outcome.epochs == BEST_EPOCH
    assert bench.calls(f"train {BEST_EPOCH + 2}") == 1
    assert bench.calls(f"train {BEST_EPOCH + 3}") == 0


def test_training_time_counts_both_phases() -> None:
    outcome = finish(Bench({"slow": 2.0}).experiment(True))
    assert outcome.train_seconds == 2.0 * (EPOCHS + BEST_EPOCH)


def test_plan_without_a_refit_setting_raises_value_error() -> None:
    with pytest.raises(ValueError, match="refit is resolved"):
        Bench().experiment(None)


@pytest.mark.parametrize(("nan_at", "reported"), [(5, [1, 2, 3, 4]), (2, [1])])
def test_non_finite_loss_raises_diverged_without_an_outcome(nan_at: int, reported: list[int]) -> None:
    bench = Bench({"nan_at": nan_at})
    experiment = bench.experiment(True)
    rows: list[int] = []
    with pytest.raises(Diverged, match=f"train/loss is nan at epoch {nan_at}") as caught:
        rows.extend(row.epoch for report in experiment.stream() for row in report.rows)
    assert [*rows, *(row.epoch for row in caught.value.rows)] == reported
    assert experiment.outcome is None
    assert bench.calls("test") == 0


class LostOnTest(Toy):
    """A toy with NaN for a metric of the test split."""

    lost: ClassVar[str]

    def evaluate(self, split: Split) -> Evaluation:
        found = super().evaluate(split)
        lost = {self.lost: float("nan")} if split == "test" else {}
        return replace(found, metrics={**found.metrics, **lost})


@pytest.mark.parametrize("refit", [False, True, "only"])
def test_a_test_metric_that_is_not_finite_is_left_out_with_a_warning(refit: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(LostOnTest, "lost", "x", raising=False)
    with pytest.warns(UserWarning, match="test/x is nan; what is not finite is left out"):
        metrics = finish(Bench(cls=LostOnTest).experiment(refit)).metrics
    assert "test/error" in metrics
    assert all(map(math.isfinite, metrics.values()))
    assert "test/x" not in metrics


@pytest.mark.parametrize("refit", [False, True, "only"])
def test_non_finite_objective_on_test_raises_diverged(refit: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(LostOnTest, "lost", "error", raising=False)
    experiment = Bench(cls=LostOnTest).experiment(refit)
    with pytest.raises(Diverged, match="test/error is nan at epoch"):
        finish(experiment)
    assert experiment.outcome is None


# Stop and resume


@pytest.mark.parametrize("calls", [2, EPOCHS + 1])
def test_stopped_experiment_has_no_outcome_and_resumes_to_equal_metrics(calls: int) -> None:
    whole = finish(Bench().experiment(True))
    asked = iter(range(1, 100))
    stopped = Bench().experiment(True, stop=lambda: next(asked) == calls)
    *_, last = stopped.stream()
    assert (last.ended, last.checkpoint_due, stopped.outcome) == (None, True, None)
    bench = Bench()
    again = bench.experiment(True)
    for _ in again.stream(stopped.checkpoint()):
        pass
    assert again.outcome is not None
    assert again.outcome.metrics == whole.metrics


Values = list[tuple[int, dict[str, float]]]


def values(report: EpochReport) -> Values:
    return [(row.epoch, dict(row.metrics)) for row in report.rows]


def joined(reports: list[Values]) -> Values:
    return [row for report in reports for row in report]


@pytest.mark.parametrize("cls", [Toy, PretrainedToy])
@pytest.mark.parametrize("refit", [True, False, "only"])
def test_resume_from_every_checkpoint_equals_the_uninterrupted_run(refit: Any, cls: type[Toy], tmp_path: Path) -> None:
    params = {"slow": 0.4}  # three epochs a report
    plan = {"decide_at": (2,)}
    whole = Bench(params, cls).experiment(refit, plan=plan)
    reports: list[Values] = []
    folders = []
    for report in whole.stream():
        reports.append(values(report))
        folders.append(checkpoint.write(tmp_path / checkpoint.name(whole.order), whole.checkpoint()))
    assert whole.outcome is not None
    assert len(reports) >= 3
    assert sorted(folders) == folders, "a later checkpoint must sort later"
    assert len(set(folders)) == len(folders)

    for index, folder in enumerate(folders):
        bench = Bench(params, cls)
        resumed = bench.experiment(refit, plan=plan)
        first, *rest = (values(report) for report in resumed.stream(checkpoint.read(folder, IDENTITY)))
        assert first == joined(reports[max(0, index - 1) : index + 1]), "all rows since the previous checkpoint"
        assert joined(rest) == joined(reports[index + 1 :])
        assert resumed.outcome is not None
        assert resumed.outcome.metrics == whole.outcome.metrics
        assert resumed.outcome.train_seconds == pytest.approx(whole.outcome.train_seconds)
        kept = ("epochs", "refitted", "ended")
        assert [getattr(resumed.outcome, k) for k in kept] == [getattr(whole.outcome, k) for k in kept]
        assert bench.calls("test") == 1


def test_a_refit_that_is_resumed_does_not_select_again(tmp_path: Path) -> None:
    first = Bench({"slow": 2.0}).experiment(True)
    for report in first.stream():
        if "refit/loss" in report.rows[0].metrics:
            break
    bench = Bench({"slow": 2.0})
    for _ in bench.experiment(True).stream(first.checkpoint()):
        pass
    assert len(bench.built) == 1
    assert bench.calls("validation") == 0
    assert bench.calls("train 1") == 0


def test_winner_is_evaluated_from_its_trial_without_training_again() -> None:
    trial = Bench().experiment(False, final=False)
    for _ in trial.stream():
        pass
    bench = Bench()
    winner = bench.experiment(False)
    for _ in winner.stream(trial.checkpoint()):
        pass
    assert winner.outcome is not None
    assert winner.outcome.metrics["test/error"] == error_on_test(toy(epochs=BEST_EPOCH))
    assert bench.built[0].calls == ["test"]


def test_refit_of_a_selection_from_a_trial_equals_the_whole_experiment() -> None:
    whole = finish(Bench().experiment(True))
    trial = Bench().experiment(True, final=False)
    *_, last = trial.stream()
    bench = Bench()
    winner = bench.experiment(True)
    for _ in winner.stream(selected=last.progress):
        pass
    assert winner.outcome is not None
    assert winner.outcome.metrics == whole.metrics
    assert [workload.runtime.holdout for workload in bench.built] == [False]


def test_selected_workload_is_freed_before_the_refit_is_built() -> None:
    """A device's memory may be too small for both workloads."""
    with CountedToy.without_collector() as counts:
        finish(Experiment(lambda holdout: toy(CountedToy, holdout=holdout), Plan(epochs=2, refit=True), IDENTITY))
        assert counts == [0, 0]


def test_the_kept_best_state_does_not_change_with_training() -> None:
    class InPlace(Toy):
        def state_dict(self) -> dict[Any, Any]:
            return {**super().state_dict(), "buffers": [self.buffer]}

        def __init__(self, params: Params, runtime: Runtime) -> None:
            super().__init__(params, runtime)
            self.buffer = torch.zeros(1)

        def train_epoch(self, epoch: int) -> Any:
            self.buffer += 1
            return super().train_epoch(epoch)

        def load_state_dict(self, state: dict[Any, Any]) -> None:
            super().load_state_dict(state)
            self.buffer = state["buffers"][0]

    def build(holdout: bool) -> Workload:
        return InPlace(Params(), Runtime(torch.device("cpu"), Path(), seed=1, epochs=EPOCHS, holdout=holdout))

    outcome = finish(Experiment(build, Plan(epochs=EPOCHS, refit=False), IDENTITY))
    assert isinstance(outcome.workload, InPlace)
    assert outcome.workload.buffer.item() == BEST_EPOCH


def test_checkpoint_holds_identity_epoch_phase_rows_and_workload_state() -> None:
    experiment = Bench().experiment(True, plan={"decide_at": (4,)})
    report = next(iter(experiment.stream()))
    saved = experiment.checkpoint()
    assert (report.epoch, len(report.rows)) == (4, 4)
    assert (saved.identity, saved.epoch, saved.state["phase"]) == (IDENTITY, 4, "select")
    assert saved.state["rows"] == [[row.epoch, row.time, dict(row.metrics)] for row in report.rows]
    assert saved.state["workload"]["epoch"] == 4


@pytest.mark.parametrize("ask", [Experiment.checkpoint, lambda experiment: experiment.order])
def test_checkpoint_before_the_first_report_raises_assertion_error(ask: Callable[[Experiment], Any]) -> None:
    with pytest.raises(AssertionError):
        ask(Bench().experiment(True))


def test_an_outcome_holds_the_values_of_validation_and_test() -> None:
    outcome = finish(Bench().experiment(True))
    assert set(outcome.metrics) == {"validation/error", "validation/x", "test/error", "test/x"}


@pytest.mark.parametrize("refit", [True, False])
def test_run_interrupted_after_each_checkpoint_loses_no_row(refit: bool, toy_workload: str, tmp_path: Path) -> None:
    """The run is interrupted after each checkpoint, before the report of this checkpoint is delivered."""
    spec = ExperimentSpec(workload=toy_workload, params={"slow": 2.0}, plan=Plan(epochs=EPOCHS, refit=refit))
    device, rows, deaths = torch.device("cpu"), [], 0

    def deliver(report: EpochReport) -> None:
        nonlocal deaths
        if report.checkpoint_due and report.epoch > deaths:
            deaths = report.epoch
            raise InterruptedError
        rows.extend(values(report))

    whole = [row for report in worker.reports(spec, tmp_path / "whole", tmp_path, device) for row in values(report)]
    while True:
        with suppress(InterruptedError):
            for report in worker.reports(spec, tmp_path / "torn", tmp_path, device):
                deliver(report)
            break
    assert deaths >= 6
    unique = [row for index, row in enumerate(rows) if row not in rows[:index]]
    assert unique == whole
    outcomes = [worker.outcome_of(tmp_path / name) for name in ("whole", "torn")]
    assert outcomes[0] is not None
    assert outcomes[1] is not None
    assert outcomes[0]["metrics"] == outcomes[1]["metrics"]
    assert not list(worker.reports(spec, tmp_path / "torn", tmp_path, device)), "a finished run must not report again"


@pytest.mark.parametrize("slow", [0.3, 2.0])
def test_diverged_run_reports_earlier_epochs_and_saves_no_diverged_state(
    slow: float, toy_workload: str, tmp_path: Path
) -> None:
    params = {"slow": slow, "nan_at": 6}
    spec = ExperimentSpec(workload=toy_workload, params=params, plan=Plan(epochs=EPOCHS, refit=True))
    told: list[int] = []
    with pytest.raises(Diverged):
        told.extend(
            row.epoch for report in worker.reports(spec, tmp_path, tmp_path, torch.device("cpu")) for row in report.rows
        )
    assert told == [1, 2, 3, 4, 5]
    for folder in (tmp_path / "checkpoints").glob("checkpoint-*"):
        saved = checkpoint.read(folder, spec.identity)
        assert saved.state["workload"]["epoch"] == saved.epoch < 6


class Exits(Toy):
    """A workload that calls sys.exit in its second epoch, as a script does."""

    def train_epoch(self, epoch: int) -> dict[str, float]:
        if epoch == 2:
            sys.exit(0)
        return super().train_epoch(epoch)


class Terminated(Toy):
    """A workload whose actor is ended by Ray in the second epoch."""

    def train_epoch(self, epoch: int) -> dict[str, float]:
        if epoch == 2:
            error = SystemExit(1)
            error.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]
            raise error
        return super().train_epoch(epoch)


def test_sys_exit_of_a_workload_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match=r"the workload called sys\.exit\(0\)"):
        list(Bench(cls=Exits).experiment(refit=False).stream())


class Exhausted(Toy):
    """A workload that reads beyond the end of its data, in one of its methods."""

    exhausted = "train_epoch"

    def train_epoch(self, epoch: int) -> dict[str, float]:
        return next(iter([])) if self.exhausted == "train_epoch" else super().train_epoch(epoch)

    def evaluate(self, split: Split) -> Evaluation:
        return next(iter([])) if self.exhausted == "evaluate" else super().evaluate(split)


@pytest.mark.parametrize("method", ["train_epoch", "evaluate"])
def test_stop_iteration_of_a_workload_is_reported_with_its_method(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exhausted, "exhausted", method)
    with pytest.raises(RuntimeError, match="the workload raised StopIteration") as caught:
        list(Bench(cls=Exhausted).experiment(refit=False).stream())
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == method


class Textless(ValueError):
    def __str__(self) -> str:
        raise AttributeError("code")


def test_an_error_whose_text_cannot_be_made_is_named_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Toy, epoch: int) -> dict[str, float]:
        raise Textless

    monkeypatch.setattr(Toy, "train_epoch", fail)
    with pytest.raises(RuntimeError) as caught:
        list(Bench().experiment(refit=False).stream())
    said = "RuntimeError: the workload raised Textless: no message, its __str__ raises AttributeError"
    assert describe(caught.value).startswith(f"{said} (test_experiment.py:")


def test_a_state_of_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "state_dict", lambda self: None)
    with pytest.raises(NoResult, match=r"Toy\.state_dict has returned no state: got None; allowed: a dict"):
        list(Bench().experiment(refit=False).stream())


def test_an_exit_by_ray_is_passed_on() -> None:
    with pytest.raises(SystemExit):
        list(Bench(cls=Terminated).experiment(refit=False).stream())
