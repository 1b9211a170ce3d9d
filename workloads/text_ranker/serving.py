"""The registered model of a trained text ranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workloads.abstention.calibration import Exported
from workloads.abstention.decision import PARAMS
from workloads.contract import Servable
from workloads.encoders.served_text import REQUIREMENTS
from workloads.encoders.tokens import Tokenizer
from workloads.text_ranker.dataset import RankerData
from workloads.text_ranker.params import Params

if TYPE_CHECKING:
    from workloads.text_ranker.model import Ranker

_EXAMPLE = 3  # documents


def servable(
    ranker: Ranker,
    tokenizer: Tokenizer,
    params: Params,
    bm25_weight: float,
    data: RankerData,
    table: Exported | None = None,
) -> Servable:
    """Weights and configuration for ``predictor.py``. The example is a query with its first candidates.

    ``table``: of the abstention part, if there is one.
    """
    weights = {name: tensor for name, tensor in ranker.state_dict().items() if name != "raw"}
    training = {name: tensor for name, tensor in ranker.state_dict().items() if name == "raw"}
    counts = data.candidates.counts
    query = int(counts.argmax())
    docs = data.candidates.docs[query, :_EXAMPLE]
    docs = docs[docs >= 0]
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights={**weights, **(table.weights if table else {})},
        training=training,
        config={
            "model": json.loads(ranker.encoder.model.config.to_json_string(use_diff=False)),
            "tokenizer": tokenizer.definition,
            "max_length": tokenizer.max_length,
            "scoring": params.scoring,
            "pooling": params.pooling,
            "temperature": params.temperature,
            "bm25_weight": bm25_weight,
            "passages": params.split_documents,
            **(table.config if table else {}),
        },
        example={
            "query": np.array([data.data.queries[query].as_py()] * len(docs), object),
            "document": np.array([data.data.docs[int(doc)].as_py() for doc in docs], object),
        },
        optional={"bm25": data.candidates.scores[query, : len(docs)]},
        params={"batch_size": 32, **(PARAMS if table else {})},
        requirements=REQUIREMENTS,
    )
