"""The loss of each form of compatibility, from the reference values of its terms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.workloads.losses.test_alignment import FRESH, MEMORY, NEW, OLD, POSITIVE, QUERY, block, mask
from workloads.lifelong.loss_calls import EmbeddedBlock, losses
from workloads.lifelong.params import Params
from workloads.losses.alignment import rank_loss

EMBEDDING, RANKING = 10.698155419999999, 1.1298236326135593


@pytest.mark.parametrize(
    ("compatible", "weight", "alignment"),
    [("frozen", None, 0.0), ("embedding", 0.3, 0.3 * EMBEDDING), ("ranking", 1.6113, 1.6113 * RANKING)],
)
def test_compatible_loss_is_the_ranking_loss_and_the_weighted_alignment(
    compatible: Any, weight: float | None, alignment: float
) -> None:
    """E-L8: L_com = L_rank + λ L_align."""
    batch = EmbeddedBlock(QUERY, block(FRESH, NEW), mask(6), block(OLD))
    ranking = rank_loss(QUERY, block(OLD), block(NEW), mask(6)).item()
    given = {} if weight is None else {"align_weight": weight}
    found = losses(batch, Params(compatible=compatible, **given))
    assert found.item() == pytest.approx(ranking + alignment, rel=1e-9)


def test_loss_without_stored_embeddings_is_the_contrastive_loss() -> None:
    batch = EmbeddedBlock(QUERY, block([POSITIVE], MEMORY, NEW), mask(6), None)
    assert losses(batch, Params(compatible="no")).item() == pytest.approx(5.779458489021142, rel=1e-9)
