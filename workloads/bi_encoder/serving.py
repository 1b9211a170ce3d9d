"""The registered model: weights, tokenizer and the standalone predictor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from workloads.contract import Servable
from workloads.encoders.served_text import REQUIREMENTS
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer

_EXAMPLE = {
    "sentence": np.array(["A plane is taking off.", None], dtype=object),
    "sentence1": np.array([None, "A man is playing a flute."], dtype=object),
    "sentence2": np.array([None, "A man is surfing."], dtype=object),
}
"""One sentence and one pair. The gaps make every column optional in the model's signature."""


def servable(encoder: TextEncoder, tokenizer: Tokenizer, dataset: str) -> Servable:
    """The encoder with its tokenizer, which is stored among the weights as the bytes of its ``tokenizer.json``."""
    weights = {f"model.{name}": value for name, value in encoder.model.state_dict().items()}
    weights["tokenizer"] = torch.frombuffer(bytearray(tokenizer.definition.encode()), dtype=torch.uint8)
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights=weights,
        config={
            "dataset": dataset,
            "model": encoder.model.config.to_diff_dict(),
            "pooling": encoder.pooling,
            "max_length": tokenizer.max_length,
        },
        example=_EXAMPLE,
        params={"unit_length": False, "batch_size": 64},
        requirements=REQUIREMENTS,
    )
