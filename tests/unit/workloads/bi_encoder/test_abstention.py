"""A sentence encoder with a collection: the served model searches it, and abstains by the scores of queries."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from workloads.abstention.decision import KEY
from workloads.bi_encoder.calibration_queries import calibration_queries
from workloads.bi_encoder.params import Params
from workloads.bi_encoder.predictor import Predictor
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime, Servable
from workloads.data.retrieval.load import load_retrieval
from workloads.encoders import approximate
from workloads.encoders.pooling import normalised
from workloads.encoders.text import encode

NAME = "synthetic-retrieval"


@pytest.fixture(scope="module")
def workload() -> BiEncoder:
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=1)
    return BiEncoder(Params(batch_size=160, max_length=12, calibrate_on=NAME), runtime)


def loaded(served: Servable) -> Predictor:
    weights = {name: tensor.numpy() for name, tensor in served.weights.items()}
    return Predictor(weights, json.loads(json.dumps(dict(served.config))))


def test_collection_is_searched_and_its_queries_calibrate_the_promise(
    workload: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = workload.servable()
    predictor = loaded(served)
    data = load_retrieval(NAME, Path())
    queries = np.flatnonzero(data.answered & (data.parts != 3))
    texts = data.queries.take(queries).to_pylist()
    own = [normalised(encode(workload.encoder, workload.tokenizer(side))) for side in (texts, data.docs.to_pylist())]
    best = (own[0] @ own[1].T).sort(dim=1, descending=True, stable=True)
    output = predictor.predict(pd.DataFrame({"query": texts}), k=2)
    np.testing.assert_allclose(output["score"], best.values[:, :2].ravel(), rtol=1e-4, atol=1e-5)
    assert output["rank"].tolist() == [1, 2] * len(texts)
    config = served.config[KEY]
    calibrated = served.weights["abstention.scores"].shape[2]
    assert calibrated + served.weights["abstention.validation_scores"].shape[2] == len(queries)
    assert calibrated == round(0.8 * len(queries))
    for row, kind in enumerate(config["scores"]):
        frame = pd.DataFrame({"query": texts})
        output = predictor.predict(frame, k=1, risk=0.97, promise="crc", abstain_by=kind, success="top_3")
        scores = np.array(output.attrs[KEY]["scores"])
        part = served.weights["abstention.scores"][row, 1].numpy()
        assert np.abs(scores[:, None] - part).min(0).max() < 1e-3  # ``texts`` has each calibrated query
        assert output["abstain"].eq(output["reason"].ne("")).all()
    sentences = predictor.predict(pd.DataFrame({"sentence": texts[:2]}))
    expected = encode(workload.encoder, workload.tokenizer(texts[:2]))
    np.testing.assert_allclose(np.stack(sentences["vector"]), expected, rtol=1e-4, atol=1e-5)
    exact = predictor.predict(pd.DataFrame({"query": texts}), k=3)
    monkeypatch.setattr(approximate, "LEAST_ROWS", 10)
    near = predictor.predict(pd.DataFrame({"query": texts}), k=3, recall=0.7)
    shared = near.merge(exact, on=["query", "document"])
    assert len(texts) <= approximate.SAMPLE
    assert near["recall"][0] >= 0.7
    assert len(shared) / len(exact) == pytest.approx(near["recall"][0], abs=1e-6)
    with pytest.raises(ValueError, match="holds for exact search"):
        predictor.predict(pd.DataFrame({"query": texts}), recall=0.7, risk=0.97, promise="crc")
    with pytest.raises(ValueError, match="risk= is promised for queries of the collection"):
        predictor.predict(pd.DataFrame({"sentence": texts[:2]}), risk=0.97, promise="crc")


def test_invalid_calibrate_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs vectors, which scoring=cross does not have"):
        Params(calibrate_on=NAME, scoring="cross", lowest_cosine=0.0)
    with pytest.raises(ValueError, match="holds another kind of data"):
        Params(calibrate_on="synthetic-pairs")
    with pytest.raises(ValueError, match="nowhere"):
        Params(calibrate_on=str(tmp_path / "nowhere")).check_data(tmp_path)


@pytest.mark.parametrize(
    ("texts", "qrels", "message"),
    [
        (["a", "b"], "q0\td0\t1\nq1\td9\t1\n", r"qrels.tsv, line 3: document d9\. Correct or remove them"),
        (["a", "b"], "q0\td0\t1\n", "needs two different judged queries: got 1 with"),
        (["a", "a"], "q0\td0\t1\nq1\td1\t1\n", "needs two different judged queries: got 1 with"),
    ],
)
def test_a_collection_that_cannot_calibrate_is_refused_before_training(
    texts: list[str], qrels: str, message: str, tmp_path: Path
) -> None:
    folder = collection_of(tmp_path, texts, qrels)
    with pytest.raises(ValueError, match=message):
        Params(calibrate_on=str(folder)).check_data(tmp_path)


def test_queries_with_equal_text_are_used_once_for_calibration(tmp_path: Path) -> None:
    texts = [f"text {number % 10}" for number in range(200)]
    qrels = "".join(f"q{number}\td0\t1\n" for number in range(200))
    folder = collection_of(tmp_path, texts, qrels)
    calibrating, placing = calibration_queries(str(folder), tmp_path, seed=0)
    assert len(calibrating) == 8
    assert len(placing) == 2
    assert len({texts[query] for query in (*calibrating, *placing)}) == 10


def collection_of(folder: Path, queries: list[str], qrels: str) -> Path:
    for name, texts in (("d", ["cats", "dogs"]), ("q", queries)):
        file = folder / ("corpus.jsonl" if name == "d" else "queries.jsonl")
        rows = [{"_id": f"{name}{number}", "text": text} for number, text in enumerate(texts)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    return folder
