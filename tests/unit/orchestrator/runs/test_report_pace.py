"""The interval between a trial's reports: a second, the driver's word, or what its answers allow."""

from __future__ import annotations

import pytest

from orchestrator.runs.report_pace import ReportPace
from tests.support.toy import Clock


def waited(pace: ReportPace, clock: Clock, *seconds: float) -> float:
    """Have reports answered after so long; the interval then."""
    for wait in seconds:
        pace.sent()
        clock.sleep(wait)
        pace.answered()
    return pace.seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_alone_it_reports_every_second(clock: Clock) -> None:
    assert waited(ReportPace(clock=clock.monotonic), clock, *[0.004] * 9) == 1.0


def test_the_driver_may_ask_for_longer(clock: Clock) -> None:
    pace = ReportPace({"seconds": 3.0, "longest": 10.0}, clock.monotonic)
    assert waited(pace, clock, *[0.004] * 9) == 3.0
    pace.ask({"seconds": 0.0, "longest": 10.0})
    assert pace.seconds() == 1.0


def test_slow_answers_make_it_longer_and_quick_ones_shorter_again(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    assert waited(pace, clock, 0.05, 0.05, 0.05) == pytest.approx(5.0)
    assert waited(pace, clock, 0.5, 0.5, 0.5) == 10.0, "never longer"
    assert waited(pace, clock, 0.001, 0.001, 0.001) == 1.0


def test_the_first_answers_and_a_single_slow_one_say_nothing(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    assert waited(pace, clock, 1.0) == 1.0, "all trials begin at once"
    assert waited(pace, clock, 0.004, 0.004, 1.0, 0.004) == 1.0


def test_a_report_at_a_rung_is_not_counted(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    for _ in range(5):  # sent without a word to the pace
        clock.sleep(2.0)
        pace.answered()
    assert pace.seconds() == 1.0


def test_it_is_never_longer_than_a_silence_may_be(clock: Clock) -> None:
    pace = ReportPace({"seconds": 3.0, "longest": 2.5}, clock.monotonic)
    assert waited(pace, clock, *[1.0] * 5) == 2.5
    pace.ask({"seconds": 3.0, "longest": 0.5})
    assert pace.seconds() == 1.0, "as ever"
