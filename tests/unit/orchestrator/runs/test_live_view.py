"""The live view of a run and a sweep: what it shows at 80 and 130 columns, and its estimate of the time left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from orchestrator.runs import live_view
from orchestrator.runs.driver_status import DriverStatus
from orchestrator.runs.live_view import ROWS, RunningTrial, run_view, sweep_view
from tests.support.toy import Clock

NOW = Clock.now

STATUS = DriverStatus(
    done=2,
    target=8,
    trials={"complete": 1, "pruned": 1, "running": 2, "waiting": 3},
    best={"trial": 4, "error": 0.125},
    best_params={"lr": 0.01, "dim": 64},
    device_seconds={"cpus": 125.0, "gpus": 0.0},
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "time", Clock())


def trial(number: int, epoch: int = 0) -> RunningTrial:
    return RunningTrial(f"trial {number}", "lr=0.01", 50, epoch, 0.5, 0.25, NOW - 10)


def text(view: RenderableType, width: int = 130) -> list[str]:
    shown = io.StringIO()
    Console(file=shown, width=width).print(view)
    return shown.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 130])
def test_sweep_view_shows_running_trials_progress_and_best(width: int) -> None:
    lines = text(sweep_view(STATUS, [trial(2, 10), trial(11)], "error", NOW - 20), width)
    assert max(map(len, lines)) <= width
    assert lines[1].split() == ["2", "10/50", "0.5", "0.25", "10", "s", "lr=0.01"]
    assert lines[2].split()[:2] == ["11", "starts"]
    assert "2/8 trials 1 complete, 1 pruned, 2 running, 20 s passed" in lines[3]
    assert lines[4] == "best error 0.125, trial 4: lr=0.01 dim=64"
    if width == 130:
        assert lines[3].rstrip().endswith("2 min 05 s CPU time")


def test_of_many_running_trials_the_first_are_shown() -> None:
    lines = text(sweep_view(STATUS, [trial(number, 1) for number in range(ROWS + 5)], "error", 0.0))
    assert lines[ROWS + 1] == "and 5 more"


def test_a_failure_is_shown() -> None:
    status = DriverStatus(trials={"fail": 1}, trouble="trial 3: CUDA out of memory")
    lines = text(sweep_view(status, [], "error", 0.0))
    assert "last failure: trial 3: CUDA out of memory" in lines
    assert any("1 failed," in line for line in lines)


@pytest.mark.parametrize(
    ("running", "done", "seeds", "known", "left"),
    [
        ([trial(0, 10), trial(1, 10)], 0, 1, None, "40 s + 6/2 * 50 s = 3 min 10 s"),
        ([trial(0, 10), trial(1, 10)], 0, 2, None, "40 s + 14/2 * 50 s = 6 min 30 s"),
        ([trial(0, 10)], 7, 1, 0.0, "40 s"),  # the trials that ended were pruned
        ([trial(0, 10)], 2, 1, 300.0, "5 min 00 s"),
        ([trial(0)], 2, 1, 70.0, "1 min 10 s"),
    ],
)
def test_time_left_is_estimated_from_running_and_remaining_trials(
    running: list[RunningTrial], done: int, seeds: int, known: float | None, left: str
) -> None:
    status = DriverStatus(done=done, target=8, seconds_left=known)
    assert f"{left.rpartition('= ')[2]} left" in "\n".join(text(sweep_view(status, running, "error", 0.0, seeds)))


def test_no_time_left_is_shown_before_a_trial_ends_an_epoch() -> None:
    assert " left" not in "".join(text(sweep_view(DriverStatus(target=8), [trial(0)], "error", 0.0)))


def test_a_run_shows_its_epoch_and_values() -> None:
    status = DriverStatus(12, 50, best={"validation/error": 0.25}, seconds_left=9.0, device_seconds={"gpus": 3.0})
    lines = text(run_view(status, "epochs", {"train/loss": 0.5, "validation/error": 0.375}, 4.0), 80)
    assert lines[0].rstrip().endswith("12/50 epochs 4 s passed, 9 s left, 3 s GPU time")
    assert lines[1] == "train/loss 0.5  validation/error 0.375  best validation/error 0.25"
