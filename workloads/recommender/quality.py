"""Quality of the negatives that a recommender samples and of the credence that it gives to positives."""

from __future__ import annotations

import math

import torch

from workloads.ecdf import ecdf_at


def information(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """info(j) = 1 - σ(x_ui - x_uj), the size of BPR's gradient at a sampled negative. Thesis (4.4)."""
    return torch.sigmoid(negative - positive)


class SamplingQuality:
    """TNR (4.27) and INF (4.28) over the negatives of an epoch, summed on the device without synchronisation."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        """The counts so far; sum those of all workers before :meth:`measures`."""

    @torch.no_grad()
    def add(self, positive: torch.Tensor, negative: torch.Tensor, false_negative: torch.Tensor) -> None:
        """Add a batch.

        Args:
            positive: x_ui, (B,).
            negative: x_uj of the sampled items, (B,); -inf if there is none.
            false_negative: whether the user likes the sampled item, (B,), boolean.
        """
        info = information(positive, negative)  # 0 where the negative is -inf
        sampled = negative > -math.inf
        signed = torch.where(false_negative, -info, info)
        counted = torch.stack([(~false_negative & sampled).to(info), signed, sampled.to(info)])
        self.sums += counted.sum(1, dtype=torch.float64)

    @staticmethod
    def measures(sums: torch.Tensor) -> dict[str, float]:
        """``tnr``, the share of true negatives, and ``inf``, the mean of info, negated for false ones.

        1 and 0 if nothing was sampled, for example because a batch has only items of the user.
        """
        true_negatives, signed, count = sums.tolist()
        if not count:
            return {"tnr": 1.0, "inf": 0.0}
        return {"tnr": true_negatives / count, "inf": signed / count}


def wrong_share(wrong: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Share of wrongly labelled examples in the total weight in the loss; without weights, in their number.

    The false-positive rate of the training interactions, weighted by credence.

    Args:
        wrong: (n,), boolean, by the planted truth.
        weights: (n,), at least 0.

    Returns:
        A scalar in [0, 1]; NaN if all weights are 0.
    """
    weights = torch.ones_like(wrong, dtype=torch.float64) if weights is None else weights.double()
    return (weights * wrong).sum() / weights.sum()


def roc_auc(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """AUC: the probability that a true example scores above a false one, ties one half. Thesis table 3.2.

    In table 3.2 the scores are credences of training interactions; those not rated 1 are true.

    Args:
        scores: (n,).
        labels: (n,), boolean.

    Returns:
        A scalar, float64; NaN if a class is empty.
    """
    scores = scores.double()
    false = scores[~labels].sort().values
    return ecdf_at(false, scores[labels], "mid").mean()


def roc_curve(scores: torch.Tensor, labels: torch.Tensor, points: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """False and true positive rate as the threshold falls, thesis figure 3.4; float64, from (0, 0) to (1, 1).

    Args:
        scores: (n,).
        labels: (n,), boolean; both classes occur.
        points: most thresholds that are kept, evenly spaced in rank, in addition to the corners.
    """
    order = scores.argsort(descending=True, stable=True)
    ordered = scores[order]
    hits = labels[order]
    # Equal scores are one threshold, a straight segment of the curve.
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones_like(hits[:1])]).nonzero().squeeze(1)
    if len(last) > points:
        last = last[torch.linspace(0, len(last) - 1, points, dtype=torch.float64).round().long()]
    true = hits.cumsum(0)[last].double()
    false = last + 1 - true
    rates = torch.stack([false / (~labels).sum(), true / labels.sum()])
    x, y = torch.nn.functional.pad(rates, (1, 0))
    return x, y
