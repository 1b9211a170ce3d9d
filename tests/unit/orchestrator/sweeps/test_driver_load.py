"""The load of a driver, and the report interval that it sets for its trials."""

from __future__ import annotations

import pytest

from orchestrator.sweeps.driver_load import FIRST_GUESS, DriverLoad
from tests.support.toy import Clock


class Driver:
    """A load whose clock and CPU are set by hand."""

    def __init__(self, at_once: int = 0) -> None:
        self.clock, self.cpu = Clock(), 0.0
        self.load = DriverLoad(self.clock.monotonic, lambda: self.cpu)
        if at_once:
            self.load.trains_elsewhere(at_once)

    def reports(self, count: int, seconds: float, *, every: float, waiting: float = 0.0) -> None:
        """Serve a report ``every`` so many seconds, each with ``seconds`` of CPU and ``waiting`` for the disk."""
        for _ in range(count):
            with self.load.serving(reports=1):
                self.cpu += seconds
                self.clock.sleep(seconds + waiting)
            self.clock.sleep(every - seconds - waiting)


def test_one_trial_reports_without_a_minimum_interval() -> None:
    driver = Driver(at_once=1)
    assert driver.load.pace(None) == {"seconds": 0.0, "longest": 10.0}
    driver.reports(60, 0.016, every=1.0)
    assert driver.load.pace(None)["seconds"] == 0.0
    assert driver.load.utilisation() == pytest.approx(0.016, rel=0.05)


def test_report_interval_of_many_trials_takes_half_of_the_drivers_time() -> None:
    driver = Driver(at_once=128)
    assert driver.load.pace(None)["seconds"] == pytest.approx(128 * FIRST_GUESS / 0.5)
    driver.reports(2000, 0.016, every=0.016)
    assert driver.load.utilisation() == 1.0
    assert driver.load.pace(None)["seconds"] == pytest.approx(128 * 0.016 / 0.5, rel=0.01)


def test_waits_for_the_disk_count_as_load() -> None:
    driver = Driver(at_once=128)
    driver.reports(500, 0.002, every=0.02, waiting=0.008)
    assert driver.load.utilisation() == pytest.approx(0.5, rel=0.02)
    assert driver.load.pace(None)["seconds"] == pytest.approx(128 * 0.010 / 0.5, rel=0.02)


def test_report_interval_is_at_most_10_s_or_a_quarter_of_the_timeout() -> None:
    driver = Driver(at_once=5000)
    assert driver.load.pace(None) == {"seconds": 10.0, "longest": 10.0}
    assert driver.load.pace(12.0) == {"seconds": 3.0, "longest": 3.0}


def test_load_excludes_reports_older_than_half_a_minute() -> None:
    driver = Driver(at_once=128)
    driver.reports(1000, 0.02, every=0.02)
    driver.reports(40, 0.001, every=1.0)
    assert driver.load.utilisation() == pytest.approx(0.001, rel=0.1)
    assert driver.load.pace(None)["seconds"] == 0.0


def test_load_excludes_training_in_the_drivers_process() -> None:
    driver = Driver()
    for _ in range(10):
        driver.cpu += 1.0
        driver.clock.sleep(1.0)
        driver.reports(1, 0.01, every=0.01)
    assert driver.load.utilisation() == pytest.approx(0.01, rel=0.05)
    assert driver.load.pace(None)["seconds"] == 0.0


def test_utilisation_is_none_before_the_first_report() -> None:
    assert Driver().load.utilisation() is None
