"""Schedulers: which trials end early.

A scheduler decides at a rung, when a trial has reported its value there. The decision follows from values that the
journal holds, so a trial that is judged again after a crash is judged alike. ASHA, Hyperband and median decide as
Optuna's pruners, which keep a state of their own in the journal and would let a trial pass that was judged just before
its driver died. Values are signed: greater is better.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from orchestrator.config import user_code

REDUCTION = 3
"""ASHA and Hyperband keep the best 1/REDUCTION at each rung."""

STARTUP = 5
"""Median prunes no trial before so many are complete."""

PARTS = 10
"""Median and racing decide, and populations meet, after each of so many parts of a trial."""


@dataclass
class Observed:
    """What is known of a trial.

    ``values`` are its signed values at rungs, by epoch. ``is_complete``: it ran to its end. ``is_out``: it was stopped,
    failed, or violates a constraint, and cannot win.
    """

    values: dict[int, float] = field(default_factory=dict)
    is_complete: bool = False
    is_out: bool = False

    @property
    def has_ended(self) -> bool:
        return self.is_complete or self.is_out


Trials = Mapping[int, Observed]

Bracket = tuple[int, tuple[int, ...]]
"""Relative number of the trials of a bracket, and its rungs."""


class Scheduler(Protocol):
    """Decides at rungs."""

    def prunes(self, number: int, epoch: int, trials: Trials) -> bool:
        """Whether trial ``number``, whose value at the rung ``epoch`` is among ``trials``, ends there."""
        ...


class Median:
    """Stop a trial whose best value so far is below the median of the complete trials at this rung.

    With ``ordered``, of the trials with lower numbers that have reached it, complete or not.
    """

    def __init__(self, *, ordered: bool = False) -> None:
        self._ordered = ordered

    def prunes(self, number: int, epoch: int, trials: Trials) -> bool:
        if self._ordered:
            compared = [trial for other, trial in trials.items() if other < number and epoch in trial.values]
        else:
            compared = [trial for trial in trials.values() if trial.is_complete]
        values = [trial.values[epoch] for trial in compared if epoch in trial.values]
        if len(compared) < STARTUP or not values:
            return False
        return max(trials[number].values.values()) < median(values)


class Halving:
    """Asynchronous successive halving (Li et al., 2020): at each rung the best 1/REDUCTION go on.

    With several brackets, Hyperband: a trial belongs to one of them and competes within it.
    """

    def __init__(self, brackets: Sequence[Bracket]) -> None:
        self._brackets = brackets

    def prunes(self, number: int, epoch: int, trials: Trials) -> bool:
        bracket = self._bracket(number)
        if epoch not in self._brackets[bracket][1]:
            return False
        values = sorted(
            (
                trial.values[epoch]
                for other, trial in trials.items()
                if epoch in trial.values and self._bracket(other) == bracket
            ),
            reverse=True,
        )
        return trials[number].values[epoch] < values[max(0, len(values) // REDUCTION - 1)]

    def _bracket(self, number: int) -> int:
        """Optuna's choice of the bracket: by a digest of the study's name and the trial's number."""
        if len(self._brackets) == 1:
            return 0
        slot = binascii.crc32(f"sweep_{number}".encode()) % sum(size for size, _ in self._brackets)
        for bracket, (size, _) in enumerate(self._brackets):
            slot -= size
            if slot < 0:
                return bracket
        raise AssertionError


def rungs(epochs: int, scheduler: str) -> tuple[int, ...]:
    """Epochs at which ``scheduler`` decides, all below ``epochs``.

    ASHA and Hyperband: a ninth of the epochs, then three times as many, up to half of them. Median, racing, PBT and
    those of users: each tenth. Racing also takes the values at half of the first tenth, so that it can decide
    at its end.
    """
    if scheduler == "none":
        return ()
    if scheduler in ("median", "pbt", "racing") or user_code.is_named(scheduler):
        every = max(1, epochs // PARTS)
        tenths = range(every, epochs, every)
        return (every // 2, *tenths) if scheduler == "racing" and every > 1 else tuple(tenths)
    first = max(1, epochs // REDUCTION**2)
    epochs_of_rungs = []
    while first <= epochs // 2:
        epochs_of_rungs.append(first)
        first *= REDUCTION
    return tuple(epochs_of_rungs)


def brackets(epochs: int, scheduler: str) -> list[Bracket]:
    """Brackets of a halving scheduler. ASHA has one."""
    decide_at = rungs(epochs, scheduler)
    if scheduler != "hyperband" or not decide_at:
        return [(1, decide_at)]
    count = math.floor(math.log(epochs / decide_at[0], REDUCTION)) + 1
    # Algorithm 1 of the paper (Li et al., 2018).
    sizes = [math.ceil(count * REDUCTION ** (count - 1 - k) / (count - k)) for k in range(count)]
    return [(size, decide_at[bracket:]) for bracket, size in enumerate(sizes)]
