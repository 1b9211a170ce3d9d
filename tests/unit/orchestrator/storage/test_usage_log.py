"""Device hours: held devices are counted once, also after crashes, and summed by run, day or person."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.spec import Resources
from orchestrator.errors import UserError
from orchestrator.report.device_hours import device_hours
from orchestrator.storage import records, usage_log
from orchestrator.storage.records import RunFolder
from orchestrator.storage.usage_log import BEAT_SECONDS, EVENTS, UsageLog

TWO_GPUS = Resources(workers=2, gpus_per_worker=1, cpus_per_worker=3)
ONE_CPU = Resources()
NOON = datetime(2026, 11, 20, 12).timestamp()


class Time:
    """Replaces the module ``time``."""

    def __init__(self) -> None:
        self.now = NOON
        self.wrong = 0.0
        """The error of the system's clock."""

    def time(self) -> float:
        return self.now + self.wrong

    def monotonic(self) -> float:
        return self.now - NOON


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(usage_log, "time", time)
    return time


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return records.create(tmp_path, "sweep", "toy", {}, "orchestrator sweep toy", "s1")


def hours(folder: RunFolder, by: Any = "sweep", since: float | None = None) -> dict[str, tuple[float, float]]:
    rows, _ = usage_log.table([folder], by, since)
    return {row[by]: (row["gpu_hours"], row["cpu_hours"]) for row in rows}


def test_device_hours_are_devices_times_hours(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("trial 0", TWO_GPUS)
    time.now += 1800
    log.start("trial 1", ONE_CPU)
    time.now += 1800
    log.stop("trial 0")
    time.now += 3600
    log.stop("trial 1")
    assert hours(folder, "trial") == {"s1 trial 0": (2.0, 6.0), "s1 trial 1": (0.0, 1.5)}
    assert hours(folder) == {"s1": (2.0, 7.5)}


def test_device_seconds_so_far_are_returned_at_any_time(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    assert log.seconds() == {"cpus": 0, "gpus": 0}
    log.start("trial 0", TWO_GPUS)
    time.now += 10
    assert log.seconds() == {"cpus": 60, "gpus": 20}
    log.start("trial 1", ONE_CPU)
    time.now += 10
    log.stop("trial 0")
    time.now += 10
    log.start("trial 1", ONE_CPU)  # a segment of a population's member that was not stopped before
    assert log.seconds() == {"cpus": 140, "gpus": 40}
    time.now += 10
    log.beat()
    driver = UsageLog(folder.path)  # the first driver is dead, the next one continues the count
    time.now += 100
    assert driver.seconds() == book_of(folder) == {"cpus": 140, "gpus": 40}


def book_of(folder: RunFolder) -> dict[str, float]:
    gpus, cpus = hours(folder)["s1"]
    return {"cpus": round(3600 * cpus, 6), "gpus": round(3600 * gpus, 6)}


def test_running_unit_is_counted_until_now(folder: RunFolder, time: Time) -> None:
    UsageLog(folder.path).start("run", ONE_CPU)
    time.now += 7200
    assert hours(folder) == {"s1": (0.0, 2.0)}


def test_time_between_a_crash_and_its_resume_is_not_counted(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("trial 0", ONE_CPU)
    time.now += 3600
    log.beat()
    with (folder.path / EVENTS).open("a") as file:
        file.write('{"time": 1, "ev')  # killed here
    time.now += 36_000
    resumed = UsageLog(folder.path)
    resumed.start("trial 0", ONE_CPU)
    time.now += 1800
    resumed.stop("trial 0")
    assert hours(folder) == {"s1": (0.0, 1.5)}
    assert all(json.loads(line) for line in (folder.path / EVENTS).read_text().splitlines())


def test_device_hours_of_a_lost_driver_end_at_its_last_beat(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("trial 0", ONE_CPU)
    time.now += 1800
    log.beat()
    time.now += 36_000
    folder.release("finished", 0)
    folder.update(status="running", ended=None)  # the lock is free, although the record has no end
    assert folder.status() == "lost"
    assert hours(folder) == {"s1": (0.0, 0.5)}


def test_beat_is_written_once_a_minute_while_devices_are_held(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.beat()
    assert not (folder.path / EVENTS).exists()
    log.start("run", ONE_CPU)
    for _ in range(10):
        time.now += BEAT_SECONDS / 5
        log.beat()
    assert (folder.path / EVENTS).read_text().count("beat") == 2


def test_stop_of_a_stopped_or_unstarted_unit_writes_no_event(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    with log.holding("winner", ONE_CPU):
        time.now += 3600
    log.stop("winner")
    log.stop("trial 5")
    log.close()
    assert hours(folder) == {"s1": (0.0, 1.0)}
    assert len((folder.path / EVENTS).read_text().splitlines()) == 2


def test_devices_are_given_back_when_the_block_fails(folder: RunFolder, time: Time) -> None:
    with suppress(ZeroDivisionError), UsageLog(folder.path).holding("winner", ONE_CPU):
        time.now += 3600
        raise ZeroDivisionError
    time.now += 3600
    assert hours(folder) == {"s1": (0.0, 1.0)}


DAMAGED = ["", "{", "[]", '{"time": "x", "event": "stop"}', '{"event": "stop"}', "3", "null"]
DAMAGED += ['{"time": 1, "event": "start", "unit": "run", "cpus": 1}', '{"time": 1, "event": "stop", "unit": []}']


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_lines_are_passed_over(line: str, folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("run", ONE_CPU)
    with (folder.path / EVENTS).open("a") as file:
        file.write(f"{line}\n")
    time.now += 3600
    log.stop("run")
    assert hours(folder) == {"s1": (0.0, 1.0)}


@pytest.mark.parametrize("set_by", [-7200, 7200])
def test_device_hours_are_correct_when_the_clock_is_changed(set_by: int, folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("run", ONE_CPU)
    time.wrong = set_by
    time.now += 1800
    log.beat()
    assert log.seconds() == {"cpus": 1800, "gpus": 0}
    assert '"beat"' in (folder.path / EVENTS).read_text()
    log.stop("run")
    assert hours(folder) == {"s1": (0.0, 0.5)}


def test_no_hours_are_negative_after_the_clock_was_set_back(folder: RunFolder, time: Time) -> None:
    UsageLog(folder.path).start("run", ONE_CPU)
    time.wrong = -7200
    assert hours(folder) == {"s1": (0.0, 0.0)}


def test_device_hours_are_split_by_day_at_midnight(folder: RunFolder, time: Time) -> None:
    log = UsageLog(folder.path)
    log.start("run", ONE_CPU)
    time.now += 37 * 3600
    log.stop("run")
    assert hours(folder, "day") == {"2026-11-20": (0.0, 12.0), "2026-11-21": (0.0, 24.0), "2026-11-22": (0.0, 1.0)}
    assert hours(folder, since=usage_log.moment("2026-11-22")) == {"s1": (0.0, 1.0)}
    assert hours(folder, since=usage_log.moment("2026-11-24")) == {}


def test_device_hours_are_summed_by_person_and_workload(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, user in (("a", "ada"), ("b", "bob"), ("c", "ada"), ("old", "ada")):
        monkeypatch.setenv("LOGNAME", user)
        found.append(records.create(tmp_path, "run", "toy", {}, "", name))
    for folder in found[:3]:
        with UsageLog(folder.path).holding("run", ONE_CPU):
            time.now += 3600
    rows, silent = usage_log.table(found, "person")
    assert rows == [
        {"person": "ada", "cpu_hours": 2.0, "gpu_hours": 0.0, "runs": 2},
        {"person": "bob", "cpu_hours": 1.0, "gpu_hours": 0.0, "runs": 1},
    ]
    assert silent == 1
    assert [row["workload"] for row in usage_log.table(found, "workload")[0]] == ["toy"]
    by_sweep, _ = usage_log.table(found, "sweep")
    assert device_hours(by_sweep, "sweep", silent).startswith("RUN OR SWEEP  ")
    shown = device_hours(rows, "person", silent).splitlines()
    assert shown[-2].split() == ["total", "0", "3"]
    assert "1 " in shown[-1]


def test_invalid_date_raises_user_error() -> None:
    with pytest.raises(UserError, match=r"The date is not valid: got 'yesterday'; allowed: 2026-11-21"):
        usage_log.moment("yesterday")


def test_a_start_after_a_line_that_was_cut_off_counts(time: Time, folder: RunFolder) -> None:
    log = UsageLog(folder.path)
    log.start("trial 0", ONE_CPU)
    with (folder.path / EVENTS).open("a") as stream:  # by a full disk
        stream.write('{"time": 17')
    time.now += 60
    log.start("trial 1", ONE_CPU)
    time.now += 60
    log.stop("trial 0")
    log.stop("trial 1")
    assert UsageLog(folder.path).seconds() == log.seconds() == {"cpus": 180, "gpus": 0}
