"""Credence of interactions: how probable it is that a user who chose an item likes it (BPRAC's E-step, chapter 3).

A true positive's score is the larger of two draws from the distribution F of scores (3.22); its prior follows from
the item's popularity (3.28). All values are logarithms or log-odds, and finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch

from workloads.ecdf import ecdf_at
from workloads.recommender.product_density import look_up

Mode: TypeAlias = Literal["thesis", "mean1", "bayes", "prior"]
"""Forms of the credence (E-3.27). ``thesis``: (3.27) as printed, a density times a probability. ``mean1``: the same
divided by its mean, so that learning rates stay comparable. ``bayes``: the posterior probability, which rises with the
score. ``prior``: the prior (3.28) alone, a baseline that does not use the model."""

_AT_ONCE = {"cpu": 2**20}
"""Embedding entries gathered at once by :func:`interaction_scores`: as many as fit a CPU's caches; 2^26 elsewhere."""


class LogProbabilities(NamedTuple):
    """Logarithms of density and distribution function: ln f(x), ln F(x) and ln(1 - F(x))."""

    log_density: torch.Tensor
    log_below: torch.Tensor
    log_above: torch.Tensor


class ScoreDistribution(Protocol):
    """A distribution of the scores of (user, item) pairs."""

    def log_probabilities(self, x: torch.Tensor) -> LogProbabilities:
        """Evaluate at ``x``, of any shape; finite for finite scores."""
        ...


@dataclass(frozen=True, slots=True)
class GaussianFactors:
    """F and f of the score of factors drawn iid N(0, λ), thesis (3.19) and (3.20).

    The thesis keeps the λ of the initial factors during training; :meth:`fitted` uses that of the trained ones
    (E-3.22).

    ``dim``: d. ``variance``: λ, above 0.
    """

    dim: int
    variance: float

    @classmethod
    def fitted(cls, users: torch.Tensor, items: torch.Tensor) -> GaussianFactors:
        """With the λ of trained factors (U, d) and (I, d): the geometric mean of the two tables' mean squares."""
        variance = (users.square().mean() * items.square().mean()).sqrt().item()
        return cls(users.shape[1], max(variance, 1e-30))

    def log_probabilities(self, x: torch.Tensor) -> LogProbabilities:
        log_f, log_tail = look_up(x, self.dim, self.variance)
        # F(-|x|) is at most one half, so 1 - F(-|x|) loses no precision.
        log_body = (-log_tail.exp()).log1p()
        above = x > 0
        return LogProbabilities(log_f, torch.where(above, log_body, log_tail), torch.where(above, log_tail, log_body))


class EmpiricalScores:
    """Empirical F of a model's scores, for models without a formula, such as LightGCN.

    Our extension, not in the thesis. Scores are transformed to F(x), whose density is 1. Then (3.22) becomes g = 2 F,
    the posterior (3.25) with its denominator f(x), and no density has to be estimated. F is
    (#{<} + #{=}/2 + 1/2) / (n + 1), never 0 or 1.
    """

    def __init__(self, sample: torch.Tensor) -> None:
        """From the scores of pairs drawn uniformly from all (user, item) pairs, (n,); see :func:`sampled_scores`."""
        self._ordered = sample.detach().sort().values

    def log_probabilities(self, x: torch.Tensor) -> LogProbabilities:
        n = len(self._ordered)
        below = ecdf_at(self._ordered, x, "mid") * n + 0.5
        return LogProbabilities(torch.zeros_like(x), (below / (n + 1)).log(), ((n + 1 - below) / (n + 1)).log())


def log_order_statistic(logs: LogProbabilities, k: int, n: int) -> torch.Tensor:
    """ln g(x; k, n), the log-density of the k-th smallest of n independent draws. Thesis (3.21)."""
    ways = math.lgamma(n + 1) - math.lgamma(k) - math.lgamma(n - k + 1)
    return ways + (k - 1) * logs.log_below + logs.log_density + (n - k) * logs.log_above


def prior_log_odds(item_counts: torch.Tensor) -> torch.Tensor:
    """Log-odds of the prior credence (3.28): the z-score of each item's popularity; its sigmoid is P(c = 1).

    Args:
        item_counts: (I,), training interactions of every item of the catalogue, those never chosen included (E-3.28).

    Returns:
        (I,), float64; zeros where all items are equally popular.
    """
    counts = item_counts.double()
    centred = counts - counts.mean()
    even = counts.amax() == counts.amin()  # exact, where rounding could leave a deviation
    return centred / counts.std(correction=0).masked_fill(even, torch.inf)


def credence(scores: torch.Tensor, prior: torch.Tensor, distribution: ScoreDistribution, mode: Mode) -> torch.Tensor:
    """ĉ_ui of thesis (3.27), the weight of an interaction in the M-step (3.29), without gradient.

    Args:
        scores: x̂_ui of all training interactions, (n,); ``mean1`` divides by the mean over them.
        prior: :func:`prior_log_odds` of each interaction's item, (n,).

    Returns:
        (n,), at least 0; at most 1 in modes ``bayes`` and ``prior``, of mean 1 in mode ``mean1``.
    """
    if mode == "prior":
        return torch.sigmoid(prior.to(scores))
    logs = distribution.log_probabilities(scores.detach())
    prior = prior.to(scores)
    if mode == "bayes":  # F p / (F p + (1 - F)(1 - p))
        return torch.sigmoid(logs.log_below - logs.log_above + prior)
    log_credence = log_order_statistic(logs, 2, 2) + torch.nn.functional.logsigmoid(prior)
    return log_credence.exp() if mode == "thesis" else log_credence.softmax(0) * len(scores)


def interaction_scores(users: torch.Tensor, items: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """x̂_ui = <w_u, h_i> of each pair, (n,), without gradient.

    Args:
        users: (U, d).
        items: (I, d).
        pairs: (2, n), user and item numbers.
    """
    at_once = max(1, _AT_ONCE.get(users.device.type, 2**26) // users.shape[1])
    parts = [
        users.detach().index_select(0, u).mul_(items.detach().index_select(0, i)).sum(1)
        for u, i in (part.unbind() for part in torch.split(pairs, at_once, dim=1))
    ]
    return torch.cat(parts)


def sampled_scores(users: torch.Tensor, items: torch.Tensor, source: torch.Generator, n: int = 2**16) -> torch.Tensor:
    """Scores of ``n`` pairs drawn uniformly from all (user, item) pairs, (n,), without gradient.

    Args:
        source: a generator of the CPU, so that every device draws the same pairs.
    """
    pairs = torch.stack([torch.randint(len(side), (n,), generator=source) for side in (users, items)])
    return interaction_scores(users, items, pairs.to(users.device))


def ks_distance(sample: torch.Tensor, distribution: ScoreDistribution) -> torch.Tensor:
    """Kolmogorov-Smirnov distance sup |F_n - F| of scores (n,) from a distribution; a scalar in [0, 1].

    Measures how far the scores of a trained model have moved from the F that the credence uses (E-3.22).
    """
    ordered = sample.detach().sort().values
    below = distribution.log_probabilities(ordered).log_below.exp()
    n = len(ordered)
    steps = torch.arange(n + 1, device=below.device, dtype=below.dtype) / n
    return torch.maximum(steps[1:] - below, below - steps[:-1]).amax()
