"""The abstention part of lifelong retrieval: queries held out from training, and scores of the served model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.unit.workloads.lifelong.test_workload import RUNTIME, SMALL
from workloads.abstention.decision import KEY
from workloads.lifelong.params import Params
from workloads.lifelong.predictor import Predictor
from workloads.lifelong.workload import Lifelong


def test_served_abstention_scores_equal_the_calibrated_scores() -> None:
    workload = Lifelong(Params(**SMALL), replace(RUNTIME, abstention_part=0.3))
    assert workload.index.lineage != Lifelong(Params(**SMALL), RUNTIME).index.lineage
    workload.train_epoch(1)
    data = workload.data
    for part in (data.queries.train, data.queries.validation, data.queries.test, data.train):
        assert not np.isin(part, data.abstention).any()
    served = workload.servable()
    predictor = Predictor(
        {name: side.numpy() for name, side in served.weights.items()}, json.loads(json.dumps(dict(served.config)))
    )
    frame = pd.DataFrame({"query": data.data.queries.take(data.abstention).to_pylist()})
    config = served.config[KEY]
    assert config["scores"] == ["softmax", "temperature", "margin"]
    for row, kind in enumerate(config["scores"]):
        output = predictor.predict(frame, k=2, risk=0.9, promise="crc", abstain_by=kind, success="top_3")
        expected = served.weights["abstention.scores"][row, list(config["successes"]).index("top_3")]
        np.testing.assert_allclose(output.attrs[KEY]["scores"], expected, rtol=1e-3, atol=1e-3)
        assert len(output) == 2 * len(frame)
    plain = predictor.predict(frame, k=2)
    pd.testing.assert_frame_equal(plain, output.drop(columns=["abstain", "reason"]), check_exact=False)
    first = predictor.predict(frame, k=1).drop_duplicates("query").set_index("query")["document"]
    ids = data.data.doc_ids.to_pylist()
    judged = {(int(q), ids[d]) for q, d, grade in data.data.judgements if grade > 0}
    expected_losses = [
        (query, first[text]) not in judged for query, text in zip(data.abstention.tolist(), frame["query"])
    ]
    assert served.weights["abstention.losses"][0].tolist() == expected_losses
    with pytest.raises(ValueError, match="holds for the index that the model was registered with"):
        predictor.predict(frame, risk=0.9, promise="crc", index="/elsewhere")
