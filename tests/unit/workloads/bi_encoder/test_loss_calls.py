"""The bi-encoder's losses on vectors of pairs with hard negatives."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from workloads.bi_encoder.batches import Batch
from workloads.bi_encoder.dataset import TokenisedPairs
from workloads.bi_encoder.loss_calls import EmbeddedBatch, batch_loss


def test_infonce_with_hard_negatives_matches_reference() -> None:
    """Loss and gradient of three pairs with up to two hard negatives each, compared with cosines by a loop."""
    t = 0.05
    vectors = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    vectors.requires_grad_()
    mined = np.array([[True, True], [True, False], [True, True]])
    part = TokenisedPairs(cast("Any", None), np.arange(6).reshape(3, 2), np.full(3, 5.0, np.float32))
    batch = Batch(np.arange(3), (0, 3), 0)
    settings = {"positive_from": 4.0, "temperature": t}
    loss = batch_loss(EmbeddedBatch(vectors, batch, part, mined), "infonce", settings)
    (gradient,) = torch.autograd.grad(loss, vectors)

    unit = vectors / (vectors**2).sum(-1, keepdim=True).sqrt()
    losses = []
    for i in range(3):
        candidates = [unit[j, 1] for j in range(3)] + [unit[i, 2 + k] for k in range(2) if mined[i, k]]
        scores = torch.stack([unit[i, 0].dot(candidate) for candidate in candidates]) / t
        losses.append(scores.logsumexp(0) - scores[i])
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, vectors)[0])
