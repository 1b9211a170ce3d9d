"""The numbers did not move. Processors differ in the last digits, and a rank may flip on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.curves.record import CASES, FILE, curve

RECORDED = json.loads(FILE.read_text())
USERS = 600
"""NDCG is a mean over them: a rank that flips between nearly equal scores costs less than one user's value."""


@pytest.mark.parametrize("name", CASES)
def test_the_curve_is_the_recorded_one(name: str) -> None:
    found: list[Any] = curve(CASES[name])
    assert len(found) == len(RECORDED[name])
    for epoch, (row, recorded) in enumerate(zip(found, RECORDED[name]), 1):
        assert row[0] == pytest.approx(recorded[0], rel=1e-5), f"loss of epoch {epoch}"
        assert row[1] == pytest.approx(recorded[1], abs=1 / USERS), f"NDCG at epoch {epoch}"
        assert row[2] == pytest.approx(recorded[2], abs=5e-4), f"AUC at epoch {epoch}"
