"""How sure a model is that an answer is among its first k, and the maps that make it surer or less: E-V6."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from workloads.data.errors import DataError
from workloads.losses.evidential import log_failure, log_miss, top
from workloads.metrics.calibration import nll
from workloads.vera.model import Evidence
from workloads.vera.params import Params

_EDGE = 1e-12
_LOG_TEMPERATURES = (-5.0, 5.0)


@dataclass(frozen=True, eq=False)
class Ranked:
    """What a model says of Q queries with at most C candidates: scores (Q, C), -inf where there is none, evidence, and
    with ``mc_dropout`` the shares of the softmax under so many masks, (M, Q, C)."""

    scores: torch.Tensor
    evidence: Evidence
    drawn: torch.Tensor | None = None

    @property
    def listed(self) -> torch.Tensor:
        """Where there is a candidate, (Q, C)."""
        return self.scores != -torch.inf


@dataclass(frozen=True, eq=False)
class Map:
    """A map of confidences: none; the temperature T; Platt's a, b; or isotonic regression's points x, y (2, m)."""

    kind: str = "none"
    values: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def __call__(self, confidence: torch.Tensor) -> torch.Tensor:
        """Mapped (n,) float64. A temperature of a softmax is not applied here but to its scores."""
        if self.kind == "none":
            return confidence
        if self.kind == "isotonic":
            x, y = (side.cpu().numpy() for side in self.values)
            return torch.from_numpy(np.interp(confidence.cpu().numpy(), x, y)).to(confidence.device)
        logit = confidence.clamp(_EDGE, 1 - _EDGE).logit()
        values = self.values.tolist()
        return torch.sigmoid(logit / values[0] if self.kind == "temperature" else values[0] * logit + values[1])


def confidence(ranked: Ranked, k: int, params: Params, mapped: Map = Map()) -> torch.Tensor:
    """c^(k) of each query, (Q,) float64: by the evidence (note 2), or the mass of the softmax on the first k."""
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
    """The softmax of each row (Q, C); 0 in a row without candidates."""
    return torch.softmax(scores / temperature, 1).masked_fill(scores == -torch.inf, 0)


def _mass(scores: torch.Tensor, k: int, temperature: float) -> torch.Tensor:
    return shares(scores.double(), temperature).gather(1, top(scores, k)).sum(1).clamp(0, 1)


def fit_map(kind: str, ranked: Ranked, k: int, params: Params, success: torch.Tensor) -> Map:
    """The map of that kind with the least NLL of the success (Q,) on these queries; isotonic regression's the least
    squares."""
    if kind == "none":
        return Map()
    success = success.double()
    if kind == "temperature":
        return _temperature(lambda mapped: confidence(ranked, k, params, mapped), success)
    plain = confidence(ranked, k, params)
    return _platt(plain, success) if kind == "platt" else _isotonic(plain, success)


def _temperature(read: Callable[[Map], torch.Tensor], success: torch.Tensor) -> Map:
    """Guo et al., ICML 2017, with the event Z in the place of the class."""

    def of(log: float) -> Map:
        return Map("temperature", torch.tensor([math.exp(log)], dtype=torch.float64))

    def loss(log: float) -> float:
        return float(nll(read(of(log)), success).mean())

    return of(_scipy().minimize_scalar(loss, bounds=_LOG_TEMPERATURES, method="bounded").x)


def _platt(plain: torch.Tensor, success: torch.Tensor) -> Map:
    """Platt, 1999: a logistic regression of Z on logit c, with his smoothed targets."""
    hits = float(success.sum())
    high, low = (hits + 1) / (hits + 2), 1 / (len(success) - hits + 2)
    target = torch.where(success > 0.5, high, low).cpu()
    logit = plain.clamp(_EDGE, 1 - _EDGE).logit().cpu()
    x = torch.stack([logit, torch.ones_like(logit)], 1)

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        found = x @ torch.from_numpy(w)
        value = functional.binary_cross_entropy_with_logits(found, target)
        return float(value), (x.T @ (found.sigmoid() - target) / len(x)).numpy()

    return Map(
        "platt",
        torch.from_numpy(_scipy().minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10}).x),
    )


def _isotonic(plain: torch.Tensor, success: torch.Tensor) -> Map:
    """Zadrozny and Elkan, KDD 2002: the closest rising step function, by pool adjacent violators."""
    x, place = torch.unique(plain.cpu(), return_inverse=True)
    zeros = torch.zeros_like(x)
    counts, sums = (zeros.index_add(0, place, side.cpu()) for side in (torch.ones_like(plain), success))
    y = _scipy().isotonic_regression((sums / counts).numpy(), weights=counts.numpy()).x
    return Map("isotonic", torch.stack([x, torch.from_numpy(np.ascontiguousarray(y))]))


def _scipy() -> Any:
    try:
        from scipy import optimize
    except ImportError:
        raise DataError("recalibration needs the package scipy", fix="Install it, or set recalibration=none") from None
    return optimize
