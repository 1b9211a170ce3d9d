"""Distribution of the inner product of two Gaussian vectors: exact density, and a table for millions of scores.

x = <w, h> with w and h in R^d, iid N(0, λ), λ a variance: variance-gamma, symmetric, of standard deviation λ√d.
Thesis lemma 3.1, (3.16)-(3.20), with E-3.14 and E-3.6. Only x / λ matters, so a table serves every λ.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

REACH = 20
"""Standard deviations at which the table ends; scores beyond are clamped to it."""

_CELLS = 2**16
_TINY = 1e-150  # its square is a normal number


def log_density(x: torch.Tensor, dim: int, variance: float = 1.0) -> torch.Tensor:
    """ln f(x) of thesis (3.6), (3.18) and (3.19) for d = ``dim`` and λ = ``variance``; like ``x``, in float64.

    ``f = (z/2)^ν K_ν(z) / (λ √π Γ(d/2))`` with z = |x| / λ and ν = (d - 1) / 2. At 0 its limit, infinite for d = 1.
    """
    z = x.double().abs() / variance
    constant = math.log(variance) + math.log(math.pi) / 2 + math.lgamma(dim / 2)
    values = _log_bessel(z.clamp_min(_TINY), dim) - constant
    return values.masked_fill(z == 0, math.inf) if dim == 1 else values


def _log_bessel(z: torch.Tensor, dim: int) -> torch.Tensor:
    """ln[(z/2)^ν K_ν(z)] by the recurrence upwards in the order, where it is stable.

    Run on q_ν = (z/2) K_{ν+1} / K_ν, that is ``q_ν = z²/4 / q_{ν-1} + ν``, it neither overflows nor underflows.
    """
    value: torch.Tensor
    if dim % 2:
        order = 0.0
        k0 = torch.special.scaled_modified_bessel_k0(z)
        value = k0.log() - z
        q = z / 2 * torch.special.scaled_modified_bessel_k1(z) / k0
    else:
        order = 0.5
        value = math.log(math.pi) / 2 - math.log(2) - z
        q = (z + 1) / 2
    square = z * z / 4
    while order < (dim - 1) / 2:
        value = value + q.log()
        order += 1
        q = square / q + order
    return value


@lru_cache(maxsize=16)
def table(dim: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """ln f and ln F(-x) for λ = 1 at x = REACH √d (k / n)², k = 0..n; (n + 1, 2).

    Denser towards 0, where small d have a cusp or, d = 1, a pole, which the table cuts off.
    """
    end = REACH * math.sqrt(dim)
    u = torch.linspace(0, 1, _CELLS + 1, dtype=torch.float64)
    density = log_density(end * u.clamp_min(u[1].item() / 2) ** 2 if dim == 1 else end * u**2, dim)
    # F(-x) is the mass beyond x: four Gauss-Legendre points a cell, summed from the far end, and Gauss-Laguerre
    # beyond it, where the density falls like e^-x.
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(4))
    at = (u[:-1, None] + u[1:, None] + nodes / _CELLS) / 2
    mass = (log_density(end * at**2, dim).exp() * 2 * end * at * weights).sum(1) / (2 * _CELLS)
    far, factors = (torch.from_numpy(part) for part in np.polynomial.laguerre.laggauss(32))
    beyond = (factors * (log_density(end + far, dim) + far).exp()).sum()
    tail = torch.cat([mass, beyond[None]]).flip(0).cumsum(0).flip(0)
    return torch.stack([density, tail.log()], 1).to(device, dtype)


def look_up(x: torch.Tensor, dim: int, variance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """ln f(x) and ln F(-\\|x\\|), each like ``x``: a gather and an interpolation, accurate to about 1e-8 in float64."""
    rows = table(dim, x.device, x.dtype)
    position = (x.abs() / (REACH * math.sqrt(dim) * variance)).clamp_max(1).sqrt() * _CELLS
    cell = position.long().clamp(0, _CELLS - 1)
    values = torch.lerp(rows[cell], rows[cell + 1], (position - cell).unsqueeze(-1))
    log_f, log_tail = values.unbind(-1)
    return log_f - math.log(variance), log_tail
