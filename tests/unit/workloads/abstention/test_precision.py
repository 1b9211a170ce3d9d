"""Scores of the abstention part are computed in float32 like the registered model, also after bf16 training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.small_vera import BASELINE, RUNTIME
from tests.support.small_vera import SMALL as SMALL_VERA
from tests.unit.workloads.lifelong.test_workload import SMALL as SMALL_LIFELONG
from tests.unit.workloads.text_ranker.test_workload import SMALL as SMALL_RANKER
from workloads.bi_encoder.workload import BiEncoder
from workloads.lifelong.workload import Lifelong
from workloads.text_ranker.workload import TextRanker
from workloads.vera.workload import Vera


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "params"),
    [
        (BiEncoder, {"batch_size": 160, "max_length": 12, "calibrate_on": "synthetic-retrieval"}),
        (TextRanker, {**SMALL_RANKER, "scoring": "cross"}),
        (Lifelong, SMALL_LIFELONG),
        (Vera, SMALL_VERA),
        (Vera, {**SMALL_VERA, **BASELINE, "encoder_lr": 1e-4}),
    ],
)
def test_scores_after_training_in_bf16_are_those_in_fp32(workload: Any, params: dict[str, Any]) -> None:
    runtime = replace(RUNTIME, epochs=3, abstention_part=0.3)
    trained, exact = (workload(workload.Params(**params), replace(runtime, precision=p)) for p in ("bf16", "fp32"))
    trained.train_epoch(1)
    exact.load_state_dict(trained.state_dict())
    served, expected = (each.servable().weights for each in (trained, exact))
    compared = [name for name in served if name.startswith(("abstention.", "index."))]
    assert "abstention.scores" in compared
    for name in compared:
        torch.testing.assert_close(served[name], expected[name], rtol=1e-6, atol=1e-6)
