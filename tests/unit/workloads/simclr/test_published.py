"""The numerical experiment of thesis 6.6.1 against its formulas and the errata's values; published tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from workloads.published import Computation, Figure, Table
from workloads.simclr.params import Params
from workloads.simclr.published import PUBLISHED
from workloads.simclr.published.estimators import (
    EXTRA,
    Accept,
    Observed,
    Setting,
    accept_false,
    accept_true,
    bayesian,
    biased,
    debiased,
    estimates,
    observe,
    places,
    squared_errors,
    supervised,
)

TABLES = [one for one in PUBLISHED if isinstance(one, Table)]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("alpha", "true", "false"),
    [
        (0.5, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        (0.9, [1.0, 0.1111111111, 0.8222222222], [0.1111111111, 1.0, 0.2888888889]),
        (1.0, [1.0, 0.0, 0.8], [0.0, 1.0, 0.2]),
    ],
)
def test_acceptance_probabilities_match_expected_values(alpha: float, true: list[float], false: list[float]) -> None:
    place = torch.tensor([0.0, 1.0, 0.2], dtype=torch.float64)
    assert accept_true(place, alpha).tolist() == pytest.approx(true, abs=1e-9)
    assert accept_false(place, alpha).tolist() == pytest.approx(false, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.5, 0.75, 1.0])
def test_places_have_the_densities_of_true_and_false_negatives(alpha: float) -> None:
    """The distribution functions are 2αΦ + (1 - 2α)Φ², with 1 - α for false negatives: (6.16) and (6.20)."""
    for accept, share in ((accept_true, alpha), (accept_false, 1 - alpha)):
        found = places((40_000,), accept, alpha, _generator(1)).sort().values
        expected = 2 * share * found + (1 - 2 * share) * found**2
        observed = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
        assert (observed - expected).abs().max() < 2 / math.sqrt(40_000)  # Kolmogorov's test exceeds it once in 1,500


@pytest.mark.parametrize(
    ("accept", "low", "high", "mean"),
    [(accept_true, -0.449, 0.4871, 0.9145742807898811), (accept_false, -0.554, 0.5778, 1.6076911822520326)],
)
def test_mean_scores_of_true_and_false_negatives_match_closed_form(
    accept: Accept, low: float, high: float, mean: float
) -> None:
    scores = ((low + (high - low) * places((200_000,), accept, 0.9, _generator(2))) / 0.5).exp()
    assert abs(scores.mean().item() - mean) < 4 * scores.std().item() / math.sqrt(200_000)


def test_estimators_match_their_formulas() -> None:
    drawn = observe(Setting(anchors=5, negatives=9, tau=0.4), _generator(3))
    for row in range(5):
        x, true, extra = (part[row].tolist() for part in drawn)
        kept = [score for score, one in zip(x, true) if one]
        assert supervised(drawn)[row].item() == pytest.approx(sum(kept) / len(kept))
        assert biased(drawn)[row].item() == pytest.approx(sum(x) / 9)
        for k in (1, 3):
            expected = (sum(x) - 9 * 0.4 * sum(extra[:k]) / k) / (9 * 0.6)
            assert debiased(drawn, 0.4, k)[row].item() == pytest.approx(expected)
        a, b = (1 - 2 * 0.8) * (1 - 2 * 0.4), 2 * (0.8 * 0.6 + 0.2 * 0.4)
        weights = []
        for score in x:
            unlabelled = sum(other <= score for other in x) / 9
            phi = (-b + math.sqrt(b * b + 4 * a * unlabelled)) / (2 * a)  # (6.29)
            weights.append((0.8 + (1 - 2 * 0.8) * phi) / (b / 2 + a * phi))  # (6.32), β = .5: Z is one half
        weighted = sum(w * score for w, score in zip(weights, x))
        assert bayesian(drawn, 0.8, 0.4)[row].item() == pytest.approx(weighted / 9)
        assert bayesian(drawn, 0.8, 0.4, self_normalised=True)[row].item() == pytest.approx(weighted / sum(weights))


def test_an_anchor_without_true_negatives_is_left_out() -> None:
    none = Observed(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), torch.ones(1, 10))
    assert supervised(none).isnan().all()
    target, found = estimates(Setting(anchors=400, negatives=1, tau=0.5), _generator(4))
    assert 100 < len(target) < 300
    assert not target.isnan().any()
    assert all(len(values) == len(target) for values in found.values())


def test_squared_errors_match_the_errata() -> None:
    """E-6.6.1b at h = .5: BCL .0010, DCL .0027 (K = 3) and .0019 (K = 10), biased .0042; at h = 4 BCL is the lowest."""
    found = squared_errors(Setting(anchors=4000), _generator(5))
    expected = {"biased": 0.0042, "DCL, K = 3": 0.0027, "DCL, K = 10": 0.0018, "BCL": 0.0010}
    assert found == pytest.approx(expected, rel=0.12)
    wide = squared_errors(Setting(anchors=4000, reach=4.0), _generator(5))
    assert min(wide, key=lambda name: wide[name]) == "BCL"
    assert wide["DCL, K = 3"] > wide["biased"]  # with few positives the noise of DCL exceeds the bias


def test_auc_as_alpha_has_an_error_between_true_alpha_and_alpha_one() -> None:
    """E-6.21: with true α = .9 and AUC .767, the MSE is .0011 with α, .0016 with the AUC as α, and .0026 with 1."""
    drawn = observe(Setting(anchors=4000), _generator(6))
    target = supervised(drawn)
    errors = [(bayesian(drawn, alpha, 0.1) - target).square().mean().item() for alpha in (0.9, 0.767, 1.0)]
    assert errors == pytest.approx([0.0010, 0.0016, 0.0026], rel=0.15)


def test_errors_shrink_with_the_number_of_negatives() -> None:
    errors = [squared_errors(Setting(negatives=n), _generator(7))["BCL"] for n in (16, 64, 256)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("one", [one for one in PUBLISHED if isinstance(one, Computation)], ids=lambda one: one.id)
def test_published_computation_gives_deterministic_finite_curves(one: Computation) -> None:
    drawn = one.compute(True)
    again = one.compute(True)
    assert [curve.y for curve in drawn.curves] == [curve.y for curve in again.curves]
    for curve in drawn.curves:
        assert len(curve.x) == len(curve.y)
        assert all(math.isfinite(value) for value in curve.y)
    if one.id == "thesis-fig6.9":
        names = {row["estimator"] for row in drawn.tables["mse"]}
        assert names == {"biased", "BCL", *(f"DCL, K = {extra}" for extra in EXTRA)}
        assert {curve.panel for curve in drawn.curves} == {"α", "τ+", "N", "γ", "t"}


@pytest.mark.parametrize("table", [one for one in TABLES if not one.values], ids=lambda table: table.id)
def test_rows_without_published_values_are_distinct_subset_experiments(table: Table) -> None:
    rows = {row.method: Params(**row.settings.params) for row in table.rows("cifar-10-subset")}
    assert table.datasets == ("cifar-10-subset",)
    assert table.reference in rows
    assert len(set(rows.values())) == len(rows)
    assert {*(table.gap or ())} <= rows.keys()
    assert {(params.encoder, params.batch_size) for params in rows.values()} == {("resnet18", 256)}


@pytest.mark.parametrize("table", [one for one in TABLES if one.values], ids=lambda table: table.id)
def test_rows_with_published_values_use_the_published_settings(table: Table) -> None:
    for place in table.places:
        for row in table.rows(*place):
            params = Params(**row.settings.params)
            assert row.published
            assert params.encoder == "resnet50"
            assert row.settings.epochs == 400
            assert params.batch_size == int(row.where.get("batch_size", 256))
    assert "cifar-10-subset" not in table.datasets


def test_thesis_table_6_4_has_the_published_values_and_settings() -> None:
    table = next(table for table in TABLES if table.id == "thesis-6.4")
    rows: Mapping[str, float] = {row.method: row.published["probe_top1"] for row in table.rows("cifar-10")}
    assert rows == {"SimCLR": 0.911, "DCL": 0.921, "HCL": 0.919, "BCL": 0.925}
    bcl = {dataset: Params(**table.rows(dataset)[-1].settings.params) for dataset in table.datasets}
    assert {dataset: (one.alpha, one.beta) for dataset, one in bcl.items()} == {
        "cifar-10": ("auc", 0.9), "stl-10": (0.75, 1.0), "cifar-100": (0.7, 1.0), "tiny-imagenet": (0.8, 1.0),
    }  # fmt: skip
    doubted = table.why(table.rows("stl-10")[-1])
    assert {"E-6.T", "6.6.5", "6.6.2.3"} <= {doubt.tag for doubt in doubted}
    assert {dataset: one.view_size for dataset, one in bcl.items()} == {
        "cifar-10": None, "stl-10": 32, "cifar-100": None, "tiny-imagenet": None,
    }  # fmt: skip
    assert "6.6.5" not in {doubt.tag for doubt in table.why(table.rows("cifar-10")[-1])}


def test_lines_of_published_figures_have_valid_parameters() -> None:
    for figure in (one for one in PUBLISHED if isinstance(one, Figure)):
        for line in (line for panel in figure.panels for line in panel.lines):
            Params(**line.method.params)
