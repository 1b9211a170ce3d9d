"""Reading an index of which a part was embedded again by a new encoder.

An old encoder has written all rows, and the rows of some documents were replaced by those of a new one, in another
space. A reading gives the rows of the old encoder scores for a query: by the old encoder's own query vector, or by a
map between the spaces. The two parts are then brought to one scale and ranked together. Documents that are embedded
again have both vectors; so has every query that both encoders embed. Maps and scales are learnt from them.

All functions are pure. Vectors are rows; d_old and d_new are the encoders' dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.encoders.search import exact_topk

Array = NDArray[np.float64]

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Weights of the penalty among which :func:`fit_map` chooses."""

_FLOOR = 1e-12


def fit_map(source: Array, target: Array, ridges: Sequence[float] = RIDGES) -> Array:
    """The linear map M of ridge regression, ``argmin |source M - target|² + ridge |M|²``, (d_source, d_target).

    The ridge is the one with the smallest squared error when each pair is predicted from the others (leave-one-out, in
    closed form: Golub, Heath and Wahba, 1979).

    Args:
        source: (n, d_source).
        target: (n, d_target), of the same texts.
        ridges: weights to choose from.

    Raises:
        ValueError: there is no pair, or the numbers of rows differ.
    """
    if not len(source) or len(source) != len(target):
        raise ValueError(f"a map needs pairs of vectors, got {len(source)} and {len(target)}")
    u, singular, vt = np.linalg.svd(source, full_matrices=False)
    projected = u.T @ target
    best, chosen = np.inf, 0.0
    for ridge in ridges:
        shrunk = singular**2 / (singular**2 + ridge)
        residual = target - u @ (shrunk[:, None] * projected)
        leverage = (u**2) @ shrunk
        error = float(((residual / np.maximum(1 - leverage, _FLOOR)[:, None]) ** 2).sum())
        if error < best:
            best, chosen = error, ridge
    result: Array = vt.T @ ((singular / (singular**2 + chosen))[:, None] * projected)
    return result


def unit(vectors: Array) -> Array:
    """Rows divided by their lengths, (n, d)."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    result: Array = vectors / np.maximum(lengths, _FLOOR)
    return result


def standardised(scores: Array, reference: Array) -> Array:
    """Each query's scores less the mean of its scores of reference documents, over their standard deviation, (Q, n).

    With the same reference documents for both encoders, of which both vectors exist, the two scales agree also where
    the parts hold different kinds of documents.

    Args:
        scores: (Q, n).
        reference: (Q, m), by the same reading.
    """
    mean = reference.mean(1, keepdims=True)
    deviation = reference.std(1, keepdims=True)
    result: Array = (scores - mean) / np.maximum(deviation, _FLOOR)
    return result


def fit_affine(scores: Array, target: Array) -> tuple[float, float]:
    """Scale and shift of least squares that predict the new encoder's scores from those of a reading.

    Args:
        scores: of pairs of a query and a document that was embedded again, by its old row, any shape.
        target: of the same pairs, by both new vectors, of the same shape.

    Returns:
        ``a, b`` with ``target ≈ a scores + b``; a is at least 0, so that the order within a part stays.
    """
    spread = float(scores.var())
    covariance = float(((scores - scores.mean()) * (target - target.mean())).mean())
    scale = max(0.0, covariance / spread) if spread > _FLOOR else 0.0
    return scale, float(target.mean()) - scale * float(scores.mean())


def mixed(old: Array, new: Array, again: NDArray[np.bool_]) -> Array:
    """Scores of all documents, (Q, n): ``new`` for those embedded again, ``old`` for the others.

    Args:
        old: by the old rows, (Q, n).
        new: by the new rows, (Q, n).
        again: (n,).
    """
    result: Array = np.where(again[None, :], new, old)
    return result


def by_expected_gain(ranked: NDArray[np.int64], documents: int) -> NDArray[np.int64]:
    """All documents, those first that past queries rank highest, (n,).

    A document that no query sees gains nothing from a new vector. The gain of the others is expected to grow with the
    discounts ``1 / log2(rank + 1)`` of their ranks, summed over queries. Ties by number.

    Args:
        ranked: documents of each past query, best first, padded with -1, (Q, k).
        documents: n.
    """
    discounts = np.broadcast_to(1 / np.log2(np.arange(2, ranked.shape[1] + 2)), ranked.shape)
    real = ranked >= 0
    gains = np.bincount(ranked[real], weights=discounts[real], minlength=documents)
    return np.argsort(-gains, kind="stable")


def by_age(session: NDArray[np.integer]) -> NDArray[np.int64]:
    """All documents, those of the earliest session first, (n,). Ties by number."""
    return np.argsort(session, kind="stable")


@dataclass(frozen=True)
class Spaces:
    """Vectors of the same texts by both encoders: ``old`` (n, d_old) and ``new`` (n, d_new), unit vectors."""

    old: Array
    new: Array

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Spaces:
        """The vectors of some texts."""
        return Spaces(self.old[rows], self.new[rows])


READINGS: Mapping[str, str] = {
    "none": "the new query vector with the old rows",
    "query map": "the new query vector, mapped to the old space, with the old rows (query drift compensation)",
    "document map": "the new query vector with the old rows, mapped to the new space",
    "both encoders": "the old query vector with the old rows",
    "both and map": "the mean of both encoders and document map, each standardised",
}
"""Readings of old rows."""

CALIBRATIONS: Mapping[str, str] = {
    "raw": "scores as they are",
    "standardised": "by each query's mean and deviation over reference documents, of which both vectors exist",
    "affine": "old rows' scores to predictions of the new ones, fitted on past queries and reference documents",
}
"""How the scores of both parts are brought to one scale."""


def old_scores(reading: str, queries: Spaces, rows: Array, pairs: Spaces) -> Array:
    """Scores of rows of the old encoder by a reading, (Q, n).

    Args:
        reading: of :data:`READINGS`, but the last, which :func:`read` makes of two.
        queries: vectors of Q queries by both encoders; a reading uses one.
        rows: old vectors of documents, (n, d_old).
        pairs: texts of which both vectors exist, from which maps are learnt.

    Raises:
        ValueError: the reading is unknown, or the dimensions differ where no map is used.
    """
    if reading == "none":
        return queries.new @ rows.T
    if reading == "both encoders":
        return queries.old @ rows.T
    if reading == "query map":
        return unit(queries.new @ fit_map(pairs.new, pairs.old)) @ rows.T
    if reading == "document map":
        return queries.new @ unit(rows @ fit_map(pairs.old, pairs.new)).T
    raise ValueError(f"there is no reading {reading!r}")


def read(
    reading: str, calibration: str, queries: Spaces, documents: Spaces, again: NDArray[np.bool_], past: Spaces,
    reference: NDArray[np.int64],
) -> Array:  # fmt: skip
    """Scores of all documents with those of ``again`` embedded again, (Q, n).

    Uses the new vectors of documents in ``again`` only, and of all queries.

    Args:
        reading: of :data:`READINGS`.
        calibration: of :data:`CALIBRATIONS`.
        queries: Q queries.
        documents: n documents.
        again: which are embedded again, (n,).
        past: queries that both encoders embed, for maps and the affine calibration.
        reference: documents of ``again``, for the scales; without one, scores are raw.

    Raises:
        ValueError: the reading or calibration is unknown.
    """
    if calibration not in CALIBRATIONS:
        raise ValueError(f"there is no calibration {calibration!r}")
    both = documents.take(again)
    pairs = Spaces(np.concatenate([past.old, both.old]), np.concatenate([past.new, both.new]))
    new = np.zeros((len(queries.new), len(again)))
    new[:, again] = queries.new @ both.new.T
    if reading == "both and map":
        parts = (old_scores(part, queries, documents.old, pairs) for part in ("both encoders", "document map"))
        # Without reference documents the rows themselves are the reference.
        rows = reference if len(reference) else np.arange(len(again))
        old = np.mean([standardised(part, part[:, rows]) for part in parts], axis=0)
    else:
        old = old_scores(reading, queries, documents.old, pairs)
    if calibration == "raw" or not len(reference):
        return mixed(old, new, again)
    if calibration == "standardised":
        return mixed(standardised(old, old[:, reference]), standardised(new, new[:, reference]), again)
    known = documents.take(reference)
    predicted = read(reading, "raw", past, known, np.zeros(len(reference), np.bool_), pairs, np.arange(0))
    scale, shift = fit_affine(predicted, past.new @ known.new.T)
    return mixed(scale * old + shift, new, again)


@dataclass(frozen=True)
class IndexPart:
    """Rows of one encoder to search: ``queries`` (Q, d), ``blocks`` of rows (n, d) in order and their ``docs`` (n,).

    A score is ``scale`` times the inner product plus ``shift``, both (Q,) or (1,).
    """

    queries: torch.Tensor
    blocks: Iterable[torch.Tensor]
    docs: NDArray[np.int64]
    scale: torch.Tensor
    shift: torch.Tensor


def search_parts(parts: Sequence[IndexPart], k: int) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """The k best documents over parts written by different encoders, best first. Ties by part, then by row.

    Returns:
        Scores (Q, min(k, n)) and documents of the same shape.

    Raises:
        ValueError: there is no part, or a scale is not positive.
    """
    if not parts or any((part.scale <= 0).any() for part in parts):
        raise ValueError("there must be a part to search, and each scale must be positive")
    lists = []
    for part in parts:
        best, rows = exact_topk(part.queries, part.blocks, k)
        lists.append((part.scale[:, None] * best + part.shift[:, None], part.docs[rows.cpu().numpy()]))
    return merged(lists, k)


def merged(lists: Sequence[tuple[torch.Tensor, NDArray[np.int64]]], k: int) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """The k best of several lists of each query, best first. Ties by list, then by position.

    Args:
        lists: scores (Q, n) on one scale and documents of the same shape.
        k: at least 1.

    Returns:
        Scores and documents, of the shape (Q, k) or of all lists together.
    """
    scores = torch.cat([one for one, _ in lists], 1)
    docs = np.concatenate([one for _, one in lists], 1)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return scores.gather(1, order), np.take_along_axis(docs, order.cpu().numpy(), 1)
