"""The device-hour budget: how time is counted, when trials are refused or stopped, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.spec import Resources
from orchestrator.storage import records
from orchestrator.storage.records import RunFolder
from orchestrator.storage.usage_log import UsageLog
from orchestrator.sweeps import budget as module
from orchestrator.sweeps.budget import Budget
from tests.support.searching import sweep
from tests.support.toy import Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time advances only in ``sleep``, for the usage log as well."""
    from orchestrator.storage import usage_log

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(usage_log, "time", clock)
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return records.create(tmp_path, "sweep", "toy", {}, "orchestrator sweep toy")


def budget(folder: RunFolder, device_seconds: float | None, **resources: Any) -> Budget:
    hours = None if device_seconds is None else device_seconds / 3600
    spec = sweep(max_device_hours=hours).model_copy(update={"resources": Resources(**resources)})
    return Budget(spec, folder)


def run(budget: Budget, clock: Clock, seconds: float, seed_run: int = 0) -> None:
    budget.start(seed_run)
    clock.sleep(seconds)
    budget.stop(seed_run)


def test_budget_without_a_limit_allows_every_trial(folder: RunFolder, clock: Clock) -> None:
    free = budget(folder, None)
    run(free, clock, 1e9)
    assert free.used == 1e9
    assert (free.allows_another(), free.is_spent(), free.warns()) == (True, False, False)


@pytest.mark.parametrize(
    ("resources", "rate"),
    [
        ({}, 1),
        ({"cpus_per_worker": 4}, 4),
        ({"workers": 3, "cpus_per_worker": 2}, 6),
        ({"gpus_per_worker": 0.25, "cpus_per_worker": 8}, 0.25),
        ({"workers": 2, "gpus_per_worker": 2}, 4),
    ],
)
def test_device_seconds_count_gpus_if_any_and_cpus_otherwise(
    resources: dict[str, Any], rate: float, folder: RunFolder, clock: Clock
) -> None:
    spent = budget(folder, 100 * rate, **resources)
    run(spent, clock, 10)
    assert (spent.used, spent.device_seconds_of(0)) == (10 * rate, 10 * rate)
    spent.start(1)
    clock.sleep(5)
    assert spent.used == 15 * rate, "running trials must count"
    assert spent.device_seconds_of(1) == 0


def test_trials_that_run_together_cost_their_sum(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 100)
    spent.start(0)
    clock.sleep(4)
    spent.start(1)
    clock.sleep(3)
    spent.stop(0)
    clock.sleep(2)
    spent.stop(1)
    assert (spent.device_seconds_of(0), spent.device_seconds_of(1), spent.used) == (7, 5, 12)


def test_the_last_trial_of_a_pack_costs_all_of_its_process(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 100)
    run(spent, clock, 6, seed_run=9)
    spent.start(0, 0.5)
    spent.start(1, 0.5)
    clock.sleep(4)
    spent.stop(1)
    spent.start(0, 1.0)
    assert (spent.device_seconds_of(0), spent.used) == (0, 10), (
        "the cost of a running trial must not lower the usual cost"
    )
    clock.sleep(3)
    spent.stop(0)
    assert (spent.device_seconds_of(0), spent.device_seconds_of(1), spent.used) == (5, 2, 13)
    spent.complete = {0}
    assert spent.seconds(0, 1) == 7


def test_device_seconds_of_a_seed_run_in_parts_are_added(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 100)
    run(spent, clock, 4)
    clock.sleep(50)
    run(spent, clock, 3)
    assert spent.device_seconds_of(0) == 7
    spent.stop(0)
    spent.stop(9)
    assert spent.used == 7, "stopping a trial without devices must change nothing"


def test_no_trial_begins_that_would_pass_the_limit(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 35)
    begun = 0
    while spent.allows_another():
        run(spent, clock, 10, seed_run=begun)
        begun += 1
    assert (begun, spent.used) == (3, 30)
    assert not spent.is_spent()


def test_running_trials_are_expected_to_cost_as_much_as_ended_ones(folder: RunFolder, clock: Clock) -> None:
    """Of 35, 10 are spent. Two trials run: 5 + 5 so far, as much to come. A third of 10 would exceed the limit."""
    spent = budget(folder, 35)
    run(spent, clock, 10)
    spent.start(1), spent.start(2)
    clock.sleep(5)
    assert spent.used == 20
    assert not spent.allows_another()
    spent.stop(1)
    spent.stop(2)
    assert spent.allows_another(), "they ended early, so the usual cost is lower and there is room"


def test_a_trial_begins_only_if_all_of_its_seeds_fit(folder: RunFolder, clock: Clock) -> None:
    """Of 85, 30 are spent by the three seeds of one trial and 15 by those of another."""
    spec = sweep(max_device_hours=85 / 3600, seeds=3)
    spent = Budget(spec, folder)
    for seed_run in range(3):
        run(spent, clock, 10, seed_run)
    assert spent.allows_another(), "30 + 30"
    run(spent, clock, 10, 3)
    spent.start(4)
    clock.sleep(5)
    assert not spent.allows_another(), "45 + 15 to come + 30"


@pytest.mark.parametrize(("limit", "fits"), [(95, True), (85, False)])
def test_waiting_seeds_of_one_trial_are_reserved_as_one_trial(
    limit: int, fits: bool, folder: RunFolder, clock: Clock
) -> None:
    """30 are spent. The second trial needs 30 and a third one 30, also while all three seeds of the second wait."""
    spent = Budget(sweep(max_device_hours=limit / 3600, seeds=3), folder)
    for seed_run in range(3):
        run(spent, clock, 10, seed_run)
    assert spent.allows_another(begun=(3, 4, 5)) is fits


def test_trials_begin_without_an_estimate_before_the_first_has_ended(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 10)
    for seed_run in range(4):
        assert spent.allows_another()
        spent.start(seed_run)
    clock.sleep(3)
    assert spent.is_spent(), "trials are stopped when the budget is spent"


def test_budget_warns_once_at_80_percent(folder: RunFolder, clock: Clock) -> None:
    spent = budget(folder, 100)
    run(spent, clock, 79)
    assert not spent.warns()
    spent.start(1)
    clock.sleep(1)
    assert [spent.warns() for _ in range(3)] == [True, False, False]


def test_used_device_hours_are_restored_after_a_restart(folder: RunFolder, clock: Clock) -> None:
    """The event file gives the hours of trials only, and those of a dead driver until its last beat."""
    usage_log, resources = UsageLog(folder.path), Resources(cpus_per_worker=2)
    for seed_run, seconds in (("trial 0", 10), ("trial 1 seed 2", 5), ("winner", 100), ("run", 100)):
        with usage_log.holding(seed_run, resources):
            clock.sleep(seconds)
    usage_log.start("trial 2", resources)
    clock.sleep(60)
    usage_log.beat()
    clock.sleep(1000)  # the driver is dead
    UsageLog(folder.path)
    again = budget(folder, 160, cpus_per_worker=2)
    assert again.used == pytest.approx(2 * (10 + 5 + 60))
    assert not again.warns(), "the earlier process has warned"
    assert not again.is_spent()
    run(again, clock, 5)
    assert again.is_spent()


def test_used_gpu_seconds_are_restored_after_a_restart(folder: RunFolder, clock: Clock) -> None:
    resources = Resources(cpus_per_worker=8, gpus_per_worker=0.5)
    with UsageLog(folder.path).holding("trial 0", resources):
        clock.sleep(10)
    again = budget(folder, 100, cpus_per_worker=8, gpus_per_worker=0.5)
    assert again.used == pytest.approx(5)


def test_repeats_cost_as_much_as_complete_trials_also_after_a_restart(folder: RunFolder, clock: Clock) -> None:
    """Of 100, four trials took 28: two were pruned after 2, and two completed after 12. Five repeats need 60."""
    log = UsageLog(folder.path)
    spent = budget(folder, 100)
    for seed_run, seconds in enumerate((2, 12, 2, 12)):
        with log.holding(f"trial {seed_run}", Resources()):
            run(spent, clock, seconds, seed_run)
    for known in (spent, budget(folder, 100)):
        known.complete = {1, 3}
        assert known.used == pytest.approx(28)
        assert known.device_seconds_of(1) == pytest.approx(12)
        assert known.cost_of_repeat == pytest.approx(12)
        assert known.allows_another(5), "28 + 7 + 60"
        assert not known.allows_another(6)
        assert known.seconds(5, 2) == pytest.approx(12 * (1 + 3))


def test_repeats_reserve_nothing_before_the_first_trial_has_ended(folder: RunFolder) -> None:
    assert budget(folder, 10).allows_another(100)
    assert budget(folder, None).seconds(100, 0) == 0
