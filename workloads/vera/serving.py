"""The registered model: encoder, retriever, and the settings chosen on validation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from workloads.abstention.calibration import Exported
from workloads.abstention.decision import PARAMS
from workloads.contract import Columns, Servable
from workloads.encoders.served_text import REQUIREMENTS
from workloads.vera.dataset import VeraData
from workloads.vera.evaluation import Choice
from workloads.vera.features import Pool
from workloads.vera.input_columns import ENDS, input_columns
from workloads.vera.model import CONTEXT_SCALE, GAP_UNIT, LINEAR_FROM, MAX_GAP, Retriever
from workloads.vera.params import Params

ENCODER = "backbone.encoder."
"""Where the weights of an encoder that is trained are in the model."""

_EXAMPLE = 4  # candidates


def servable(
    model: Retriever, data: VeraData, params: Params, choice: Choice, mask_seed: int, table: Exported | None = None
) -> Servable:
    """Weights and configuration for ``predictor.py``. The example is a test query with its first candidates.

    ``mask_seed``: of the dropout masks. ``table``: of the abstention part, if there is one.
    """
    encoder = (model.backbone.encoder or data.encoder).model.state_dict()
    weights = {
        **{f"encoder.{name}": value for name, value in encoder.items()},
        **{name: value for name, value in model.state_dict().items() if not name.startswith(ENCODER)},
        "map": choice.map_k.values.reshape(-1),
        **(table.weights if table else {}),
    }
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
            "category_numbers": _category_numbers(data.pool),
            "of_graph": bool(data.pool.code_names),
            "method": params.method,
            "confidence": params.confidence,
            "dropout": params.dropout,
            "mask_seed": mask_seed,
            "context": bool(params.evidence_context),
            "scales": {"furthest": MAX_GAP, "unit": GAP_UNIT, "beside": CONTEXT_SCALE, "largest": LINEAR_FROM},
            "temperature": params.temperature,
            "evidence_map": params.evidence_map,
            "graph_layers": params.graph_layers,
            "priors": [params.prior_positive, params.prior_negative],
            "k": choice.k,
            "threshold": choice.threshold,
            "map": choice.map_k.kind,
            **(table.config if table else {}),
        },
        example=_example(data, params.graph_layers > 0),
        params={"batch_size": 64, **(PARAMS if table else {})},
        requirements=REQUIREMENTS,
    )


def _category_numbers(pool: Pool) -> list[dict[str, int]]:
    """The numbers of each column's categories by name. Columns may share a name, as a relation called ``random``."""
    return [
        {pool.categories[number]: number for number in np.unique(column).tolist() if number} for column in pool.codes.T
    ]


def _example(data: VeraData, ends: bool) -> Columns:
    test = data.parts.test
    query = int(test[data.pool.lengths[test].argmax()])
    columns = input_columns(data.pool, query, _EXAMPLE)
    return {name: values for name, values in columns.items() if ends or name not in ENDS}
