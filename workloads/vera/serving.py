"""The registered model: encoder, retriever, and the settings chosen on validation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from workloads.contract import Servable
from workloads.encoders.served_text import REQUIREMENTS
from workloads.vera.dataset import VeraData
from workloads.vera.evaluation import Choice
from workloads.vera.model import CONTEXT_SCALE, GAP_UNIT, LINEAR_FROM, MAX_GAP, Retriever
from workloads.vera.params import Params

_EXAMPLE = 4  # candidates


def servable(model: Retriever, data: VeraData, params: Params, choice: Choice) -> Servable:
    """Weights and configuration for ``predictor.py``. The example is a test query with its first candidates."""
    encoder = {f"encoder.{name}": value for name, value in data.encoder.model.state_dict().items()}
    weights = {**encoder, **model.state_dict(), "map": choice.map_k.values.reshape(-1)}
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights=weights,
        config={
            "encoder": json.loads(data.encoder.model.config.to_json_string(use_diff=False)),
            "tokenizer": data.tokenizer.definition,
            "max_length": data.tokenizer.max_length,
            "pooling": data.encoder.pooling,
            "code_names": list(data.pool.code_names),
            "number_names": list(data.pool.number_names),
            "categories": list(data.pool.categories),
            "of_graph": bool(data.pool.code_names),
            "method": params.method,
            "confidence": "softmax" if params.confidence == "mc_dropout" else params.confidence,
            "context": bool(params.evidence_context),
            "scales": {"furthest": MAX_GAP, "unit": GAP_UNIT, "beside": CONTEXT_SCALE, "largest": LINEAR_FROM},
            "temperature": params.temperature,
            "priors": [params.prior_positive, params.prior_negative],
            "k": choice.k,
            "threshold": choice.threshold,
            "map": choice.map_k.kind,
        },
        example=_example(data),
        params={"batch_size": 64},
        requirements=REQUIREMENTS,
    )


def _example(data: VeraData) -> dict[str, np.ndarray]:
    pool = data.pool
    test = data.parts.test
    query = int(test[pool.lengths[test].argmax()])
    first = int(pool.indptr[pool.list_of[query]])
    rows = np.arange(first, first + min(_EXAMPLE, int(pool.lengths[query])))
    names = np.array(pool.categories, object)
    codes = {name: names[pool.codes[rows, column]] for column, name in enumerate(pool.code_names)}
    numbers = {name: pool.numbers[rows, column] for column, name in enumerate(pool.number_names)}
    texts = {"query": [pool.queries[query]] * len(rows), "candidate": [pool.texts[text] for text in pool.text[rows]]}
    return {**{name: np.array(side, object) for name, side in texts.items()}, **codes, **numbers}
