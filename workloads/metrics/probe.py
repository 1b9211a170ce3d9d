"""Evaluation of frozen features: weighted kNN, linear probe, alignment, uniformity, rank, separation of classes.

Labels are used here and nowhere in training. Everything is in float32 or better, batched on the device that the
features are on, and deterministic on a CPU. CUDA adds the neighbours' votes in an order of its own, so that two classes
whose votes are equal but for rounding may change places.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

_AT_ONCE = {"cpu": 2**22, "cuda": 2**27}
"""Entries of a block of similarities."""

BINS = 100
"""Of a histogram of cosines, from -1 to 1."""


def knn_scores(
    bank: torch.Tensor,
    labels: torch.Tensor,
    queries: torch.Tensor,
    *,
    classes: int,
    k: int = 20,
    temperature: float = 0.1,
) -> torch.Tensor:
    """Votes of the k nearest features for each class, ``Σ e^{cos / t}``. Wu et al., CVPR 2018, section 3.4.

    Args:
        bank: labelled features, (N, d), of length one; k of them, or all where there are fewer, have a vote.
        labels: (N,), in [0, classes).
        queries: (Q, d), of length one.

    Returns:
        (Q, classes), each vote relative to that of the query's nearest feature, which is 1 at any temperature.
    """
    votes = queries.new_zeros(len(queries), classes)
    for first, last in _blocks(len(queries), len(bank), queries.device):
        near, places = (queries[first:last] @ bank.T).topk(min(k, len(bank)))
        votes[first:last].scatter_add_(1, labels[places], ((near - near[:, :1]) / temperature).exp())
    return votes


def in_top(scores: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Whether the label is among the k classes of highest score, (Q,), float; of equal scores the lower class first.

    A sample with a NaN score counts as wrong.

    Args:
        scores: (Q, classes).
        labels: (Q,), in [0, classes).
    """
    own = scores.gather(1, labels.unsqueeze(1))
    before = torch.arange(scores.shape[1], device=scores.device) < labels.unsqueeze(1)
    ahead = ((scores > own) | ((scores == own) & before)).sum(1)
    return ((ahead < k) & ~scores.isnan().any(1)).float()


def linear_probe(
    features: torch.Tensor, labels: torch.Tensor, *, classes: int, l2: float = 1e-3, steps: int = 100
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multinomial logistic regression on standardised features by L-BFGS, the linear evaluation of thesis 6.6.2.3.

    Minimises mean cross entropy + ``l2 / 2`` |W|² from zero, over all samples at once: convex and deterministic, where
    the usual hundred epochs of SGD are neither.

    Args:
        features: (N, d).
        labels: (N,), in [0, classes).
        steps: iterations at most.

    Returns:
        W (classes, d) and b (classes,) for features as they are given; logits are ``x Wᵀ + b``. NaN throughout where
        features are not finite or too large to be standardised.
    """
    features = features.float()
    mean = features.mean(0)
    deviation = features.std(0, correction=0)
    scale = torch.where(deviation > 0, 1 / deviation, 0)  # constant features are ignored
    inputs = (features - mean) * scale
    if not inputs.isfinite().all():
        return inputs.new_full((classes, inputs.shape[1]), torch.nan), inputs.new_full((classes,), torch.nan)
    weight = inputs.new_zeros(classes, inputs.shape[1], requires_grad=True)
    bias = inputs.new_zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        logits = functional.linear(inputs, weight, bias)
        loss = functional.cross_entropy(logits, labels) + l2 / 2 * weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    weight = weight.detach() * scale
    bias = bias.detach()
    return weight, bias - weight @ mean


def alignment(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of the two views of an image, 0 to 4; less is better. Wang and Isola, ICML 2020, eq. 1.

    Args:
        first: (n, d), of length one.
        second: (n, d), of length one, row by row the other view.
    """
    return (first - second).square().sum(1).mean()


def uniformity(embeddings: torch.Tensor) -> torch.Tensor:
    """ln of the mean over pairs of ``e^{-2 |x - y|²}``, 0 where all are one; less is better. The same, eq. 2.

    Args:
        embeddings: (n, d), of length one, n at least 2.
    """
    n = len(embeddings)
    total = embeddings.new_zeros((), dtype=torch.float64)
    for first, last in _blocks(n, n, embeddings.device):
        cosines = embeddings[first:last] @ embeddings.T
        total += (4 * cosines.double() - 4).exp().sum()
    # Each is its own neighbour n times, e^0.
    return ((total - n) / (n * (n - 1))).log().to(embeddings)


def effective_rank(features: torch.Tensor) -> torch.Tensor:
    """RankMe, e to the entropy of the singular values divided by their sum. Garrido et al., ICML 2023, eq. 1.

    It is 1 where all features lie on one line, and min(n, d) at most.

    Args:
        features: (n, d).

    Returns:
        A scalar; NaN for features that are not finite.
    """
    matrix = features.double()
    if not matrix.isfinite().all():
        return features.new_full((), torch.nan)
    values = torch.linalg.svdvals(matrix)
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    entropy: torch.Tensor = -torch.special.xlogy(shares, shares).sum()
    return entropy.exp().to(features)


def false_negative_auc(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """AUC of false over true negatives, the mean over anchors: how well scores tell classes. Thesis (6.21), E-6.21.

    For an anchor, false negatives are the other samples of its class, true ones those of other classes; an anchor that
    lacks either is left out.

    Args:
        embeddings: (n, d), of length one.
        labels: (n,).

    Returns:
        A scalar in [0, 1]; one half, which knows nothing, where no anchor has both.
    """
    n = len(embeddings)
    device = embeddings.device
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for first, last in _blocks(n, n, device):
        cosines = embeddings[first:last] @ embeddings.T
        same = labels[first:last].unsqueeze(1) == labels
        own = torch.arange(last - first, device=device)
        cosines[own, own + first] = torch.inf  # the anchor itself, above all others: its rank is taken off
        ranks = _mid_ranks(cosines)
        false = same.sum(1).double() - 1
        true = n - 1 - false
        above = (ranks * same).sum(1) - n - false * (false + 1) / 2
        both = (false > 0) & (true > 0)
        total += torch.stack([(above / (false * true).clamp_min(1))[both].sum(), both.sum().double()])
    return torch.where(total[1] > 0, total[0] / total[1].clamp_min(1), 0.5).to(embeddings)


def score_densities(embeddings: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Densities of the cosines of true and of false negatives over all anchors. Thesis figures 6.4 and 6.8.

    Args:
        embeddings: (n, d), of length one.
        labels: (n,).

    Returns:
        Middles of the bins and the densities of true and of false negatives, (``BINS``,) float64 each; a density is 0
        throughout where there is no such pair.
    """
    n = len(embeddings)
    device = embeddings.device
    counts = torch.zeros(2, BINS, dtype=torch.float64, device=device)
    width = 2 / BINS
    for first, last in _blocks(n, n, device):
        bins = ((embeddings[first:last] @ embeddings.T + 1) / width).long().clamp_(0, BINS - 1)
        same = labels[first:last].unsqueeze(1) == labels
        other = torch.arange(first, last, device=device).unsqueeze(1) != torch.arange(n, device=device)
        for kind, chosen in enumerate((~same, same & other)):
            counts[kind] += torch.bincount(bins[chosen], minlength=BINS)  # histc is not deterministic on a GPU
    middles = -1 + width * (torch.arange(BINS, dtype=torch.float64, device=device) + 0.5)
    true, false = counts / (counts.sum(1, keepdim=True).clamp_min(1) * width)
    return middles, true, false


def principal_plane(features: torch.Tensor) -> torch.Tensor:
    """The features' coordinates on their first two principal components, (n, 2); n at least 2, d at least 2.

    A component points to where the entry of its largest loading is positive, so that a plot does not flip.
    """
    centred = features.double() - features.double().mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    plane: torch.Tensor = centred @ (axes * largest.sign()).T
    return plane.to(features)


def _mid_ranks(rows: torch.Tensor) -> torch.Tensor:
    """Ranks within each row from 1, ties sharing the mean of theirs; (B, n) float64."""
    ordered = rows.sort(1).values.contiguous()
    below, through = (torch.searchsorted(ordered, rows, right=right) for right in (False, True))
    ranks: torch.Tensor = (below + through + 1).double() / 2
    return ranks


def _blocks(rows: int, columns: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """First and last row of blocks of a product that stay small."""
    step = max(1, _AT_ONCE.get(device.type, _AT_ONCE["cpu"]) // max(1, columns))
    return ((first, min(first + step, rows)) for first in range(0, rows, step))
