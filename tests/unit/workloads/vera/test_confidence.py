"""Confidence of VERA and its baselines: known probabilities, recalibration maps, and evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.small_vera import BASELINE, RUNTIME, build
from workloads.data import DATASETS
from workloads.data.questions.synthetic import SURE, SYNTHETIC_QUESTIONS, Planted, generate
from workloads.losses.evidential import top
from workloads.testing import values
from workloads.vera.confidence import Ranked, confidence, fit_map
from workloads.vera.evaluation import Choice, LabelledQueries, choose, evaluation
from workloads.vera.inference import rank
from workloads.vera.model import Evidence
from workloads.vera.params import Params


def ranked(scores: list[list[float]], alpha: float = 1.0, beta: float = 1.0) -> Ranked:
    block = torch.tensor(scores)
    return Ranked(block, Evidence(torch.full_like(block, alpha), torch.full_like(block, beta)))


def test_ndcg_at_10_counts_relevant_documents_missing_from_a_short_list() -> None:
    of_three = ranked([[3.0, 2.0, 1.0]] * 4)
    labelled = LabelledQueries(np.arange(4), torch.ones(4, 3), torch.ones(4, 10))
    source = torch.Generator().manual_seed(0)
    found = evaluation(labelled, of_three, Params(eval_candidates=3), Choice(1), source, units=False)
    assert found.metrics["ndcg_at_10"] == pytest.approx(0.469, abs=5e-4)


@pytest.mark.faults  # long
def test_confidence_recovers_the_planted_probabilities() -> None:
    """The planted probabilities are .3, .5, .75 and .95; predicting their mean has an error of .225."""
    with pytest.MonkeyPatch.context() as patch:
        known = replace(SYNTHETIC_QUESTIONS, version="many", reader=lambda _: generate(Planted(topics=600)))
        patch.setitem(DATASETS, "synthetic-questions", known)  # type: ignore[arg-type]
        vera = build(
            replace(RUNTIME, epochs=12), hidden=32, eval_candidates=1, stage_share=(2.0, 1.0, 1.0), eval_k=1,
            calibration_share=0.0, stage_cons=(0.0, 1.0, 0.0),
        )  # fmt: skip
        for epoch in range(1, 13):
            vera.train_epoch(epoch)
        labelled = LabelledQueries.of(vera.data, vera.data.parts.test)
        read = rank(vera.model, vera.data, labelled.queries, vera.params, vera.runtime)
    c = confidence(read, 1, vera.params)
    assert labelled.odds is not None
    true = labelled.odds.gather(1, top(read.scores, 1)).squeeze(1)
    assert (c - true).abs().mean() < 0.1
    for probability in SURE.values():
        assert c[(true - probability).abs() < 1e-6].mean().item() == pytest.approx(probability, abs=0.08)


def test_chosen_k_is_the_least_with_an_intermediate_success_rate() -> None:
    grades = torch.zeros(10, 6)
    grades[:2, 0] = 1
    grades[2:6, 1] = 1
    scores = ranked([[6.0, 5, 4, 3, 2, 1]] * 10)
    labelled = LabelledQueries(np.arange(10), grades, grades)
    assert choose(labelled, scores, Params(), None).k == 2
    assert choose(labelled, scores, Params(), 1).k == 1
    none = LabelledQueries(np.arange(10), torch.zeros(10, 6), torch.zeros(10, 6))
    assert choose(none, scores, Params(), None).k == 1
    every = LabelledQueries(np.arange(10), torch.ones(10, 6), torch.ones(10, 6))
    assert choose(every, scores, Params(), None).k == 1


@pytest.mark.parametrize("kind", ["temperature", "platt", "isotonic"])
def test_recalibration_undoes_overconfidence(kind: str) -> None:
    source = torch.Generator().manual_seed(0)
    true = torch.rand(4000, generator=source, dtype=torch.float64)
    success = (torch.rand(4000, generator=source, dtype=torch.float64) < true).double()
    logit = 3 * true.logit()
    # With one candidate, c is μ = α/(α + β).
    read = Ranked(torch.zeros(4000, 1), Evidence(logit.exp().unsqueeze(1), torch.ones(4000, 1)))
    params = Params()
    mapped = fit_map(kind, read, 1, params, success)
    assert (confidence(read, 1, params, mapped) - true).abs().mean() < 0.03
    assert (confidence(read, 1, params) - true).abs().mean() > 0.1


@pytest.mark.parametrize("hits", [7, 10])
def test_platt_scaling_has_smoothed_targets(hits: int) -> None:
    """The targets are (N+ + 1) / (N+ + 2) and 1 / (N- + 2) (Platt, 1999), also if every query succeeds.

    The mean of the fit equals that of the targets.
    """
    true = torch.linspace(0.1, 0.9, 10, dtype=torch.float64)
    success = torch.zeros(10, dtype=torch.float64)
    success[-hits:] = 1
    read = Ranked(torch.zeros(10, 1), Evidence(true.logit().exp().unsqueeze(1), torch.ones(10, 1)))
    target = torch.where(success > 0, (hits + 1) / (hits + 2), 1 / (10 - hits + 2))
    mapped = confidence(read, 1, Params(), fit_map("platt", read, 1, Params(), success))
    assert mapped.mean().item() == pytest.approx(target.mean().item(), abs=1e-4)
    assert (true.logit() * (mapped - target)).mean().item() == pytest.approx(0, abs=1e-4)


def test_fitted_softmax_temperature_recovers_the_scale_of_the_scores() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, 5, generator=source, dtype=torch.float64)
    answer = torch.multinomial(scores.softmax(1), 1, generator=source)
    read = Ranked(4 * scores, ranked([[0.0]]).evidence)
    success = (top(scores, 1) == answer).squeeze(1).double()
    found = fit_map("temperature", read, 1, Params(method="softmax"), success)
    assert found.values.item() == pytest.approx(4, rel=0.15)


def test_mc_dropout_is_repeatable_and_changes_nll_but_not_mrr() -> None:
    vera = build(method="softmax", confidence="mc_dropout", dropout=0.5, **BASELINE)
    first, second = (vera.evaluate("validation").metrics for _ in range(2))
    assert first == second
    plain = build(method="softmax", dropout=0.5, **BASELINE)
    assert plain.evaluate("validation").metrics["calib/nll"] != first["calib/nll"]
    assert plain.evaluate("validation").metrics["mrr"] == first["mrr"]


@pytest.mark.parametrize(
    "params",
    [
        {"method": "edl", **BASELINE}, {"method": "softmax", "recalibration": "temperature", **BASELINE},
        {"method": "softmax", "recalibration": "isotonic", **BASELINE}, {"query_target": "group", "groups": "type"},
        {"query_target": "eps", "query_alpha": 1.0}, {"evidence_context": False}, {"calibration_share": 0.0},
        {"stage_share": (0.0, 0.0, 1.0)},
    ],
)  # fmt: skip
def test_every_method_trains_and_has_consistent_finite_metrics(params: dict[str, Any]) -> None:
    vera = build(replace(RUNTIME, epochs=2), **params)
    for epoch in (1, 2):
        metrics = values(vera.train_epoch(epoch))
    found = vera.evaluate("test")
    assert np.isfinite([*metrics.values(), *found.metrics.values()]).all()
    for name in ("calib/ece", "calib/nll", "calib/brier", "selective/score/aurc", "selective/score/coverage_at_risk"):
        assert found.metrics[f"{name}_low"] <= found.metrics[f"{name}_high"]
    for name in (
        "mrr",
        "ndcg_at_10",
        "calib/nll",
        "calib/brier",
        "selective/score/aurc",
        "calib/brier_at_1",
        "quality",
    ):
        assert found.units[name].mean() == pytest.approx(found.metrics[name], abs=1e-6)
    bins = found.tables["reliability"]
    assert bins["queries"].sum() == len(found.units["id"])
    assert bins["queries"].dtype == np.int64  # an integer column, which is not drawn as a line
    assert bins["calibrated"].tolist() == bins["confidence"].tolist()
    assert len(found.tables["risk_coverage"]["risk"]) == len(found.units["id"])
