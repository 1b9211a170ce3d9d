"""Losses of whole lists against loops over their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.losses.contrastive import infonce_loss
from workloads.losses.listwise import lambdarank_loss, listwise_softmax_loss
from workloads.losses.ranknet import ranknet_loss

INF = math.inf
SCORES = torch.tensor([[1.0, 2.0, -INF, 0.5], [0.3, 0.3, -1.0, 4.0]], dtype=torch.float64)
GRADES = torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 3.0, 1.0, 0.0]], dtype=torch.float64)


def slow_ndcg(scores: list[float], grades: list[float]) -> float:
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    gain = sum(grades[place] / math.log2(rank + 2) for rank, place in enumerate(ranked))
    ideal = sum(grade / math.log2(rank + 2) for rank, grade in enumerate(sorted(grades, reverse=True)))
    return gain / ideal


def slow_lambdarank(scores: list[float], grades: list[float], sigma: float) -> float:
    """Reference: for each pair of different grades, the NDCG change of exchanging them, times RankNet's loss."""
    listed = [place for place in range(len(scores)) if scores[place] != -INF]
    scores, grades = [scores[place] for place in listed], [grades[place] for place in listed]
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    total = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if grades[i] > grades[j]:
                exchanged = list(ranked)
                a, b = ranked.index(i), ranked.index(j)
                exchanged[a], exchanged[b] = j, i
                as_scores = [-float(exchanged.index(place)) for place in range(len(scores))]
                change = abs(slow_ndcg(scores, grades) - slow_ndcg(as_scores, grades))
                total += change * math.log1p(math.exp(-sigma * (scores[i] - scores[j])))
    return total


def test_listwise_softmax_is_the_cross_entropy_with_the_grades_shares() -> None:
    expected = []
    for scores, grades in zip(SCORES.tolist(), GRADES.tolist()):
        normaliser = sum(math.exp(score) for score in scores)
        shares = [grade / sum(grades) for grade in grades]
        expected.append(-sum(y * math.log(math.exp(s) / normaliser) for s, y in zip(scores, shares) if y))
    assert listwise_softmax_loss(SCORES, GRADES).tolist() == pytest.approx(expected)


def test_listwise_softmax_of_one_positive_is_infonce() -> None:
    scores = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grades = torch.zeros(5, 8, dtype=torch.float64)
    grades[:, 0] = 1
    torch.testing.assert_close(listwise_softmax_loss(scores, grades), infonce_loss(scores[:, 0], scores[:, 1:]))


@pytest.mark.parametrize("sigma", [1.0, 2.5])
def test_lambdarank_weighs_pairs_by_the_ndcg_change_of_an_exchange(sigma: float) -> None:
    expected = [slow_lambdarank(*row, sigma) for row in zip(SCORES.tolist(), GRADES.tolist())]
    assert lambdarank_loss(SCORES, GRADES, sigma).tolist() == pytest.approx(expected)


def test_lambdarank_of_a_pair_is_ranknet_times_the_change() -> None:
    scores, grades = torch.tensor([[0.4, -0.2]]), torch.tensor([[0.0, 1.0]])
    change = 1 - 1 / math.log2(3)
    expected = change * ranknet_loss(scores[:, 1], scores[:, 0], torch.ones(1))
    torch.testing.assert_close(lambdarank_loss(scores, grades), expected)


@pytest.mark.parametrize("loss", [listwise_softmax_loss, lambdarank_loss])
def test_gradients_are_finite_and_zero_for_absent_documents(loss: object) -> None:
    scores = SCORES.clone().requires_grad_()
    torch.autograd.backward(loss(scores, GRADES).sum())  # type: ignore[operator]
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 2] == 0


@pytest.mark.parametrize("loss", [listwise_softmax_loss, lambdarank_loss])
def test_loss_and_gradient_of_lists_without_positive_grades_are_zero(loss: object) -> None:
    scores = torch.tensor([[1.0, 2.0], [-INF, -INF], [1.0, -INF]], requires_grad=True)
    found = loss(scores, torch.zeros(3, 2))  # type: ignore[operator]
    torch.autograd.backward(found.sum())
    assert found.tolist() == [0, 0, 0]
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0, 0]] * 3


def test_lambdarank_of_equal_grades_has_no_loss() -> None:
    assert lambdarank_loss(torch.tensor([[1.0, 2.0, 3.0]]), torch.full((1, 3), 2.0)).item() == 0
