"""What ``predict`` says at its end about a model that abstains: answers, promise, drift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import UserError
from workloads.abstention.decision import KEY, PARAMS
from workloads.abstention.drift import drift

if TYPE_CHECKING:
    import pandas as pd

FALSE_ALARMS = 0.01
"""The probability of an alarm for a file of queries that are exchangeable with the calibration queries."""


def refuse(model: str, name: str, value: Any) -> None:
    """Raise UserError if ``name=value`` asks a model without an abstention part to abstain."""
    if name in PARAMS:
        raise UserError(
            f"{model} promises no risk: no queries were held out of its training", got=f"{name}={value}",
            fix="Train a model of vera, text_ranker or lifelong with abstention_part=0.2, or of bi_encoder with "
            "calibrate_on=FOLDER",
        )  # fmt: skip


class Summary:
    """Sums up the decisions of all batches."""

    def __init__(self) -> None:
        self._reported: list[dict[str, Any]] = []

    def add(self, predictions: pd.DataFrame) -> None:
        """Take what the model says of a batch (``Rule.attrs``), if it abstains."""
        if report := predictions.attrs.get(KEY):
            self._reported.append(report)

    def lines(self) -> list[str]:
        """How many queries were answered, the promise, and whether these are still the queries it is made for."""
        if not self._reported:
            return []
        first = self._reported[0]
        answered = sum(sum(report["answered"]) for report in self._reported)
        scores = np.concatenate([report["scores"] for report in self._reported])
        lines = [f"{answered} of {len(scores)} queries answered; {first['promise']}"]
        test = drift(np.array(first["calibration"]), scores)
        if test is None:
            return lines
        rate = f"p = {test.p:.3g}; an alarm is false for {FALSE_ALARMS:.0%} of files"
        if test.p <= FALSE_ALARMS:
            return [
                *lines,
                f"drift: the scores are not those of the calibration queries, so nothing is promised ({rate})",
            ]
        return [*lines, f"drift: none seen ({rate})"]
