"""One step of plain SGD for each loss: all gradients from the old rows, then all rows at once.

Θ ← Θ - α c (∂loss/∂Θ + reg Θ), thesis (3.31) and (3.32); c is the interaction's credence, 1 where there is none. The
losses are those of ``workloads/losses/pairwise.py``; here stand their derivatives with respect to the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from workloads.recommender.sequential.compiled import Int, Real, compiled, inlined
from workloads.recommender.sequential.draws import Floats, Ints

BPR, TRUNCATED, BCE, REWEIGHTED, GBPR, MPR = range(6)

_LIMIT = np.float32(80)  # scores beyond it count as it in a loss: float32's exp overflows at 88
_ONE, _HALF = np.float32(1), np.float32(0.5)


class Rule(NamedTuple):
    """A loss with its parameters, and the step."""

    loss: int
    parameter: float
    """Of the loss: the largest loss that counts (TRUNCATED), β (REWEIGHTED), ρ (GBPR), λ (MPR)."""
    group: int
    """|G| of GBPR, the user included."""
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
    """BPR and TRUNCATED, a step on (u, i, j); gives the margin x_ui - x_uj and e^-loss before it."""
    # Unsigned indices: signed ones are tested for counting from the end.
    w, h, o = W[np.uint64(user)], H[np.uint64(item)], H[np.uint64(other)]
    margin = np.float32(0)
    for k in range(len(w)):
        margin += w[k] * (h[k] - o[k])
    up, down = _sigmoid(margin)
    rate = np.float32(rule.lr) * credence
    if rule.loss == TRUNCATED and up < math.exp(-np.float32(rule.parameter)):
        up, rate = _ONE, np.float32(0)
    keep, push = _ONE - rate * np.float32(rule.reg), rate * down
    for k in range(len(w)):
        wk, hk, ok = w[k], h[k], o[k]
        w[k] = keep * wk + push * (hk - ok)
        h[k] = keep * hk + push * wk
        o[k] = keep * ok - push * wk
    return margin, up


@inlined
def step_on_scores(
    W: Floats, H: Floats, user: Int, item: Int, other: Int, rule: Rule, credence: Real
) -> tuple[Real, Real]:
    """BCE and REWEIGHTED, a step on (u, i, j); gives the margin and e^-loss before it."""
    w, h, o = W[np.uint64(user)], H[np.uint64(item)], H[np.uint64(other)]
    positive, negative = np.float32(0), np.float32(0)
    for k in range(len(w)):
        positive += w[k] * h[k]
        negative += w[k] * o[k]
    p, not_p = _sigmoid(positive)
    q, not_q = _sigmoid(negative)
    likelihood, of_p, of_q = math.sqrt(p) * math.sqrt(not_q), _HALF, _HALF
    if rule.loss == REWEIGHTED:
        # The weights carry no gradient.
        of_p *= p ** np.float32(rule.parameter)
        of_q *= not_q ** np.float32(rule.parameter)
        likelihood = math.exp(of_p * math.log(p) + of_q * math.log(not_q))
    rate = np.float32(rule.lr) * credence
    keep, up, down = _ONE - rate * np.float32(rule.reg), rate * of_p * not_p, rate * of_q * q
    for k in range(len(w)):
        wk, hk, ok = w[k], h[k], o[k]
        w[k] = keep * wk + (up * hk - down * ok)
        h[k] = keep * hk + up * wk
        o[k] = keep * ok - down * wk
    return positive - negative, likelihood


@compiled
def several_items(
    W: Floats, H: Floats, user: Int, items: Ints, rule: Rule, credence: Real, old: Floats, mixed: Floats
) -> Real:
    """MPR, a step on u and (i, i1, i2, j1, j2); gives e^-loss before it. ``old``, ``mixed``: (d,), scratch."""
    lam = np.float32(rule.parameter)
    w, margin = W[user], np.float32(0)
    old[:] = w
    mixed[:] = 0
    for place in range(5):
        share = _mpr(place, lam)
        h = H[items[place]]
        for k in range(len(w)):
            margin += share * old[k] * h[k]
            mixed[k] += share * h[k]
    up, down = _sigmoid(margin)
    rate = np.float32(rule.lr) * credence
    keep, push = _ONE - rate * np.float32(rule.reg), rate * down
    for k in range(len(w)):
        w[k] = keep * old[k] + push * mixed[k]
    for place in range(5):
        share = push * _mpr(place, lam)
        h = H[items[place]]
        for k in range(len(old)):
            h[k] = keep * h[k] + share * old[k]
    return up


@inlined
def _mpr(place: Int, lam: Real) -> Real:
    """What a score counts in the margin λ ((x_i - x_j2) - (x_j1 - x_j2)) + (1 - λ) ((x_j1 - x_j2) - (x_i1 - x_i2))."""
    if place == 0:
        return lam
    if place == 2:
        return _ONE - lam
    return _ONE - np.float32(2) * lam if place == 3 else lam - _ONE


@compiled
def several_users(
    W: Floats, H: Floats, users: Ints, item: Int, other: Int, rule: Rule, credence: Real, old: Floats, mixed: Floats
) -> Real:
    """GBPR, a step on the group (u, w, ...), i and j; gives e^-loss before it. ``old``, ``mixed``: (d,), scratch.

    A user who is in the group twice counts twice, in its decay too.
    """
    share = np.float32(rule.parameter) / np.float32(len(users))
    own = _ONE - np.float32(rule.parameter)
    w, h, o = W[users[0]], H[item], H[other]
    old[:] = w
    for k in range(len(w)):
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
    keep, push = _ONE - rate * np.float32(rule.reg), rate * down
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
