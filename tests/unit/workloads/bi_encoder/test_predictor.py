"""The served bi-encoder, compared with the trained one, and refused inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from workloads.bi_encoder.params import Params
from workloads.bi_encoder.predictor import Predictor
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.encoders.pooling import cosine
from workloads.encoders.text import encode

SENTENCES = ["c1w0 the1 c2w1", "", "c3w0 " * 20, "something unseen", "c1w0 the1 c2w1"]


def trained(pooling: Any = "mean") -> BiEncoder:
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=1)
    workload = BiEncoder(Params(batch_size=160, pooling=pooling, max_length=12), runtime)
    workload.train_epoch(1)
    return workload


def served(workload: BiEncoder) -> Predictor:
    servable = workload.servable()
    return Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, dict(servable.config))


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return served(trained())


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_served_vectors_and_similarities_equal_those_of_training(pooling: str) -> None:
    workload = trained(pooling)
    expected = encode(workload.encoder, workload.tokenizer(SENTENCES))
    predictor = served(workload)
    found = predictor.predict(pd.DataFrame({"sentence": SENTENCES}), batch_size=2)
    np.testing.assert_allclose(np.stack(found["vector"]), expected.numpy(), rtol=1e-4, atol=1e-5)
    cut = workload.tokenizer(SENTENCES).cut
    assert cut.tolist() == [False, False, True, False, False]
    assert found["truncated"].tolist() == cut.tolist()
    pairs = predictor.predict(pd.DataFrame({"sentence1": SENTENCES, "sentence2": SENTENCES[::-1]}))
    np.testing.assert_allclose(pairs["similarity"], cosine(expected, expected.flip(0)).numpy(), rtol=1e-4, atol=1e-5)
    assert pairs["truncated"].tolist() == (cut | cut[::-1]).tolist()


def test_similarities_beyond_one_by_rounding_are_clipped(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torch.nn.functional.cosine_similarity", lambda one, other, eps: torch.tensor([1.0000001, -1.0000001])
    )
    found = predictor.predict(pd.DataFrame({"sentence1": ["c1w0"] * 2, "sentence2": ["c1w0"] * 2}))
    assert found["similarity"].tolist() == [1.0, -1.0]


def test_single_pair_gives_one_similarity(predictor: Predictor) -> None:
    """E-S2: a batch of one keeps its dimension."""
    found = predictor.predict(pd.DataFrame({"sentence1": ["c1w0"], "sentence2": ["c1w0"]}))
    assert found["similarity"].tolist() == [pytest.approx(1.0, abs=1e-6)]


def test_similarity_with_an_empty_sentence_is_zero(predictor: Predictor) -> None:
    """E-S4."""
    found = predictor.predict(pd.DataFrame({"sentence1": ["", " "], "sentence2": ["c1w0", ""]}))
    assert found["similarity"].tolist() == [0.0, 0.0]
    unit = predictor.predict(pd.DataFrame({"sentence": ["", "c1w0"]}), unit_length=True)
    assert [np.linalg.norm(vector) for vector in unit["vector"]] == [0.0, pytest.approx(1.0, abs=1e-6)]


def test_table_of_sentences_and_pairs_gives_vectors_and_similarities(predictor: Predictor) -> None:
    mixed = pd.DataFrame({"sentence": ["c1w0", None], "sentence1": [None, "c1w0"], "sentence2": [None, "c2w0"]})
    found = predictor.predict(mixed)
    alone = predictor.predict(mixed[["sentence"]].head(1))
    pair = predictor.predict(mixed[["sentence1", "sentence2"]].tail(1))
    np.testing.assert_allclose(found["vector"][0], alone["vector"][0], rtol=1e-5, atol=1e-6)
    assert found["vector"][1] is None
    assert math.isnan(found["similarity"][0])
    assert found["similarity"][1] == pytest.approx(pair["similarity"][1], abs=1e-6)


def test_empty_table_gives_an_empty_output(predictor: Predictor) -> None:
    found = predictor.predict(pd.DataFrame({"sentence": []}))
    assert list(found.columns) == ["vector", "truncated"]
    assert len(found) == 0


def test_the_index_of_the_input_is_kept(predictor: Predictor) -> None:
    found = predictor.predict(pd.DataFrame({"sentence": ["a", "b"]}, index=[7, 3]))
    assert found.index.tolist() == [7, 3]


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        ({"text": ["a"]}, {}, "needs a column 'sentence', or 'sentence1' and 'sentence2', got"),
        ({"sentence": ["a", 3]}, {}, "column sentence holds texts, got 3 in row 1"),
        ({"sentence1": ["a"], "sentence2": [None]}, {}, r"row 0 of the input is neither a sentence nor a pair: .*1"),
        ({"sentence1": ["a"]}, {}, "needs a column 'sentence', or 'sentence1' and 'sentence2', got"),
        ({"sentence": ["a", math.nan]}, {}, "row 1 of the input is neither a sentence nor a pair: it has no text"),
        ({"sentence": ["a"]}, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_invalid_predictor_input_raises_value_error(
    predictor: Predictor, inputs: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predictor.predict(pd.DataFrame(inputs), **params)
