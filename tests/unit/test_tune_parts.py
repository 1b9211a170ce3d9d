"""What Tune is told to call: the trial's actor, and what hears of processes that are replaced or lost for good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.placement.trial import TrialActor
from orchestrator.placement.tune import _Restarts, _Search, _Under
from orchestrator.plan import Plan
from orchestrator.spec import ExperimentSpec
from orchestrator.training import watch
from orchestrator.training.watch import GIVEN_UP, PROCESS, GivenUp, Watch


class Book:
    """In the ledger's place: hands out one trial."""

    exhausted = True

    def __init__(self, home: Path) -> None:
        self.left = [{"number": 7, "folder": str(home)}]
        self.lost: list[tuple[int, str]] = []

    def next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None

    def died(self, unit: int, cause: str) -> None:
        self.lost.append((unit, cause))


@pytest.fixture
def under(tmp_path: Path) -> _Under:
    return _Under(Book(tmp_path), Watch(10))  # type: ignore[arg-type]


def test_a_replaced_process_is_forgotten_and_counted(under: _Under, tmp_path: Path) -> None:
    search, restarts = _Search(under), _Restarts(under)
    assert search.suggest("a") == {"number": 7, "folder": str(tmp_path)}
    assert search.suggest("b") == "FINISHED"
    for _ in range(2):
        (tmp_path / PROCESS).write_text("{}")
        under.watch.heard(7)
        restarts.on_trial_recover(1, [], SimpleNamespace(trial_id="a"))
        assert not (tmp_path / PROCESS).exists()
    search.on_trial_complete("a", error=True)
    assert under.ledger.lost == [(7, "its process died 3 times")]  # type: ignore[attr-defined]


def test_what_was_killed_for_its_silence_has_that_for_a_cause(under: _Under, tmp_path: Path) -> None:
    search = _Search(under)
    search.suggest("a")
    (tmp_path / GIVEN_UP).write_text("no report for 10 s")
    search.on_trial_complete("a", error=True)
    search.on_trial_complete("a")
    assert under.ledger.lost == [(7, "no report for 10 s")]  # type: ignore[attr-defined]


# The actor


@pytest.fixture
def actor(toy_workload: str, monkeypatch: pytest.MonkeyPatch) -> TrialActor:
    """One that Tune has not yet set up; nobody watches it."""
    monkeypatch.setattr(watch, "announce", lambda folder: None)
    return TrialActor.__new__(TrialActor)


def config(home: Path, **params: Any) -> dict[str, Any]:
    spec = ExperimentSpec(workload="toy", params=params, plan=Plan(epochs=8, refit=True, decide_at=(3,)))
    home.mkdir()
    return {
        "spec": spec.model_dump(mode="json"), "folder": str(home), "data": str(home), "keep": 2, "save_at_rungs": False,
    }  # fmt: skip


def test_an_actor_that_diverged_has_told_all_and_saves_nothing(actor: TrialActor, tmp_path: Path) -> None:
    actor.setup(config(tmp_path / "0", nan_at=6))
    first, last = actor.step(), actor.step()
    assert [epoch for epoch, _, _ in first["rows"]] == [1, 2, 3]
    assert [epoch for epoch, _, _ in last["rows"]] == [4, 5]
    assert (last["error"], last["done"]) == ("train/loss is nan at epoch 6", True)
    actor.reset_config(config(tmp_path / "1"))
    assert not list((tmp_path / "0").glob("checkpoint-*")), "the state was that of no epoch that was told"
    assert [actor.step()["ended"] for _ in range(2)] == [None, "epochs"]
    actor.cleanup()


def test_an_actor_that_is_stopped_saves_what_it_has_told(actor: TrialActor, tmp_path: Path) -> None:
    actor.setup(config(tmp_path / "0"))
    assert actor.step()["epoch"] == 3
    actor.cleanup()
    (saved,) = (tmp_path / "0").glob("checkpoint-*")
    assert saved.name.endswith("3")


def test_a_trial_that_was_given_up_is_not_begun_again(
    actor: TrialActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "announce", lambda folder: GivenUp("no report for 10 s; it hung at File x"))
    actor.setup(config(tmp_path / "0", hang_at=1))
    assert actor.step()["error"] == "no report for 10 s; it hung at File x"
    actor.cleanup()
