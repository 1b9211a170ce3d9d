"""Failures stop a sweep: by a limit, by the first trials that end, or by half of the first twenty."""

from __future__ import annotations

import pytest

from orchestrator.sweeps.failure_limit import FailureLimit


def counted(causes: list[str | None], limit: int | None = None) -> FailureLimit:
    failures = FailureLimit(limit)
    for trial, cause in enumerate(causes):
        failures.count(trial, cause)
    return failures


@pytest.mark.parametrize(
    ("causes", "limit", "reached"),
    [
        (["no such file: a"] * 4, None, False),
        (["no such file: a"] * 5, None, True),
        (["no such file: a"] * 4 + ["another"], None, False),
        (["loss is nan in epoch 3", "loss is nan in epoch 14", *["loss is nan in epoch 1e-3"] * 3], None, True),
        ([None, *["no such file: a"] * 9], None, False),
        ([None, *["no such file: a"] * 10], None, True),
        ([None] * 10 + ["a", "b"] * 5, None, True),
        ([None] * 11 + ["a"] * 100, None, False),
        (["a", "b", None], 2, True),
        (["a"] * 50, 51, False),
        ([], None, False),
    ],
)
def test_failure_limit_is_reached_by_count_or_share_of_failures(
    causes: list[str | None], limit: int | None, reached: bool
) -> None:
    assert counted(causes, limit).is_reached() is reached


def test_message_names_each_cause_with_its_count() -> None:
    assert str(counted(["nan in epoch 3", None, "nan in epoch 5"])) == "2 of 3 trials failed with: nan in epoch 3"
    text = str(counted(["killed", "nan in epoch 3", None, "nan in epoch 5"]))
    assert text == "3 of 4 trials failed: 2 with: nan in epoch 3; 1 with: killed"


def test_count_returns_the_first_trial_with_the_same_cause() -> None:
    failures = FailureLimit(9)
    causes = ["killed", None, "nan in epoch 3", "killed", "nan in epoch 5"]
    assert [failures.count(trial, cause) for trial, cause in enumerate(causes)] == [0, 1, 2, 0, 2]


def test_a_trial_of_several_seeds_counts_once() -> None:
    """Two seeds of each trial succeed and the third fails: five trials, all with one cause."""
    failures = FailureLimit(None)
    for trial in range(5):
        for seed in range(3):
            assert not failures.is_reached()
            failures.count(trial, f"no such file (seed {seed})" if seed == 2 else None)
    assert failures.is_reached()
    assert str(failures) == "5 of 5 trials failed with: no such file (seed 2)"
