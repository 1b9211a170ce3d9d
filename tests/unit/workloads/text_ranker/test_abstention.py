"""The ranker's abstention part: queries held out from training, and abstention by the calibrated scores."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.unit.workloads.text_ranker.test_workload import RUNTIME, SMALL
from workloads.abstention.decision import KEY
from workloads.text_ranker.abstention import systems
from workloads.text_ranker.dataset import Lists
from workloads.text_ranker.evaluation import RankingEvaluator
from workloads.text_ranker.params import Params
from workloads.text_ranker.predictor import Predictor
from workloads.text_ranker.workload import TextRanker

HELD = replace(RUNTIME, abstention_part=0.25)


def test_ndcg_at_10_counts_relevant_documents_missing_from_a_short_list() -> None:
    """A list of three contains three of ten relevant documents; the expected nDCG is the evaluation's."""
    sides = (np.zeros((1, 3), np.int64), np.array([[3.0, 2.0, 1.0]], np.float32), np.ones((1, 3), np.float32))
    lists = Lists(np.array([0]), *sides, np.ones((1, 10), np.float32))
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    measured = RankingEvaluator(lists, torch.device("cpu"), 5).evaluation(scores, 0.5, False).metrics["ndcg_at_10"]
    assert measured == pytest.approx(0.469, abs=5e-4)
    assert systems(lists, scores, 0.5).rankings[""].ndcg == pytest.approx([measured])


def test_served_abstention_scores_equal_calibrated_ones_with_or_without_bm25() -> None:
    ranker = TextRanker(Params(**{**SMALL, "scoring": "bi"}), HELD)
    served = ranker.servable()
    predictor = Predictor(
        {name: side.numpy() for name, side in served.weights.items()}, json.loads(json.dumps(dict(served.config)))
    )
    data = ranker.data
    queries = data.abstention[:2]
    for part in (data.queries.train, data.queries.validation, data.queries.test):
        assert not np.isin(part, data.abstention).any()
    lists = data.lists(queries, ranker.params.eval_candidates)
    rows, places = np.nonzero(lists.docs >= 0)
    frame = pd.DataFrame(
        {
            "query": data.data.queries.take(queries[rows]).to_pylist(),
            "document": data.data.docs.take(lists.docs[rows, places]).to_pylist(),
            "bm25": lists.bm25[rows, places],
        }
    )
    config = served.config[KEY]
    names = list(config["successes"])
    assert names == [f"{s}{n}" for s in ("", "fused_") for n in ("top_1", "top_3", "top_5", "top_10", "ndcg_at_10")]
    losses = served.weights["abstention.losses"].numpy()
    assert ((losses >= 0) & (losses <= 1)).all()
    assert np.isin(losses[names.index("fused_top_3")], [0, 1]).all()
    for kind, system, success in (
        ("softmax", "", "top_3"), ("temperature", "fused_", "top_3"), ("margin", "fused_", "ndcg_at_10"),
        ("bm25", "fused_", "top_1"),
    ):  # fmt: skip
        inputs = frame if system else frame.drop(columns="bm25")
        output = predictor.predict(inputs, risk=0.97, promise="crc", abstain_by=kind, success=success)
        row = names.index(system + success)
        expected = served.weights["abstention.scores"][config["scores"].index(kind), row]
        np.testing.assert_allclose(output.attrs[KEY]["scores"], expected[: len(queries)], rtol=1e-3, atol=1e-3)
        assert output.groupby("query")["abstain"].nunique().eq(1).all()
    with pytest.raises(ValueError, match=r"success=fused_top_1 is none of top_1, top_3, top_5, top_10, ndcg_at_10$"):
        predictor.predict(frame.drop(columns="bm25"), risk=0.97, success="fused_top_1")
    with pytest.raises(TypeError, match="no parameter 'batchsize'"):
        predictor.predict(frame, batchsize=3)
    with pytest.raises(ValueError, match="abstain_by=bm25 needs the column bm25"):
        predictor.predict(frame.drop(columns="bm25"), risk=0.97, promise="crc", abstain_by="bm25")


def test_refit_holds_out_the_same_queries_and_stores_no_validation_losses() -> None:
    params = Params(**{**SMALL, "scoring": "bi", "bm25_weight": 0.5})
    selected, refitted = (TextRanker(params, replace(HELD, holdout=holdout)) for holdout in (True, False))
    first, second = (one.data for one in (selected, refitted))
    np.testing.assert_array_equal(first.abstention, second.abstention)
    both = np.sort(np.concatenate([first.queries.train, first.queries.validation]))
    np.testing.assert_array_equal(second.queries.train, both)
    assert "abstention.validation_losses" in selected.servable().weights
    assert "abstention.validation_losses" not in refitted.servable().weights


@pytest.mark.parametrize("settings", [{"scoring": "bi"}, {"scoring": "cross", "loss": "margin", "learnable": True}])
def test_run_loads_the_weights_of_a_ranker_with_an_abstention_part(settings: dict[str, Any]) -> None:
    donor = TextRanker(Params(**{**SMALL, **settings}), HELD).servable()
    assert any(name.startswith("abstention.") for name in donor.weights)
    ranker = TextRanker(Params(**{**SMALL, **settings}), replace(HELD, seed=HELD.seed + 1))
    ranker.load_weights({**donor.weights, **donor.training}, donor.config)
    for name, value in ranker.model.state_dict().items():
        torch.testing.assert_close(value, {**donor.weights, **donor.training}[name], rtol=0, atol=0)
