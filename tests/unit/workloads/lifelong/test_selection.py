"""Selection of new documents and memory: PSS and ISD against references, baselines against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from workloads.lifelong.baselines import gss, mir, ocs, pair_gradients, pair_losses, uniform, virtual_step
from workloads.lifelong.params import Params
from workloads.lifelong.replay import QueryVectors, choose_memory, choose_new, draw_new, update_memory
from workloads.lifelong.selection import across, along, gather_docs, isd, new_scores, pss, top_positions

Q = [-1.5449, -0.8994, 0.1823, 0.2949]
POSITIVE = [-0.6425, 2.8853, -1.857, -2.0162]
DOCS = [
    [0.0727, -0.8596, 0.6706, -1.2644], [-0.9968, -0.1444, -1.6134, -0.9913], [0.731, 0.9775, -0.9828, -0.7912],
    [-1.0186, 0.1977, 1.1782, 0.317], [0.7662, 0.3819, 1.531, -0.8328], [-0.0941, 0.3575, -1.9326, 0.8265],
]  # fmt: skip
OTHERS = [[-1.4356, 1.0013, -0.791, 0.3827], [0.3923, -1.0186, 1.7618, 1.7038], [0.4073, 0.3156, -1.6112, 0.7337]]
MEMORY = [
    [-0.5323, 0.9894, -0.4178, -0.1926], [-0.277, -0.2048, 0.3458, 2.406], [-0.984, -0.441, -1.671, -1.578],
    [0.3995, 0.4131, 0.7571, -2.0963], [0.0121, -0.5371, 1.4196, 0.1593],
]  # fmt: skip
BEFORE = [
    [0.7223, -0.9165, 0.282, -0.0163], [-0.2306, 0.5657, -1.8423, -1.3212], [-0.1568, -1.0636, 0.8639, -1.8665],
    [-0.2856, 0.315, -0.4367, 0.7452],
]  # fmt: skip
PSS = [-1.617698563761447, -1.9873880216468423, -0.06292030609489598, -2.328266466713512, -0.5721618056263831]
SELF_ISD = [1.9550597242049543, 2.003250071735203, 1.5841217438357347, 1.9475418907813078, 2.065579218491138]


def one(rows: list[list[float]]) -> torch.Tensor:
    """A batch of one row, (1, n, d)."""
    return torch.tensor([rows], dtype=torch.float64)


def there(count: int) -> torch.Tensor:
    return torch.ones(1, count, dtype=torch.bool)


QUERY = torch.tensor([Q], dtype=torch.float64)
PLUS = torch.tensor([POSITIVE], dtype=torch.float64)
ALONG_FIRST = torch.tensor([[1, 0, 0, 0]], dtype=torch.float64)
"""A query with which distances between whole numbers are exact, on any CPU."""


def test_pss_matches_reference_values() -> None:
    """E-L2; also if the positive is behind the query."""
    found = pss(one(DOCS), PLUS, QUERY)[0]
    assert found[:5].tolist() == pytest.approx(PSS, abs=1e-9)
    behind = torch.tensor([[1.31857215, 0.7676379, -0.15559305, -0.25169715]], dtype=torch.float64)
    found = pss(one(DOCS), behind, QUERY)[0]
    assert found[:2].tolist() == pytest.approx([-1.779437066253622, -2.1491265241390174], abs=1e-9)
    assert pss(one([POSITIVE]), PLUS, QUERY).item() == 0
    assert not pss(one(DOCS), PLUS, torch.zeros(1, 4, dtype=torch.float64)).any()


def test_isd_matches_reference_values() -> None:
    expected = [3.1845910560909547, 2.8665934757923117, 2.2588007681781925, 2.441694292607431, 3.0652613233214683]
    found = isd(one(DOCS), there(6), one(OTHERS), there(3), QUERY)[0]
    assert found[:5].tolist() == pytest.approx(expected, abs=1e-9)
    found = isd(one(DOCS), there(6), one(DOCS), there(6), QUERY)[0]
    assert found[:5].tolist() == pytest.approx(SELF_ISD, abs=1e-9)
    assert not isd(one(DOCS), there(6), one(OTHERS), ~there(3), QUERY).any()


def test_isd_of_whole_vectors_is_the_mean_distance_between_vectors() -> None:
    """E-L4, the reader's objection to ISD: the mean distance of whole vectors."""
    found = isd(one(DOCS), there(6), one(OTHERS), there(3), QUERY, whole=True)[0]
    others = [np.array(other) for other in OTHERS]
    expected = [np.mean([np.linalg.norm(np.array(doc) - other) for other in others]) for doc in DOCS]
    assert found.tolist() == pytest.approx(expected)
    scores = new_scores(one(DOCS), there(6), PLUS, QUERY, 0.0, whole=True)
    torch.testing.assert_close(scores, isd(one(DOCS), there(6), one(DOCS), there(6), QUERY, whole=True))


def test_isd_is_zero_for_documents_that_differ_only_along_the_query() -> None:
    """E-L4."""
    along_only = QUERY.unsqueeze(1) * torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64).view(1, 3, 1)
    found = isd(along_only, there(3), along_only, there(3), QUERY)
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-12, rtol=0)
    rebuilt = across(one(DOCS), QUERY) + along(one(DOCS), QUERY).unsqueeze(2) * QUERY.unsqueeze(1) / QUERY.norm()
    torch.testing.assert_close(rebuilt, one(DOCS))


@pytest.mark.parametrize(("alpha", "places"), [(0.0, [5, 4, 1]), (0.5, [2, 4, 5]), (1.0, [2, 4, 5])])
def test_new_documents_are_the_top_scores_without_greedy_selection(alpha: float, places: list[int]) -> None:
    """E-L1: all candidates are scored once, not greedily."""
    scores = new_scores(one(DOCS), there(6), PLUS, QUERY, alpha)
    assert top_positions(scores, 3).tolist() == [places]
    mixed = [alpha * p + (1 - alpha) * i for p, i in zip(PSS, SELF_ISD)]
    assert scores[0, :5].tolist() == pytest.approx(mixed, abs=1e-9)


def test_standardised_scores_do_not_depend_on_the_scale_of_vectors() -> None:
    once = new_scores(one(DOCS), there(6), PLUS, QUERY, 0.3, standardise=True)
    tenfold = new_scores(one(DOCS) * 10, there(6), PLUS * 10, QUERY, 0.3, standardise=True)
    torch.testing.assert_close(once, tenfold)
    assert once.mean().item() == pytest.approx(0, abs=1e-12)
    alike = new_scores(one([Q, Q]), there(2), PLUS, QUERY, 0.3, standardise=True)
    assert alike.tolist() == [[0, 0]]


def test_superiority_that_differs_only_by_rounding_does_not_affect_order() -> None:
    source = torch.Generator().manual_seed(0)
    query = torch.nn.functional.normalize(torch.randn(1, 64, generator=source))
    off = torch.nn.functional.normalize(across(torch.randn(1, 8, 64, generator=source), query), dim=2)
    docs = 0.8 * query + 0.6 * off
    superiority, diversity = pss(docs, query, query), isd(docs, there(8), docs, there(8), query)
    assert superiority.std() < 1e-6
    scores = new_scores(docs, there(8), query, query, 0.5, standardise=True)
    assert scores.argsort().tolist() == diversity.argsort().tolist()


def test_padding_documents_are_never_chosen() -> None:
    half = torch.tensor([[True, False, True, False, True, True]])
    scores = new_scores(one(DOCS), half, PLUS, QUERY, 0.5)
    kept = torch.tensor([[0, 2, 4, 5]])
    expected = new_scores(one(DOCS)[:, kept[0]], there(4), PLUS, QUERY, 0.5)
    torch.testing.assert_close(scores[:, kept[0]], expected)
    assert top_positions(scores, 6)[0, 4:].tolist() == [-1, -1]
    assert gather_docs(torch.tensor([[7, -1, 8, -1, 9, 10]]), top_positions(scores, 5)).tolist() == [[8, 9, 10, 7, -1]]
    assert gather_docs(torch.empty(1, 0, dtype=torch.int64), top_positions(torch.empty(1, 0), 2)).tolist() == [[-1, -1]]


def test_tied_scores_are_ordered_by_position() -> None:
    assert top_positions(torch.tensor([[1.0, 2.0, 2.0, 1.0]]), 4).tolist() == [[1, 2, 0, 3]]


def query_vectors(vectors: torch.Tensor = QUERY) -> QueryVectors:
    return QueryVectors(vectors, PLUS, 1.0)


def table(rows: list[list[float]]):  # type: ignore[no-untyped-def]
    padded = torch.cat([torch.tensor(rows, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)])
    return lambda docs: padded[torch.from_numpy(np.asarray(docs))]


def test_replay_takes_memory_documents_least_similar_to_the_new_ones() -> None:
    lookup = table(MEMORY + DOCS[:2])
    params = Params(n_memory=2)
    found = choose_memory(params, torch.arange(5)[None], torch.tensor([[5, 6]]), lookup, query_vectors())
    assert found.tolist() == [[1, 4]]


def test_memory_keeps_the_most_diverse_of_new_and_old_documents() -> None:
    """E-L7; a pool that is smaller than the memory is kept whole."""
    lookup = table(DOCS[:3] + BEFORE)
    params = Params(capacity=5, n_memory=2)
    found = update_memory(params, torch.tensor([[3, 4, 5, 6]]), torch.tensor([[0, 1, 2]]), lookup, query_vectors(), 0)
    assert found.tolist() == [[5, 6, 3, 4, 0]]
    found = update_memory(params, torch.full((1, 5), -1), torch.tensor([[0, 1, 2]]), lookup, query_vectors(), 0)
    assert found.tolist() == [[0, 1, 2, -1, -1]]


def test_ties_in_diversity_keep_new_documents_then_the_first_old_ones() -> None:
    """E-L1, E-L7: all documents are equal, with ISD 0."""
    lookup, alike = table([[2, 3, 0, 0]] * 6), query_vectors(ALONG_FIRST)
    old, new = torch.tensor([[5, 3, 4]]), torch.tensor([[2, 0, 1]])
    params = Params(capacity=4, n_new=2, n_memory=2, alpha=0.5)
    assert update_memory(params, old, new, lookup, alike, 0).tolist() == [[2, 0, 1, 5]]
    assert choose_memory(params, old, new, lookup, alike).tolist() == [[5, 3]]
    assert choose_new(params, np.array([[4, 1, 3, 0]]), lookup, alike).tolist() == [[4, 1]]


def test_new_documents_replace_equal_old_ones_in_the_memory() -> None:
    """E-L7: two documents arrive a second time; the ISD of all four is 2.5."""
    lookup = table([[2, 3, 0, 0], [5, 0, 4, 0], [2, 3, 0, 0], [5, 0, 4, 0]])
    params = Params(capacity=2, n_memory=2)
    old, new = torch.tensor([[2, 3]]), torch.tensor([[0, 1]])
    assert update_memory(params, old, new, lookup, query_vectors(ALONG_FIRST), 0).tolist() == [[0, 1]]


def test_new_documents_are_chosen_by_l2r_bm25_or_at_random() -> None:
    lookup, docs = table(DOCS), np.array([[0, 1, 2, 3, 4, 5]])
    assert choose_new(Params(n_new=3), docs, lookup, query_vectors()).tolist() == [[2, 4, 5]]
    assert draw_new(Params(n_new=3, new="bm25"), docs, 0, 1, first=True).tolist() == [[0, 1, 2]]
    drawn = [draw_new(Params(n_new=3, new="random"), docs, seed, 1).tolist()[0] for seed in range(40)]
    assert {doc for row in drawn for doc in row} == set(range(6))
    assert all(len(set(row)) == 3 for row in drawn)


def test_query_without_candidates_gets_no_new_documents() -> None:
    """If BM25 finds nothing, all candidates are padding."""
    nothing = np.full((1, 4), -1)
    params = Params(n_new=2)
    looked = choose_new(params, nothing, table(DOCS), query_vectors())
    assert looked.tolist() == [[-1, -1]]
    for first in (True, False):
        assert torch.equal(draw_new(params, nothing, 0, 1, first=first), looked)


def test_many_candidates_of_few_queries_are_compared_at_once() -> None:
    """All distances between 10,000 candidates of 256 queries would take 100 GB."""
    queries, sizes = QueryVectors(torch.ones(80, 1), torch.ones(80, 1), 1.0), []

    def lookup(docs: np.ndarray) -> torch.Tensor:
        sizes.append(docs.shape)
        return torch.zeros(*docs.shape, 1)

    docs = np.tile(np.arange(1024), (80, 1))
    assert choose_new(Params(n_new=1, candidates=1024), docs, lookup, queries).tolist() == [[0]] * 80
    assert sizes == [(64, 1024), (16, 1024)]
    assert [part.stop - part.start for part in queries.rows(10_000)] == [1] * 80
    assert [*queries.rows(0)] == [*queries.rows(50)] == [slice(0, 256)]


def test_pair_gradients_match_autograd_of_the_pair_loss() -> None:
    query = QUERY.clone().requires_grad_()
    pair_losses(one(DOCS), PLUS, query)[0, 2].backward()
    torch.testing.assert_close(pair_gradients(one(DOCS), PLUS, QUERY)[0, 2], query.grad[0])
    assert pair_losses(one([POSITIVE]), PLUS, QUERY).item() == pytest.approx(math.log(2))


def test_mir_selects_the_documents_with_the_largest_rise_in_loss() -> None:
    before, after = torch.tensor([[1.0, 5.0, 2.0, 0.0]]), torch.tensor([[2.0, 5.5, 4.0, 9.0]])
    assert top_positions(mir(before, after, torch.tensor([[True, True, True, False]])), 2).tolist() == [[2, 0]]


def test_virtual_step_restores_the_weights() -> None:
    layer, rows = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    weight = layer.weight.detach().clone()
    before, after = virtual_step(layer, lambda: layer(rows)[:, 0], lambda: layer(rows[:1]).sum().backward(), lr=0.5)
    torch.testing.assert_close(after - before, torch.tensor([-0.5 * 5, 0.5 * 2]))
    assert torch.equal(layer.weight, weight)
    assert layer.weight.grad is None


def test_gss_prefers_gradients_in_new_directions() -> None:
    gradients = torch.tensor([[[1.0, 0.0], [3.0, 0.1], [0.0, -2.0], [-1.0, 0.0]]])
    found = gss(gradients, there(4))
    assert found[0, 0] == 2
    assert found[0, 1] == pytest.approx(1 - 3 / math.sqrt(9.01), abs=1e-6)
    assert found[0].argsort(descending=True)[-1] == 1


def test_ocs_score_is_the_sum_of_similarity_diversity_and_affinity() -> None:
    gradients = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)
    kept = torch.tensor([[[0.0, 5.0]]], dtype=torch.float64)
    mean = torch.tensor([2.0, 3.0], dtype=torch.float64) / math.sqrt(13)
    unit = torch.nn.functional.normalize(gradients[0], dim=1)
    expected = [
        (unit[n] @ mean - sum(unit[n] @ unit[m] for m in range(3) if m != n) / 2 + unit[n, 1]).item() for n in range(3)
    ]
    found = ocs(gradients, there(3), kept, there(1))
    assert found[0].tolist() == pytest.approx(expected, abs=1e-12)
    # Without a coreset, the third term (affinity) is 0.
    assert ocs(gradients, there(3), kept, ~there(1))[0, 0].item() == pytest.approx(expected[0], abs=1e-12)


def test_random_memory_is_a_uniform_sample_of_all_documents_so_far() -> None:
    """In three sessions of 20 documents, each is kept with probability 1/6, independently of its session."""
    rows, capacity = 3000, 10
    memory = torch.full((rows, capacity), -1)
    params = Params(memory="random", capacity=capacity, n_memory=1, n_new=20)
    plain = QueryVectors(torch.zeros(rows, 1), torch.zeros(rows, 1), 1.0)
    for session in range(3):
        new = (torch.arange(20) + 20 * session).expand(rows, 20)
        memory = update_memory(params, memory, new, table(DOCS), plain, seed=5)
    counts = torch.bincount(memory.ravel(), minlength=60).double() / rows
    spread = math.sqrt(1 / 6 * 5 / 6 / rows)
    assert (counts - 1 / 6).abs().max() < 4.5 * spread
    numbers = uniform(np.array([[3, 3, -1]]), np.array([0]), 1)[0]
    assert numbers[0] == numbers[1]
    assert numbers[2] == -np.inf
