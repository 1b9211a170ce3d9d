"""The registered model: weights, tokenizer and the standalone predictor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from workloads.abstention.decision import PARAMS
from workloads.bi_encoder.abstention import Collection
from workloads.contract import Servable
from workloads.encoders.served_text import REQUIREMENTS
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer
from workloads.initial_weights import bytes_of

_EXAMPLE = {
    "sentence": np.array(["A plane is taking off.", None], dtype=object),
    "sentence1": np.array([None, "A man is playing a flute."], dtype=object),
    "sentence2": np.array([None, "A man is surfing."], dtype=object),
}
"""One sentence and one pair. The gaps make every column optional in the model's signature."""


_QUERIES = {"query": np.array(["Who plays a flute?", "What is surfing?"], dtype=object)}

_PAIRS = {
    "sentence1": np.array(["A plane is taking off.", "A man is playing a flute."], dtype=object),
    "sentence2": np.array(["An air plane is taking off.", "A man is surfing."], dtype=object),
}


def servable(
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    dataset: str,
    head: Mapping[str, torch.Tensor] | None = None,
    searched: Collection | None = None,
) -> Servable:
    """The encoder with its tokenizer, which is stored among the weights as the bytes of its ``tokenizer.json``.

    ``head``: weight (1, d) and bias (1,) of a cross-encoder. ``searched``: a collection for ``query``.
    """
    weights = {f"model.{name}": value for name, value in encoder.model.state_dict().items()}
    weights |= {f"head.{name}": value for name, value in (head or {}).items()}
    weights["tokenizer"] = bytes_of(tokenizer.definition)
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights={**weights, **(searched.weights if searched else {})},
        config={
            "dataset": dataset,
            "model": encoder.model.config.to_diff_dict(),
            "pooling": encoder.pooling,
            "max_length": tokenizer.max_length,
            "scoring": "bi" if head is None else "cross",
            **(searched.config if searched else {}),
        },
        example=_EXAMPLE if head is None else _PAIRS,
        params={"unit_length": False, "batch_size": 64, **({"k": 10, "recall": 1.0, **PARAMS} if searched else {})},
        alternatives=_QUERIES if searched else {},
        requirements=REQUIREMENTS,
    )
