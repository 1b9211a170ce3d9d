"""Losses and metrics match recorded curves.

Processors differ in the last digits, and near-equal scores change ranks with them. So values are compared within a
tolerance, and ranks by the share of users with equal metrics.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.curves import encoders
from tests.curves.record import CASES, FILE, LOSS_CASES, LOSSES, METRICS, UNITS, curve, losses

RECORDED, RECORDED_UNITS, RECORDED_LOSSES = (json.loads(file.read_text()) for file in (FILE, UNITS, LOSSES))
RECORDED_ENCODERS = json.loads(encoders.FILE.read_text())


@pytest.mark.parametrize("name", CASES)
def test_curve_matches_the_recorded_curve(name: str) -> None:
    rows, units = curve(CASES[name])
    assert [row[0] for row in rows] == pytest.approx([row[0] for row in RECORDED[name]], rel=1e-5), "loss by epoch"
    for column, metric in enumerate(METRICS, 1):
        found, recorded = np.array(units[metric]), np.array(RECORDED_UNITS[name][metric])
        assert found.shape == recorded.shape
        assert np.isclose(found, recorded, atol=1e-5, equal_nan=True).mean() > 0.95, f"{metric} by user"
        flipped = np.nanmean(found) - np.nanmean(recorded)
        assert rows[-1][column] - flipped == pytest.approx(RECORDED[name][-1][column], abs=1e-5), f"mean {metric}"


@pytest.mark.parametrize("name", LOSS_CASES)
def test_losses_match_the_recorded_losses(name: str) -> None:
    tolerance = 3e-4 if "sampler" in LOSS_CASES[name].params else 1e-5  # choices by scores change with the last digits
    assert losses(LOSS_CASES[name]) == pytest.approx(RECORDED_LOSSES[name], rel=tolerance)


@pytest.mark.parametrize("name", encoders.CASES)
@pytest.mark.usefixtures("one_thread")
def test_curve_of_an_encoder_matches_the_recorded_curve(name: str) -> None:
    found, recorded = encoders.CASES[name].curve(), RECORDED_ENCODERS[name]
    assert found.keys() == recorded.keys()
    for metric, values in found.items():
        assert values == pytest.approx(recorded[metric], rel=encoders.TOLERANCE), f"{metric} by epoch"
