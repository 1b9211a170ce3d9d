"""Probes of frozen features, compared with slow references, closed forms and the definitions of common libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from workloads.metrics import probe


def _features(count: int, dimensions: int = 8, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around a centre for each class, from which the labels can be predicted, but not always."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=source)
    centres = torch.randn(classes, dimensions, generator=torch.Generator().manual_seed(99))
    features = centres[labels] + torch.randn(count, dimensions, generator=source)
    return functional.normalize(features, dim=1), labels


@pytest.mark.parametrize("k", [1, 5, 1000])
def test_neighbours_vote_by_their_similarity(k: int) -> None:
    bank, labels = _features(40)
    queries, _ = _features(7, seed=1)
    expected = torch.zeros(7, 3)
    for row, query in enumerate(queries):
        cosines = [float(query @ one) for one in bank]
        for place in sorted(range(40), key=lambda place: -cosines[place])[:k]:
            expected[row, labels[place]] += math.exp((cosines[place] - max(cosines)) / 0.1)
    found = probe.knn_scores(bank, labels, queries, classes=3, k=k, temperature=0.1)
    torch.testing.assert_close(found, expected)


def test_knn_scores_of_far_neighbours_do_not_vanish_at_low_temperature() -> None:
    bank = torch.eye(3)[:2]
    queries = functional.normalize(torch.tensor([[0.1, 0.2, 1.0], [0.2, 0.1, 1.0]]), dim=1)
    votes = probe.knn_scores(bank, torch.tensor([0, 1]), queries, classes=2, temperature=1e-3)
    assert votes.argmax(1).tolist() == [1, 0]


def test_probe_measures_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, labels = _features(40)
    queries, _ = _features(7, seed=1)
    whole = probe.knn_scores(bank, labels, queries, classes=3)
    auc, densities = probe.false_negative_auc(bank, labels), probe.score_densities(bank, labels)
    uniformity = probe.uniformity(bank)
    monkeypatch.setitem(probe._AT_ONCE, "cpu", 90)
    torch.testing.assert_close(probe.knn_scores(bank, labels, queries, classes=3), whole)
    torch.testing.assert_close(probe.false_negative_auc(bank, labels), auc)
    torch.testing.assert_close(probe.score_densities(bank, labels), densities)
    torch.testing.assert_close(probe.uniformity(bank), uniformity)


def test_in_top_is_one_if_the_label_is_among_the_k_best_scores() -> None:
    scores = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([2, 0, 1, 2])
    assert probe.in_top(scores, labels, 1).tolist() == [0, 1, 0, 0]
    assert probe.in_top(scores, labels, 2).tolist() == [1, 1, 1, 0]
    assert probe.in_top(scores, labels, 3).tolist() == [1, 1, 1, 1]


def test_in_top_of_nan_scores_is_zero() -> None:
    scores = torch.tensor([[torch.nan] * 3, [0.9, torch.nan, 0.1]])
    assert probe.in_top(scores, torch.tensor([0, 0]), 3).tolist() == [0, 0]


def test_linear_probe_gradient_is_zero_at_the_solution() -> None:
    """The gradient of the convex objective, computed here from the returned weights of raw features, is zero."""
    features, labels = _features(200)
    features = features * torch.tensor([3.0, 0.01, 1, 1, 1, 1, 1, 1]) + 5
    weight, bias = probe.linear_probe(features, labels, classes=3, l2=0.01, steps=500)
    probabilities = functional.linear(features, weight, bias).softmax(1)
    wrong = (probabilities - functional.one_hot(labels, 3)) / len(features)
    deviation = features.std(0, correction=0)
    standard = (features - features.mean(0)) / deviation
    torch.testing.assert_close(wrong.T @ standard + 0.01 * weight * deviation, torch.zeros(3, 8), atol=2e-4, rtol=0)
    torch.testing.assert_close(wrong.sum(0), torch.zeros(3), atol=2e-4, rtol=0)
    again = probe.linear_probe(features, labels, classes=3, l2=0.01, steps=500)
    assert torch.equal(weight, again[0])
    assert torch.equal(bias, again[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_linear_probe_of_non_finite_or_huge_features_has_nan_weights(bad: float) -> None:
    features, labels = _features(50)
    features[::2, 3] = bad
    weight, bias = probe.linear_probe(features, labels, classes=3)
    assert weight.isnan().all()
    assert bias.isnan().all()


def test_a_feature_that_never_varies_has_no_weight() -> None:
    features, labels = _features(50)
    features[:, 3] = 7.0
    weight, bias = probe.linear_probe(features, labels, classes=3)
    assert not weight[:, 3].any()
    assert torch.isfinite(bias).all()


def test_linear_probe_classifies_a_separable_set_correctly() -> None:
    labels = torch.arange(30) % 3
    features = functional.one_hot(labels, 4).float()
    weight, bias = probe.linear_probe(features, labels, classes=3)
    assert torch.equal((features @ weight.T + bias).argmax(1), labels)


def test_alignment_and_uniformity_match_closed_forms() -> None:
    corners = torch.eye(4)
    assert probe.alignment(corners, corners).item() == 0
    assert probe.alignment(corners, -corners).item() == pytest.approx(4)
    assert probe.uniformity(torch.ones(5, 1)).item() == pytest.approx(0)
    assert probe.uniformity(corners).item() == pytest.approx(-4)  # all at a distance of √2
    features, _ = _features(20)
    distances = torch.pdist(features.double()).square()
    assert probe.uniformity(features).item() == pytest.approx(distances.mul(-2).exp().mean().log().item(), rel=1e-5)


def test_false_negative_auc_matches_reference() -> None:
    features, labels = _features(30)
    features[4] = features[5]  # ties
    values = []
    for anchor in range(30):
        cosines = (features @ features[anchor]).tolist()
        others = [place for place in range(30) if place != anchor]
        false = [cosines[place] for place in others if labels[place] == labels[anchor]]
        true = [cosines[place] for place in others if labels[place] != labels[anchor]]
        wins = sum((one > other) + 0.5 * (one == other) for one in false for other in true)
        values.append(wins / (len(false) * len(true)))
    assert probe.false_negative_auc(features, labels).item() == pytest.approx(sum(values) / 30, abs=1e-3)


def test_false_negative_auc_is_one_half_without_distinguishable_pairs() -> None:
    features, _ = _features(6)
    assert probe.false_negative_auc(features, torch.zeros(6, dtype=torch.int64)).item() == 0.5
    assert probe.false_negative_auc(features, torch.arange(6)).item() == 0.5
    assert probe.false_negative_auc(torch.ones(6, 1), torch.arange(6) % 2).item() == 0.5  # collapsed: all ties
    perfect = functional.one_hot(torch.arange(6) % 2, 2).float()
    assert probe.false_negative_auc(perfect, torch.arange(6) % 2).item() == 1


def test_effective_rank_is_the_exponential_entropy_of_singular_values() -> None:
    features, _ = _features(40)
    values = np.linalg.svd(features.double().numpy(), compute_uv=False)
    shares = [value / values.sum() for value in values]
    expected = np.exp(-sum(share * np.log(share) for share in shares))
    assert probe.effective_rank(features).item() == pytest.approx(expected, rel=1e-5)
    assert probe.effective_rank(torch.eye(5) * 3).item() == pytest.approx(5)
    line = torch.arange(1.0, 9.0).unsqueeze(1) * torch.tensor([1.0, 2.0, 2.0])
    assert probe.effective_rank(line).item() == pytest.approx(1, abs=1e-5)
    assert probe.effective_rank(torch.zeros(4, 3)).item() == pytest.approx(1)
    assert probe.effective_rank(torch.full((4, 3), torch.nan)).isnan()


def test_densities_are_histograms_of_the_pairs() -> None:
    features, labels = _features(25)
    middles, true, false = probe.score_densities(features, labels)
    pairs = [(i, j) for i in range(25) for j in range(25) if i != j]
    for density, same in ((true, False), (false, True)):
        chosen = torch.tensor(
            [float(features[i] @ features[j]) for i, j in pairs if bool(labels[i] == labels[j]) is same]
        )
        expected = torch.histc(chosen, probe.BINS, -1, 1).double() / (len(chosen) * 2 / probe.BINS)
        assert (density - expected).abs().sum() * 2 / probe.BINS < 0.01  # a score on an edge may fall on either side
        assert density.sum().item() * 2 / probe.BINS == pytest.approx(1)
    assert middles[0].item() == pytest.approx(-0.99)
    assert middles[-1].item() == pytest.approx(0.99)
    assert not probe.score_densities(features, torch.arange(25))[2].any()


def test_principal_plane_preserves_distances_of_planar_points() -> None:
    source = torch.Generator().manual_seed(3)
    flat = torch.randn(50, 2, generator=source) * torch.tensor([5.0, 1.0])
    basis = torch.linalg.qr(torch.randn(6, 2, generator=source)).Q
    plane = probe.principal_plane(flat @ basis.T + 4)
    torch.testing.assert_close(torch.pdist(plane), torch.pdist(flat), rtol=1e-4, atol=1e-4)  # the points are planar
    assert plane[:, 0].var() > plane[:, 1].var()
    assert torch.equal(plane, probe.principal_plane(flat @ basis.T + 4))
