"""A resumed sweep with another winner: MLflow has the rows of both, and counts evaluations on test."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.console import Console
from orchestrator.report import run_page
from orchestrator.runs import driver, model_upload
from orchestrator.runs.session import Result
from orchestrator.search import winners
from orchestrator.search.curves import Curves
from orchestrator.search.selection import NO_NOISE
from orchestrator.storage import run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import request, sweep, winner
from orchestrator.sweeps.sweep import ResumeOptions
from orchestrator.tracking import tracker
from orchestrator.tracking.client import Client
from tests.support import searching
from tests.support.finished import sweep as finished
from tests.support.toy import Toy
from tests.support.tracked import metrics, query, tags
from workloads.contract import Objective

EPOCHS = 4
SPACE = """
def space(trial):
    return {"lr": trial.suggest_float("lr", 0.01, 0.05)}
"""


@pytest.fixture
def settings(toy_workload: str, database: Path, no_page: None, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(model_upload, "deliver", lambda session, *of: session.tracker.flush() and None)  # takes time
    return resolve()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def pretrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy starts with pretrained weights. Tests request this before ``settled``, which trains the toy."""
    monkeypatch.setattr(Toy, "pretrained", True, raising=False)


@pytest.fixture
def settled(settings: Settings, tmp_path: Path, out: io.StringIO) -> Result:
    """A sweep of two trials, named ``s``, whose winner was refitted for all its epochs."""
    (tmp_path / "mine.py").write_text(SPACE)
    spec = request.sweep(
        "toy", settings, overrides={"epochs": EPOCHS}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", "scheduler": "none", "trials": 2},
    )  # fmt: skip
    found = sweep.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    assert found.extra["epochs"] == EPOCHS
    return found


@pytest.fixture
def resume(settings: Settings, out: io.StringIO) -> Callable[..., Result]:
    return lambda **more: sweep.resume(folder(settings), settings, console(out), ResumeOptions(**more))


@pytest.fixture
def better(settled: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards a trial wins with its second epoch, and its error on test is 0.125."""
    evaluate = Toy.evaluate

    def shifted(self: Toy, split: Any) -> Any:
        found = evaluate(self, split)
        error = 0.125 if split == "test" else 0.0 if self.epoch == 2 else 1e3
        return type(found)({**found.metrics, "error": error}, found.units)

    monkeypatch.setattr(Toy, "evaluate", shifted)


def console(out: io.StringIO) -> Console:
    found = Console()
    found._out = out
    return found


def folder(settings: Settings) -> RunFolder:
    return run_lookup.find(settings.storage, "s", "sweep")


def logged(database: Path, name: str) -> list[tuple[int, float]]:
    """Steps and values of a metric of the sweep's own run."""
    return [(step, value) for key, step, value, *_ in metrics(database, "s") if key == name]


def shown(database: Path, name: str) -> float:
    """The value that MLflow's UI shows for a metric of the sweep's own run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("toy").experiment_id
    (run,) = client.search_runs([experiment], "tags.`orchestrator.key` = 's'")
    return float(run.data.metrics[name])


def test_rows_of_a_population_member_follow_the_lineage_of_its_weights(tmp_path: Path) -> None:
    running = searching.study(tmp_path)
    curves = Curves(tmp_path)
    for number in range(2):
        searching.begin(running)
        curves.add(number, searching.rows(*((epoch, 10.0 * number + epoch) for epoch in range(4))))
    trial = running._optuna_trial(1)
    trial.set_user_attr("began_with", trial.user_attrs["params"])
    trial.set_user_attr("lineage", [{"epoch": 2, "from": 0, "params": {"lr": 0.5}}])
    values = {n: [row.metrics["validation/error"] for row in winner._rows(running, n)] for n in range(2)}
    assert values == {0: [0, 1, 2, 3], 1: [0, 1, 2, 13]}


def test_rows_of_a_shorter_second_winner_follow_the_first_in_mlflow(
    settled: Result, better: None, resume: Callable[..., Result], database: Path, settings: Settings, out: io.StringIO
) -> None:
    first = settled.metrics["test/error"]
    assert logged(database, "test/error") == [(EPOCHS, first)]
    assert tags(database, "s")["orchestrator.test_opened"] == "1"
    assert "orchestrator.winners" not in tags(database, "s")
    assert tags(database, "s")["orchestrator.contenders"] == str(settled.extra["best_trial"]), "no noise, so no others"
    assert f"trial {settled.extra['best_trial']}, error" in out.getvalue()
    assert re.search(r"on validation, estimate [\d.]+ \(se 0 over units\)", out.getvalue())
    assert "estimate" in tags(database, "s")["mlflow.note.content"]
    second = resume(more_trials=1)
    assert (second.extra["best_trial"], second.extra["epochs"], second.metrics["test/error"]) == (2, 2, 0.125)
    assert logged(database, "test/error") == [(EPOCHS, first), (EPOCHS + 2, 0.125)]
    assert shown(database, "test/error") == 0.125
    assert [step for step, _ in logged(database, "refit/loss")] == [1, 2, 3, 4, EPOCHS + 1, EPOCHS + 2]
    epochs = second.history()["epoch"].tolist()
    assert epochs == [1, 2, 3, 4, 1, 2], "the second winner must not have the first one's rows"
    assert [step for step, _ in logged(database, "validation/error")] == list(range(1, 2 * EPOCHS + 1))
    found, old = tags(database, "s"), settled.extra["best_trial"]
    assert found["orchestrator.untouched"] == "false", "not the value of an earlier winner"
    assert (found["orchestrator.test_opened"], second.extra["test_opened"]) == ("2", 2)
    assert found["orchestrator.winners"] == f"trial {old} from step 1, trial 2 from step 5"
    assert found["mlflow.note.content"].endswith(f"Winners, the current one last: {found['orchestrator.winners']}.")
    assert folder(settings).record["result"]["test_opened"] == 2
    assert out.getvalue().count("Test is opened again: trial 2 is model 2 of this sweep to be evaluated on it") == 1


def test_trials_of_the_description_link_to_their_runs(settled: Result, database: Path) -> None:
    runs = dict(query(database, "select value, run_uuid from tags where key = 'orchestrator.key'"))
    for trial in (0, 1):
        assert f"| [{trial}](#/runs/{runs[f's/{trial}']}) | complete |" in tags(database, "s")["mlflow.note.content"]


def test_a_second_winner_that_is_untouched_has_steps_of_its_own(
    pretrained: None, settled: Result, database: Path, resume: Callable[..., Result], out: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first winner is trained for all epochs, the second for none."""
    assert (settled.extra["epochs"], "orchestrator.untouched" in tags(database, "s")) == (EPOCHS, False)
    assert "Training has made" not in out.getvalue()

    evaluate = Toy.evaluate

    def untouched_is_best(self: Toy, split: Any) -> Any:
        found = evaluate(self, split)
        error = 0.125 if split == "test" else 0.0 if self.epoch == 0 else 1e3
        return type(found)({**found.metrics, "error": error}, found.units)

    monkeypatch.setattr(Toy, "evaluate", untouched_is_best)
    second = resume(more_trials=1)
    assert (second.extra["best_trial"], second.extra["epochs"]) == (2, 0)
    steps = [(EPOCHS, settled.metrics["test/error"]), (EPOCHS + 1, 0.125)]
    assert logged(database, "test/error") == steps
    assert tags(database, "s")["orchestrator.untouched"] == "true"
    assert out.getvalue().count("No trained epoch beats the pretrained weights") == 1


def test_second_winner_resumes_at_its_own_steps_after_a_crash(
    settled: Result, better: None, resume: Callable[..., Result], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "finish", lambda *of: (_ for _ in ()).throw(MemoryError("the process is gone")))
        with pytest.raises(MemoryError):
            resume(more_trials=1)
    assert resume().extra["test_opened"] == 2
    assert [step for step, _ in logged(database, "refit/loss")] == [1, 2, 3, 4, EPOCHS + 1, EPOCHS + 2]
    assert [step for step, _ in logged(database, "test/error")] == [EPOCHS, EPOCHS + 2]


def test_unbeaten_winner_is_not_evaluated_on_test_again(
    settled: Result,
    resume: Callable[..., Result],
    database: Path,
    out: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(winner, "_ranking", lambda *of: ("", [], []))
    monkeypatch.setattr(Toy, "train_epoch", lambda self, epoch: {"loss": 1.0})  # the toy stays at its start
    again = resume(more_trials=1)
    assert (again.extra["best_trial"], again.metrics) == (settled.extra["best_trial"], settled.metrics)
    assert (again.extra["test_opened"], tags(database, "s")["orchestrator.test_opened"]) == (1, "1")
    assert logged(database, "test/error") == [(EPOCHS, settled.metrics["test/error"])]
    assert "opened again" not in out.getvalue()


def test_result_has_the_validation_mean_of_a_repeat_that_ended_after_the_refit(
    settings: Settings, tmp_path: Path, out: io.StringIO, resume: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, train = Toy.evaluate, Toy.train_epoch
    seeds: list[int] = []

    def of_seed(self: Toy, split: Any) -> Any:
        found = evaluate(self, split)
        return type(found)({**found.metrics, "error": 1.0 + seeds.index(self.runtime.seed)}, found.units)

    def fails_once(self: Toy, epoch: int) -> Any:
        if self.runtime.seed not in seeds:
            seeds.append(self.runtime.seed)
            if len(seeds) == 3:
                raise ValueError("the first repeat fails")
        return train(self, epoch)

    monkeypatch.setattr(Toy, "evaluate", of_seed)
    monkeypatch.setattr(Toy, "train_epoch", fails_once)
    (tmp_path / "mine.py").write_text(SPACE)
    search = {"scheduler": "none", "trials": 2, "finalists": 2, "finalist_seeds": 2}
    spec = request.sweep(
        "toy", settings, overrides={"epochs": 1}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", **search},
    )  # fmt: skip
    first = sweep.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    assert (first.metrics["validation/error"], first.extra["failed"]) == (1.0, 1)
    again = resume(retry_failed=True)
    assert (again.metrics["validation/error"], again.extra["failed"]) == ((1.0 + 3.0) / 2, 0)
    assert folder(settings).record["result"]["metrics"]["validation/error"] == 2.0
    assert again.metrics["test/error"] == first.metrics["test/error"], "the model is not refitted"


def test_unknown_noise_is_reported_once_without_units_and_seeds(
    settings: Settings, tmp_path: Path, database: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Toy.evaluate
    monkeypatch.setattr(Toy, "evaluate", lambda self, split: type(found := evaluate(self, split))(found.metrics, {}))
    (tmp_path / "mine.py").write_text(SPACE)
    spec = request.sweep(
        "toy", settings, overrides={"epochs": 1, "refit": False}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", "scheduler": "none", "trials": 2},
    )  # fmt: skip
    sweep.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    assert out.getvalue().count(NO_NOISE) == 1
    assert "estimate" not in out.getvalue()
    assert "orchestrator.contenders" not in tags(database, "s")


def test_local_sweep_trains_only_after_mlflow_is_connected(
    settings: Settings, tmp_path: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the import of MLflow would slow down the first trials."""
    order: list[str] = []
    train = Toy.train_epoch

    class Slow(Client):
        def __init__(self, *of: Any) -> None:
            time.sleep(0.3)
            super().__init__(*of)
            order.append("connected")

    monkeypatch.setattr(tracker, "Client", Slow)
    monkeypatch.setattr(Toy, "train_epoch", lambda self, epoch: (order.append("trained"), train(self, epoch))[1])
    (tmp_path / "mine.py").write_text(SPACE)
    spec = request.sweep(
        "toy", settings, overrides={"epochs": 1, "refit": False}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", "scheduler": "none", "trials": 1},
    )  # fmt: skip
    sweep.sweep(spec, settings, driver.Options(local=True), console(out))
    assert order == ["connected", "trained"]


@pytest.mark.parametrize("refit", [False, True])
def test_a_winner_has_every_epoch_of_its_selection(
    settings: Settings, database: Path, tmp_path: Path, out: io.StringIO, resume: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch, refit: bool,
) -> None:  # fmt: skip
    """The last checkpoint has only the rows of two intervals. A resume with the same winner doubles no rows."""
    monkeypatch.setattr("orchestrator.engine.loop.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("orchestrator.engine.loop.REPORT_SECONDS", 0.0)
    (tmp_path / "mine.py").write_text(SPACE)
    spec = request.sweep(
        "toy", settings, overrides={"epochs": 9, "refit": refit, "checkpoint_every": 1}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", "scheduler": "none", "trials": 1},
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "finish", lambda *of: (_ for _ in ()).throw(MemoryError("the process is gone")))
        with pytest.raises(MemoryError):
            sweep.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    settled = resume()
    rows = settled.history()
    every = list(range(1, 10))
    assert rows["epoch"].tolist() == every + every[: settled.extra["epochs"]] * refit
    assert rows["validation/error"].notna().tolist() == [True] * 9 + [False] * settled.extra["epochs"] * refit
    trial = [(step, value) for name, step, value, *_ in metrics(database, "s/0") if name == "validation/error"]
    assert logged(database, "validation/error") == trial
    assert [step for step, _ in trial] == every
    assert [step for step, _ in logged(database, "train/loss")] == every


@pytest.mark.parametrize("refit", [False, True])
def test_only_the_winner_of_a_sweep_is_evaluated_on_test(
    settings: Settings, database: Path, tmp_path: Path, out: io.StringIO, monkeypatch: pytest.MonkeyPatch, refit: bool
) -> None:
    """This also holds if the workload names epochs at which a final model is evaluated on test, as lifelong does."""
    monkeypatch.setattr(Toy, "objective", Objective("error", "min", test_epochs=(1, 2, EPOCHS)))
    monkeypatch.setattr(winner, "_ranking", lambda *of: ("", [], []))
    opened: list[Toy] = []
    evaluate = Toy.evaluate

    def counted(self: Toy, split: Any) -> Any:
        opened.extend([self] if split == "test" else [])
        return evaluate(self, split)

    monkeypatch.setattr(Toy, "evaluate", counted)
    (tmp_path / "mine.py").write_text(SPACE)
    spec = request.sweep(
        "toy", settings, overrides={"epochs": EPOCHS, "refit": refit}, local=True,
        search={"space": f"{tmp_path / 'mine.py'}:space", "scheduler": "none", "trials": 2},
    )  # fmt: skip
    found = sweep.sweep(spec, settings, driver.Options(local=True, name="s"), console(out))
    for trial in ("s/0", "s/1"):
        rows = metrics(database, trial)
        assert [step for name, step, *_ in rows if name == "validation/error"] == [1, 2, 3, 4]
        assert not [name for name, *_ in rows if name.startswith("test/")]
    steps = [step for step, _ in logged(database, "test/error")]
    assert steps == ([1, 2, EPOCHS] if refit else [found.extra["epochs"]])
    assert len(set(map(id, opened))) == 1
    assert (found.extra["test_opened"], tags(database, "s")["orchestrator.test_opened"]) == (1, "1")


# The record


def test_winner_without_a_test_evaluation_is_not_counted_as_tested(settings: Settings) -> None:
    found = finished(settings.storage, "s", [(1.0,), (2.0,)], settled=False)
    place = found.path / winners.WINNER
    place.mkdir()
    (place / winners.MARK).write_text("0")
    assert [winners.record_winner(found, trial) for trial in (0, 0, 1)] == [0, 0, 1]
    assert winners.tested(found) == set()
    (place / winners.MARK).write_text("1")
    (place / "outcome.json").write_text("{}")
    assert winners.record_winner(found, 2) == 2
    assert winners.tested(found) == {1}
    assert winners.mark_tested(found) == 2
    assert winners.steps(found, 50) == "trial 0 from step 1, trial 1 from step 51, trial 2 from step 101"


def test_winner_of_a_record_without_winners_counts_as_tested(settings: Settings) -> None:
    found = finished(settings.storage, "s", [(1.0,), (2.0,)])
    (found.path / winners.WINNER / winners.MARK).write_text("0")
    assert "winners" not in found.record
    assert (winners.record_winner(found, 1), winners.tested(found)) == (1, {0})
    assert json.loads((found.path / "record.json").read_text())["winners"][-1] == {"trial": 1, "tested": False}


def test_full_disk_leaves_no_partial_mark_of_the_winner(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume could not read a partial mark."""
    found = finished(settings.storage, "s", [(1.0,), (2.0,)], settled=False)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(winners, "record_winner", lambda *of: 0)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        winner._prepare_folder(Mock(folder=found), 1, tmp_path)
    assert winners.trial_of_outcome(found) is None


def test_report_counts_the_models_evaluated_on_test(settings: Settings) -> None:
    found = finished(settings.storage, "s", [(1.0,), (2.0,)])
    assert run_page._opened(found) == []
    found.update(winners=[{"trial": 1, "tested": True}, {"trial": 0, "tested": True}])
    assert run_page._opened(found)[0].startswith("The test split was opened for 2 models")
