"""The numerical experiment of thesis 6.6.1: estimators of the mean score of true negatives from unlabelled samples.

Scores are drawn as in algorithms 6 to 8, by rejection sampling, for all anchors at once. Where the text is wrong or
incomplete the errata apply: the acceptance rate (E-6.6.1), the range of the scores (E-6.6.1b), unnormalised weights
(E-6.48).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from workloads.ecdf import ecdf
from workloads.losses.contrastive import bcl_weights_at

EXTRA = (3, 10)
"""K of (6.47), not in the text; the author's code draws 10 and mentions 3 (E-6.6.1)."""

Accept: TypeAlias = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """Thesis 6.6.1.4. ``reach``: h of E-6.6.1b, scores lie in [-h, h]."""

    alpha: float = 0.9
    gamma: float = 0.1
    tau: float = 0.1
    temperature: float = 0.5
    negatives: int = 64
    anchors: int = 1000
    reach: float = 0.5


class Observed(NamedTuple):
    """``unlabelled`` x̂ (M, N), the mask of ``true`` negatives among them (M, N), and ``extra`` positives (M, max K)."""

    unlabelled: torch.Tensor
    true: torch.Tensor
    extra: torch.Tensor


def accept_true(position: torch.Tensor, alpha: float) -> torch.Tensor:
    """Acceptance probability of a proposal for a true negative: ``[α + (1 - 2α) Φ] / α``. Thesis 6.6.1.2, E-6.6.1.

    Args:
        position: Φ of the proposal.
        alpha: in [.5, 1].
    """
    return (alpha + (1 - 2 * alpha) * position) / alpha


def accept_false(position: torch.Tensor, alpha: float) -> torch.Tensor:
    """Acceptance probability of a proposal for a false negative: ``[1 - α + (2α - 1) Φ] / α``. Thesis 6.6.1.2."""
    return (1 - alpha + (2 * alpha - 1) * position) / alpha


def places(shape: tuple[int, ...], accept: Accept, alpha: float, generator: torch.Generator) -> torch.Tensor:
    """Φ of samples of φ_TN or φ_FN, algorithms 7 and 8, float64. The inverse of any Φ turns them into scores.

    One of 2α proposals is accepted on average, so a few rounds over the missing ones are enough.
    """
    samples = torch.empty(shape, dtype=torch.float64).flatten()
    open_places = torch.arange(samples.numel())
    while len(open_places):
        proposal, u = torch.rand(2, len(open_places), dtype=torch.float64, generator=generator)
        accepted = u <= accept(proposal, alpha)
        samples[open_places[accepted]] = proposal[accepted]
        open_places = open_places[~accepted]
    return samples.view(shape)


def observe(setting: Setting, generator: torch.Generator) -> Observed:
    """Algorithm 6: e^{x/t} of N unlabelled samples and K positives of each of M anchors, φ uniform on its range.

    The range is [a, b], a uniform in [-h, -h + γh] and b in [h - γh, h] (E-6.6.1b).
    """
    anchors = setting.anchors
    reach = setting.reach
    inside = setting.gamma * reach * torch.rand(2, anchors, 1, dtype=torch.float64, generator=generator)
    low = inside[0] - reach
    high = reach - inside[1]
    shape = (anchors, setting.negatives)
    true = torch.rand(shape, dtype=torch.float64, generator=generator) >= setting.tau
    of_true = places(shape, accept_true, setting.alpha, generator)
    of_false = places(shape, accept_false, setting.alpha, generator)
    extra = places((anchors, max(EXTRA)), accept_false, setting.alpha, generator)

    def score(position: torch.Tensor) -> torch.Tensor:
        return ((low + (high - low) * position) / setting.temperature).exp()

    return Observed(score(torch.where(true, of_true, of_false)), true, score(extra))


def supervised(observed: Observed) -> torch.Tensor:
    """Mean of the true negatives (6.45), (M,); NaN for an anchor without any."""
    total = (observed.unlabelled * observed.true).sum(1)
    count = observed.true.sum(1)
    return total / count


def biased(observed: Observed) -> torch.Tensor:
    """Mean of the unlabelled samples (6.46), (M,)."""
    return observed.unlabelled.mean(1)


def debiased(observed: Observed, tau: float, extra: int) -> torch.Tensor:
    """DCL's estimate (6.47), (M,), by the first K = ``extra`` positives, without a floor, as printed."""
    return (observed.unlabelled.mean(1) - tau * observed.extra[:, :extra].mean(1)) / (1 - tau)


def bayesian(observed: Observed, alpha: float, tau: float, self_normalised: bool = False) -> torch.Tensor:
    """BCL's estimate with β = .5 (6.48), (M,); the author's code divides by the mean weight (E-6.48)."""
    weights = bcl_weights_at(ecdf(observed.unlabelled), alpha=alpha, beta=0.5, tau=tau)
    estimate = (weights * observed.unlabelled).mean(1)
    return estimate / weights.mean(1) if self_normalised else estimate


def estimates(setting: Setting, generator: torch.Generator) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """The target and each estimator's value for the anchors that have a true negative (E-6.6.1b)."""
    drawn = observe(setting, generator)
    target = supervised(drawn)
    estimated = {
        "biased": biased(drawn),
        **{f"DCL, K = {extra}": debiased(drawn, setting.tau, extra) for extra in EXTRA},
        "BCL": bayesian(drawn, setting.alpha, setting.tau),
    }
    defined = ~target.isnan()
    return target[defined], {name: values[defined] for name, values in estimated.items()}


def squared_errors(setting: Setting, generator: torch.Generator) -> dict[str, float]:
    """MSE over the anchors of each estimator, thesis 6.6.1.4."""
    target, estimated = estimates(setting, generator)
    return {name: (values - target).square().mean().item() for name, values in estimated.items()}
