"""Calibration and abstention metrics, compared with loops, closed forms and the spread of the bootstrap."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.metrics import calibration
from workloads.metrics.calibration import (
    ABSTAINS,
    aurc,
    aurc_influences,
    auroc,
    bootstrap,
    brier,
    coverage_at_risk,
    ece,
    ece_interval,
    excess_aurc,
    nll,
    reliability,
    selective_risk,
    threshold_at_risk,
)


def drawn(n: int, seed: int = 0, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    c = torch.rand(n, generator=source, dtype=torch.float64)
    if ties:
        c = (c * 5).round() / 5
    return c, (torch.rand(n, generator=source, dtype=torch.float64) < c).double()


def slow_ece(c: list[float], z: list[float], bins: int) -> float:
    order = sorted(range(len(c)), key=lambda place: c[place])
    groups: dict[int, list[int]] = {}
    for rank, place in enumerate(order):
        groups.setdefault(rank * bins // len(c), []).append(place)
    return sum(abs(sum(c[i] - z[i] for i in group)) for group in groups.values()) / len(c)


def slow_aurc(c: list[float], z: list[float]) -> float:
    order = sorted(range(len(c)), key=lambda place: -c[place])
    risks = [sum(1 - z[i] for i in order[:count]) / count for count in range(1, len(c) + 1)]
    return sum(risks) / len(risks)


def test_nll_and_brier_match_closed_forms() -> None:
    c, z = torch.tensor([0.8, 0.8, 0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert nll(c, z).tolist() == pytest.approx([-math.log(0.8), -math.log(0.2), -math.log(1e-7), 1e-7], rel=1e-4)
    assert brier(c, z).tolist() == pytest.approx([0.04, 0.64, 1, 0])


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_ece_has_bins_of_equal_mass(bins: int) -> None:
    c, z = drawn(101)
    assert ece(c, z, bins).item() == pytest.approx(slow_ece(c.tolist(), z.tolist(), bins))
    found = reliability(c, z, bins)
    assert found.queries.sum() == 101
    assert found.queries.max() - found.queries.min() <= 1
    assert (found.confidence.diff() > 0).all()


def test_ece_of_fewer_queries_than_bins_is_the_mean_absolute_error() -> None:
    c, z = drawn(3)
    assert ece(c, z, 15).item() == pytest.approx((c - z).abs().mean().item())


def test_ece_of_true_probabilities_falls_with_the_queries() -> None:
    assert ece(*drawn(100_000)).item() < 0.01
    assert ece(*drawn(100)).item() > 0.03


COVERING = 88
"""With a probability of .001, fewer of 100 intervals of 95% contain the true value."""


@pytest.mark.parametrize(
    ("slope", "n", "ties"),
    [(1.0, 60, False), (1.0, 300, False), (1.0, 300, True), (0.8, 300, False), (0.2, 300, False)],
)
def test_the_interval_of_the_ece_holds_the_true_error(slope: float, n: int, ties: bool) -> None:
    """Models are calibrated (slope 1: error 0, which no interval of resampled queries held), slightly or far too sure.

    Success has the probability .5 + slope (c - .5), so that the error of confidences in [0, 1] is known.
    """
    source = torch.Generator().manual_seed(7)
    covered = above = 0
    for seed in range(100):
        c, _ = drawn(n, seed, ties)
        true = 0.5 + slope * (c - 0.5)
        z = (torch.rand(n, generator=source, dtype=torch.float64) < true).double()
        low, high = ece_interval(c, z, 15, 200, source)
        sides = reliability(c, true, 15)
        error = ((sides.confidence - sides.success).abs() * sides.queries).sum().item() / n
        assert low <= ece(c, z, 15).item() <= high
        covered += low <= error <= high
        above += low > 0
    assert covered >= COVERING
    if slope == 1.0:
        assert above <= 100 - COVERING  # the interval of a calibrated model is rarely above 0
    if slope == 0.2:
        assert above >= COVERING  # the interval of a badly calibrated model usually is


def test_ece_interval_of_one_query_is_zero_to_one() -> None:
    low, high = ece_interval(torch.tensor([0.7]), torch.tensor([1.0]), 15, 50, torch.Generator().manual_seed(0))
    assert (low, high) == (0.0, 1.0)


def test_aurc_is_the_mean_risk() -> None:
    c, z = drawn(57)
    assert aurc(c, z).item() == pytest.approx(slow_aurc(c.tolist(), z.tolist()))
    assert selective_risk(c, z)[-1].item() == pytest.approx(1 - z.mean().item())


def test_aurc_and_ece_of_equal_confidences_do_not_depend_on_the_order() -> None:
    c, z = drawn(60, ties=True)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    for measure in (aurc, ece):
        assert measure(c[order], z[order]).item() == pytest.approx(measure(c, z).item())
    assert aurc(torch.full((4,), 0.5), torch.tensor([1.0, 0, 0, 1])).item() == pytest.approx(0.5)


def test_measures_of_batched_resamples_equal_those_of_each_resample() -> None:
    c, z = drawn(40, ties=True)
    rows = torch.randint(40, (7, 40), generator=torch.Generator().manual_seed(1))
    for measure in (aurc, ece, lambda c, z: coverage_at_risk(c, z, 0.2)):
        each = torch.stack([measure(c[row], z[row]) for row in rows])
        torch.testing.assert_close(measure(c[rows], z[rows]), each)


def test_aurc_influences_match_the_jackknife_and_the_bootstrap() -> None:
    c, z = drawn(300, seed=4)
    found = aurc_influences(c, z)
    area = aurc(c, z)
    assert found.mean().item() == pytest.approx(area.item())
    kept = [torch.cat([torch.arange(j), torch.arange(j + 1, 300)]) for j in range(300)]
    left_out = torch.stack([aurc(c[rows], z[rows]) for rows in kept])
    pseudo = 300 * area - 299 * left_out
    torch.testing.assert_close(found - found.mean(), pseudo - pseudo.mean(), atol=1e-9, rtol=1e-6)
    rows = torch.randint(300, (2000, 300), generator=torch.Generator().manual_seed(0))
    assert (found.std() / 300**0.5).item() == pytest.approx(aurc(c[rows], z[rows]).std().item(), rel=0.1)


def test_aurc_influence_of_one_query_is_its_risk() -> None:
    assert aurc_influences(torch.tensor([0.3]), torch.tensor([0.0])).tolist() == [1.0]


def test_coverage_and_threshold_at_a_risk_match_expected_values() -> None:
    c = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    z = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    assert coverage_at_risk(c, z, 0.25).item() == pytest.approx(0.8)
    assert threshold_at_risk(c, z, 0.25) == pytest.approx(0.55)
    assert coverage_at_risk(c, z, 0.1).item() == pytest.approx(0.4)
    assert threshold_at_risk(c, z, 0.1) == pytest.approx(0.75)
    assert threshold_at_risk(c, z, 0.5) == 0.0
    assert threshold_at_risk(c, 1 - z, 0.1) == ABSTAINS
    assert coverage_at_risk(c, 1 - z, 0.1).item() == 0


def test_equally_confident_queries_are_answered_together_or_not_at_all() -> None:
    c, z = torch.tensor([0.9, 0.8, 0.8]), torch.tensor([1.0, 1.0, 0.0])
    assert coverage_at_risk(c, z, 0.2).item() == pytest.approx(1 / 3)
    assert threshold_at_risk(c, z, 0.2) == pytest.approx(0.85)


def test_ties_across_the_allowed_risk_are_not_split() -> None:
    """Two tied queries with one failure count half a failure each; the first alone would be within the risk."""
    c = torch.tensor([0.95, 0.9, 0.9, 0.9, 0.8, 0.8])
    z = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert coverage_at_risk(c, z, 0.12).item() == pytest.approx(4 / 6)
    assert threshold_at_risk(c, z, 0.12) == pytest.approx(0.85)
    assert coverage_at_risk(c, z, 0.17).item() == 1


def test_bootstrap_interval_of_a_mean_matches_the_normal_interval() -> None:
    c, z = drawn(400, seed=2)
    low, high = bootstrap(lambda c, z: brier(c, z).mean(-1), c, z, 2000, torch.Generator().manual_seed(0))
    centre, error = brier(c, z).mean().item(), brier(c, z).std().item() / 20
    assert low == pytest.approx(centre - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(centre + 1.96 * error, abs=0.15 * error)


def test_resamples_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100,000 queries, 200 resamples at once would take 2 GB."""
    c, z = drawn(400, seed=2)
    sizes: list[int] = []

    def measure(c: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        sizes.append(c.numel())
        return aurc(c, z)

    def ends() -> tuple[tuple[float, float], ...]:
        source = torch.Generator().manual_seed(0)
        return bootstrap(measure, c, z, 90, source), ece_interval(c, z, 15, 90, source)

    whole = ends()
    monkeypatch.setattr(calibration, "_AT_ONCE", 7 * 400, raising=False)
    assert ends() == whole
    assert sizes == [90 * 400, *[7 * 400] * 12, 6 * 400]


def test_auroc_and_excess_aurc_match_reference() -> None:
    source = torch.Generator().manual_seed(3)
    confidence = torch.randint(0, 6, (4, 30), generator=source) / 5
    success = (torch.rand(4, 30, generator=source) < confidence).double()
    for row in range(4):
        hits, misses = (confidence[row][success[row] == label] for label in (1, 0))
        above = (hits[:, None] > misses).double() + (hits[:, None] == misses).double() / 2
        assert auroc(confidence, success)[row].item() == pytest.approx(above.mean().item())
    p = torch.rand(7, generator=source, dtype=torch.float64)
    c = torch.randint(0, 3, (7,), generator=source).double()
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    weights = torch.stack([p[i] * (1 - p[j]) for i, j in pairs])
    wins = torch.stack([(c[i] > c[j]).double() + (c[i] == c[j]).double() / 2 for i, j in pairs])
    assert auroc(c, p).item() == pytest.approx(((weights * wins).sum() / weights.sum()).item())
    assert excess_aurc(success, success).abs().max() == 0
    best = aurc(confidence, success) - excess_aurc(confidence, success)
    failures = 30 - success.sum(1)
    last = torch.arange(1, 31) - (30 - failures[:, None])
    expected = (last.clamp(min=0) / torch.arange(1, 31)).mean(1)
    torch.testing.assert_close(best, expected.double())
