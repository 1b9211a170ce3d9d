"""The bi-encoder: packaged MiniLM against sentence-transformers, and predictions of a registered model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import orchestrator
from tests.support.commands import typed
from workloads.data.pairs.load import load_pairs
from workloads.encoders.pooling import cosine, normalised
from workloads.encoders.sources import folder_of
from workloads.encoders.text import encode, load_encoder
from workloads.metrics.correlation import average_ranks, influences


@pytest.mark.data("stsb")
@pytest.mark.faults
def test_minilm_vectors_match_sentence_transformers() -> None:
    """The vectors are equal. In bf16, Spearman's correlation on the first pairs of STS-B's dev part is the same."""
    library = pytest.importorskip("sentence_transformers")
    dev = load_pairs("stsb", Path(os.environ["ORCHESTRATOR_DATA"])).validation
    assert dev is not None
    texts = dev.first[:300] + dev.second[:300]
    tokenizer, encoder = load_encoder("minilm", max_length=256)
    found = encode(encoder, tokenizer(texts))
    expected = library.SentenceTransformer(str(folder_of("minilm")), device="cpu").encode(texts[::10])
    torch.testing.assert_close(normalised(found[::10]), torch.from_numpy(expected), rtol=0, atol=1e-5)

    encoder.precision = "bf16"
    scores = torch.from_numpy(dev.scores[:300])
    exact, rounded = (
        influences(average_ranks(cosine(*vectors.split(300))), average_ranks(scores)).mean().item()
        for vectors in (found, encode(encoder, tokenizer(texts)))
    )
    assert exact > 0.8
    assert rounded == pytest.approx(exact, abs=0.002)


def test_registered_bi_encoder_predicts_vectors_and_similarities(home: Path, database: Path, tmp_path: Path) -> None:
    trained = orchestrator.run("bi_encoder", epochs=1, batch_size=160, register="pairs")
    assert trained.metrics["test/spearman"] > 0
    rows = [{"sentence": "c1w0 c2w0"}, {"sentence1": "c1w0 c2w0", "sentence2": "c1w0 c2w0"}]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    told = typed(home, "predict", "pairs@latest", "--input", str(table))
    assert told.returncode == 0, told.stderr
    vector, pair = map(json.loads, told.stdout.splitlines())
    assert np.shape(vector["vector"]) == (64,)
    assert pair["similarity"] == pytest.approx(1.0, abs=1e-5)
    assert (vector["similarity"], pair["vector"]) == (None, None)
