"""The confidence c^(k) that an answer is among the first k, and maps that recalibrate it: E-V6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch.nn import functional

from workloads.abstention.calibration import best_temperature
from workloads.losses.evidential import log_failure, log_miss, top
from workloads.metrics.calibration import nll
from workloads.vera.model import Evidence
from workloads.vera.params import Params
from workloads.vera.predictor import EDGE


@dataclass(frozen=True, eq=False)
class Ranked:
    """A model's output for Q queries with at most C candidates.

    ``scores`` (Q, C): -inf for padding. ``evidence``: α and β. ``drawn`` (M, Q, C): the softmax under each of M dropout
    masks, with ``mc_dropout``.
    """

    scores: torch.Tensor
    evidence: Evidence
    drawn: torch.Tensor | None = None

    @property
    def listed(self) -> torch.Tensor:
        """True for candidates, False for padding, (Q, C)."""
        return self.scores != -torch.inf


@dataclass(frozen=True, eq=False)
class Map:
    """A map of confidences.

    ``values`` are: nothing (``none``), the temperature T, Platt's a and b, or the points x, y of isotonic regression
    (2, m).
    """

    kind: str = "none"
    values: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def __call__(self, confidence: torch.Tensor) -> torch.Tensor:
        """The mapped confidence, (n,) float64. The temperature of a softmax is applied to its scores, not here."""
        if self.kind == "none":
            return confidence
        if self.kind == "isotonic":
            x, y = (side.cpu().numpy() for side in self.values)
            return torch.from_numpy(np.interp(confidence.cpu().numpy(), x, y)).to(confidence.device)
        logit = confidence.clamp(EDGE, 1 - EDGE).logit()
        values = self.values.tolist()
        return torch.sigmoid(logit / values[0] if self.kind == "temperature" else values[0] * logit + values[1])


def confidence(ranked: Ranked, k: int, params: Params, mapped: Map = Map()) -> torch.Tensor:
    """c^(k) of each query, (Q,) float64: from the evidence (note 2), or the softmax probability of the first k."""
    if params.confidence == "evidence":
        columns = top(ranked.scores, k)
        evidence = Evidence(*(side.double() for side in ranked.evidence))
        return mapped(-log_failure(log_miss(*evidence), columns, ranked.listed).expm1())
    if params.confidence == "softmax" and mapped.kind == "temperature":
        return _mass(ranked.scores, k, float(mapped.values[0]) * (params.temperature or 1.0))
    if ranked.drawn is None:
        return mapped(_mass(ranked.scores, k, params.temperature or 1.0))
    columns = top(ranked.scores, k).expand(len(ranked.drawn), -1, -1)
    return mapped(ranked.drawn.gather(2, columns).double().sum(2).mean(0).clamp(0, 1))


def shares(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    """The softmax of each row, (Q, C); 0 for padding."""
    return torch.softmax(scores / temperature, 1).masked_fill(scores == -torch.inf, 0)


def _mass(scores: torch.Tensor, k: int, temperature: float) -> torch.Tensor:
    return shares(scores.double(), temperature).gather(1, top(scores, k)).sum(1).clamp(0, 1)


def fit_map(kind: str, ranked: Ranked, k: int, params: Params, success: torch.Tensor) -> Map:
    """Fit a map: the one with the lowest NLL of the success (Q,) on these queries, or the least squares (isotonic)."""
    if kind == "none":
        return Map()
    success = success.double()
    if kind == "temperature":
        return _temperature(lambda mapped: confidence(ranked, k, params, mapped), success)
    plain = confidence(ranked, k, params)
    return _platt(plain, success) if kind == "platt" else _isotonic(plain, success)


def _temperature(read: Callable[[Map], torch.Tensor], success: torch.Tensor) -> Map:
    """Guo et al., ICML 2017, with the event Z instead of the class."""

    def of(temperature: float) -> Map:
        return Map("temperature", torch.tensor([temperature], dtype=torch.float64))

    return of(best_temperature(lambda temperature: float(nll(read(of(temperature)), success).mean())))


def _platt(plain: torch.Tensor, success: torch.Tensor) -> Map:
    """Platt, 1999: a logistic regression of Z on logit c, with his smoothed targets."""
    hits = float(success.sum())
    high = (hits + 1) / (hits + 2)
    low = 1 / (len(success) - hits + 2)
    target = torch.where(success > 0.5, high, low).cpu()
    logit = plain.clamp(EDGE, 1 - EDGE).logit().cpu()
    x = torch.stack([logit, torch.ones_like(logit)], 1)

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = x @ torch.from_numpy(w)
        value = functional.binary_cross_entropy_with_logits(logits, target)
        return float(value), (x.T @ (logits.sigmoid() - target) / len(x)).numpy()

    return Map(
        "platt",
        torch.from_numpy(optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10}).x),
    )


def _isotonic(plain: torch.Tensor, success: torch.Tensor) -> Map:
    """Zadrozny and Elkan, KDD 2002: the closest non-decreasing step function, by pool adjacent violators."""
    x, index = torch.unique(plain.cpu(), return_inverse=True)
    zeros = torch.zeros_like(x)
    counts, sums = (zeros.index_add(0, index, side.cpu()) for side in (torch.ones_like(plain), success))
    y = optimize.isotonic_regression((sums / counts).numpy(), weights=counts.numpy()).x
    return Map("isotonic", torch.stack([x, torch.from_numpy(np.ascontiguousarray(y))]))
