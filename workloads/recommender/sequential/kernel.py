"""The compiled loop over an epoch's triples: draw candidates, choose the negative, take a step. One call a thread."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workloads.compilation import Int, Real, compiled, inlined
from workloads.recommender.sequential.choice import Bayes, bayesian, hardest, ranked, reflect, score_all
from workloads.recommender.sequential.draws import Floats, Ints, Pairs, Proposal, below, has, propose
from workloads.recommender.sequential.updates import (
    GBPR,
    MPR,
    REWEIGHTED,
    TRUNCATED,
    Rule,
    step_gbpr,
    step_mpr,
    step_on_difference,
    step_on_scores,
)

FIRST, HARDEST, RANKED, BAYESIAN = range(4)
"""How the negative is chosen among the candidates."""

_BLOCK = 512  # triples drawn at once
_CANDIDATES = 2**16  # candidates drawn at once


class Feedback(NamedTuple):
    """The training interactions. Row r is (``users[r]``, ``observed.items[r]``)."""

    users: Ints
    observed: Pairs
    item_indptr: NDArray[np.int64]
    item_users: Ints
    """Each item's users, for GBPR; otherwise empty."""
    active: Ints
    """Users with a positive and a negative item."""
    truth: Pairs
    """The false negatives, for TNR and INF; without rows if these are not measured."""
    planted: Pairs
    """The same by the planted truth of generated data."""


class Keys(NamedTuple):
    """Keys of the epoch's random streams."""

    users: np.uint64
    negatives: np.uint64
    extra: np.uint64
    second: np.uint64
    """For the candidates of MPR's second negative."""


class Tables(NamedTuple):
    """The embeddings, updated in place."""

    users: Floats
    items: Floats
    mirror: Floats
    """The item table transposed, for samplers that score all items; otherwise (0, 0)."""


class TripleBlock(NamedTuple):
    """Triples that are drawn together; arrays are (B,)."""

    rows: NDArray[np.int64]
    users: Ints
    items: Ints
    credence: Floats
    candidates: Ints
    """(B, count)."""
    counts: NDArray[np.int64]
    """Number of candidates."""
    negatives: Ints
    """The chosen candidates."""
    second: Ints
    """Candidates of MPR's second negative, (B, count); otherwise (0, count)."""
    second_counts: NDArray[np.int64]
    margins: Floats
    """x_ui - x_uj before the step."""
    likelihoods: Floats
    """e^-loss before the step."""


@compiled
def train(
    tables: Tables,
    feedback: Feedback,
    order: Ints,
    first: Int,
    last: Int,
    keys: Keys,
    proposal: Proposal,
    choice: Int,
    bayes: Bayes,
    rule: Rule,
    credence: Floats,
) -> NDArray[np.float64]:
    """Train on the positions ``first`` to ``last`` of an epoch.

    Draws that do not depend on the model are made for a block of triples at once.

    Args:
        order: the row at each position. If empty, a user is drawn uniformly, then one of its interactions
                (thesis 3.3.1).
        credence: c_ui of each row, or empty.

    Returns:
        The sum of the losses; the number of true negatives and the sum of their signed informativeness (4.28), by the
        truth; the same two by the planted truth.
    """
    n_items = len(tables.items)
    block = _block(max(1, min(_BLOCK, _CANDIDATES // proposal.number)), proposal.number, rule.loss == MPR)
    scores = np.empty(n_items if tables.mirror.size else 0, np.float32)
    tally = np.zeros(5)
    for start in range(first, last, len(block.rows)):
        size = min(len(block.rows), last - start)
        _visit(feedback, order, keys, start, size, credence, block)
        propose(
            proposal,
            feedback.observed,
            block.users[:size],
            n_items,
            keys.negatives,
            start,
            block.candidates,
            block.counts,
        )
        if choice <= HARDEST and rule.loss <= REWEIGHTED:
            _steps(tables.users, tables.items, block, size, choice, rule)
        else:
            if rule.loss == MPR:
                propose(
                    proposal,
                    feedback.observed,
                    block.users[:size],
                    n_items,
                    keys.second,
                    start,
                    block.second,
                    block.second_counts,
                )
            _general_steps(tables, feedback, keys, start, size, choice, bayes, rule, block, scores)
        tally[0] += _loss(block.likelihoods, block.credence, size, credence.size > 0)
        if feedback.truth.indptr.size:
            _measure(feedback.truth, block.users, block.negatives, block.margins, size, tally[1:])
        if feedback.planted.indptr.size:
            _measure(feedback.planted, block.users, block.negatives, block.margins, size, tally[3:])
    return tally


@compiled
def _block(size: Int, count: Int, twice: bool) -> TripleBlock:
    further = size if twice else 0
    return TripleBlock(
        np.empty(size, np.int64),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.ones(size, np.float32),
        np.empty((size, count), np.int32),
        np.empty(size, np.int64),
        np.empty(size, np.int32),
        np.empty((further, count), np.int32),
        np.empty(further, np.int64),
        np.empty(size, np.float32),
        np.empty(size, np.float32),
    )


@compiled
def _visit(
    feedback: Feedback, order: Ints, keys: Keys, start: Int, size: Int, credence: Floats, block: TripleBlock
) -> None:
    """Fill in the rows, users, positives and credences of a block."""
    rows = block.rows
    for b in range(size):
        rows[b] = order[start + b] if order.size else _row(feedback, keys.users, start + b)
        block.users[b] = feedback.users[rows[b]]
        block.items[b] = feedback.observed.items[rows[b]]
    if credence.size:
        for b in range(size):
            block.credence[b] = credence[rows[b]]


@compiled
def _steps(W: Floats, H: Floats, block: TripleBlock, size: Int, choice: Int, rule: Rule) -> None:
    """Take a step on each triple, with the first or the hardest candidate as negative."""
    users = block.users
    items = block.items
    candidates = block.candidates
    credence = block.credence
    negatives = block.negatives
    margins = block.margins
    likelihoods = block.likelihoods
    for b in range(size):
        user = np.int64(users[b])
        item = np.int64(items[b])
        other = np.int64(candidates[b, 0])
        if choice == HARDEST:
            other = hardest(W, H, user, candidates, b, block.counts[b])
        negatives[b] = other
        if rule.loss <= TRUNCATED:
            margins[b], likelihoods[b] = step_on_difference(W, H, user, item, other, rule, credence[b])
        else:
            margins[b], likelihoods[b] = step_on_scores(W, H, user, item, other, rule, credence[b])


@compiled
def _general_steps(
    tables: Tables,
    feedback: Feedback,
    keys: Keys,
    start: Int,
    size: Int,
    choice: Int,
    bayes: Bayes,
    rule: Rule,
    block: TripleBlock,
    scores: Floats,
) -> None:
    """Take an SGD step per triple.

    For samplers that score all items, and for GBPR and MPR, which update more than three rows.
    """
    W = tables.users
    H = tables.items
    group = np.empty(max(1, rule.group), np.int32)
    several = np.empty(5, np.int32)
    old = np.empty(W.shape[1], np.float32)
    mixed = np.empty(W.shape[1], np.float32)
    for b in range(size):
        user = np.int64(block.users[b])
        item = np.int64(block.items[b])
        other = _chosen(tables, feedback, user, item, block.candidates, b, block.counts[b], choice, bayes, scores)
        block.negatives[b] = other
        weight = block.credence[b]
        if rule.loss == GBPR:
            _group(feedback, user, item, keys.extra, start + b, group)
            block.margins[b] = _difference(W[user], H[item], H[other])
            block.likelihoods[b] = step_gbpr(W, H, group, item, other, rule, weight, old, mixed)
        elif rule.loss == MPR:
            second = _chosen(
                tables, feedback, user, item, block.second, b, block.second_counts[b], choice, bayes, scores
            )
            several[0] = item
            several[1] = _further(feedback.observed, block.rows[b], user, keys.extra, start + b, 1)
            several[2] = _further(feedback.observed, block.rows[b], user, keys.extra, start + b, 2)
            several[3] = other
            several[4] = second
            block.margins[b] = _difference(W[user], H[item], H[other])
            block.likelihoods[b] = step_mpr(W, H, user, several, rule, weight, old, mixed)
        elif rule.loss <= TRUNCATED:
            block.margins[b], block.likelihoods[b] = step_on_difference(W, H, user, item, other, rule, weight)
        else:
            block.margins[b], block.likelihoods[b] = step_on_scores(W, H, user, item, other, rule, weight)
        if tables.mirror.size:
            reflect(H, tables.mirror, item)
            reflect(H, tables.mirror, other)
            if rule.loss == MPR:
                for n in (1, 2, 4):
                    reflect(H, tables.mirror, np.int64(several[n]))


@compiled
def _chosen(
    tables: Tables,
    feedback: Feedback,
    user: Int,
    item: Int,
    candidates: Ints,
    b: Int,
    count: Int,
    choice: Int,
    bayes: Bayes,
    scores: Floats,
) -> Int:
    """Choose the negative of triple b among its candidates."""
    first = np.int64(candidates[b, 0])
    if choice == HARDEST:
        return hardest(tables.users, tables.items, user, candidates, b, count)
    if choice == FIRST:
        return first
    score_all(tables.users[user], tables.mirror, scores)
    if choice == RANKED:
        return ranked(scores, feedback.observed, user, first)
    return bayesian(scores, feedback.observed, feedback.truth, bayes, user, item, candidates, b, count)


@inlined
def _row(feedback: Feedback, key: np.uint64, position: Int) -> Int:
    """Draw an active user uniformly, then one of its interactions."""
    user = feedback.active[below(key, position, 0, len(feedback.active))]
    first = feedback.observed.indptr[user]
    return first + below(key, position, 1, feedback.observed.indptr[user + 1] - first)


@compiled
def _group(feedback: Feedback, user: Int, item: Int, key: np.uint64, position: Int, out: Ints) -> None:
    """Fill ``out`` with the user and others who have the item, drawn with replacement; if none has, with the user."""
    first = feedback.item_indptr[item]
    n = feedback.item_indptr[item + 1] - first
    out[0] = user
    for member in range(1, len(out)):
        drawn = first + below(key, position, member, max(1, n - 1))
        # The list is ascending: skipping the user moves all later entries by one.
        out[member] = feedback.item_users[drawn + (n > 1 and feedback.item_users[drawn] >= user)]


@inlined
def _further(observed: Pairs, row: Int, user: Int, key: np.uint64, position: Int, attempt: Int) -> Int:
    """Draw another positive of the user than the row's, if there is one (E-5.17)."""
    first = observed.indptr[user]
    n = observed.indptr[user + 1] - first
    drawn = first + below(key, position, attempt, max(1, n - 1))
    return np.int64(observed.items[drawn + (n > 1 and drawn >= row)])


@inlined
def _difference(w: Floats, h: Floats, o: Floats) -> Real:
    x = np.float32(0)
    for k in range(len(w)):
        x += w[k] * (h[k] - o[k])
    return x


@compiled
def _loss(likelihoods: Floats, credence: Floats, size: Int, weighted: bool) -> Real:
    """The sum of c times the loss. If every c is 1, one logarithm is taken of a product of many likelihoods."""
    total = 0.0
    product = 1.0
    for b in range(size):
        if weighted:
            total -= credence[b] * math.log(likelihoods[b])
        else:
            product *= likelihoods[b]
        if product < 1e-200:
            total -= math.log(product)
            product = 1.0
    return total - math.log(product)


@compiled
def _measure(
    truth: Pairs, users: Ints, negatives: Ints, margins: Floats, size: Int, tally: NDArray[np.float64]
) -> None:
    """Count true negatives (4.27) and sum the informativeness of all, negated for false ones (4.28)."""
    true = 0
    inf = 0.0
    for b in range(size):
        info: Real = np.float32(1) / (np.float32(1) + math.exp(margins[b]))
        false = has(truth, np.int64(users[b]), np.int64(negatives[b]))
        true += not false
        inf += -info if false else info
    tally[0] += true
    tally[1] += inf
