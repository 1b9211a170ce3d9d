"""Racing: trials that cannot win are stopped, with a stated error rate, and decisions survive restarts."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import UserError
from orchestrator.search import unit_values
from orchestrator.search.racing import LEVEL, UNITS, Racing, _allowance
from orchestrator.search.schedulers import Observed, rungs
from orchestrator.search.study import Study
from orchestrator.search.unit_values import UnitValues
from tests.support.searching import attributes, begin, complete, rows, states, study
from workloads.contract import Objective

EPOCHS = 40
DECIDE_AT = rungs(EPOCHS, "racing")
SCORE = Objective("error", "max")


def encoded(values: Any) -> Any:
    values = np.asarray(values, dtype=float)
    return unit_values.encode({"id": np.arange(len(values)), "error": values}, float(values.mean()))


def curve(final: float, rate: float, epoch: int) -> float:
    """A value that saturates, as learning curves do."""
    return final * (1 - math.exp(-rate * epoch))


def run_trial(running: Study, number: int, values: dict[int, Any]) -> str:
    """Report the units at each rung. Return the verdict of the last rung, or of the end."""
    for epoch in DECIDE_AT:
        value = float(np.mean(values[epoch]))
        running.observe(number, epoch, encoded(values[epoch]))
        verdict = running.report(number, rows((epoch, value)), value, False, attributes(value, epoch, epoch))
        if verdict != "go on":
            return verdict
    value = float(np.mean(values[EPOCHS]))
    return complete(running, number, value)


def racing(folder: Path, **options: Any) -> Study:
    options = {"scheduler": "racing", "trials": 60, "epochs": EPOCHS, "decide_at": DECIDE_AT} | options
    return study(folder, SCORE, **options)


def trial_units(rng: np.random.Generator, easy: Any, final: float, rate: float) -> dict[int, Any]:
    """Values by unit at each relevant epoch: the sum of the unit's level, the trial's curve, and noise."""
    noise = rng.normal(0, 0.1, len(easy))
    return {epoch: easy + curve(final, rate, epoch) + noise for epoch in (*DECIDE_AT, EPOCHS)}


def test_weak_trials_are_stopped_and_the_best_is_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    easy = rng.normal(0, 0.5, 400)
    running = racing(tmp_path)
    finals = rng.uniform(0.2, 1.0, 30)
    verdicts = []
    for final in finals:
        number = begin(running).number
        verdicts.append(run_trial(running, number, trial_units(rng, easy, final, 0.15)))
    assert verdicts[int(finals.argmax())] == "complete"
    assert verdicts.count("pruned") > 12
    stopped = [t for t in running.trials if t.state.name == "PRUNED"]
    assert all(len(trial.intermediate_values) >= 2 for trial in stopped), "the slope needs two rungs"
    assert all(trial.user_attrs["decision"]["prune"] for trial in stopped)


def test_a_slow_trial_that_will_win_goes_on(tmp_path: Path) -> None:
    """Its value is linear in the logarithm of the epoch, and the allowance extrapolates this growth."""
    rng = np.random.default_rng(1)
    easy = rng.normal(0, 0.5, 400)
    running = racing(tmp_path)
    fast = dict.fromkeys((*DECIDE_AT, EPOCHS), easy + 0.5)
    slow = {epoch: easy + 0.15 * math.log(epoch) for epoch in (*DECIDE_AT, EPOCHS)}
    assert float(np.mean(slow[EPOCHS] - fast[EPOCHS])) > 0
    assert float(np.mean(fast[8] - slow[8])) > 0.15
    assert run_trial(running, begin(running).number, fast) == "complete"
    assert run_trial(running, begin(running).number, slow) == "complete"


@pytest.mark.parametrize(
    ("values", "epoch", "gain"),
    [
        ({4: 0.2, 8: 0.4}, 8, 0.4),  # two further doublings, each with the gain of the last one
        ({4: 0.2, 8: 0.3, 12: 0.35, 16: 0.5}, 16, 0.2),  # the gain from 8 to 16, once more
        ({4: 0.5, 8: 0.7, 16: 0.6}, 16, 0.0),  # the best value counts, so there is no loss
        ({8: 0.3, 12: 0.9}, 12, None),  # no rung up to half of the epoch
    ],
)
def test_allowance_is_extrapolated_from_the_gain_over_past_rungs(
    values: dict[int, float], epoch: int, gain: float | None
) -> None:
    assert _allowance(values, epoch, 32) == (None if gain is None else pytest.approx(gain))


@pytest.mark.parametrize("units_of", [4, 100])
def test_the_best_is_stopped_at_most_as_often_as_promised(units_of: int) -> None:
    """The true values of the trials are close: by the noise over units alone, each could be the best."""
    stopped = 0
    replications = 100
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        easy = rng.normal(0, 0.5, units_of)
        scheduler = Racing(EPOCHS)
        trials: dict[int, Observed] = {}
        finals = rng.uniform(0.75, 0.8, 8)
        units = [trial_units(rng, easy, final, 0.15) for final in finals]
        best = int(finals.argmax())
        for epoch in DECIDE_AT:
            for number in range(8):
                observed = trials.setdefault(number, Observed())
                if observed.is_out:
                    continue
                observed.values[epoch] = float(units[number][epoch].mean())
                scheduler.observe(number, UnitValues(units_of, "a", units[number][epoch]))
                observed.is_out = scheduler.prunes(number, epoch, trials)
        stopped += trials[best].is_out
    assert stopped / replications <= LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / replications)


def test_error_rate_holds_when_only_part_of_the_units_is_kept() -> None:
    """Two equal trials. Only 100 of 10,000 units are kept, and these differ more than all would."""
    stopped = 0
    replications = 400
    for seed in range(replications):
        rng = np.random.default_rng(seed)
        scheduler = Racing(EPOCHS)
        trials = {number: Observed({4: 0.5, 8: 0.5}) for number in range(2)}
        for number in trials:
            scheduler.observe(number, UnitValues(10_000, "a", rng.normal(0.5, 0.2, 100)))
            pruned = scheduler.prunes(number, 8, trials)
        stopped += pruned
    assert stopped / replications <= LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / replications)


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_trial_that_violates_a_constraint_stops_no_trial(ends_first: bool, tmp_path: Path) -> None:
    """It stops none during its training either, when the value of its last epoch is not known."""
    easy = np.random.default_rng(5).normal(0, 0.1, 200)
    running = racing(tmp_path, constraint=["ece<=0.05"])
    first = begin(running).number
    for epoch in DECIDE_AT:
        running.observe(first, epoch, encoded(easy + 0.9))
        assert running.report(first, rows((epoch, 0.9)), 0.9, False, attributes(0.9, epoch, epoch, ece=0.5)) == "go on"

    def run(level: float) -> str:
        number = begin(running).number
        for epoch in DECIDE_AT:
            value = float((easy + level).mean())
            running.observe(number, epoch, encoded(easy + level))
            about = attributes(value, epoch, epoch, ece=0.01)
            if running.report(number, rows((epoch, value)), value, False, about) == "pruned":
                return "pruned"
        return complete(running, number, level, ece=0.01)

    if ends_first:
        complete(running, first, 0.9, ece=0.5)
    assert [run(level) for level in (0.6, 0.5, 0.7)] == ["complete", "pruned", "complete"]
    if not ends_first:
        complete(running, first, 0.9, ece=0.5)
    winner = running.winner()
    assert winner is not None
    assert winner.number == 3


@pytest.mark.parametrize("resumed", [False, True])
def test_leader_behind_stopped_trials_at_early_rungs_still_stops_others(resumed: bool, tmp_path: Path) -> None:
    """Six trials were ahead at the first rungs and stopped later. The winner, behind them there, still stops others."""
    easy = np.random.default_rng(6).normal(0, 0.1, 200)
    running = racing(tmp_path)
    slow = {epoch: easy + 0.15 * math.log(epoch) for epoch in (*DECIDE_AT, EPOCHS)}
    assert run_trial(running, begin(running).number, slow) == "complete"
    for _ in range(6):
        assert run_trial(running, begin(running).number, dict.fromkeys((*DECIDE_AT, EPOCHS), easy + 0.3)) == "pruned"
    if resumed:
        running = racing(tmp_path)
    number = begin(running).number
    hopeless = dict.fromkeys((*DECIDE_AT, EPOCHS), easy - 1.0)
    assert run_trial(running, number, hopeless) == "pruned"
    assert max(running.trials[number].intermediate_values) == 4


def test_leaders_are_restored_after_a_driver_restart(tmp_path: Path) -> None:
    easy = np.random.default_rng(2).normal(0, 0.5, 200)
    strong = dict.fromkeys((*DECIDE_AT, EPOCHS), easy + 1.0)
    weak = dict.fromkeys((*DECIDE_AT, EPOCHS), easy + 0.3)
    running = racing(tmp_path)
    assert run_trial(running, begin(running).number, strong) == "complete"
    with (tmp_path / UNITS).open("a") as stream:
        stream.write('{"trial": 7, "ep')  # a driver was killed here
    again = racing(tmp_path)
    assert run_trial(again, begin(again).number, weak) == "pruned"
    assert again.trials[1].intermediate_values.keys() == set(DECIDE_AT[:2]) == {2, 4}


@pytest.mark.parametrize("direction", ["min", "max"])
def test_weak_trial_is_pruned_for_min_and_max_objectives(direction: Any, tmp_path: Path) -> None:
    sign = 1.0 if direction == "max" else -1.0
    easy = np.random.default_rng(3).normal(0, 0.5, 200)
    running = study(
        tmp_path, Objective("error", direction), scheduler="racing", trials=4, epochs=EPOCHS, decide_at=DECIDE_AT
    )
    verdicts = [
        run_trial(running, begin(running).number, dict.fromkeys((*DECIDE_AT, EPOCHS), easy + sign * level))
        for level in (1.0, 0.3, 1.1)
    ]
    assert verdicts == ["complete", "pruned", "complete"]


def test_a_leader_that_failed_stops_no_trial(tmp_path: Path) -> None:
    easy = np.random.default_rng(4).normal(0, 0.5, 200)
    running = racing(tmp_path)
    first = begin(running).number
    for epoch in DECIDE_AT:
        running.observe(first, epoch, encoded(easy + 1.0))
        running.report(first, rows((epoch, 1.0)), 1.0, False, attributes(1.0, epoch, epoch))
    running.fail(first, "it diverged")
    weak = dict.fromkeys((*DECIDE_AT, EPOCHS), easy + 0.3)
    assert run_trial(running, begin(running).number, weak) == "complete"


@pytest.mark.parametrize(
    ("units", "unpaired"),
    [(None, True), ([0.5], True), (list(range(7)), True), ([0.5, math.nan, 0.5, 0.5], True), ([0.5] * 4, False)],
    ids=["none", "one", "others", "nan", "constant"],
)
def test_units_that_cannot_be_compared_stop_no_trial(units: Any, unpaired: bool, tmp_path: Path) -> None:
    """Constant units can be compared: equal trials are equal, and no trial is stopped."""
    running = racing(tmp_path)
    for _ in range(2):
        number = begin(running).number
        for epoch in DECIDE_AT:
            running.observe(number, epoch, encoded([0.5] * 4) if number == 0 else units and encoded(units))
            assert running.report(number, rows((epoch, 0.5)), 0.5, False, attributes(0.5, epoch, epoch)) == "go on"
    assert running.unpaired is unpaired


def test_trial_with_constant_and_worse_units_is_pruned(tmp_path: Path) -> None:
    running = racing(tmp_path)
    levels = {0: 0.5, 1: 0.4}
    verdicts = [
        run_trial(running, begin(running).number, {e: [level] * 4 for e in (*DECIDE_AT, EPOCHS)})
        for level in levels.values()
    ]
    assert verdicts == ["complete", "pruned"]


class TestOrdered:
    """``--ordered``: the decisions do not depend on concurrency or on kills of the driver."""

    TRIALS = 14

    def play(self, folder: Path, scheduler: str, slots: int, seed: int, deaths: bool) -> list[str]:
        """Run a sweep on ``slots`` slots, reports in random order; with ``deaths`` the driver is killed at times."""
        source = random.Random(seed)
        easy = np.random.default_rng(9).normal(0, 0.5, 100)

        def ours() -> Study:
            return racing(folder, scheduler=scheduler, ordered=True, trials=self.TRIALS)

        def units(number: int) -> dict[int, Any]:
            rng = np.random.default_rng(100 + number)
            return trial_units(rng, easy, rng.uniform(0.3, 1.0), rng.uniform(0.05, 0.3))

        running = ours()
        saved: dict[int, int] = {}
        live: dict[int, int] = {}
        for _ in range(5000):
            if deaths and source.random() < 0.03:
                running, live = ours(), {}
            while len(live) < slots and (trial := running.next()) is not None:
                live[trial.number] = saved.get(trial.number, 0)  # the trial reports its checkpoint's rung again
            if not live:
                assert running.exhausted()
                return states(running)
            number = source.choice(sorted(live))
            epochs = (*DECIDE_AT, EPOCHS)
            index = live[number]
            values = units(number)[epochs[index]]
            value = float(values.mean())
            ended = epochs[index] == EPOCHS
            if not ended:
                saved[number] = index
                running.observe(number, epochs[index], encoded(values))
            about = attributes(value, epochs[index], epochs[index])
            verdict = running.report(number, rows((epochs[index], value)), value, ended, about)
            if verdict == "go on":
                live[number] += 1
            else:
                del live[number]
        raise AssertionError("the sweep does not end")

    @pytest.mark.parametrize("scheduler", ["racing", "median"])
    def test_decisions_do_not_depend_on_the_order_of_events(self, scheduler: str, tmp_path: Path) -> None:
        one_by_one = self.play(tmp_path / "one", scheduler, 1, 0, deaths=False)
        assert {"PRUNED", "COMPLETE"} == set(one_by_one)
        for seed in range(4):
            folder = tmp_path / f"{seed}"
            assert self.play(folder, scheduler, 2 + 2 * seed, seed, deaths=seed % 2 == 1) == one_by_one

    def at(self, running: Study, number: int, epoch: int, level: float) -> str:
        running.observe(number, epoch, encoded(level + np.arange(4) * 0.01))
        level = float(level + 0.015)
        return running.report(number, rows((epoch, level)), level, False, attributes(level, epoch, epoch))

    def test_trial_is_compared_with_earlier_ones_when_later_ones_report_first(self, tmp_path: Path) -> None:
        running = racing(tmp_path, ordered=True, trials=8)
        levels = [0.6, 0.2, *[0.9] * 6]
        for number, level in enumerate(levels):
            assert begin(running).number == number
            assert self.at(running, number, 4, level) == "go on"
        for number in range(2, 8):
            assert self.at(running, number, 8, levels[number]) == "paused"
        assert self.at(running, 0, 8, levels[0]) == "go on"
        assert self.at(running, 1, 8, levels[1]) == "pruned"

    @pytest.mark.parametrize("first", [1, 2])
    def test_decision_at_a_rung_ignores_later_pruning_of_other_trials(self, first: int, tmp_path: Path) -> None:
        """Trial 1 is the best at epoch 8 and is stopped at 12, before or after trial 2 is judged at 8."""
        running = racing(tmp_path, ordered=True, trials=3)
        for number, level in enumerate((0.5, 0.8, 0.6)):
            assert begin(running).number == number
            assert self.at(running, number, 4, level) == "go on"
        assert self.at(running, 0, 8, 0.5) == "go on"
        assert self.at(running, 0, 12, 2.0) == "go on"
        assert self.at(running, 1, 8, 0.8) == "go on"
        steps = {1: lambda: self.at(running, 1, 12, 0.8), 2: lambda: self.at(running, 2, 8, 0.6)}
        assert [steps[number]() for number in sorted(steps, reverse=first == 2)] == ["pruned", "pruned"]

    def test_trial_does_not_wait_for_one_stopped_before_it_began(self, tmp_path: Path) -> None:
        first = racing(tmp_path, ordered=True, trials=3)
        for _ in range(2):
            first.optuna_study.enqueue_trial({"lr": 0.5})
        running = racing(tmp_path, ordered=True, trials=3)
        assert running.stop_trial(0, "pruned", "a request") == "WAITING"
        assert begin(running).number == 1
        assert self.at(running, 1, 4, 0.5) == "go on"

    def test_trial_waits_for_earlier_trials_only(self, tmp_path: Path) -> None:
        running = racing(tmp_path, ordered=True, trials=3)
        first, second = begin(running).number, begin(running).number
        running.observe(second, 4, encoded([0.5] * 4))
        about = attributes(0.5, 4, 4)
        assert running.report(second, rows((4, 0.5)), 0.5, False, about) == "paused"
        assert running.report(first, rows((4, 0.5)), 0.5, False, about) == "go on"
        assert begin(running).number == second


@pytest.mark.parametrize("options", [{"scheduler": "asha"}, {"scheduler": "none"}])
def test_ordered_is_refused_with_other_schedulers_workers_or_constraints(options: dict[str, Any]) -> None:
    from orchestrator.config.spec import Resources
    from orchestrator.search.strategy import _check_ordered
    from tests.support.searching import sweep

    with pytest.raises(UserError, match="cannot wait"):
        _check_ordered(sweep(ordered=True, **options).search, Resources())
    with pytest.raises(UserError, match="several workers"):
        _check_ordered(sweep(ordered=True, scheduler="racing").search, Resources(workers=2))
    with pytest.raises(UserError, match="violate a constraint"):
        _check_ordered(sweep(ordered=True, scheduler="racing", constraint=["ece<=0.1"]).search, Resources())
