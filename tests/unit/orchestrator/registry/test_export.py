"""Exported models, loaded by the library they are for, give the results of the registered model.

The tests of ONNX and faiss are skipped where these packages are not installed. To run them with the packages laid
over this environment: ``make test-tools``.
"""

from __future__ import annotations

import errno
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from orchestrator.errors import UNAVAILABLE
from orchestrator.registry import models as registry
from orchestrator.registry import versions
from orchestrator.registry.export import export as exports
from orchestrator.registry.export.export import export
from orchestrator.storage.settings import Settings, resolve
from tests.support.commands import typed
from tests.support.refusals import refused
from tests.support.registered import erase, register
from tests.support.stores import copy_store
from workloads.contract import Workload

PARAMS: dict[str, dict[str, Any]] = {
    "bi_encoder": {"encoder": "tiny", "max_length": 24, "batch_size": 160},
    "text_ranker": {"max_length": 32, "batch_size": 8, "eval_candidates": 30, "pool": 10},
    "lifelong": {
        "max_length": 24, "batch_size": 8, "split_sessions": 1, "n_new": 4, "candidates": 12, "n_memory": 2,
        "capacity": 4,
    },
    "similarity": {"encoder": "tiny", "max_length": 24, "batch_size": 160, "scoring": "cross"},
    "simclr": {"batch_size": 256, "eval_probe": "never"},
    "recommender": {"backbone": "mf", "dim": 8},
    "popular": {"backbone": "ease"},
    "erased": {"backbone": "mf", "dim": 8},
}  # fmt: skip
TEXTS = ["a flute", "the man is surfing on a wave and plays", "", "flute flute flute flute flute " * 9]


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed here: make test-tools lays it over")


class Registry:
    """A store with versions that are trained and registered when they are first requested."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.trained: dict[str, Workload] = {}

    def workload(self, name: str) -> Workload:
        if name not in self.trained:
            workload = {"popular": "recommender", "erased": "recommender", "similarity": "bi_encoder"}.get(name, name)
            epochs = 2 if name == "lifelong" else 1
            self.trained[name] = register(
                self.settings, self.folder / name, name, workload, PARAMS[name], epochs=epochs
            )  # fmt: skip
        return self.trained[name]

    def loaded(self, name: str) -> Any:
        self.workload(name)
        return registry.load(self.settings, f"models:/{name}/1")

    def export(self, name: str, form: str, target: Path, rows: str | None = None) -> str:
        self.workload(name)
        return export(self.settings, f"{name}/1", target, form, rows)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Iterator[Registry]:
    home = tmp_path_factory.mktemp("models")
    database = copy_store(initialised_store, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)  # the default experiment's artifacts lie in the working directory
        yield Registry(home, resolve({"tracking": f"sqlite:///{database}"}))


def spearman(workload: Workload, encode: Callable[[list[str]], Any]) -> float:
    """Spearman's correlation on the test part, of cosines of the vectors that ``encode`` returns."""
    from workloads.data.pairs.load import load_pairs

    part = load_pairs("synthetic-pairs", Path()).test
    first, second = (np.asarray(encode(list(side))) for side in (part.first, part.second))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return float(pd.Series(cosines).corr(pd.Series(np.asarray(part.scores)), method="spearman"))


@pytest.mark.slow
def test_exported_sentence_transformer_matches_the_bi_encoder(models: Registry, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard
    from sentence_transformers import SentenceTransformer

    models.export("bi_encoder", "sentence-transformers", tmp_path / "out")
    foreign = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    ours = models.loaded("bi_encoder").predict(pd.DataFrame({"sentence": [*TEXTS[:2], TEXTS[3]]}))["vector"]
    np.testing.assert_allclose(foreign.encode([*TEXTS[:2], TEXTS[3]]), np.stack(list(ours)), atol=1e-5)
    assert foreign.max_seq_length == 24
    evaluated = models.workload("bi_encoder").evaluate("test").metrics["spearman"]
    assert spearman(models.workload("bi_encoder"), foreign.encode) == pytest.approx(evaluated, abs=1e-4)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag, card.data.license) == (
        "sentence-transformers", "sentence-similarity", "apache-2.0",
    )  # fmt: skip
    assert {one.metric_type: one.metric_value for one in card.data.eval_results}["spearman"] == pytest.approx(evaluated)
    run_id = registry.client(models.settings).get_model_version("bi_encoder", "1").run_id
    for words in (
        "planted similarity",
        f"orchestrator reproduce run {run_id}",
        "orchestrator run bi_encoder",
        "cut after 24",
    ):
        assert words in card.content, words


def lifelong_vectors(models: Registry, texts: list[str]) -> Any:
    from workloads.encoders.pooling import normalised
    from workloads.lifelong.predictor import Predictor

    servable = models.workload("lifelong").servable()
    weights = {name: value.detach().numpy() for name, value in servable.weights.items()}
    predictor = Predictor(weights, json.loads(json.dumps(dict(servable.config))))
    return normalised(predictor.encoder(texts, 2).vectors).detach().numpy()


@pytest.mark.slow
def test_exported_transformers_model_matches_the_lifelong_encoder(models: Registry, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    models.export("lifelong", "transformers", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")
    encoder = AutoModel.from_pretrained(tmp_path / "out").eval()
    texts = [TEXTS[1], TEXTS[3]]
    batch = tokens(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = encoder(**batch).last_hidden_state
    real = batch["attention_mask"].unsqueeze(2)
    vectors = (hidden * real).sum(1) / real.sum(1)
    from workloads.encoders.pooling import normalised

    np.testing.assert_allclose(normalised(vectors).numpy(), lifelong_vectors(models, texts), atol=1e-5)


@pytest.mark.slow
def test_exported_cross_encoder_matches_the_text_ranker(models: Registry, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    models.export("text_ranker", "sentence-transformers", tmp_path / "out")
    foreign = CrossEncoder(str(tmp_path / "out"), device="cpu")
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[3]), (TEXTS[3], TEXTS[3])]
    ours = models.loaded("text_ranker").predict(pd.DataFrame(pairs, columns=["query", "document"]))["score"]
    np.testing.assert_allclose(foreign.predict(pairs), ours, atol=1e-5)
    refused(
        lambda: models.export("text_ranker", "transformers", tmp_path / "other"),
        "text_ranker/1 is a cross-encoder, and its head is no part of a model of transformers",
    )
    assert not list(tmp_path.glob("*other*")), "a refused export leaves no folder"


@pytest.mark.slow
def test_exported_cross_encoder_matches_the_similarity_model(models: Registry, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    models.export("similarity", "sentence-transformers", tmp_path / "out")
    foreign = CrossEncoder(str(tmp_path / "out"), device="cpu")
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[3])]
    ours = models.loaded("similarity").predict(pd.DataFrame(pairs, columns=["sentence1", "sentence2"]))["similarity"]
    np.testing.assert_allclose(foreign.predict(pairs), ours, atol=1e-5)
    refused(
        lambda: models.export("similarity", "embeddings", tmp_path / "no", "rows.parquet"),
        "similarity/1 is a cross-encoder, which has no vectors",
    )


@pytest.mark.slow
def test_exported_item_and_user_vectors_rank_as_the_recommender_does(models: Registry, tmp_path: Path) -> None:
    said = models.export("recommender", "embeddings", tmp_path / "out")
    items, users = (pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("embeddings", "users"))
    assert "400 items of 8 numbers" in said
    scores = np.stack(users["vector"][:5]) @ np.stack(items["vector"]).T
    ranked = items["id"].to_numpy()[np.argsort(-scores, axis=1, kind="stable")[:, :3]]
    ours = models.loaded("recommender").predict(
        pd.DataFrame({"user": users["id"][:5]}), params={"k": 3, "exclude_seen": False}
    )
    assert ranked.ravel().tolist() == ours["item"].tolist()
    refused(
        lambda: models.export("popular", "embeddings", tmp_path / "none"),
        "popular/1 has no embeddings: got backbone=ease",
    )


def test_a_version_whose_run_was_erased_is_exported_without_a_record(models: Registry, tmp_path: Path) -> None:
    models.workload("erased")
    erase(models.settings, versions.find(models.settings, "erased/1").run_id)
    assert "400 items of 8 numbers" in models.export("erased", "embeddings", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("A model of the workload `recommender`" in card, "## Reproduce" in card) == (True, False)


def test_exported_document_vectors_give_the_scores_of_the_search(models: Registry, tmp_path: Path) -> None:
    models.export("lifelong", "embeddings", tmp_path / "out")
    docs = pd.read_parquet(tmp_path / "out" / "embeddings.parquet")
    loaded = models.loaded("lifelong")
    text = "w1 w2 w3"
    found = loaded.predict(pd.DataFrame({"query": [text]}), params={"k": 5})
    vectors = np.stack(docs.set_index("id")["vector"][found["document"]])
    np.testing.assert_allclose(found["score"], vectors @ lifelong_vectors(models, [text])[0], atol=1e-5)
    assert np.linalg.norm(np.stack(docs["vector"]), axis=1) == pytest.approx(1.0)


@pytest.mark.slow
def test_rows_of_a_file_are_embedded(models: Registry, tmp_path: Path) -> None:
    rows = pd.DataFrame({"id": ["a", "b", "c"], "sentence": TEXTS[:3]})
    rows.to_parquet(tmp_path / "rows.parquet")
    models.export("bi_encoder", "embeddings", tmp_path / "out", str(tmp_path / "rows.parquet"))
    table = pd.read_parquet(tmp_path / "out" / "embeddings.parquet")
    ours = models.loaded("bi_encoder").predict(rows[["sentence"]], params={"unit_length": True})["vector"]
    assert table["id"].tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(np.stack(table["vector"]), np.stack(list(ours)), atol=1e-6)
    refused(
        lambda: models.export("bi_encoder", "embeddings", tmp_path / "none"),
        "A model of bi_encoder has no rows of its own", "--input",
    )  # fmt: skip
    refused(
        lambda: models.export("recommender", "embeddings", tmp_path / "none", "rows.parquet"),
        "A model of recommender has its own rows: got --input rows.parquet",
    )


@pytest.mark.slow
def test_ids_of_a_csv_file_are_kept_as_texts_or_whole_numbers(models: Registry, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"

    def ids(text: str) -> list[Any]:
        rows.write_text(f"id,sentence\n{text}")
        target = tmp_path / str(len(list(tmp_path.iterdir())))
        models.export("bi_encoder", "embeddings", target, str(rows))
        return list(pd.read_parquet(target / "embeddings.parquet")["id"])

    assert ids("007,2024\n8,2025\n") == ["007", "8"]
    assert ids("7,a\n0,b\n") == [7, 0]
    refused(lambda: ids("7,a\n,b\n"), "The ids of", "not all texts or all whole numbers: got nan in row 2")
    refused(lambda: ids('7,a\n8,""\n'), "bi_encoder/1 refuses rows 1 to 2: row 2 of the input is neither")


@pytest.mark.tools
@needs("faiss")
def test_exported_faiss_index_finds_the_items_of_the_model(models: Registry, tmp_path: Path) -> None:
    import faiss

    said = models.export("recommender", "faiss", tmp_path / "out")
    ids = pd.read_parquet(tmp_path / "out" / "embeddings.parquet")["id"].to_numpy()
    loaded = models.loaded("recommender")
    weights = models.workload("recommender").servable().weights
    queries = weights["users"].detach().numpy()[:5]
    _, rows = faiss.read_index(str(tmp_path / "out" / "exact.faiss")).search(queries, 3)
    users = [0, 1, 2, 3, 4]
    ours = loaded.predict(pd.DataFrame({"user": users}), params={"k": 3, "exclude_seen": False})
    assert ids[rows].ravel().tolist() == ours["item"].tolist()
    recall = float(said.partition("exact.faiss: ")[2].partition(",")[0])
    graph = faiss.read_index(str(tmp_path / "out" / "hnsw.faiss"))
    _, exact = faiss.read_index(str(tmp_path / "out" / "exact.faiss")).search(weights["users"].detach().numpy(), 10)
    _, near = graph.search(weights["users"].detach().numpy(), 10)
    assert recall == pytest.approx(np.mean([len(np.intersect1d(*both)) / 10 for both in zip(exact, near)]), abs=1e-4)
    assert recall > 0.9
    assert f"{recall:.4f}" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.tools
@needs("onnxruntime")
def test_exported_onnx_bi_encoder_matches_the_model(models: Registry, tmp_path: Path) -> None:
    import onnxruntime
    import tokenizers

    models.export("bi_encoder", "onnx", tmp_path / "out")
    tokens = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    tokens.enable_padding()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))

    def encode(texts: list[str]) -> Any:
        batch = tokens.encode_batch(texts)
        sides = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        inputs = {n.name: np.array([getattr(one, sides[n.name]) for one in batch]) for n in session.get_inputs()}
        return session.run(None, inputs)[0]

    evaluated = models.workload("bi_encoder").evaluate("test").metrics["spearman"]
    assert spearman(models.workload("bi_encoder"), encode) == pytest.approx(evaluated, abs=1e-4)
    ours = models.loaded("bi_encoder").predict(pd.DataFrame({"sentence": [TEXTS[0], TEXTS[3]]}))["vector"]
    np.testing.assert_allclose(encode([TEXTS[0], TEXTS[3]]), np.stack(list(ours)), atol=1e-4)


@pytest.mark.tools
@needs("onnxruntime")
def test_exported_onnx_ranker_and_image_encoder_match_the_models(models: Registry, tmp_path: Path) -> None:
    import io

    import onnxruntime
    import tokenizers
    from PIL import Image

    models.export("text_ranker", "onnx", tmp_path / "ranker")
    tokens = tokenizers.Tokenizer.from_file(str(tmp_path / "ranker" / "tokenizer.json"))
    tokens.enable_padding()
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[3])]
    batch = tokens.encode_batch(pairs)
    session = onnxruntime.InferenceSession(str(tmp_path / "ranker" / "model.onnx"))
    sides = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    inputs = {n.name: np.array([getattr(one, sides[n.name]) for one in batch]) for n in session.get_inputs()}
    ours = models.loaded("text_ranker").predict(pd.DataFrame(pairs, columns=["query", "document"]))["score"]
    np.testing.assert_allclose(session.run(None, inputs)[0], ours, atol=1e-4)

    models.export("simclr", "onnx", tmp_path / "images")
    session = onnxruntime.InferenceSession(str(tmp_path / "images" / "model.onnx"))
    pixels = np.random.default_rng(3).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    files = []
    for one in pixels:
        buffer = io.BytesIO()
        Image.fromarray(one).save(buffer, "PNG")
        files.append(buffer.getvalue())
    ours = models.loaded("simclr").predict(pd.DataFrame({"image": files}))["embedding"]
    values = session.run(None, {"image": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))})[0]
    np.testing.assert_allclose(values, np.stack(list(ours)), atol=1e-4)


@pytest.mark.tools
@needs("onnxruntime")
def test_encoder_without_onnx_operators_is_refused(
    models: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.registry.export import onnx_file

    monkeypatch.setattr(
        onnx_file.ImageVector, "forward", lambda self, image: torch.linalg.eigvals(image.float()[:, 0]).real
    )
    refused(
        lambda: models.export("simclr", "onnx", tmp_path / "out"),
        "The encoder of simclr/1 cannot be written as ONNX, an operation has no operator there",
    )
    assert not (tmp_path / "out").exists()


def test_invalid_export_requests_are_refused(models: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "empty").mkdir()
    refused(lambda: models.export("bi_encoder", "transformers", tmp_path / "full"), f"{tmp_path}/full is not empty")
    refused(
        lambda: models.export("bi_encoder", "transformers", tmp_path / "no" / "out"), f"{tmp_path}/no does not exist"
    )
    refused(lambda: models.export("bi_encoder", "tflite", tmp_path / "out"), "Unknown format: got 'tflite'", "onnx")
    refused(lambda: models.export("bi_encoder", "onnx", tmp_path / "out", "rows.csv"), "onnx takes no rows", "--input")
    refused(
        lambda: models.export("recommender", "transformers", tmp_path / "out"),
        "recommender/1 cannot be exported as transformers: got a model of recommender",
        "bi_encoder, lifelong, text_ranker",
    )  # fmt: skip
    refused(lambda: export(models.settings, "nothing/1", tmp_path / "out", "transformers"), "Unknown registered model")
    real = importlib.util.find_spec
    monkeypatch.setattr(exports.importlib.util, "find_spec", lambda name: None if name == "faiss" else real(name))
    refused(
        lambda: models.export("recommender", "faiss", tmp_path / "out"),
        "The format faiss needs faiss, which is not installed here", "Install ray-experiment-orchestrator[faiss]",
        code=UNAVAILABLE,
    )  # fmt: skip
    models.export("bi_encoder", "transformers", tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()
    monkeypatch.setattr(exports.model_card, "text", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    refused(
        lambda: models.export("bi_encoder", "transformers", tmp_path / "out"),
        f"The folder {tmp_path}/out cannot be written: got No space left on device", "choose another with --to",
        code=UNAVAILABLE,
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


@pytest.mark.slow
def test_export_into_an_empty_folder_does_not_replace_the_folder(
    models: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be the working directory, a mounted volume or the target of a link."""
    folder = tmp_path / "folder"
    folder.mkdir()
    before = folder.stat().st_ino
    models.workload("recommender")
    for name in (".", "../link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(folder)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            export(models.settings, "recommender/1", Path(name), "embeddings")
        files = [*folder.iterdir()]
        assert sorted(file.name for file in files) == ["README.md", "embeddings.parquet", "users.parquet"]
        for file in files:
            file.unlink()
    assert folder.stat().st_ino == before


def test_export_command_prints_format_folder_and_size(models: Registry, home: Path, tmp_path: Path) -> None:
    models.workload("recommender")
    assert models.settings.tracking is not None
    words = ("export", "recommender/1", "--to", str(tmp_path / "out"), "--format", "embeddings")
    done = typed(home, *words, "--tracking", models.settings.tracking)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"recommender/1 is exported as embeddings: {tmp_path}/out; 400 items of 8 numbers")
