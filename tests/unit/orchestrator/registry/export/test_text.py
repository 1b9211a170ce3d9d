"""Exported encoders of other kinds than BERT give the vectors of the registered model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

from orchestrator.errors import RunFailed
from orchestrator.registry.export import text
from orchestrator.registry.export.model import Model
from orchestrator.storage.settings import resolve
from workloads.bi_encoder.predictor import Predictor
from workloads.bi_encoder.serving import servable
from workloads.encoders.text import TextEncoder
from workloads.encoders.tokens import Tokenizer

needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None,
    reason="onnxruntime is not installed here: make test-tools lays it over",
)

WORDS = ["a man is surfing", "a man plays the flute!"]
MODELS: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
}


def model_of(kind: str, tokenizer: Tokenizer, workload: str = "bi_encoder", **config: Any) -> tuple[Model, Predictor]:
    """A registered version of an untrained encoder, and its predictor."""
    torch.manual_seed(1)
    settings = AutoConfig.for_model(kind, **MODELS[kind], vocab_size=tokenizer.size)
    served = servable(TextEncoder(AutoModel.from_config(settings)), tokenizer, "synthetic-pairs")
    weights = {name: value.detach().numpy() for name, value in served.weights.items()}
    model = Model(Mock(workload=workload), Path(), resolve({}))
    model.weights = weights
    model.config = {**json.loads(json.dumps(dict(served.config))), **config}
    return model, Predictor(weights, model.config)


def vectors(predictor: Predictor, texts: list[str]) -> NDArray[np.float32]:
    return np.stack(list(predictor.predict(pd.DataFrame({"sentence": texts}))["vector"]))


def of_bytes() -> Tokenizer:
    """A tokenizer like GPT-2's: token 0 is "!", one token is special, none is the padding."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pairs.train_from_iterator(["wow!! wow!!"], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet))
    pairs.add_special_tokens(["<|endoftext|>"])
    return Tokenizer(pairs.to_str(), 16)


def test_exported_encoder_without_a_padding_token_matches_the_predictor(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model, predictor = model_of("gpt2", of_bytes())
    text.sentence_transformers(model, tmp_path)
    texts = ["wow!!", "wow wow!! wow"]
    exported = SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    np.testing.assert_allclose(exported, vectors(predictor, texts), atol=1e-5)


def test_export_limits_of_a_passage_ranker_are_listed() -> None:
    model, _ = model_of("distilbert", Tokenizer.of_words(WORDS, 100, 16), "text_ranker", passages=[8, 4, 2])
    limits = text.limits_of(model)
    assert limits[0].startswith("Texts are cut after 16 tokens")
    assert text.EMPTY in limits
    assert [limit.split()[0] for limit in limits[2:]] == ["Scores", "A"]


@pytest.mark.tools
@needs_onnx
@pytest.mark.parametrize("special", [True, False])
def test_onnx_encoder_without_token_types_matches_the_predictor(tmp_path: Path, special: bool) -> None:
    import onnxruntime

    from orchestrator.registry.export.onnx_file import onnx

    tokenizer = Tokenizer.of_words(WORDS, 100, 16)
    if not special:
        tokenizer = Tokenizer(json.dumps({**json.loads(tokenizer.definition), "post_processor": None}), 16)
    model, predictor = model_of("distilbert", tokenizer)
    written = onnx(model, tmp_path)
    assert text.EMPTY in written.limits
    tokens = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens.enable_padding()
    texts = [*WORDS, "flute " * 40, *([] if special else [""])]
    batch = tokens.encode_batch(texts)
    inputs = {"input_ids": [one.ids for one in batch], "attention_mask": [one.attention_mask for one in batch]}
    (values,) = onnxruntime.InferenceSession(str(tmp_path / "model.onnx")).run(
        None, {name: np.array(rows) for name, rows in inputs.items()}
    )
    np.testing.assert_allclose(values, vectors(predictor, texts), atol=1e-5)


@pytest.mark.tools
@needs_onnx
def test_onnx_export_raises_if_the_exported_values_are_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    from orchestrator.registry.export.onnx_file import onnx

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: Mock(run=lambda *_: [np.float32(np.nan)]))
    model, _ = model_of("distilbert", Tokenizer.of_words(WORDS, 100, 16))
    with pytest.raises(RunFailed, match="differ from the model's by up to nan"):
        onnx(model, tmp_path)
