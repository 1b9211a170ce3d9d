"""Samplers that use popularity or model scores, against slow references written from their formulas."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.virtual_device import CUDA, Log, virtual_cuda
from workloads.sampling import dynamic
from workloads.sampling.bayesian import (
    BNS,
    ScoreECDF,
    item_prior,
    occupation_prior,
    oracle_prior,
    risk,
    unbias,
    warm_lambda,
)
from workloads.sampling.dynamic import AOBPR, DNS
from workloads.sampling.lists import Lists
from workloads.sampling.negatives import Unobserved, random_bits
from workloads.sampling.popularity import Popularity
from workloads.sampling.sampler import View, counters
from workloads.sampling.srns import HISTORY, SRNS

N_USERS, N_ITEMS, DIM = 5, 30, 4
POSITIVES = [{0, 7, 29}, {3}, set(range(25)), {1, 2, 4, 8, 16}, set(range(1, 30))]


@pytest.fixture
def world() -> tuple[Unobserved, Lists, torch.Tensor]:
    """Unobserved items, observed items and a table of embeddings."""
    return world_on(torch.device("cpu"))


def world_on(device: torch.device) -> tuple[Unobserved, Lists, torch.Tensor]:
    indptr = torch.tensor([0] + [len(items) for items in POSITIVES]).cumsum(0).to(device)
    items = torch.tensor([item for owned in POSITIVES for item in sorted(owned)]).to(device)
    table = torch.randn(N_USERS + N_ITEMS, DIM, generator=torch.Generator().manual_seed(0)).to(device)
    return Unobserved(indptr, items, N_ITEMS), Lists(indptr, items, N_ITEMS), table


def view(sampler: Any, table: torch.Tensor, pairs: int = 400, **changes: Any) -> View:
    """The view of a step: the users in turn, each with its first item."""
    users = torch.arange(pairs) % N_USERS
    items = torch.tensor([min(POSITIVES[user]) for user in users.tolist()])
    given: dict[str, Any] = {
        "users": users,
        "items": items + N_USERS,
        "candidates": sampler.draw(users, torch.arange(pairs), 3) + N_USERS,
        "positions": torch.arange(pairs),
        "key": 17,
        "step": 2,
        "batch": items + N_USERS,
        "epoch": 1,
        "table": table,
        "n_users": N_USERS,
    }
    return View(**given | changes)


def matrix(table: torch.Tensor) -> np.ndarray[Any, Any]:
    scores: np.ndarray[Any, Any] = (table[:N_USERS].double() @ table[N_USERS:].double().T).numpy()
    return scores


def chi_square(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    expected = counts.sum() * probabilities
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


def test_popularity_has_the_published_distribution(world: Any) -> None:
    """Chi-square at the 0.999 quantile, per user."""
    unobserved, observed, _ = world
    popularity = torch.arange(N_ITEMS) ** 2 % 17
    sampler, n = Popularity(unobserved, observed, popularity), 30_000
    for user, quantile in ((0, 52), (1, 54), (2, 20), (3, 50), (4, 11)):
        drawn = sampler.draw(torch.full((n,), user), torch.arange(n), 5).flatten()
        weights = popularity.numpy() ** 0.75 * [item not in POSITIVES[user] for item in range(N_ITEMS)]
        weights = np.array([item not in POSITIVES[user] for item in range(N_ITEMS)]) if not weights.any() else weights
        counts = np.bincount(drawn.numpy(), minlength=N_ITEMS)
        assert chi_square(counts, weights / weights.sum()) < quantile


def test_popularity_without_interactions_draws_unobserved_items(world: Any) -> None:
    unobserved, observed, _ = world
    drawn = Popularity(unobserved, observed, torch.zeros(N_ITEMS, dtype=torch.int64)).draw(
        torch.arange(N_USERS).repeat(200), torch.arange(1000), 1
    )
    for user, item in zip(torch.arange(N_USERS).repeat(200).tolist(), drawn[0].tolist()):
        assert item not in POSITIVES[user]


def test_dns_takes_the_best_candidate(world: Any) -> None:
    unobserved, _, table = world
    seen = view(DNS(unobserved, 5), table)
    scores = matrix(table)
    for user, candidates, chosen in zip(
        seen.users.tolist(), (seen.candidates - N_USERS).T.tolist(), DNS(unobserved, 5).choose(seen).tolist()
    ):
        assert chosen - N_USERS == max(candidates, key=lambda item: scores[user, item])


def test_dns_with_all_items_as_candidates_chooses_the_best_item(world: Any) -> None:
    """There are more candidates than items, so the best of all unobserved items is chosen."""
    unobserved, _, table = world
    sampler = DNS(unobserved, 2**20)
    assert sampler.width == 29
    chosen = sampler.choose(view(sampler, table, N_USERS)) - N_USERS
    for user, item in enumerate(chosen.tolist()):
        assert item == max(set(range(N_ITEMS)) - POSITIVES[user], key=lambda other: matrix(table)[user, other])


def test_aobpr_has_the_published_distribution(world: Any) -> None:
    unobserved, observed, table = world
    sampler, n, scale = AOBPR(unobserved, observed, 3.0), 100_000, 3.0
    seen = view(sampler, table, n)
    chosen = (sampler.choose(seen) - N_USERS).numpy()
    for user, quantile in ((0, 52), (1, 54), (2, 19), (3, 50), (4, 1)):
        left = sorted(set(range(N_ITEMS)) - POSITIVES[user], key=lambda item: -matrix(table)[user, item])
        weights = np.zeros(N_ITEMS)
        weights[left] = np.exp(-np.arange(len(left)) / scale)
        counts = np.bincount(chosen[user::N_USERS], minlength=N_ITEMS)
        # The rarest ranks form one cell, so that no cell has an expected count near 0.
        order = np.array(left)[: max(1, int(scale * 4))]
        rest = np.setdiff1d(left, order)
        cells = np.append(counts[order], counts[rest].sum())
        shares = np.append(weights[order], weights[rest].sum())
        assert counts.sum() == cells.sum()
        assert chi_square(cells, shares / shares.sum()) < quantile


@pytest.mark.parametrize("population", ["exact", "sampled", "batch"])
def test_score_ecdf_accepts_an_empty_batch_part(world: Any, population: Any) -> None:
    """The last batch of an epoch has fewer pairs than ranks and micro-batches."""
    unobserved, observed, table = world
    seen = view(DNS(unobserved, 5), table, 0)
    places = ScoreECDF(observed, N_ITEMS, population, 8)
    assert places(seen, seen.scores(seen.candidates)).shape == seen.candidates.shape


@pytest.mark.parametrize("name", ["exact", "sampled", "batch", "aobpr", "in batch"])
def test_gpu_choices_equal_cpu_choices_without_synchronisation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA other operations are used: one whose result size depends on the data would make the host wait."""
    monkeypatch.setitem(dynamic._AT_ONCE, "cuda", 7 * N_ITEMS)  # several blocks
    pairs = 40

    def chosen(device: torch.device, log: Log | None = None) -> torch.Tensor:
        unobserved, observed, _ = world_on(device)
        assert observed.longest == 29  # known before the first step
        on_host = world_on(torch.device("cpu"))
        seen = view(DNS(on_host[0], 5), on_host[2], pairs)
        tensors = {each.name: getattr(seen, each.name) for each in fields(seen)}
        seen = View(**{key: one.to(device) if isinstance(one, torch.Tensor) else one for key, one in tensors.items()})
        if log:
            log.clear()
        if name == "aobpr":
            found = AOBPR(unobserved, observed, 3.0).choose(seen)
        elif name == "in batch":
            found = observed.having(seen.users, seen.items - N_USERS)
        else:
            places = ScoreECDF(observed, N_ITEMS, name, 8)  # type: ignore[arg-type]
            found = places(seen, seen.scores(seen.candidates))
        if log:
            assert not log.syncs
            assert not log.uploads
        return found.cpu()

    expected = chosen(torch.device("cpu"))
    with virtual_cuda() as log:
        found = chosen(CUDA, log)
        assert found.tolist() == expected.tolist()


def slow_place(scores: np.ndarray[Any, Any], user: int, x: float, population: Any) -> float:
    left = [item for item in population if item not in POSITIVES[user]]
    return sum(scores[user, item] <= x + 1e-6 for item in left) / (len(left) + 1)


def slow_unbias(place: float, prior: float) -> float:
    total = 1 - place - prior + 2 * place * prior
    return (1 - place) * (1 - prior) / total if total > 0 else 1 - prior


@pytest.mark.parametrize("candidates", [5, 20])
def test_bns_matches_reference_of_algorithm_2(world: Any, candidates: int) -> None:
    """(4.4), (4.14), (4.15) and (4.30), with 5 candidates compared and 20 sorted."""
    unobserved, observed, table = world
    prior = torch.rand(N_ITEMS, generator=torch.Generator().manual_seed(1))
    places = ScoreECDF(observed, N_ITEMS, "exact")
    scores = matrix(table)
    for posterior_only in (False, True):
        sampler = BNS(
            unobserved, candidates, places, item_prior(prior), lambda epoch: 5.0, posterior_only=posterior_only
        )
        seen = view(sampler, table, 50)
        for user, items, positive, chosen in zip(
            seen.users.tolist(), (seen.candidates - N_USERS).T.tolist(), seen.items.tolist(), sampler.choose(seen)
        ):
            info = [1 / (1 + math.exp(scores[user, positive - N_USERS] - scores[user, item])) for item in items]
            negative = [
                slow_unbias(slow_place(scores, user, scores[user, item], range(N_ITEMS)), float(prior[item]))
                for item in items
            ]
            value = [-u if posterior_only else i * (1 - 6 * u) for i, u in zip(info, negative)]
            assert int(chosen) - N_USERS == items[int(np.argmin(value))]


@pytest.mark.parametrize("population", ["exact", "sampled", "batch"])
@pytest.mark.parametrize("candidates", [3, 20])
def test_bns_choice_of_several_negatives_equals_separate_choices(world: Any, population: Any, candidates: int) -> None:
    """A pair's scores are computed once for all its negatives; each is chosen from its own candidates."""
    unobserved, observed, table = world
    prior = torch.rand(N_ITEMS, generator=torch.Generator().manual_seed(1))
    places = ScoreECDF(observed, N_ITEMS, population, 8)
    sampler = BNS(unobserved, candidates, places, item_prior(prior), lambda epoch: 5.0)
    first, count = view(sampler, table, 40), 7
    users, items = first.users.repeat(count), first.items.repeat(count)
    drawn = sampler.draw(users, counters(first.positions, count), 3) + N_USERS
    seen = replace(first, users=users, items=items, candidates=drawn, count=count)
    alone = [replace(first, candidates=part) for part in drawn.split(40, 1)]
    assert torch.equal(sampler.choose(seen), torch.cat([sampler.choose(one) for one in alone]))


def test_places_among_sampled_items_and_the_batch_match_reference(world: Any) -> None:
    unobserved, observed, table = world
    seen, scores = view(DNS(unobserved, 3), table, 40), matrix(table)
    sampled = ScoreECDF(observed, N_ITEMS, "sampled", 8)
    bits = random_bits(seen.key, seen.step * 8 + torch.arange(8)).tolist()
    bounds = [number * N_ITEMS // 8 for number in range(9)]
    drawn = [low + (bit * (high - low) >> 32) for low, high, bit in zip(bounds, bounds[1:], bits)]
    populations = {"batch": set((seen.batch - N_USERS).tolist()), "sampled": drawn}
    for places, name in ((ScoreECDF(observed, N_ITEMS, "batch"), "batch"), (sampled, "sampled")):
        x = seen.scores(seen.candidates)
        found = places(seen, x)
        for pair, user in enumerate(seen.users.tolist()):
            expected = [slow_place(scores, user, float(one), populations[name]) for one in x[:, pair]]
            assert found[:, pair].tolist() == pytest.approx(expected)


def test_sampled_places_estimate_the_exact_ones() -> None:
    rng = torch.Generator().manual_seed(2)
    n_items, table = 4000, torch.randn(4003, 8, generator=rng)
    observed = Lists(torch.tensor([0, 2, 2, 4]), torch.tensor([1, 5, 9, 77]), n_items)
    users, candidates = torch.arange(3), torch.randint(0, n_items, (4, 3), generator=rng) + 3
    exact, sampled = (ScoreECDF(observed, n_items, population, 128) for population in ("exact", "sampled"))
    mean = torch.zeros(4, 3)
    for step in range(200):
        seen = View(users, users + 3, candidates, users, 5, step, users + 3, 1, table, 3)
        mean += sampled(seen, seen.scores(candidates)) / 200
    expected = exact(seen, seen.scores(candidates))
    # Five standard errors of 200 means of 128 draws, plus the bias of dividing by n + 1.
    assert (mean - expected).abs().max() < 5 * 0.5 / math.sqrt(200 * 128) + 1 / 129


def test_places_sampled_from_the_whole_catalogue_are_exact(world: Any) -> None:
    unobserved, observed, table = world
    seen = view(DNS(unobserved, 3), table, 40)
    x = seen.scores(seen.candidates)
    exact, sampled = (ScoreECDF(observed, N_ITEMS, population, 999) for population in ("exact", "sampled"))
    assert torch.equal(exact(seen, x), sampled(seen, x))


def test_unbias_returns_its_limits_at_the_corners() -> None:
    """E-4.14: the limit in F where (4.14) is 0/0."""
    place, prior = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5])
    assert unbias(place, prior).tolist() == [1, 0, 1, 0, 0.5]
    assert risk(torch.tensor(0.5), torch.tensor(0.2), 5.0).item() == pytest.approx(0.5 * (1 - 6 * 0.2))


def test_variants_of_bns_match_expected_values(world: Any) -> None:
    unobserved, observed, table = world
    assert [warm_lambda(epoch) for epoch in (1, 11, 81, 200)] == pytest.approx([10, 9, 2, 2])
    places = ScoreECDF(observed, N_ITEMS, "exact")
    prior = item_prior(torch.zeros(N_ITEMS))
    plain = BNS(unobserved, 5, places, prior, warm_lambda)
    warm = BNS(unobserved, 5, places, prior, warm_lambda, uniform_epochs=3)
    uniform, chosen = (view(warm, table, epoch=epoch) for epoch in (3, 4))
    assert not torch.equal(warm.choose(uniform), plain.choose(uniform))
    assert torch.equal(warm.choose(chosen), plain.choose(chosen))

    popularity, by_group = torch.tensor([6, 3, 0]), torch.tensor([[6, 1, 0], [0, 2, 0]])
    expected = [[6 / 9 * 1.5, 3 / 9 * (1 - 0.5 / 2), 0], [6 / 9 * 0.5, 3 / 9 * (1 + 0.5 / 2), 0]]
    np.testing.assert_allclose(occupation_prior(popularity, by_group), expected, rtol=1e-6)

    liked = oracle_prior(lambda users, items: items > users)
    assert liked(torch.tensor([1, 2]), torch.tensor([[0, 3]])).tolist() == [pytest.approx([0.04, 0.64])]
    other = oracle_prior(lambda users, items: items > users, item_prior(torch.tensor([0.3, 0.2, 0.1, 0.0])))
    assert other(torch.tensor([1, 2]), torch.tensor([[0, 3]])).tolist() == [pytest.approx([0.3, 0.64])]


@pytest.mark.parametrize("candidates", [5, 12, N_ITEMS])
def test_uniform_epochs_draw_every_unobserved_item_with_equal_probability(world: Any, candidates: int) -> None:
    """BNS-2. Chi-square at the 0.999 quantile, per user. A candidate set holds 5, 12 or all of the user's items."""
    unobserved, observed, table = world
    places = ScoreECDF(observed, N_ITEMS, "exact")
    sampler = BNS(unobserved, candidates, places, item_prior(torch.zeros(N_ITEMS)), warm_lambda, uniform_epochs=1)
    seen = view(sampler, table, 50_000)
    drawn = sampler.choose(seen) - N_USERS
    for user, quantile in ((0, 54.1), (1, 56.9), (2, 18.5), (3, 51.2), (4, 1)):
        free = np.array([item not in POSITIVES[user] for item in range(N_ITEMS)])
        counts = np.bincount(drawn[seen.users == user].numpy(), minlength=N_ITEMS)
        assert chi_square(counts, free / free.sum()) < quantile


def test_uniform_epoch_draw_depends_on_the_pair_and_not_on_the_batch(world: Any) -> None:
    """A pair gets the same item in any batch; several negatives of a pair are drawn independently."""
    unobserved, observed, table = world
    places = ScoreECDF(observed, N_ITEMS, "exact")
    sampler = BNS(unobserved, 12, places, item_prior(torch.zeros(N_ITEMS)), warm_lambda, uniform_epochs=1)
    seen = view(sampler, table)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    moved = replace(
        seen,
        users=seen.users[order],
        items=seen.items[order],
        candidates=seen.candidates[:, order],
        positions=seen.positions[order],
    )
    assert torch.equal(sampler.choose(moved), sampler.choose(seen)[order])
    several = replace(
        seen,
        users=seen.users.repeat(2),
        items=seen.items.repeat(2),
        candidates=seen.candidates.repeat(1, 2),
        count=2,
    )
    first, second = sampler.choose(several).chunk(2)
    assert not torch.equal(first, second)


def test_srns_chooses_the_largest_score_plus_deviation(world: Any) -> None:
    """Of the best items of memory and pool, the one with the largest p + α_t std(p) over five epochs is chosen."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=3, pool=4, alpha=5.0, warmup=4, temperature=1e-3)  # the best are kept
    source = torch.Generator().manual_seed(3)
    tables = [torch.randn(table.shape, generator=source) for _ in range(7)]
    for epoch, past in enumerate(tables, 1):
        sampler.begin(past, epoch, key=epoch)
    memory = sampler.state_dict()["memory"]
    seen = view(sampler, table, 4 * N_USERS, epoch=7)
    scores, chosen = matrix(table), sampler.choose(seen) - N_USERS
    pools = (seen.candidates - N_USERS).T.tolist()
    for user, positive, pool, item in zip(seen.users.tolist(), (seen.items - N_USERS).tolist(), pools, chosen.tolist()):
        assert not POSITIVES[user] & {*memory[:, user].tolist(), *pool}
        best = sorted({*memory[:, user].tolist(), *pool}, key=lambda other, user=user: -scores[user, other])[:3]

        def likelihood(of: torch.Tensor, other: int, user: int = user, positive: int = positive) -> float:
            found = matrix(of)
            return float(1 / (1 + np.exp(found[user, positive] - found[user, other])))

        value = [
            likelihood(table, other) + 5.0 * np.std([likelihood(past, other) for past in tables[-HISTORY:]])
            for other in best
        ]
        assert item == best[int(np.argmax(value))]


@pytest.mark.parametrize(("epoch", "share"), [(1, 0.0), (2, 0.25), (3, 0.5), (5, 1.0), (9, 1.0)])
def test_srns_weight_of_the_population_deviation_rises_with_the_epoch(world: Any, epoch: int, share: float) -> None:
    """p + α_t std(p): the deviation divides by the epochs kept, and α_t rises from 0 in the first epoch of training."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=3, pool=4, alpha=5.0, warmup=4, temperature=2.0)
    source = torch.Generator().manual_seed(3)
    tables = [torch.randn(table.shape, generator=source) for _ in range(3)]
    for number, past in enumerate(tables, 1):
        sampler.begin(past, number, key=number)
    seen = view(sampler, table, N_USERS, epoch=epoch)
    items = seen.candidates - N_USERS
    worth = sampler._worth(seen, items)
    for pair, (user, positive) in enumerate(zip(seen.users.tolist(), (seen.items - N_USERS).tolist())):
        for row, item in enumerate(items[:, pair].tolist()):
            now, *kept = (
                1 / (1 + math.exp(scores[user, positive] - scores[user, item]))
                for scores in map(matrix, [table, *tables])
            )
            assert worth[row, pair].item() == pytest.approx(now + 5.0 * share * np.std(kept, ddof=0), abs=1e-5)


def test_srns_renews_the_memory_with_softmax_probability_of_scores(world: Any) -> None:
    """A memory of one item and a pool of all: items with probability e^{x/τ}, by chi-square at the 0.999 quantile."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=1, pool=N_ITEMS, alpha=0.0, warmup=1, temperature=2.0)
    sampler.begin(table, 1, 1)
    seen = view(sampler, table, 20_000)
    chosen, scores = sampler.choose(seen) - N_USERS, matrix(table)
    for user, quantile in ((0, 54), (1, 57), (2, 18.5), (3, 51)):
        weights = np.exp(scores[user] / 2.0) * [item not in POSITIVES[user] for item in range(N_ITEMS)]
        counts = np.bincount(chosen[seen.users == user].numpy(), minlength=N_ITEMS)
        assert chi_square(counts, weights / weights.sum()) < quantile


def test_srns_draws_several_negatives_independently_from_one_pool(world: Any) -> None:
    """Each of four negatives has the softmax distribution, and they are drawn independently."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=1, pool=N_ITEMS, alpha=0.0, warmup=1, temperature=2.0)
    sampler.begin(table, 1, 1)
    one, count, scores = view(sampler, table, 20_000), 4, matrix(table)
    seen = replace(one, users=one.users.repeat(count), items=one.items.repeat(count), count=count)
    chosen = (sampler.choose(seen) - N_USERS).view(count, -1)
    for user, quantile in ((0, 54), (1, 57), (2, 18.5), (3, 51)):
        weights = np.exp(scores[user] / 2.0) * [item not in POSITIVES[user] for item in range(N_ITEMS)]
        shares = weights / weights.sum()
        found = chosen[:, one.users == user]
        for each in found:
            assert chi_square(np.bincount(each.numpy(), minlength=N_ITEMS), shares) < quantile
        again = (found[0] == found[1]).double().mean().item()
        assert again == pytest.approx((shares**2).sum(), abs=0.04)


@pytest.mark.parametrize("memory", [2, 3])
def test_srns_chooses_the_same_best_item_for_each_of_several_negatives(world: Any, memory: int) -> None:
    """With a small τ the memory keeps a pair's best items, so each of several negatives equals the single one."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=memory, pool=4, alpha=5.0, warmup=4, temperature=1e-3)
    for epoch in (1, 2, 3):
        sampler.begin(table + torch.randn(table.shape, generator=torch.Generator().manual_seed(epoch)), epoch, epoch)
    one = view(sampler, table, 40, epoch=3)
    assert sampler.once
    seen = replace(one, users=one.users.repeat(3), items=one.items.repeat(3), count=3)
    assert torch.equal(sampler.choose(seen), sampler.choose(one).repeat(3))


def test_srns_resumes_from_its_state(world: Any) -> None:
    unobserved, _, table = world
    first, second = (SRNS(unobserved, memory=3, pool=4, alpha=5.0, warmup=4, temperature=2.0) for _ in range(2))
    for epoch in (1, 2):
        first.begin(table * epoch, epoch, epoch)
    second.load_state_dict(first.state_dict())
    for sampler in (first, second):
        sampler.begin(table * 3, 3, 3)
    seen = view(first, table, epoch=3)
    assert torch.equal(first.choose(seen), second.choose(seen))
    assert torch.equal(first.state_dict()["memory"], second.state_dict()["memory"])


def test_srns_memory_converges_to_the_highest_scored_items(world: Any) -> None:
    """With a small τ the memory finally has the highest-scored unobserved items."""
    unobserved, _, table = world
    sampler = SRNS(unobserved, memory=3, pool=20, alpha=0.0, warmup=1, temperature=1e-3)
    for epoch in range(1, 12):
        sampler.begin(table, epoch, epoch)
    memory, scores = sampler.state_dict()["memory"], matrix(table)
    for user in (0, 1, 2, 3):
        left = sorted(set(range(N_ITEMS)) - POSITIVES[user], key=lambda item: -scores[user, item])
        assert sorted(memory[:, user].tolist()) == sorted(left[:3])
