"""Figures of the thesis that are formulas: 2.3, 3.2, 3.3, 4.3, 6.1 and 6.4. None of them depends on ``quick``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from workloads.published import Curve, Drawn

if TYPE_CHECKING:
    import torch

POINTS = 240

FACTORS = ((27, 0.6), (27, 0.2), (8, 0.6), (64, 0.6))
"""d and λ of figures 3.2 and 3.3, which the source does not print: those of 3.5.1, and others for comparison."""

SHARES = (0.05, 0.1, 0.3)
"""τ+ of figure 6.1, not printed."""

ALPHAS = (0.5, 0.7, 0.9, 1.0)
"""α of figure 6.4, not printed: those of figure 6.8."""


def order_statistic(quick: bool) -> Drawn:
    """Figure 2.3: N(1, 5), with 5 as the variance, and g(x; 2, 5), (2.4), the second smallest of five draws of it."""
    import torch

    from workloads.recommender.credence import LogProbabilities, log_order_statistic

    deviation = math.sqrt(5)
    z = torch.linspace(-4, 4, POINTS, dtype=torch.float64)
    density = -z.square() / 2 - math.log(deviation * math.sqrt(2 * math.pi))
    logs = LogProbabilities(density, torch.special.log_ndtr(z), torch.special.log_ndtr(-z))
    second = log_order_statistic(logs, 2, 5)
    x = 1 + deviation * z
    return Drawn([_density(x, density.exp(), "N(1, 5)"), _density(x, second.exp(), "second smallest of 5")])


def prior(quick: bool) -> Drawn:
    """Figure 3.2: the density f (3.19) of an inner product of two Gaussian vectors."""
    return Drawn([_density(x, logs.exp(), name) for name, x, logs, _ in _factors()])


def posterior(quick: bool) -> Drawn:
    """Figure 3.3: the density g = 2 f F (3.22) of the larger of two such scores."""
    return Drawn([_density(x, logs.exp(), name) for name, x, _, logs in _factors()])


def _factors() -> list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each d and λ: a name, scores, and the logarithms of f and g there."""
    import torch

    from workloads.recommender.credence import GaussianFactors, log_order_statistic

    curves = []
    for dim, variance in FACTORS:
        x = torch.linspace(-6, 6, POINTS + 1, dtype=torch.float64) * variance * math.sqrt(dim)
        logs = GaussianFactors(dim, variance).log_probabilities(x)
        curves.append((f"d = {dim}, λ = {variance}", x, logs.log_density, log_order_statistic(logs, 2, 2)))
    return curves


def class_densities(quick: bool) -> Drawn:
    """Figure 4.3: g = 2f(1 - F) and h = 2fF, (4.7) and (4.8), by the distribution of the unlabelled scores."""
    import numpy as np
    from scipy import stats

    curves = []
    for law, one in {"normal(0, 1)": stats.norm(), "Student t(3)": stats.t(3), "gamma(2, 1)": stats.gamma(2)}.items():
        x = np.linspace(one.ppf(0.001), one.ppf(0.999), POINTS)
        f = one.pdf(x)
        below = one.cdf(x)
        for name, density in (("true negatives", 2 * f * (1 - below)), ("false negatives", 2 * f * below)):
            mean = np.trapezoid(x * density, x) / np.trapezoid(density, x)
            curves.append(_density(x, density, name, law, f"mean {mean:.3f}"))
    return Drawn(curves)


def mixtures(quick: bool) -> Drawn:
    """Figure 6.4: φ_TN (6.14) and φ_FN (6.15) with φ = N(0, 1), by α."""
    import torch

    x = torch.linspace(-4, 4, POINTS, dtype=torch.float64)
    density = (-x.square() / 2).exp() / math.sqrt(2 * math.pi)
    smaller = 2 * density * torch.special.ndtr(-x)
    larger = 2 * density * torch.special.ndtr(x)
    curves = []
    for alpha in ALPHAS:
        for name, share in (("true negatives", alpha), ("false negatives", 1 - alpha)):
            curves.append(_density(x, share * smaller + (1 - share) * larger, name, f"α = {alpha}"))
    return Drawn(curves)


def density_ratio(quick: bool) -> Drawn:
    """Figure 6.1: p+ / p- over the score x̂ = m p+ / p_d of a positive (6.7), in units of m.

    A density ratio is positive below the pole x̂ = 1 / τ+ only, which no score of the biased loss passes (E-6.7).
    """
    import numpy as np

    curves = []
    for share in SHARES:
        for part, reach in (("below the pole", (0.0, 0.97)), ("beyond it", (1.03, 2.0))):
            x = np.linspace(*reach, POINTS) / share
            y = x * (1 - share) / (1 - x * share)
            curves.append(
                Curve(x.tolist(), y.tolist(), name=part, panel=f"τ+ = {share}", x_label="x̂ / m", y_label="p+ / p-")
            )
    return Drawn(curves)


def _density(x: Any, y: Any, name: str, panel: str = "density", note: str = "") -> Curve:
    """The curve of a density, from two arrays or tensors."""
    return Curve(x.tolist(), y.tolist(), name=name, panel=panel, x_label="score", y_label="density", note=note)
