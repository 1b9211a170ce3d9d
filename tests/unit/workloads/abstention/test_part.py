"""The abstention part: queries held out from training and validation."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.abstention.part import hold_out

TRAIN = np.arange(0, 60)
VALIDATION = np.arange(60, 90)
FAMILY = np.arange(100) // 2  # two paraphrases of each question


def test_families_are_held_out_as_a_whole_and_one_query_of_each_is_kept() -> None:
    train, validation, held = hold_out(TRAIN, VALIDATION, 0.2, 3, FAMILY)
    left = np.concatenate([train, validation])
    assert len(held) == 9  # of 45 families
    assert len(np.unique(FAMILY[held])) == 9
    assert not np.isin(FAMILY[left], FAMILY[held]).any()
    assert len(left) == 90 - 18
    assert np.isin(train, TRAIN).all()
    assert np.isin(validation, VALIDATION).all()
    assert len({*(held % 2).tolist()}) == 2  # not always the first one


def test_held_out_queries_are_set_by_the_seed_and_equal_in_a_refit() -> None:
    first, again, refit, other = (
        hold_out(train, validation, 0.2, seed)
        for train, validation, seed in (
            (TRAIN, VALIDATION, 3), (TRAIN, VALIDATION, 3), (np.arange(90), np.arange(0), 3), (TRAIN, VALIDATION, 4)
        )
    )  # fmt: skip
    np.testing.assert_array_equal(first.abstention, again.abstention)
    np.testing.assert_array_equal(first.abstention, refit.abstention)
    assert not np.isin(refit.train, first.abstention).any()
    assert not np.array_equal(first.abstention, other.abstention)
    assert len(first.abstention) == 18


def test_share_of_zero_holds_out_no_queries() -> None:
    parts = hold_out(TRAIN, VALIDATION, 0.0, 3)
    assert parts.train is TRAIN
    assert parts.validation is VALIDATION
    assert not len(parts.abstention)


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_part_without_queries_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"abstention_part={share:g} of 90 queries leaves"):
        hold_out(TRAIN, VALIDATION, share, 0)
