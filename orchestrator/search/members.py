"""The parameters of a population's members, which change at meetings (:mod:`~orchestrator.search.pbt`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LINEAGE = "lineage"
"""Attribute of a member: at which epochs it took over from whom, and the parameters it continued with."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the training that led to a member's weights: ``trial`` trained from epoch ``first`` with ``params``."""

    trial: int
    first: int
    params: dict[str, Any]


def parts(trials: Sequence[FrozenTrial], number: int) -> list[Part]:
    """The parts of the training of trial ``number``, the last one first. One that took over nothing has one.

    ``trials`` are all of the sweep by number.
    """
    earlier: list[Part] = []
    before = float("inf")
    while steps := [step for step in trials[number].user_attrs.get(LINEAGE, ()) if step["epoch"] < before]:
        before = steps[-1]["epoch"]
        earlier.append(Part(number, steps[-1]["epoch"] + 1, steps[-1]["params"]))
        number = steps[-1]["from"]
    attributes = trials[number].user_attrs
    return [*earlier, Part(number, 0, attributes.get("began_with", attributes["params"]))]


def at(training: Sequence[Part], epoch: int) -> Part:
    """The part of the training that ``epoch`` belongs to."""
    return next(part for part in training if part.first <= epoch)


def with_present_params(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """``trials``, where members that took over have their parameters in place of those that were drawn for them.

    Of a member that ran to its end they are those of its best epoch.
    """
    return [
        _with_present_params(trials, trial) if {LINEAGE, "params"} <= trial.user_attrs.keys() else trial
        for trial in trials
    ]


def _with_present_params(trials: Sequence[FrozenTrial], trial: FrozenTrial) -> FrozenTrial:
    training = parts(trials, trial.number)
    ended = trial.state.name == "COMPLETE"
    present = at(training, trial.user_attrs["best_epoch"]) if ended else training[0]
    drawn = trials[training[-1].trial]
    changed = copy.copy(trial)
    changed.params = {name: present.params.get(name, value) for name, value in drawn.params.items()}
    changed.distributions = drawn.distributions
    return changed
