"""Requests to a running sweep: validation, application exactly once, and restarts of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.report import trials
from orchestrator.search import points
from orchestrator.search.study import STOPPED
from orchestrator.storage import requests
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import steering
from tests.support import finished
from tests.support.searching import ERROR, at_rung, attributes, begin, complete, rows, states, study

pytestmark = pytest.mark.usefixtures("toy_workload")

REQUEST = "00001-a"


# Refusals of the commands


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    return resolve({})


@pytest.fixture
def running(tmp_path: Path) -> Any:
    """A sweep of the toy that has not ended: trial 0 is complete, 1 has failed."""
    return finished.sweep(tmp_path / "storage", "s", [[0.1], None], settled=False, fixed={"momentum": 0.5})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "No parameter is given"),
        ({"lr": 9.0}, r"lr is outside the search space: got 9\.0; allowed: float"),
        ({"rl": 0.1}, "Unknown searched parameter: got 'rl'.*lr"),
        ({"momentum": 0.9}, "momentum is fixed in this sweep"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    params: dict[str, Any], message: str, running: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points.spaces, "load", lambda *_: lambda trial: {"lr": trial.suggest_float("lr", 0.01, 0.2)})
    with pytest.raises(UserError, match=message):
        steering.add(running, settings, params)
    assert requests.read(running.path) == []


def test_valid_parameters_are_written_as_a_request(
    running: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points.spaces, "load", lambda *_: lambda trial: {"lr": trial.suggest_float("lr", 0.01, 0.2)})
    assert steering.add(running, settings, {"lr": "1e-1"}) == {"lr": 0.1}
    assert [values for _, values in requests.read(running.path)] == [{"add": {"lr": 0.1}}]


def test_adding_a_trial_to_a_finished_sweep_is_refused(tmp_path: Path, settings: Settings) -> None:
    folder = finished.sweep(tmp_path / "storage", "s", [[0.1]])
    with pytest.raises(UserError, match=r"s has finished.*--more-trials"):
        steering.add(folder, settings, {"lr": 0.1})


def test_only_a_running_trial_can_be_stopped(running: Any) -> None:
    with pytest.raises(UserError, match=r"Trial 0 of s has already ended \(complete\)\."):
        steering.stop(running, 0, "pruned")
    with pytest.raises(UserError, match=r"s has no trial 7.*0 to 1"):
        steering.stop(running, 7, "pruned")


# Application by the driver


def test_added_trial_comes_next_and_increases_the_target(tmp_path: Path) -> None:
    search = study(tmp_path, trials=2)
    assert begin(search).number == 0
    assert search.add({"lr": 0.125}, REQUEST) == 1
    added = begin(search)
    assert (added.number, added.params["lr"]) == (1, 0.125)
    assert added.params["kind"] in ("a", "b"), "the sampler suggests the others"
    assert begin(search).number == 2
    assert search.next() is None
    assert search.target == 3


def test_a_request_is_applied_once_over_restarts(tmp_path: Path) -> None:
    first = study(tmp_path, trials=1)
    first.add({"lr": 0.125}, REQUEST)
    second = study(tmp_path, trials=1)  # the first was killed before it removed the request
    assert second.applied(REQUEST)
    assert not second.applied("00002-b")
    assert begin(second).params["lr"] == 0.125


def test_grid_continues_at_its_next_point_after_an_added_trial(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"dim": trial.suggest_int("dim", 1, 3)}

    search = study(tmp_path, space=space, sampler="grid", trials=3)
    seen = [begin(search).params["dim"]]
    search.add({"dim": 2}, REQUEST)
    while trial := search.next():
        seen.append(trial.params["dim"])
    assert seen == [1, 2, 2, 3]


@pytest.mark.parametrize(("verdict", "state"), [("pruned", "PRUNED"), ("failed", "FAIL")])
def test_a_waiting_trial_is_ended_and_never_runs(verdict: str, state: str, tmp_path: Path) -> None:
    search = study(tmp_path, trials=2, sampler="tpe")
    assert search.add({"lr": 0.125}, "00000-a") == 0
    line = steering.apply(search, REQUEST, {"stop": 0, "verdict": verdict})
    assert line == f"Trial 0 has ended before it started, as {verdict}"
    resumed = study(tmp_path, trials=2, sampler="tpe")
    assert resumed.applied(REQUEST)
    for search_ in (search, resumed):
        assert states(search_) == [state]
        assert search_.failed() == [], "a stopped trial must not be retried"
    numbers = []
    while trial := resumed.next():
        numbers.append(trial.number)
        complete(resumed, trial.seed_run, 0.5)
    assert numbers == [1, 2]
    assert [row["state"] for row in trials.rows(resumed.trials, [ERROR], 1)] == [state.lower(), "complete", "complete"]


@pytest.mark.parametrize(("verdict", "state"), [("pruned", "PRUNED"), ("failed", "FAIL")])
def test_a_trial_is_stopped_at_its_next_report(verdict: str, state: str, tmp_path: Path) -> None:
    search = study(tmp_path, decide_at=(3,), trials=2)
    number = begin(search).number
    assert search.stop_trial(number, verdict, REQUEST)
    assert at_rung(search, number, 3, 0.5) == verdict
    assert states(search) == [state]
    assert search.trials[0].intermediate_values == {3: 0.5}
    assert search.failed() == [], "a stopped trial must not be retried"
    assert search.trials[0].user_attrs.get("cause") == (STOPPED if verdict == "failed" else None)
    assert search.best() is None
    assert search.applied(REQUEST)


def test_stop_request_is_applied_by_the_next_driver(tmp_path: Path) -> None:
    search = study(tmp_path, trials=1)
    search.stop_trial(begin(search).number, "pruned", REQUEST)
    again = study(tmp_path, trials=1)
    assert at_rung(again, begin(again).number, 3, 0.5) == "pruned"


def test_all_seeds_of_a_trial_stop(tmp_path: Path) -> None:
    search = study(tmp_path, seeds=3, trials=1)
    complete(search, begin(search).seed_run, 0.5)
    second = begin(search)
    search.stop_trial(0, "pruned", REQUEST)
    assert search.report(second.seed_run, rows((3, 0.4)), 0.4, False, attributes(0.4)) == "pruned"
    assert search.next() is None
    assert search.running() == []


def test_trial_that_ends_at_the_report_of_its_stop_is_complete(tmp_path: Path) -> None:
    search = study(tmp_path, trials=1)
    number = begin(search).number
    search.stop_trial(number, "pruned", REQUEST)
    assert complete(search, number, 0.5) == "complete"
    assert not search.stop_trial(number, "pruned", "00002-b")


@pytest.mark.parametrize(
    "values",
    [{}, {"stop": "1", "verdict": "pruned"}, {"stop": True, "verdict": "pruned"}, {"stop": 0, "verdict": "won"},
     {"add": 5}, {"add": {"lr": "high"}}],
)  # fmt: skip
def test_a_damaged_request_is_refused_for_good(values: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(points.spaces, "load", lambda *_: lambda trial: {"lr": trial.suggest_float("lr", 0, 1)})
    search = study(tmp_path)
    begin(search)
    assert steering.apply(search, REQUEST, values).startswith("A request was refused: ")
    assert search.applied(REQUEST)
    assert len(search.trials) == 1


def test_requests_are_read_in_order_and_half_written_ones_are_not(tmp_path: Path) -> None:
    names = [requests.send(tmp_path, {"stop": number}) for number in range(3)]
    (tmp_path / requests.FOLDER / "00.json").write_text("{")
    (tmp_path / requests.FOLDER / ".x.partial").write_text("{}")
    assert requests.read(tmp_path) == [(name, {"stop": number}) for number, name in enumerate(names)]


def test_a_request_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests stay in the folder, where the driver looks for them every second."""
    first = requests.send(tmp_path, {"stop": 0})
    search, folder = study(tmp_path), RunFolder(tmp_path, {})
    known: set[str] = set()
    assert steering.unapplied(search, folder, known) == [(first, {"stop": 0})]
    read: list[Path] = []
    monkeypatch.setattr(requests.private_files, "read_json", lambda file: read.append(file) or {"stop": 1})
    second = requests.send(tmp_path, {"stop": 1})
    assert steering.unapplied(search, folder, known) == [(second, {"stop": 1})]
    assert [file.stem for file in read] == [second]
