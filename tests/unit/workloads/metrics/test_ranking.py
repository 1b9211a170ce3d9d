"""Ranking metrics against a slow reference made from their definitions, and against ranx."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support.oracle_ranx import ranx_scores
from tests.support.user_metrics import per_user
from workloads.metrics import ranking
from workloads.metrics.ranking import AT_K, auc, metric_names, top_k


def slow(scores: list[float], relevant: set[int], excluded: set[int], k: int) -> dict[str, float]:
    """Reference: the metrics of one user, by loops."""
    candidates = [item for item in range(len(scores)) if item not in excluded]
    good = [item for item in candidates if item in relevant]
    ranked = sorted(candidates, key=lambda item: (-scores[item], item))[:k]
    hits = [item in relevant for item in ranked]
    at = [sum(hits[: r + 1]) / (r + 1) for r in range(len(ranked))]
    total, n, best = sum(hits), len(good), min(k, len(good))
    interpolated = [max(at[r:]) for r in range(len(ranked)) if hits[r]]
    first = next((r + 1 for r, hit in enumerate(hits) if hit), None)
    pairs = [(scores[i], scores[j]) for i in good for j in candidates if j not in relevant]
    listed = [(scores[i], scores[j]) for i in ranked if i in relevant for j in ranked if j not in relevant]
    return {
        "precision": total / k,
        "recall": total / n,
        "f1": 2 * total / (k + n),
        "ndcg": sum(1 / math.log2(r + 2) for r, hit in enumerate(hits) if hit)
        / sum(1 / math.log2(r + 2) for r in range(best)),
        "map_min": sum(p for p, hit in zip(at, hits) if hit) / best,
        "map_interp": sum(interpolated) / total if total else 0.0,
        "mrr": 1 / first if first else 0.0,
        "hit": float(total > 0),
        "auc": in_order(pairs),
        "auc_at": in_order(listed),
    }


def in_order(pairs: list[tuple[float, float]]) -> float:
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs) if pairs else math.nan


def masks(shape: torch.Size, items: list[set[int]]) -> torch.Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    for user, of_user in enumerate(items):
        mask[user, list(of_user)] = True
    return mask


def random_case(
    seed: int, n_users: int, n_items: int, ties: bool
) -> tuple[torch.Tensor, list[set[int]], list[set[int]]]:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (n_users, n_items)) if ties else rng.normal(size=(n_users, n_items))
    relevant = [set(np.flatnonzero(rng.random(n_items) < rng.random() * 0.4).tolist()) for _ in range(n_users)]
    excluded = [set(np.flatnonzero(rng.random(n_items) < 0.3).tolist()) for _ in range(n_users)]
    return torch.from_numpy(scores.astype(np.float32)), relevant, excluded


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize(("n_items", "ks"), [(6, (1, 5, 20)), (37, (1, 5, 10, 20)), (300, (5, 20))])
def test_metrics_match_the_slow_reference(n_items: int, ks: tuple[int, ...], ties: bool) -> None:
    scores, relevant, excluded = random_case(n_items, 40, n_items, ties)
    wanted, left_out = masks(scores.shape, relevant), masks(scores.shape, excluded)
    found = per_user(scores, wanted, left_out, ks)
    defined = [bool(r - x) for r, x in zip(relevant, excluded)]
    assert sum(defined) > 20
    for user in np.flatnonzero(defined):
        for k in ks:
            expected = slow(scores[user].tolist(), relevant[user], excluded[user], k)
            for name in AT_K:
                assert found[f"{name}_at_{k}"][user].item() == pytest.approx(expected[name], abs=1e-6), (name, k)
            assert found[f"auc_at_{k}"][user].item() == pytest.approx(expected["auc_at"], abs=1e-6, nan_ok=True), k
        assert found["auc"][user].item() == pytest.approx(expected["auc"], abs=1e-6, nan_ok=True)


def test_metric_names_equal_the_keys_in_order() -> None:
    scores = torch.randn(2, 9)
    none = torch.zeros(2, 9, dtype=torch.bool)
    assert list(per_user(scores, ~none, none, (5, 10))) == metric_names((5, 10))
    assert metric_names((20,))[3] == "ndcg_at_20"


def test_metrics_match_ranx() -> None:
    rng = np.random.default_rng(3)
    scores = torch.from_numpy(rng.normal(size=(25, 120)).astype(np.float32))
    relevant = [set(rng.choice(120, rng.integers(1, 20), replace=False).tolist()) for _ in range(25)]
    qrels = {str(u): {str(i): 1 for i in items} for u, items in enumerate(relevant)}
    run = {str(u): {str(i): s for i, s in enumerate(row)} for u, row in enumerate(scores.tolist())}
    names = {
        "precision": "precision", "recall": "recall", "f1": "f1", "ndcg": "ndcg", "mrr": "mrr", "hit": "hit_rate"
    }  # fmt: skip
    theirs = {f"{ours}_at_{k}": f"{name}@{k}" for ours, name in names.items() for k in (5, 20)}
    theirs["map_min_at_20"] = "map@20"  # ranx divides by n, which is min(k, n) here
    expected = ranx_scores(qrels, run, list(theirs.values()))
    found = per_user(scores, masks(scores.shape, relevant), masks(scores.shape, [set()] * 25), (5, 20))
    for ours, name in theirs.items():
        per_query = [expected[name][str(u)] for u in range(25)]
        np.testing.assert_allclose(found[ours], per_query, atol=1e-6, err_msg=ours)


def test_ties_in_top_k_are_ranked_by_item_index() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0, -0.0, 0.0, -0.0, -1.0]])
    assert top_k(scores, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


def test_top_k_orders_every_kind_of_float() -> None:
    values = torch.tensor([-torch.inf, -1e38, -1.0, -1e-40, 0.0, 1e-40, 1.0, 1e38, torch.inf])
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert top_k(values[shuffled][None], 9)[0].tolist() == torch.argsort(shuffled).flip(0).tolist()


def test_an_excluded_item_never_hits() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    relevant, excluded = torch.tensor([[True, False, True]]), torch.tensor([[True, False, False]])
    found = per_user(scores, relevant, excluded, (1, 5))
    assert found["recall_at_1"].item() == 0
    assert found["recall_at_5"].item() == 1
    assert found["precision_at_5"].item() == pytest.approx(1 / 5)
    assert found["auc"].item() == 0


def test_auc_without_a_pair_is_nan() -> None:
    everything = torch.ones(1, 3, dtype=torch.bool)
    assert auc(torch.randn(1, 3), everything).isnan().item()
    assert auc(torch.ones(1, 3), torch.tensor([[True, False, False]])).item() == 0.5


def test_metrics_of_user_blocks_equal_those_of_all_users() -> None:
    scores, relevant, excluded = random_case(5, 33, 50, ties=True)
    wanted, left_out = masks(scores.shape, relevant), masks(scores.shape, excluded)
    whole = per_user(scores, wanted, left_out, (5, 10))
    parts = [per_user(scores[r], wanted[r], left_out[r], (5, 10)) for r in torch.split(torch.arange(33), 7)]
    for name, value in whole.items():
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), value, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("ties", [False, True])
def test_wins_by_search_equal_wins_by_comparison(ties: bool) -> None:
    scores, relevant, excluded = random_case(3, 40, 300, ties)
    masked = scores.masked_fill(masks(scores.shape, excluded), -torch.inf)
    wanted = masks(scores.shape, relevant) & ~masks(scores.shape, excluded)
    user, item = wanted.nonzero(as_tuple=True)
    n = wanted.sum(1)
    assert (n == 0).any() or n.min() < n.max()
    searched = ranking._wins_by_search(masked, user, item, n)
    assert torch.equal(searched, ranking._wins_by_comparison(masked, user, masked[user, item]))


@pytest.mark.parametrize("kind", ["distinct", "ties", "ties at the end of the list", "no candidates"])
def test_top_k_of_floats_equals_top_k_of_integer_keys(kind: str) -> None:
    scores, *_ = random_case(4, 30, 50, kind == "ties")
    if kind == "ties at the end of the list":
        scores[3] = scores[3].sort(descending=True).values
        scores[3, 7:9] = scores[3, 7]
    if kind == "no candidates":
        scores[5, 2:] = -torch.inf
    assert torch.equal(top_k(scores, 8), ranking._top_keys(scores, 8))
    assert torch.equal(top_k(scores, 50), ranking._top_keys(scores, 50))


def test_metrics_of_a_user_with_a_nan_score_are_nan() -> None:
    scores, relevant, excluded = random_case(5, 33, 400, ties=False)
    wanted, left_out = masks(scores.shape, relevant), masks(scores.shape, excluded)
    whole = per_user(scores, wanted, left_out, (5, 10))
    for nan in (torch.nan, -torch.nan):
        spoiled = scores.clone()
        spoiled[4] = nan
        spoiled[7, min(set(range(400)) - excluded[7])] = nan
        spoiled[9, min(excluded[9])] = nan
        found = per_user(spoiled, wanted, left_out, (5, 10))
        others = torch.tensor([user not in (4, 7) for user in range(33)])
        for name, value in found.items():
            assert value[~others].isnan().all(), name
            torch.testing.assert_close(value[others], whole[name][others], rtol=0, atol=0, equal_nan=True)
