"""Polling of a condition at intervals."""

from __future__ import annotations

import pytest

from orchestrator.cluster import polling


def test_condition_is_polled_at_intervals_until_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(polling.time, "monotonic", lambda: now[0])
    asked: list[float] = []

    def ask() -> bool:
        asked.append(now[0])
        return now[0] >= 120

    for wait, at in ((False, [100.0, 110.0, 120.0]), (True, [110.0, 120.0])):
        now[0] = 100.0
        asked.clear()
        answered = polling.at_intervals(ask, 10, wait=wait)
        answers = []
        for now[0] in (100.0, 109.0, 110.0, 120.0, 130.0):
            answers.append(answered())
        assert answers == [False, False, False, True, True]
        assert asked == at
