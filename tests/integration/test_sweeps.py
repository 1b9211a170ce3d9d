"""Sweeps by the command line on a real Ray and a real MLflow store: hung trials, populations, seeds, budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.commands import SPACES, Command, Start, Store, trials

SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none"]


def table(home: Path) -> list[dict[str, Any]]:
    """The trials of the only sweep, without the values that differ between equal sweeps."""
    return [{key: value for key, value in row.items() if key != "train_seconds"} for row in trials(home)]


def children(store: Store) -> dict[str, list[int]]:
    """The steps of each trial's run, by its key without the sweep's id."""
    return {key.partition("/")[2]: steps for key, steps in store.steps().items() if "/" in key}


# Trials that hang


@pytest.mark.faults
def test_a_trial_that_hangs_fails_alone(home: Path, start: Start) -> None:
    """There is one device: the other trials can only run once that of the hung trial is released."""
    words = ["sweep", "toy", "--space", f"{SPACES}:one_hangs", "--scheduler", "none", "--trials", "3", "epochs=4"]
    sweep = start(*words, "--concurrency", "1", "--trial-timeout", "30")
    assert sweep.end() == 4, sweep.text()
    assert [row["state"] for row in trials(home)] == ["complete", "fail", "complete"]
    cause = trials(home)[1]["cause"]
    assert cause.startswith("no report for 30 s; it hung at File "), cause
    assert "toy.py" in cause
    assert cause.endswith("in train_epoch"), cause
    assert "Traceback" not in sweep.text()
    store = Store(home)
    store.check()
    assert sorted(status for (status,) in store.query("select status from runs")) == ["FAILED"] + ["FINISHED"] * 3


@pytest.mark.faults
@pytest.mark.long
def test_a_trial_whose_process_is_stopped_fails_alone(home: Path, start: Start) -> None:
    """The stopped process cannot report its stack."""
    sweep = start(*SWEEP, "--trials", "3", "epochs=30", "slow=0.2", "--concurrency", "1", "--trial-timeout", "30")
    (file,) = sweep.until(lambda: list(home.glob("storage/*/trials/00001/process.json")))
    psutil.Process(json.loads(file.read_text())["pid"]).suspend()
    assert sweep.end() == 4, sweep.text()
    assert [row["state"] for row in trials(home)] == ["complete", "fail", "complete"]
    assert trials(home)[1]["cause"] == "no report for 30 s"
    Store(home).check()


@pytest.mark.faults
@pytest.mark.long
def test_a_group_that_hangs_fails_alone(home: Path, start: Start) -> None:
    words = ["sweep", "toy", "--space", f"{SPACES}:one_hangs", "--scheduler", "none", "--trials", "3", "epochs=4"]
    sweep = start(*words, "--workers", "2", "--cpus-per-worker", "1", "--concurrency", "1", "--trial-timeout", "30")
    assert sweep.end() == 4, sweep.text()
    assert [row["state"] for row in trials(home)] == ["complete", "fail", "complete"]
    assert trials(home)[1]["cause"].startswith("no report for 30 s; worker 0 hung at File ")
    Store(home).check()


# Populations

POPULATION = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "pbt", "--trials", "4", "epochs=10"]


def check_population(home: Path) -> None:
    store = Store(home)
    store.check()
    found = children(store)
    assert found == {str(number): list(range(1, 11)) for number in range(4)}, "a row was lost or doubled"
    curves = store.steps("pbt/lr")
    assert all(steps == list(range(10)) for steps in curves.values()), "a member's parameters are missing or doubled"
    assert len(curves) == 4


@pytest.mark.faults
@pytest.mark.long
def test_a_population_is_the_same_on_ray_as_in_one_process(
    home: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ray = start(*POPULATION, "--concurrency", "2")
    assert on_ray.end() == 0, on_ray.text()
    check_population(home)
    found = table(home)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "other"))
    local = Command(tmp_path / "other", *POPULATION, "--local", "--tracking", "none")
    assert local.end() == 0, local.text()
    assert table(tmp_path / "other") == found


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("place", ["ray", "local"])
def test_population_resumes_with_equal_results_after_a_driver_kill(
    place: str, home: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*POPULATION, "slow=0.1", *(["--local"] if place == "local" else ["--concurrency", "2"])]
    first = start(*words)
    first.until(lambda: list(home.glob("storage/*/trials/00002/checkpoint-00000003")))
    first.kill()
    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    check_population(home)
    found = table(home)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "other"))
    whole = Command(tmp_path / "other", *POPULATION, "slow=0.0", "--local", "--tracking", "none")
    assert whole.end() == 0, whole.text()
    assert table(tmp_path / "other") == found


# Repeated seeds


@pytest.mark.faults
def test_repeated_seeds_resume_after_the_driver_is_killed(home: Path, start: Start) -> None:
    words = [*SWEEP, "--trials", "3", "--seeds", "3", "epochs=8", "slow=0.1", "--local"]
    first, store = start(*words), Store(home)
    first.until(lambda: first.completed() >= 4)
    first.kill()
    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    assert first.completed() + second.completed() <= 10, "a finished seed was repeated"
    store.check()
    assert children(store) == {f"{number}/{seed}": list(range(1, 9)) for number in range(3) for seed in range(3)}
    for row in trials(home):
        assert row["state"] == "complete"
        assert row["value"] == pytest.approx(sum(row["seeds"]) / 3)
    (steps,) = Store(home).steps("seeds/error").values()
    assert steps == list(range(1, 9)), "the sweep's run must have the winner's seeds once per epoch"


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("where", [["--local"], ["--concurrency", "2"]])
def test_finalists_are_repeated_when_the_search_ends(where: list[str], home: Path, start: Start) -> None:
    """In one process and on Ray: the same trials, tagged repeats, and a winner among the finalists."""
    sweep = start(*SWEEP, "--trials", "3", "--finalists", "2", "--finalist-seeds", "2", "epochs=2", *where)
    assert sweep.end() == 0, sweep.text()
    rows = trials(home)
    assert [row["state"] for row in rows] == ["complete"] * 5
    repeated = [row.get("repeat_of") for row in rows]
    assert repeated[:3] == [None] * 3
    assert len(set(repeated[3:])) == 2
    assert all(len(rows[number]["seeds"]) == 2 for number in repeated[3:])
    (record,) = home.glob("storage/*/record.json")
    assert json.loads(record.read_text())["result"]["best_trial"] in repeated[3:]
    assert "over seeds)" in sweep.text()
    Store(home).check()


# Budgets


@pytest.mark.faults
def test_device_hour_budget_counts_the_hours_before_a_restart(home: Path, start: Start) -> None:
    """The budget is 12 CPU seconds for trials of 1.5 s each; the second process gets only the rest of it."""
    limit = ["--max-device-hours", str(12 / 3600)]
    first = start(*SWEEP, "--trials", "500", "epochs=15", "slow=0.1", "--local", *limit)
    first.until(lambda: first.completed() >= 3)
    first.kill()
    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    lines = [*first.text().splitlines(), *second.text().splitlines()]
    assert sum("80% of" in line for line in lines) == 1
    assert sum(line.startswith("Stopped: the device-hour budget") for line in lines) == 1
    (record,) = home.glob("storage/*/events.jsonl")
    events = [json.loads(line) for line in record.read_text().splitlines()]
    begun = {event["unit"]: event["time"] for event in events if event["event"] == "start"}
    ended = {event["unit"]: event["time"] for event in events if event["event"] == "stop"}
    spent = sum(ended[unit] - begun[unit] for unit in begun if unit.startswith("trial"))
    longest = max(ended[unit] - begun[unit] for unit in begun if unit.startswith("trial"))
    assert 8 < spent < 12 + 1 + longest, "the second process did not count the trials of the first"
    assert {row["state"] for row in trials(home)} <= {"complete", "fail"}
    Store(home).check()
