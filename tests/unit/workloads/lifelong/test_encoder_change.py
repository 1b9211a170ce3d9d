"""Search over index rows of an old and a new encoder, against slow references."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads.lifelong.encoder_change import (
    CALIBRATIONS,
    READINGS,
    RIDGES,
    IndexPart,
    Spaces,
    by_age,
    by_expected_gain,
    fit_affine,
    fit_map,
    mixed,
    old_scores,
    read,
    search_parts,
    standardised,
    unit,
)
from workloads.lifelong.mutable_index import MutableIndex

COMBINATIONS = [(reading, calibration) for reading in READINGS for calibration in CALIBRATIONS]


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def spaces(seed: int, count: int) -> Spaces:
    return Spaces(unit(drawn(seed, count, 5)), unit(drawn(seed + 100, count, 5)))


def ridge(source: np.ndarray, target: np.ndarray, weight: float) -> np.ndarray:
    return np.linalg.solve(source.T @ source + weight * np.eye(source.shape[1]), source.T @ target)


@pytest.mark.parametrize("count", [2, 12])
def test_fit_map_selects_the_ridge_weight_by_leave_one_out_error(count: int) -> None:
    source, target = drawn(0, count, 4), drawn(1, count, 3)
    errors = []
    for weight in RIDGES:
        others = [np.delete(np.arange(count), one) for one in range(count)]
        errors.append(
            sum(
                float(((target[one] - source[one] @ ridge(source[rest], target[rest], weight)) ** 2).sum())
                for one, rest in enumerate(others)
            )
        )
    expected = ridge(source, target, RIDGES[int(np.argmin(errors))])
    np.testing.assert_allclose(fit_map(source, target), expected, rtol=1e-6, atol=1e-9)


def test_fit_map_recovers_a_linear_change_of_vectors() -> None:
    source, change = drawn(0, 50, 4), drawn(1, 4, 6)
    np.testing.assert_allclose(fit_map(source, source @ change), change, atol=1e-2)
    with pytest.raises(ValueError, match="needs pairs"):
        fit_map(source, change)


def test_scores_are_standardised_by_query() -> None:
    scores, reference = drawn(0, 3, 7), drawn(1, 3, 4)
    expected = [
        [(score - np.mean(row)) / math.sqrt(np.mean((row - np.mean(row)) ** 2)) for score in own]
        for own, row in zip(scores, reference)
    ]
    np.testing.assert_allclose(standardised(scores, reference), expected)


def test_affine_map_is_the_least_squares_fit_with_nonnegative_slope() -> None:
    scores = drawn(0, 3, 7)
    target = 2 * scores + 0.3 * drawn(1, 3, 7) - 1
    np.testing.assert_allclose(fit_affine(scores, target), np.polyfit(scores.ravel(), target.ravel(), 1))
    assert fit_affine(scores, -scores)[0] == 0
    assert fit_affine(np.ones((2, 2)), target[:2, :2]) == (0, pytest.approx(target[:2, :2].mean()))


def test_documents_are_ordered_by_gain_and_by_age() -> None:
    ranked = np.array([[3, 1, -1], [1, 3, 0], [1, 4, -1]])
    gains = [sum(1 / math.log2(list(row).index(doc) + 2) for row in ranked if doc in row) for doc in range(6)]
    assert by_expected_gain(ranked, 6).tolist() == sorted(range(6), key=lambda doc: -gains[doc]) == [1, 3, 4, 0, 2, 5]
    assert by_age(np.array([1, 0, 2, 0])).tolist() == [1, 3, 0, 2]


def slow(reading: str, queries: Spaces, row: np.ndarray, query: int, pairs: Spaces) -> float:
    """The score of one old row for one query."""
    vectors = {
        "none": (queries.new[query], row),
        "both encoders": (queries.old[query], row),
        "query map": (queries.new[query] @ fit_map(pairs.new, pairs.old), row),
        "document map": (queries.new[query], row @ fit_map(pairs.old, pairs.new)),
    }[reading]
    mapped = {"query map": 0, "document map": 1}.get(reading)
    lengths = [math.sqrt(float(one @ one)) if number == mapped else 1.0 for number, one in enumerate(vectors)]
    return float(vectors[0] @ vectors[1]) / lengths[0] / lengths[1]


@pytest.mark.parametrize("reading", [one for one in READINGS if one != "both and map"])
def test_scores_of_old_rows_match_the_reference_of_each_reading(reading: str) -> None:
    queries, documents, pairs = spaces(0, 3), spaces(1, 6), spaces(2, 9)
    scores = old_scores(reading, queries, documents.old, pairs)
    for query in range(3):
        for doc in range(6):
            assert scores[query, doc] == pytest.approx(slow(reading, queries, documents.old[doc], query, pairs))


@pytest.mark.parametrize(("reading", "calibration"), COMBINATIONS)
def test_new_vectors_of_documents_that_were_not_embedded_again_are_not_used(reading: str, calibration: str) -> None:
    queries, documents, past = spaces(0, 4), spaces(1, 12), spaces(2, 7)
    again = np.arange(12) % 3 == 0
    reference = np.flatnonzero(again)
    scores = read(reading, calibration, queries, documents, again, past, reference)
    hidden = Spaces(documents.old, np.where(again[:, None], documents.new, 9.0))
    np.testing.assert_array_equal(read(reading, calibration, queries, hidden, again, past, reference), scores)
    new = queries.new @ documents.new.T
    if calibration != "standardised":
        np.testing.assert_allclose(scores[:, again], new[:, again])
    pairs = Spaces(np.concatenate([past.old, documents.old[again]]), np.concatenate([past.new, documents.new[again]]))
    if reading != "both and map" and calibration == "raw":
        expected = old_scores(reading, queries, documents.old, pairs)
        np.testing.assert_allclose(scores, mixed(expected, new, again))


@pytest.mark.parametrize(("reading", "calibration"), COMBINATIONS)
def test_ranking_is_the_new_encoders_if_all_documents_are_embedded_again(reading: str, calibration: str) -> None:
    queries, documents, past = spaces(0, 4), spaces(1, 12), spaces(2, 7)
    scores = read(reading, calibration, queries, documents, np.ones(12, np.bool_), past, np.arange(5))
    assert (scores.argsort(1) == (queries.new @ documents.new.T).argsort(1)).all()


def test_mixed_rows_rank_as_before_if_the_encoder_only_rotates_vectors() -> None:
    """Mixed rows are ranked as before the change if the new encoder only rotates the vectors."""
    old = unit(drawn(0, 40, 5))
    turn = np.linalg.qr(drawn(1, 5, 5))[0]
    every = Spaces(old, old @ turn)
    queries, documents, past = every.take(np.arange(4)), every.take(np.arange(4, 30)), every.take(np.arange(30, 40))
    again = np.arange(26) % 2 == 0
    expected = (queries.old @ documents.old.T).argsort(1)
    for reading, calibration in (
        ("both encoders", "raw"),
        ("both encoders", "standardised"),
        ("both encoders", "affine"),
    ):
        scores = read(reading, calibration, queries, documents, again, past, np.flatnonzero(again))
        assert (scores.argsort(1) == expected).all()


def test_unknown_reading_or_calibration_is_refused() -> None:
    one = spaces(0, 2)
    with pytest.raises(ValueError, match="no reading 'some'"):
        read("some", "raw", one, one, np.zeros(2, np.bool_), one, np.arange(0))
    with pytest.raises(ValueError, match="no calibration 'some'"):
        read("none", "some", one, one, np.zeros(2, np.bool_), one, np.arange(0))


def test_search_over_index_parts_matches_scaled_scores_of_all_rows(tmp_path: Path) -> None:
    """Each model's rows are searched with query vectors and a scale of their own; deleted documents are left out."""
    index = MutableIndex.create(tmp_path, "ours", 5)
    vectors = drawn(3, 2, 30, 5).astype(np.float32)
    index.put(0, np.arange(30), vectors[0])
    index.put(1, np.arange(0, 30, 3), vectors[1][::3])
    index.delete(np.array([3, 4]))
    queries = torch.from_numpy(drawn(4, 2, 6, 5).astype(np.float32))
    scale, shift = torch.tensor([2.0, 0.5]), torch.tensor([-0.3, 0.0])
    parts = [
        IndexPart(
            queries[model], index.blocks(model), index.docs(model), scale[model : model + 1], shift[model : model + 1]
        )
        for model in (0, 1)
    ]
    scores, docs = search_parts(parts, 7)
    for query in range(6):
        slow_scores = {
            doc: float(scale[model] * (queries[model][query] @ torch.from_numpy(vectors[model][doc])) + shift[model])
            for doc in range(30)
            if doc not in (3, 4)
            for model in (int(doc % 3 == 0),)
        }
        best = sorted(slow_scores, key=lambda doc: -slow_scores[doc])[:7]
        assert docs[query].tolist() == best
        np.testing.assert_allclose(scores[query], [slow_scores[doc] for doc in best], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="each scale must be positive"):
        search_parts([IndexPart(queries[0], index.blocks(0), index.docs(0), torch.zeros(1), torch.zeros(1))], 3)
