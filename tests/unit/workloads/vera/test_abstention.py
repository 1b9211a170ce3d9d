"""VERA's abstention part: queries held out from training, and abstention by the calibrated scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_vera import BASELINE, RUNTIME, build
from tests.support.spoiled import prepared_from
from tests.unit.workloads.vera.test_predictor import inputs_of
from workloads.abstention.decision import KEY
from workloads.contract import Servable
from workloads.data.questions.load import load_questions
from workloads.data.questions.types import GraphQuestions
from workloads.vera import dataset
from workloads.vera.predictor import Predictor
from workloads.vera.workload import Vera

HELD = replace(RUNTIME, abstention_part=0.3, epochs=2)


def trained(**params: Any) -> Vera:
    vera = build(HELD, **params)
    for epoch in (1, 2):
        vera.train_epoch(epoch)
    return vera


def predictor(served: Servable) -> Predictor:
    return Predictor(
        {name: side.numpy() for name, side in served.weights.items()}, json.loads(json.dumps(dict(served.config)))
    )


@pytest.mark.parametrize(
    ("params", "kinds"),
    [
        ({}, ["c", "softmax", "temperature", "margin"]),
        (
            {"dataset": "synthetic-retrieval", "batch_size": 8, "method": "softmax", **BASELINE},
            ["softmax", "temperature", "margin", "bm25"],
        ),
    ],
)  # fmt: skip
def test_served_abstention_scores_equal_the_calibrated_scores(params: dict[str, Any], kinds: list[str]) -> None:
    vera = trained(**params)
    served = vera.servable()
    config = served.config[KEY]
    assert config["scores"] == kinds
    assert served.params["risk"] == 0
    queries = vera.data.abstention[:9]
    frame = inputs_of(vera, queries)
    model = predictor(served)
    for row, kind in enumerate(kinds):
        for column in (0, 2):
            success = list(config["successes"])[column]
            # With the mean promise at a risk near 1, queries are answered with any model.
            output = model.predict(frame, risk=0.9, promise="crc", abstain_by=kind, success=success)
            reported = output.attrs[KEY]
            expected = served.weights["abstention.scores"][row, column].numpy()
            np.testing.assert_allclose(reported["scores"], expected[:9], rtol=5e-3, atol=5e-3)
            np.testing.assert_allclose(reported["calibration"], expected)
            assert output["abstain"].eq(output["reason"].ne("")).all()
            assert output.groupby("query")["abstain"].nunique().eq(1).all()
    losses = served.weights["abstention.losses"].numpy()
    assert (np.diff(losses, axis=0) <= 0).all()  # a larger k has no greater loss
    assert 0 < losses[0].mean() < 1


def test_held_out_labels_change_only_the_abstention_losses() -> None:
    usual = trained()
    data = usual.data
    held = data.pool.family[data.abstention]
    for part in (data.parts.train, data.parts.validation):
        assert not np.isin(data.pool.family[part], held).any()
    assert not np.isin(data.abstention, data.parts.test).any()
    assert len(np.unique(held)) == len(held)

    def spoiled(name: str, root: Path) -> GraphQuestions:
        whole = load_questions(name, root)
        answer = whole.answer.copy()
        rows = np.isin(whole.family, held)
        answer[rows] = whole.answer[rows][::-1]
        return replace(whole, answer=answer)

    with prepared_from(dataset, load_questions=spoiled):
        other = trained()
        metrics = [vera.evaluate("test").metrics for vera in (usual, other)]
        first, second = (vera.servable() for vera in (usual, other))
    assert metrics[0] == metrics[1]
    different = {n for n, side in first.weights.items() if not np.array_equal(side.numpy(), second.weights[n].numpy())}
    assert different == {"abstention.losses"}


def test_risk_is_refused_without_an_abstention_part() -> None:
    vera = build()
    served = vera.servable()
    assert "risk" not in served.params
    assert KEY not in served.config
    assert not any(name.startswith(KEY) for name in served.weights)
    with pytest.raises(ValueError, match="train it with abstention_part"):
        predictor(served).predict(inputs_of(vera, vera.data.parts.test[:1]), risk=0.1)
