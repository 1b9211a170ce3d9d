"""The losses of a batch and their targets: reference values, and rates of groups by a slow reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.small_vera import build
from tests.unit.workloads.losses.test_evidential import INF, LISTED, POSITIVE, SCORES, A, B, block
from workloads.losses.evidential import beta_parameters
from workloads.vera.confidence import confidence
from workloads.vera.evaluation import LabelledQueries
from workloads.vera.inference import rank
from workloads.vera.loss_calls import NAMES, Counts, losses, weights
from workloads.vera.model import Evidence, Outputs
from workloads.vera.params import Params
from workloads.vera.stages import Stage


@pytest.mark.parametrize(
    ("target", "query", "total"),
    [
        ("eps", 1.0006635817474374, 3.260773705355663),
        ("hybrid", 0.569688470055226, 2.8297985936634515),
        ("group", 0.16521772972907947, 2.425327853337305),
    ],
)
def test_losses_of_a_batch_match_reference_values(target: Any, query: float, total: float) -> None:
    """Of three queries none succeeds, and the second has no positive: the divisors are 3, 2 and 12 (E-V10)."""
    evidence = Evidence(*beta_parameters(block(A), block(B), 0.1, 1.0))
    outputs = Outputs(block(SCORES, -INF), evidence, evidence, torch.zeros(()))
    batch: Any = SimpleNamespace(listed=LISTED, positive=POSITIVE, queries=torch.tensor([0, 1, 2]))
    stage = Stage(3, rank=1.0, cand=0.2, query=1.0, cons=0.2)
    rates = None if target == "eps" else torch.tensor([1 / 4, 1 / 3, 1 / 4], dtype=torch.float64)
    found = losses(outputs, batch, Params(query_target=target), stage, 2, rates, Counts(3, 2, 12))
    expected = {"rank": 1.978967521946105, "cand": 1.2142506642816127, "query": query, "cons": 0.19146234402898887}
    assert dict(zip(NAMES, found.tolist())) == pytest.approx(expected, rel=1e-6)
    assert (found * weights(stage, found.device)).sum().item() == pytest.approx(total, rel=1e-6)


def test_rates_are_of_bins_of_at_least_50_queries_under_the_current_model() -> None:
    """E-V1: 170 queries make three bins of c, not 20; other weights order and fill them differently."""
    vera = build(eval_k=3)
    queries = vera.ranked_by[:170]
    seen = []
    for _ in range(2):
        ranked = rank(vera.model, vera.data, queries, vera.params, vera.runtime)
        success = LabelledQueries.of(vera.data, queries).success(ranked, 3).tolist()
        order = confidence(ranked, 3, vera.params).argsort(stable=True).tolist()
        expected = [0.0] * 170
        for first, end in ((0, 57), (57, 114), (114, 170)):
            for query in order[first:end]:
                expected[query] = (sum(success[other] for other in order[first:end]) + 1) / (end - first + 2)
        seen.append(vera._rates(queries, None)[queries].tolist())
        assert seen[-1] == pytest.approx(expected, rel=1e-6)
        with torch.no_grad():
            for side in vera.model.parameters():
                side.neg_()
    assert seen[0] != seen[1]


def test_an_epoch_takes_the_rates_under_the_model_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    vera = build(eval_k=3, stage_share=(0, 0, 1), stage_backbone=(1, 1, 1))
    taken: list[torch.Tensor] = []

    def note(outputs: Any, batch: Any, params: Any, stage: Any, k: int, rates: Any, counts: Any) -> torch.Tensor:
        if rates is not None:
            taken.append(rates.clone())
        return losses(outputs, batch, params, stage, k, rates, counts)

    monkeypatch.setattr("workloads.vera.workload.losses", note)
    targets = []
    for epoch in range(1, 5):
        expected = vera._rates(vera.calibrated_by, None)
        taken.clear()
        vera.train_epoch(epoch)
        assert taken
        assert all(torch.allclose(rates, expected, rtol=1e-5) for rates in taken)
        targets.append(expected)
    assert not torch.equal(targets[0], targets[-1])


def test_initial_confidence_is_far_from_one() -> None:
    """E-V8: with priors of 1 and 1 and no biases, c of eight candidates would be .996 before training."""
    vera = build(eval_k=8)
    ranked = rank(vera.model, vera.data, vera.ranked_by, vera.params, vera.runtime)
    found = confidence(ranked, 8, vera.params)
    assert 0.05 < found.min() < found.max() < 0.4
