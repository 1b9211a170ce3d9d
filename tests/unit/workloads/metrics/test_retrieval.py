"""Metrics of graded lists of different lengths, compared with ranx, loops and the binary metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support.oracle_ranx import ranx_scores
from tests.support.user_metrics import per_user
from workloads.metrics.retrieval import AT_K, per_query

INF = math.inf
KS = (1, 3, 10, 100)


def blocks(seed: int, n: int = 40, docs: int = 60, ties: bool = False) -> list[tuple[list[int], list[float], dict]]:
    """Queries with various numbers of candidates, their scores, and grades of documents, some not candidates."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        candidates = rng.permutation(docs)[: rng.integers(0, 30)].tolist()
        scores = rng.integers(0, 4, len(candidates)) if ties else rng.normal(size=len(candidates))
        judged = rng.permutation(docs)[: rng.integers(1, 12)].tolist()
        grades = {doc: int(rng.integers(0, 5)) for doc in judged}
        grades[judged[0]] = 1 + int(rng.integers(0, 4))
        made.append((candidates, [float(score) for score in scores], grades))
    return made


def padded(queries: list[tuple[list[int], list[float], dict]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width, judged = max(len(one[0]) for one in queries), max(len(one[2]) for one in queries)
    scores = torch.full((len(queries), width), -INF)
    grades, all_grades = torch.zeros(len(queries), width), torch.zeros(len(queries), judged)
    for row, (docs, values, found) in enumerate(queries):
        scores[row, : len(docs)] = torch.tensor(values)
        grades[row, : len(docs)] = torch.tensor([float(found.get(doc, 0)) for doc in docs])
        all_grades[row, : len(found)] = torch.tensor([float(grade) for grade in found.values()])
    return scores, grades, all_grades


def slow(docs: list[int], scores: list[float], grades: dict[int, int], k: int) -> dict[str, float]:
    ranked = [docs[place] for place in sorted(range(len(docs)), key=lambda place: (-scores[place], place))]
    relevant = sum(grade > 0 for grade in grades.values())
    gain = sum(grades.get(doc, 0) / math.log2(rank + 2) for rank, doc in enumerate(ranked[:k]))
    ideal = sum(grade / math.log2(rank + 2) for rank, grade in enumerate(sorted(grades.values(), reverse=True)[:k]))
    hits = [grades.get(doc, 0) > 0 for doc in ranked]
    at = [sum(hits[: rank + 1]) / (rank + 1) for rank in range(len(hits))]
    return {
        "ndcg": gain / ideal,
        "mrr": next((1 / (rank + 1) for rank, hit in enumerate(hits[:k]) if hit), 0.0),
        "recall": sum(hits[:k]) / relevant,
        "success": float(any(hits[:k])),
        "map": sum(p for p, hit in zip(at, hits) if hit) / relevant,
    }


@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_matches_its_definition(ties: bool) -> None:
    queries = blocks(1, ties=ties)
    found = per_query(*padded(queries), KS)
    assert list(found) == [f"{name}_at_{k}" for k in KS for name in AT_K] + ["map"]
    for row, query in enumerate(queries):
        for k in KS:
            expected = slow(*query, k)
            for name in ("ndcg", "mrr", "recall", "success"):
                assert found[f"{name}_at_{k}"][row].item() == pytest.approx(expected[name], abs=1e-6), (name, k, query)
        assert found["map"][row].item() == pytest.approx(expected["map"], abs=1e-6)


def test_metrics_match_ranx() -> None:
    queries = [one for one in blocks(2) if one[0]]
    judged = {
        f"q{row}": {f"d{doc}": grade for doc, grade in one[2].items() if grade} for row, one in enumerate(queries)
    }
    runs = {f"q{row}": {f"d{doc}": score for doc, score in zip(*one[:2])} for row, one in enumerate(queries)}
    ours = per_query(*padded(queries), (10,))
    names = {
        "ndcg@10": "ndcg_at_10", "mrr@10": "mrr_at_10", "recall@10": "recall_at_10", "map": "map",
        "hit_rate@10": "success_at_10",
    }  # fmt: skip
    theirs = ranx_scores(judged, runs, list(names))
    for name, name_here in names.items():
        expected = [theirs[name][f"q{row}"] for row in range(len(queries))]
        assert ours[name_here].tolist() == pytest.approx(expected, abs=1e-6), name


def test_metrics_of_two_grades_equal_the_binary_metrics() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(20, 15, generator=generator)
    grades = (torch.rand(20, 15, generator=generator) < 0.3).float()
    grades[:, 0] = 1
    ours = per_query(scores, grades, grades, (5,))
    theirs = per_user(scores, grades > 0, torch.zeros(20, 15, dtype=torch.bool), (5,))
    for name in ("ndcg_at_5", "mrr_at_5", "recall_at_5"):
        torch.testing.assert_close(ours[name], theirs[name])


def test_relevant_document_outside_the_candidates_lowers_the_metrics() -> None:
    scores, grades, judged = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 3.0]])
    found = per_query(scores, grades, judged)
    assert found["recall_at_10"].item() == 0.5
    assert found["map"].item() == 0.5
    assert found["ndcg_at_10"].item() == pytest.approx(1 / (3 + 1 / math.log2(3)))


def test_metrics_without_candidates_or_judgements_are_zero() -> None:
    empty = per_query(torch.full((1, 3), -INF), torch.zeros(1, 3), torch.tensor([[2.0]]))
    assert len(empty) == len(AT_K) + 1
    assert all(value.item() == 0 for value in empty.values())
    unjudged = per_query(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 0))
    assert all(value.item() == 0 for value in unjudged.values())
    none = per_query(torch.zeros(0, 0), torch.zeros(0, 0), torch.zeros(0, 0))
    assert all(len(value) == 0 for value in none.values())


def test_ties_are_ranked_by_column() -> None:
    found = per_query(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[1.0]]), (1, 2))
    assert found["mrr_at_2"].item() == 0.5
    assert found["success_at_1"].item() == 0


def test_metrics_of_a_query_with_a_nan_score_are_nan() -> None:
    scores = torch.tensor([[0.2, math.nan], [math.nan, -INF], [0.2, 0.1]])
    grades = torch.tensor([[1.0, 0.0]] * 3)
    for value in per_query(scores, grades, grades).values():
        assert value.isnan().tolist() == [True, True, False]
