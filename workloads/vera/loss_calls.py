"""The losses of a batch: the note's four with their weights, or the single one of a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.losses.evidential import (
    candidate_loss,
    consistency_loss,
    evidential_loss,
    log_failure,
    log_miss,
    succeeds,
    top,
    vera_loss,
)
from workloads.losses.listwise import listwise_softmax_loss
from workloads.transfer import constant
from workloads.vera.dataset import CandidateBlock
from workloads.vera.model import Outputs
from workloads.vera.params import Params
from workloads.vera.stages import Stage

NAMES = ("rank", "cand", "query", "cons")
"""The losses of note 4.1 to 4.4, in the order of :func:`losses`."""


@dataclass(frozen=True)
class Counts:
    """Divisors of the sums over a global batch: queries N, queries with a positive N', pairs (E-V10)."""

    queries: int
    answerable: int
    pairs: int


def losses(
    outputs: Outputs,
    block: CandidateBlock,
    params: Params,
    stage: Stage,
    k: int,
    rates: torch.Tensor | None,
    counts: Counts,
) -> torch.Tensor:
    """A micro-batch's share of each loss of :data:`NAMES`, unweighted, (4,); 0 for a loss without weight in the stage.

    Args:
        outputs: the model's outputs.
        block: the micro-batch.
        params: the method and the parameters of its losses.
        stage: the weights.
        k: the k of Z^(k).
        rates: p of each query of the data (Q,), or None with ``query_target=eps``.
        counts: of the whole batch.
    """
    rank = cand = query = cons = outputs.scores.new_zeros(())
    listed = block.listed
    positive = block.positive
    if params.method == "edl":
        cand = evidential_loss(*outputs.cand, positive, listed).sum() / counts.pairs
        return torch.stack([rank, cand, query, cons])
    if stage.rank:
        tempered = outputs.scores / (params.temperature or 1.0)
        rank = listwise_softmax_loss(tempered, positive.to(tempered.dtype)).sum() / counts.queries
    if stage.cand:
        values = candidate_loss(*outputs.cand, positive, listed, params.negative_weight or 0.0)
        cand = values.sum() / max(1, counts.answerable)
    if stage.cons:
        scores = outputs.scores if params.cons_to_ranking else outputs.scores.detach()
        cons = consistency_loss(scores, *outputs.cand, listed).sum() / counts.pairs
    if stage.query:
        columns = top(outputs.scores, k)
        failure = log_failure(log_miss(*outputs.query), columns, listed)
        success = succeeds(positive, columns).to(failure.dtype)
        rate, target = _distribution(success, block, params, rates)
        query = vera_loss(failure, rate, target, params.query_alpha or 0.0, params.query_beta or 0.0).sum()
        query = query / counts.queries
    return torch.stack([rank, cand, query, cons])


def weights(stage: Stage, device: torch.device) -> torch.Tensor:
    """The weight of each loss of :data:`NAMES` in the total (note 4.5), (4,)."""
    return constant(tuple(getattr(stage, name) for name in NAMES), device)


def _distribution(
    success: torch.Tensor, block: CandidateBlock, params: Params, rates: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The targets p of the gate and KL(q||p), and p' of KL(p'||q), (B,) each (E-V1, E-V2)."""
    if rates is None:
        clipped = success.clamp(params.eps, 1 - (params.eps or 0.0))
        return clipped, clipped
    rate = rates[block.queries]
    return rate, success if params.query_target == "hybrid" else rate
