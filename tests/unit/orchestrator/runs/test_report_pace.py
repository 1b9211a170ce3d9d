"""The interval between a trial's reports: one second, the driver's request, or the answering time."""

from __future__ import annotations

import pytest

from orchestrator.runs.report_pace import ReportPace
from tests.support.toy import Clock


def waited(pace: ReportPace, clock: Clock, *seconds: float) -> float:
    """Answer one report after each of ``seconds`` and return the resulting interval."""
    for wait in seconds:
        pace.sent()
        clock.sleep(wait)
        pace.answered()
    return pace.seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_interval_is_one_second_by_default(clock: Clock) -> None:
    assert waited(ReportPace(clock=clock.monotonic), clock, *[0.004] * 9) == 1.0


def test_interval_requested_by_the_driver_is_used(clock: Clock) -> None:
    pace = ReportPace({"seconds": 3.0, "longest": 10.0}, clock.monotonic)
    assert waited(pace, clock, *[0.004] * 9) == 3.0
    pace.ask({"seconds": 0.0, "longest": 10.0})
    assert pace.seconds() == 1.0


def test_interval_grows_with_slow_answers_and_shrinks_with_quick_ones(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    assert waited(pace, clock, 0.05, 0.05, 0.05) == pytest.approx(5.0)
    assert waited(pace, clock, 0.5, 0.5, 0.5) == 10.0, "the interval is at most 10 s"
    assert waited(pace, clock, 0.001, 0.001, 0.001) == 1.0


def test_first_answer_and_a_single_slow_answer_do_not_change_the_interval(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    assert waited(pace, clock, 1.0) == 1.0, "the first answer may be slow, because all trials begin at once"
    assert waited(pace, clock, 0.004, 0.004, 1.0, 0.004) == 1.0


def test_answers_to_reports_at_rungs_do_not_change_the_interval(clock: Clock) -> None:
    pace = ReportPace(clock=clock.monotonic)
    for _ in range(5):  # the pace is not informed of these reports
        clock.sleep(2.0)
        pace.answered()
    assert pace.seconds() == 1.0


def test_interval_is_limited_by_the_longest_allowed_silence(clock: Clock) -> None:
    pace = ReportPace({"seconds": 3.0, "longest": 2.5}, clock.monotonic)
    assert waited(pace, clock, *[1.0] * 5) == 2.5
    pace.ask({"seconds": 3.0, "longest": 0.5})
    assert pace.seconds() == 1.0, "the interval is at least one second"
