"""Quality of what a recommender is trained on: of the negatives it samples and of the credence it gives positives."""

from __future__ import annotations

import math

import torch

from workloads.ecdf import ecdf_at


def information(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """info(j) = 1 - σ(x_ui - x_uj), the size of BPR's gradient at a sampled negative. Thesis (4.4)."""
    return torch.sigmoid(negative - positive)


class SamplingQuality:
    """TNR (4.27) and INF (4.28) over the negatives of an epoch, added up on the device without waiting for it."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        """What has been counted: add those of several workers before :meth:`measures`."""

    @torch.no_grad()
    def add(self, positive: torch.Tensor, negative: torch.Tensor, false_negative: torch.Tensor) -> None:
        """Count a batch.

        Args:
            positive: x_ui, (B,).
            negative: x_uj of the sampled items, (B,); -inf is none.
            false_negative: whether the user likes the sampled item after all, (B,), boolean.
        """
        info, sampled = information(positive, negative), negative > -math.inf  # of one that is none info is 0
        signed = torch.where(false_negative, -info, info)
        counted = torch.stack([(~false_negative & sampled).to(info), signed, sampled.to(info)])
        self.sums += counted.sum(1, dtype=torch.float64)

    @staticmethod
    def measures(sums: torch.Tensor) -> dict[str, float]:
        """``tnr``, the share of true negatives, and ``inf``, the mean of ±info, minus for a false one.

        1 and 0 where nothing was sampled, as where all of a batch are the user's own items: no negative is false.
        """
        true_negatives, signed, count = sums.tolist()
        if not count:
            return {"tnr": 1.0, "inf": 0.0}
        return {"tnr": true_negatives / count, "inf": signed / count}


def wrong_share(wrong: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Share of wrongly labelled examples, of the weight that they carry in the loss where weights are given.

    The false-positive rate of the interactions trained on, weighted by credence: how much of them a method lets
    through.

    Args:
        wrong: (n,), boolean, by the planted truth.
        weights: (n,), at least 0.

    Returns:
        A scalar in [0, 1]; NaN where nothing carries weight.
    """
    weights = torch.ones_like(wrong, dtype=torch.float64) if weights is None else weights.double()
    return (weights * wrong).sum() / weights.sum()


def roc_auc(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """AUC: the probability that a true example scores above a false one, ties one half. Thesis table 3.2.

    For table 3.2 the scores are credences of training interactions, true those not rated 1.

    Args:
        scores: (n,).
        labels: (n,), boolean.

    Returns:
        A scalar, float64; NaN where one class is empty.
    """
    scores = scores.double()
    false = scores[~labels].sort().values
    return ecdf_at(false, scores[labels], "mid").mean()


def roc_curve(scores: torch.Tensor, labels: torch.Tensor, points: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """False and true positive rate as the threshold falls, thesis figure 3.4; float64, from (0, 0) to (1, 1).

    Args:
        scores: (n,).
        labels: (n,), boolean; both classes occur.
        points: how many thresholds at most are kept, evenly in rank; the corners come on top.
    """
    order = scores.argsort(descending=True, stable=True)
    ordered, hits = scores[order], labels[order]
    # Equal scores are one threshold: the curve passes them in one straight line.
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones_like(hits[:1])]).nonzero().squeeze(1)
    if len(last) > points:
        last = last[torch.linspace(0, len(last) - 1, points, dtype=torch.float64).round().long()]
    true = hits.cumsum(0)[last].double()
    false = last + 1 - true
    rates = torch.stack([false / (~labels).sum(), true / labels.sum()])
    x, y = torch.nn.functional.pad(rates, (1, 0))
    return x, y
