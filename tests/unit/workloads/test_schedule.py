"""Stages by epoch: shares, stages without a share, and stages that end when their loss stops falling."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from workloads.schedule import Progress, advanced, own_or_stand_in, stage_ends, stage_of


def stages(epochs: int, shares: tuple[float, ...]) -> list[int]:
    ends = stage_ends(epochs, shares)
    return [stage_of(epoch, ends) for epoch in range(1, epochs + 1)]


def test_epochs_are_divided_among_stages_by_their_shares() -> None:
    assert stages(8, (0.5, 0.25, 0.25)) == [1, 1, 1, 1, 2, 2, 3, 3]
    assert stages(100, (2, 1, 1)).count(1) == 50


@pytest.mark.parametrize("epochs", range(3, 12))
def test_every_stage_with_a_share_has_an_epoch(epochs: int) -> None:
    found = stages(epochs, (0.9, 0.05, 0.05))
    assert set(found) == {1, 2, 3}
    assert found == sorted(found)


def test_a_stage_without_a_share_is_left_out() -> None:
    assert stages(4, (0.5, 0, 0.5)) == [1, 1, 3, 3]
    assert stages(2, (0, 0, 1)) == [3, 3]
    assert stages(2, (1, 0, 0)) == [1, 1]


def test_epoch_beyond_the_last_belongs_to_the_last_stage() -> None:
    assert stage_of(9, stage_ends(4, (1, 1, 0))) == 2


def test_too_few_epochs_leave_out_the_smallest_shares() -> None:
    assert stages(2, (0.5, 0.25, 0.25)) == [1, 3]
    assert stages(2, (0.2, 0.5, 0.3)) == [2, 3]
    assert stages(1, (0.5, 0.25, 0.25)) == [1]


def after(losses: list[float], ends: tuple[int, ...], patience: int = 2) -> list[int]:
    progress, found = Progress(stage_of(1, ends)), []
    for epoch, loss in enumerate(losses, 1):
        found.append(progress.stage)
        progress = advanced(progress, epoch, loss, ends, patience, 0.01)
        progress = Progress(**asdict(progress))
    return found


def test_a_plateau_ends_a_stage() -> None:
    assert after([1, 0.5, 0.499, 0.499, 3, 3, 3, 3], (10, 12, 20)) == [1, 1, 1, 1, 2, 2, 3, 3]


def test_stage_with_a_falling_loss_ends_at_its_share() -> None:
    assert after([9, 8, 7, 6, 5, 4], (2, 2, 4)) == [1, 1, 3, 3, 3, 3]


def test_last_stage_continues_after_a_plateau() -> None:
    assert after([1, 1, 1, 1, 1, 1], (2, 4, 4), patience=1) == [1, 1, 2, 2, 2, 2]


def test_a_rank_without_a_row_has_a_stand_in_of_weight_0() -> None:
    batch = np.array([7, 3, 5])
    parts = [own_or_stand_in(batch, rank, 4) for rank in range(4)]
    assert [rows.tolist() for rows, _ in parts] == [[7], [7], [3], [5]]
    assert [weight for _, weight in parts] == [0.0, 1 / 3, 1 / 3, 1 / 3]
