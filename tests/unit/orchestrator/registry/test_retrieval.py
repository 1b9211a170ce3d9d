"""Registered rankers on collections: runs and qrels in TREC's form, their measures and mean, bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from orchestrator.config import workload_loader
from orchestrator.errors import UserError
from orchestrator.registry import retrieval, versions
from orchestrator.registry.export.model import Model
from orchestrator.registry.prediction import predict
from orchestrator.registry.retrieval import check_candidates, evaluate, rank_collection
from orchestrator.registry.versions import Version
from orchestrator.runs import worker
from orchestrator.storage import look_ledger
from orchestrator.storage.settings import Settings, resolve
from tests.support.refusals import refused
from tests.support.registered import register
from tests.support.stores import copy_store
from tests.unit.workloads.lifelong.test_conformance import SMALL as SMALL_LIFELONG
from workloads.contract import Runtime
from workloads.data import fingerprint
from workloads.data.retrieval.load import load_retrieval
from workloads.data.retrieval.runs import read_run
from workloads.data.retrieval.types import split_queries
from workloads.encoders.pooling import normalised
from workloads.encoders.text import encode
from workloads.lifelong.workload import Lifelong
from workloads.vera.workload import Vera

RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=1)

PARAMS: dict[str, dict[str, Any]] = {
    "text_ranker": {"max_length": 32, "batch_size": 8, "eval_candidates": 30, "pool": 10},
    "vera": {"dataset": "synthetic-retrieval", "encoder": "tiny", "hidden": 16, "eval_resamples": 20},
    "bi_encoder": {"encoder": "tiny", "max_length": 24, "batch_size": 160},
    "vera of a graph": {"encoder": "tiny", "hidden": 8, "eval_candidates": 8, "graph_layers": 1, "eval_resamples": 20},
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("rankers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        patch.setenv("ORCHESTRATOR_CACHE", str(home / "cache"))
        resolved = resolve({"tracking": f"sqlite:///{copy_store(initialised_store, home)}"})
        register(resolved, home / "text_ranker", "text_ranker", "text_ranker", PARAMS["text_ranker"], epochs=1)
        yield resolved


@pytest.fixture(scope="module")
def model(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Untrained models of workloads, as downloaded from a registry."""

    @cache
    def model(name: str) -> Model:
        workload = name.partition(" ")[0]
        params = workload_loader.params(workload)(**PARAMS[name])
        built = workload_loader.code(workload)(params, replace(RUNTIME, data=settings.data))
        return exported(built, settings, tmp_path_factory.mktemp(workload) / "model")

    return model


def exported(built: Any, settings: Settings, folder: Path) -> Model:
    """A workload's model, as downloaded from a registry."""
    worker.export(built.servable(), folder)
    name = type(built).__module__.split(".")[1]
    version = Version(f"{name}/1", "", {"orchestrator.workload": name}, None)
    return Model(version, folder, settings, None, built.params.model_dump(mode="json"))


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection in BEIR's layout with only a test part, as in most collections."""
    folder = tmp_path_factory.mktemp("own") / "animals"
    (folder / "qrels").mkdir(parents=True)
    words = ["cat", "dog", "bird", "fish", "horse", "mouse"]
    texts = [f"the {a} sees the {b} today" for a in words for b in words if a != b]
    lines = [json.dumps({"_id": f"d{row}", "text": text}) for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": f"q{w}", "text": w}) for w in words))
    rows = [f"q{w}\td{row}\t{2 if text.startswith(f'the {w}') else 1}" for w in words
            for row, text in enumerate(texts) if w in text.split()[1::3]]  # fmt: skip
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows))
    return folder


def measured(settings: Settings, model: str, target: Path, *data: str) -> dict[str, dict[str, float]]:
    return evaluate(settings, model, data, target, 20, lambda line: None)


def looks(settings: Settings) -> list[look_ledger.Row]:
    """All evaluations on test in the ledger."""
    return [row for name in look_ledger.chains(settings.storage) for row in look_ledger.rows(settings.storage, name)]


@pytest.mark.slow
def test_evaluate_writes_ranked_runs_and_the_mean_over_collections(
    settings: Settings, beir: Path, tmp_path: Path
) -> None:
    before = looks(settings)
    values = measured(settings, "text_ranker/1", tmp_path / "out", str(beir), "synthetic-retrieval")
    assert values["mean"]["ndcg_at_10"] == pytest.approx(
        (values["animals"]["ndcg_at_10"] + values["synthetic-retrieval"]["ndcg_at_10"]) / 2
    )
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == values
    data = load_retrieval(str(beir), Path())
    read = read_run(tmp_path / "out" / "animals" / "run.trec", data, 20)
    table = pd.read_parquet(tmp_path / "out" / "animals" / "run.parquet")
    first = table[table["rank"] == 1].set_index("query")
    for number, query in enumerate(data.query_ids.to_pylist()):
        assert data.doc_ids[int(read.docs[number, 0])].as_py() == first.loc[query, "document"]
    assert set(table["document"]) <= set(data.doc_ids.to_pylist())
    bm25 = read_run(tmp_path / "out" / "animals" / "bm25.trec", data, 20)
    assert np.array_equal(np.sort(bm25.docs), np.sort(read.docs)), "the same documents in another order"
    added = [row for row in looks(settings) if row not in before]
    assert [(row.fields["kind"], row.fields["run"]) for row in added] == [("evaluate", "text_ranker/1")] * 2


def test_predict_adds_fused_scores_if_the_input_has_bm25_scores(settings: Settings, tmp_path: Path) -> None:
    pairs = pd.DataFrame({"query": ["cat"] * 3, "document": ["a dog", "a cat", "cats"], "bm25": [0, 7, 2]})

    def predicted(rows: pd.DataFrame) -> pd.DataFrame:
        rows.to_csv(tmp_path / "in.csv", index=False)
        predict(settings, "text_ranker/1", str(tmp_path / "in.csv"), str(tmp_path / "out.parquet"), {})
        return pd.read_parquet(tmp_path / "out.parquet")

    assert predicted(pairs).columns.tolist() == ["query", "document", "score", "fused", "rank"]
    assert predicted(pairs.drop(columns="bm25")).columns.tolist() == ["query", "document", "score", "rank"]
    with pytest.raises(UserError, match="lacks the column document, which the model needs"):
        predicted(pairs.drop(columns="document"))


def test_vera_gives_its_confidence_as_a_column(model: Any, beir: Path, tmp_path: Path) -> None:
    rank_collection(model("vera"), str(beir), tmp_path / "out" / "animals", 20)
    table = pd.read_parquet(tmp_path / "out" / "animals" / "run.parquet")
    assert table.groupby("query")["confidence"].nunique().eq(1).all()
    assert table["confidence"].between(0, 1).all()
    assert {"abstain", "k"} <= set(table.columns)


def test_an_encoder_searches_the_whole_collection(model: Any, beir: Path, tmp_path: Path) -> None:
    values, count = rank_collection(model("bi_encoder"), str(beir), tmp_path / "animals", 7)
    assert count == 6
    assert 0 < values["recall_at_100"] <= 1
    table = pd.read_parquet(tmp_path / "animals" / "run.parquet")
    assert table.groupby("query").size().eq(7).all()
    assert not (tmp_path / "animals" / "bm25.trec").exists()


@pytest.mark.slow
def test_vera_ranks_the_triples_of_a_graph_as_its_workload_does(settings: Settings, tmp_path: Path) -> None:
    graph = [(f"e {number}", f"rel{number % 3}", f"o{number % 5}") for number in range(60)]
    rows = [
        {
            "id": f"q{number}", "kb": "g", "hops": 1, "question": f"rel{number % 3} of e {number}", "set": "all",
            "topic_entity": f"e {number}", "path": [graph[number]], "split": ("train", "dev", "test")[number % 3],
        }
        for number in range(60)
    ]  # fmt: skip
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "g.tsv").write_text("\n".join("\t".join(triple) for triple in graph))
    params = PARAMS["vera of a graph"] | {"dataset": str(folder)}
    built = Vera(Vera.Params(**params), replace(RUNTIME, data=settings.data))
    model = exported(built, settings, tmp_path / "model")
    values, count = rank_collection(model, str(folder), tmp_path / "whole", 100)
    own = built.evaluate("test").metrics
    assert count == 20
    assert values["map"] == pytest.approx(own["mrr"], abs=1e-6), "with one relevant triple"
    assert values["ndcg_at_10"] == pytest.approx(own["ndcg_at_10"], abs=1e-6)
    rank_collection(model, str(folder), tmp_path / "cut", 5)
    whole, table = (pd.read_parquet(tmp_path / name / "run.parquet") for name in ("whole", "cut"))
    assert table.equals(whole[whole["rank"] <= 5].reset_index(drop=True))
    assert table.groupby("query").size().eq(5).all()
    assert table["confidence"].between(0, 1).all()
    assert re.fullmatch(r"\d+:e_\d+[|]rel\d[|]o\d", table["document"][0])


@pytest.mark.parametrize("encoders", ["tied", "apart"])
def test_lifelong_retrieval_scores_match_the_encoders_of_the_workload(
    settings: Settings, tmp_path: Path, encoders: str
) -> None:
    """The expected scores are those of the workload's own encoders after training."""
    params = Lifelong.Params(**SMALL_LIFELONG, encoders=encoders)
    built = Lifelong(params, replace(RUNTIME, data=settings.data, epochs=2))
    built.train_epoch(1)
    rank_collection(exported(built, settings, tmp_path / "model"), params.dataset, tmp_path / "out", 5)
    data = built.data.data
    documents = normalised(encode(built.encoder, built.tokens.take(np.arange(len(data.docs)))))
    table = pd.read_parquet(tmp_path / "out" / "run.parquet")
    name = table["query"][0]
    number = data.query_ids.to_pylist().index(name)
    query = normalised(encode(built.query_encoder, built.tokens.take(np.array([len(data.docs) + number]))))
    scores = (query @ documents.T)[0].sort(descending=True)
    listed = table[table["query"] == name]
    assert listed["score"].to_numpy() == pytest.approx(scores.values[:5].detach().numpy(), abs=1e-5)
    best = data.doc_ids[int(scores.indices[0])].as_py()
    assert listed["document"].iloc[0] == best


def test_without_a_test_part_no_query_of_training_is_ranked(model: Any, tmp_path: Path) -> None:
    data = load_retrieval("synthetic-retrieval", Path())
    rank_collection(model("vera"), "synthetic-retrieval", tmp_path / "own", 20)
    table = pd.read_parquet(tmp_path / "own" / "run.parquet")
    numbers = {name: number for number, name in enumerate(data.query_ids.to_pylist())}
    assert {numbers[name] for name in table["query"]} <= set(split_queries(data, seed=0).test.tolist())


def test_training_dataset_is_recognised_under_another_path_to_its_folder(
    model: Any, beir: Path, tmp_path: Path
) -> None:
    folder, link = shutil.copytree(beir, tmp_path / "own"), tmp_path / "link"
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
    link.symlink_to(folder)
    data = load_retrieval(str(folder), Path())
    expected = split_queries(data, seed=0).test.tolist()
    assert len(expected) < 6
    for own in (f"{folder}/", str(link)):
        tags = {"orchestrator.workload": "vera", "orchestrator.data_fingerprint": fingerprint(own, Path())}
        version = replace(model("vera").version, tags=tags)
        trained = replace(model("vera"), version=version, parameters={"dataset": own})
        assert retrieval._queries(data, str(folder), trained).tolist() == expected


def test_model_trained_on_another_state_of_the_dataset_is_refused(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranked queries would include training queries of the model."""
    data = load_retrieval("synthetic-retrieval", Path())
    whole = replace(data, parts=np.zeros_like(data.parts))
    monkeypatch.setattr(retrieval, "load_collection", lambda *of: whole)
    vera = model("vera")
    tags = {**vera.version.tags, "orchestrator.data_fingerprint": fingerprint("synthetic-retrieval", Path())}
    same = replace(vera, version=replace(vera.version, tags=tags))
    rank_collection(same, "synthetic-retrieval", tmp_path / "same", 20)
    tags["orchestrator.data_fingerprint"] = "another"
    message = "vera/1 was trained on another state of synthetic-retrieval"
    refused(lambda: rank_collection(same, "synthetic-retrieval", tmp_path / "other", 20), message)


def test_a_version_without_a_record_is_not_evaluated(
    settings: Settings, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a record, the training queries of the version would be ranked too."""
    monkeypatch.setattr(versions, "record_file", lambda *of: None)
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "x", str(beir)), "text_ranker/1 has no record")


def test_invalid_evaluate_requests_are_refused(settings: Settings, model: Any, beir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "full", str(beir)), "full is not empty")
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "x", "ml-100k"), "ml-100k", "retrieval")
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "x", str(tmp_path)), str(tmp_path))
    refused(
        lambda: measured(settings, "text_ranker/1", tmp_path / "x", str(beir), str(beir)),
        "Two collections have one name", "animals",
    )  # fmt: skip
    refused(
        lambda: evaluate(settings, "text_ranker/1", [str(beir)], tmp_path / "x", 0, lambda line: None),
        "--depth is not valid: got 0",
    )
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "x", "synthetic-questions"), "graph_questions")
    of_graph, of_documents = model("vera of a graph"), model("vera")
    refused(
        lambda: check_candidates(of_graph, str(beir)),
        "vera/1 ranks facts of a graph, and the candidates of", "are documents",
    )  # fmt: skip
    refused(lambda: check_candidates(of_documents, "synthetic-questions"), "allowed: retrieval collections")
    spaced = tmp_path / "spaced"
    (spaced / "qrels").mkdir(parents=True)
    (spaced / "corpus.jsonl").write_text(json.dumps({"_id": "d 1", "text": "a cat"}))
    (spaced / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "cat"}))
    (spaced / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td 1\t1\n")
    refused(lambda: measured(settings, "text_ranker/1", tmp_path / "x", str(spaced)), "an id has a space", "'d 1'")
    assert not (tmp_path / "x").exists()


@pytest.mark.tools
@pytest.mark.skipif(importlib.util.find_spec("ir_measures") is None, reason="make test-tools")
def test_retrieval_metrics_match_ir_measures(model: Any, beir: Path, tmp_path: Path) -> None:
    import ir_measures

    for name in ("bi_encoder", "vera"):
        out = tmp_path / name
        values, _ = rank_collection(model(name), str(beir), out, 20)
        theirs = ir_measures.calc_aggregate(
            [ir_measures.nDCG @ 10, ir_measures.RR @ 10, ir_measures.AP, ir_measures.R @ 100],
            list(ir_measures.read_trec_qrels(str(out / "qrels.trec"))),
            list(ir_measures.read_trec_run(str(out / "run.trec"))),
        )
        expected = {"nDCG@10": "ndcg_at_10", "RR@10": "mrr_at_10", "AP": "map", "R@100": "recall_at_100"}
        for measure, value in theirs.items():
            assert value == pytest.approx(values[expected[str(measure)]], abs=1e-6), measure
