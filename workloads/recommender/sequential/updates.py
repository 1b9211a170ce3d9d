"""One step of plain SGD for each loss: gradients are computed from the old rows, then all rows are updated.

Θ ← Θ - α c (∂loss/∂Θ + reg Θ), thesis (3.31) and (3.32); c is the interaction's credence, or 1. The losses are those
of ``workloads/losses/pairwise.py``; this module has their derivatives with respect to the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from workloads.compilation import Int, Real, compiled, inlined
from workloads.recommender.sequential.draws import Floats, Ints

BPR, TRUNCATED, BCE, REWEIGHTED, GBPR, MPR = range(6)

_LIMIT = np.float32(80)  # scores are clamped to it in a loss: float32's exp overflows at 88
_ONE = np.float32(1)
_HALF = np.float32(0.5)


class Rule(NamedTuple):
    """A loss with its parameters, and those of the step."""

    loss: int
    parameter: float
    """The loss's: the largest loss that counts (TRUNCATED), β (REWEIGHTED), ρ (GBPR), λ (MPR)."""
    group: int
    """|G| of GBPR, including the user."""
    lr: float
    reg: float


@inlined
def _sigmoid(x: Real) -> tuple[Real, Real]:
    """σ(x) and σ(-x), neither 0."""
    e = math.exp(min(max(x, -_LIMIT), _LIMIT))
    down = _ONE / (_ONE + e)
    return e * down, down


@inlined
def step_on_difference(
    W: Floats, H: Floats, user: Int, item: Int, other: Int, rule: Rule, credence: Real
) -> tuple[Real, Real]:
    """A step of BPR or TRUNCATED on (u, i, j). Returns the margin x_ui - x_uj and e^-loss before the step."""
    # Unsigned indices are faster: signed ones are checked for being negative.
    w = W[np.uint64(user)]
    h = H[np.uint64(item)]
    o = H[np.uint64(other)]
    margin = np.float32(0)
    for k in range(len(w)):
        margin += w[k] * (h[k] - o[k])
    up, down = _sigmoid(margin)
    rate = np.float32(rule.lr) * credence
    if rule.loss == TRUNCATED and up < math.exp(-np.float32(rule.parameter)):
        up = _ONE
        rate = np.float32(0)
    keep = _ONE - rate * np.float32(rule.reg)
    push = rate * down
    for k in range(len(w)):
        wk = w[k]
        hk = h[k]
        ok = o[k]
        w[k] = keep * wk + push * (hk - ok)
        h[k] = keep * hk + push * wk
        o[k] = keep * ok - push * wk
    return margin, up


@inlined
def step_on_scores(
    W: Floats, H: Floats, user: Int, item: Int, other: Int, rule: Rule, credence: Real
) -> tuple[Real, Real]:
    """A step of BCE or REWEIGHTED on (u, i, j). Returns the margin and e^-loss before the step."""
    w = W[np.uint64(user)]
    h = H[np.uint64(item)]
    o = H[np.uint64(other)]
    positive = np.float32(0)
    negative = np.float32(0)
    for k in range(len(w)):
        positive += w[k] * h[k]
        negative += w[k] * o[k]
    p, not_p = _sigmoid(positive)
    q, not_q = _sigmoid(negative)
    likelihood = math.sqrt(p) * math.sqrt(not_q)
    of_p = _HALF
    of_q = _HALF
    if rule.loss == REWEIGHTED:
        # The weights are constants of the gradient.
        of_p *= p ** np.float32(rule.parameter)
        of_q *= not_q ** np.float32(rule.parameter)
        likelihood = math.exp(of_p * math.log(p) + of_q * math.log(not_q))
    rate = np.float32(rule.lr) * credence
    keep = _ONE - rate * np.float32(rule.reg)
    up = rate * of_p * not_p
    down = rate * of_q * q
    for k in range(len(w)):
        wk = w[k]
        hk = h[k]
        ok = o[k]
        w[k] = keep * wk + (up * hk - down * ok)
        h[k] = keep * hk + up * wk
        o[k] = keep * ok - down * wk
    return positive - negative, likelihood


@compiled
def step_mpr(
    W: Floats, H: Floats, user: Int, items: Ints, rule: Rule, credence: Real, old: Floats, mixed: Floats
) -> Real:
    """A step of MPR on u and (i, i1, i2, j1, j2). Returns e^-loss before it. ``old``, ``mixed``: (d,), scratch."""
    lam = np.float32(rule.parameter)
    w = W[user]
    margin = np.float32(0)
    for k in range(len(w)):  # a slice compiles two seconds longer, for the message of unequal shapes
        old[k] = w[k]
        mixed[k] = 0
    for n in range(5):
        share = _mpr_coefficient(n, lam)
        h = H[items[n]]
        for k in range(len(w)):
            margin += share * old[k] * h[k]
            mixed[k] += share * h[k]
    up, down = _sigmoid(margin)
    rate = np.float32(rule.lr) * credence
    keep = _ONE - rate * np.float32(rule.reg)
    push = rate * down
    for k in range(len(w)):
        w[k] = keep * old[k] + push * mixed[k]
    for n in range(5):
        share = push * _mpr_coefficient(n, lam)
        h = H[items[n]]
        for k in range(len(old)):
            h[k] = keep * h[k] + share * old[k]
    return up


@inlined
def _mpr_coefficient(n: Int, lam: Real) -> Real:
    """Coefficient of the n-th score in λ ((x_i - x_j2) - (x_j1 - x_j2)) + (1 - λ) ((x_j1 - x_j2) - (x_i1 - x_i2))."""
    if n == 0:
        return lam
    if n == 2:
        return _ONE - lam
    return _ONE - np.float32(2) * lam if n == 3 else lam - _ONE


@compiled
def step_gbpr(
    W: Floats, H: Floats, users: Ints, item: Int, other: Int, rule: Rule, credence: Real, old: Floats, mixed: Floats
) -> Real:
    """A step of GBPR on the group (u, w, ...), i and j. Returns e^-loss before it. ``old``, ``mixed``: (d,), scratch.

    A user that occurs twice in the group counts twice, also in the decay.
    """
    share = np.float32(rule.parameter) / np.float32(len(users))
    own = _ONE - np.float32(rule.parameter)
    w = W[users[0]]
    h = H[item]
    o = H[other]
    for k in range(len(w)):
        old[k] = w[k]
        mixed[k] = own * w[k]
    for member in users:
        m = W[member]
        for k in range(len(w)):
            mixed[k] += share * m[k]
    margin = np.float32(0)
    for k in range(len(w)):
        margin += mixed[k] * h[k] - old[k] * o[k]
    up, down = _sigmoid(margin)
    rate = np.float32(rule.lr) * credence
    keep = _ONE - rate * np.float32(rule.reg)
    push = rate * down
    for member in users:
        m = W[member]
        for k in range(len(w)):
            m[k] = keep * m[k] + push * share * h[k]
    for k in range(len(w)):
        w[k] += push * (own * h[k] - o[k])
    for k in range(len(w)):
        h[k] = keep * h[k] + push * mixed[k]
        o[k] = keep * o[k] - push * old[k]
    return up
