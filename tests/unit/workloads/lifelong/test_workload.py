"""The lifelong workload: order of sessions, embedding per session, update methods, serving, and invalid input."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from orchestrator.config.plan import Plan
from orchestrator.engine.loop import run_epochs
from workloads.contract import MID_RUN, Runtime, Servable
from workloads.data import fingerprint
from workloads.data.errors import DataError
from workloads.data.retrieval.bm25 import search
from workloads.encoders import approximate
from workloads.lifelong import dataset, index_encoder
from workloads.lifelong import workload as module
from workloads.lifelong.dataset import prepare
from workloads.lifelong.evaluation import MEASURES, SessionEvaluator
from workloads.lifelong.index import Index, read_segment
from workloads.lifelong.params import Params
from workloads.lifelong.predictor import Predictor
from workloads.lifelong.serving import lineage_of
from workloads.lifelong.workload import Lifelong
from workloads.testing import values

SMALL: Mapping[str, Any] = {
    "max_length": 24, "batch_size": 16, "lr": 1e-3, "split_sessions": 2, "n_new": 4, "candidates": 12,
}  # fmt: skip
RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=3)


def build(runtime: Runtime = RUNTIME, **params: Any) -> Lifelong:
    return Lifelong(Params(**{**SMALL, **params}), runtime)


def trained(epochs: int = 3, **params: Any) -> Lifelong:
    workload = build(**params)
    for epoch in range(1, epochs + 1):
        workload.train_epoch(epoch)
    return workload


@pytest.fixture(scope="module")
def finished() -> Lifelong:
    return trained()


def test_a_compatible_index_is_only_ever_appended_to(finished: Lifelong) -> None:
    sessions = finished.data.sessions
    assert finished.index.docs.tolist() == sessions.until(2).tolist()
    expected = np.repeat([0, 1, 2], [len(sessions.arriving(session)) for session in range(3)])
    assert finished.index.models.tolist() == expected.tolist()
    first = trained(epochs=1).index
    np.testing.assert_array_equal(finished.index.vectors()[: len(first)], first.vectors())
    assert finished.evaluate("test").metrics["documents_embedded"] == len(sessions.until(2))


def test_separate_encoders_start_equal_and_diverge_in_training() -> None:
    """Stored documents are embedded by the document encoder; queries are ranked and served by the query encoder."""
    began = build(encoders="apart")
    tied = build()
    for encoder in (began.encoder, began.query_encoder):
        for name, value in tied.encoder.state_dict().items():
            assert torch.equal(encoder.state_dict()[name], value)
    found = trained(epochs=2, encoders="apart")
    queries = found.data.train[:3]
    texts = len(found.data.data.docs) + queries
    own = found.index_encoder.embed(texts, queries=True)
    assert torch.equal(found.index_encoder.queries(queries), own)
    assert not torch.allclose(own, found.index_encoder.embed(texts))
    served = {name.removeprefix("model."): value for name, value in found.servable().weights.items()}
    for name, value in found.query_encoder.model.state_dict().items():
        assert torch.equal(served[name], value)
    docs = found.data.sessions.arriving(1)[:4]
    np.testing.assert_allclose(found.index.take(docs), found.index_encoder.embed(docs), atol=1e-5)


@pytest.mark.parametrize(
    "params", [{"compatible": "frozen", "memory": "none"}, {"update": "retrain"}, {"memory": "mir"}]
)
def test_separate_encoders_train_with_a_frozen_index_retraining_and_mir(params: dict[str, Any]) -> None:
    """With a frozen index a batch may embed no document, namely if its queries have no new ones."""
    found = trained(encoders="apart", **params)
    assert found.evaluate("validation").metrics["sessions_ended"] == 3
    vectors = found._vectors(np.empty(0, np.int64), len(found.data.data.docs) + found.data.train[:2])
    torch.testing.assert_close(vectors.detach(), found.index_encoder.queries(found.data.train[:2]))


def test_retraining_starts_each_session_from_the_loaded_weights() -> None:
    other = trained(epochs=1, encoders="apart").servable()
    model = build(encoders="apart", update="retrain")
    weights = {**other.weights, **other.training}
    model.load_weights(weights, other.config)
    for encoder in (model.encoder, model.query_encoder):
        for value in encoder.state_dict().values():
            value.zero_()
    model._begin(1, 2)
    for encoder, prefix in ((model.encoder, "documents."), (model.query_encoder, "model.")):
        for name, value in encoder.model.state_dict().items():
            assert torch.equal(value, weights[prefix + name])


def test_queries_count_from_the_session_in_which_they_arrive(finished: Lifelong) -> None:
    data = finished.data
    arrived = data.query_sessions
    evaluator = SessionEvaluator(data, data.queries.test, arrived)
    everything = SessionEvaluator(data, data.queries.test)
    for session, ranked in enumerate(finished.rankings):
        plain, drifting = (each.values(session, ranked)["mrr_at_10"] for each in (everything, evaluator))
        there = arrived[data.queries.test] <= session
        np.testing.assert_array_equal(drifting[there], plain[there])
        assert np.isnan(drifting[~there]).all()
    found = evaluator.evaluation(finished.rankings, finished.costs, units=False)
    own = drifting[arrived[data.queries.test] == 2]
    assert found.metrics["arriving_mrr_at_10"] == pytest.approx(np.nanmean(own))
    assert found.tables["sessions"]["arriving_mrr_at_10"][2] == pytest.approx(np.nanmean(own))
    assert "arriving_mrr_at_10" not in finished.evaluate("test").metrics


def test_lineage_digest_ignores_defaults_of_parameters_added_later() -> None:
    params = Params(**SMALL)
    free = {name for name, field in Params.model_fields.items() if field.json_schema_extra == MID_RUN}
    later = {"encoders", "split_queries", "diversity"}
    fixed = params.model_dump(mode="json", exclude={"index", *free, *later})
    named = [fixed, 7, 3, True, "sessions"]
    text = f"{named} {fingerprint(params.dataset, RUNTIME.data)}"
    assert lineage_of(params, RUNTIME, "sessions") == hashlib.sha256(text.encode()).hexdigest()
    assert lineage_of(Params(**SMALL, encoders="apart"), RUNTIME, "sessions") != lineage_of(params, RUNTIME, "sessions")


def test_incompatible_models_embed_all_documents_in_each_session() -> None:
    found = trained(compatible="no")
    sessions = found.data.sessions
    assert set(found.index.models.tolist()) == {2}
    everything = sum(len(sessions.until(session)) for session in range(3))
    assert found.evaluate("test").metrics["documents_embedded"] == everything
    anew = found.index_encoder.embed(sessions.until(2)).numpy()
    np.testing.assert_allclose(found.index.vectors(), anew, atol=1e-5)


def test_epochs_are_divided_among_sessions_and_their_ends_are_test_epochs() -> None:
    workload = build(replace(RUNTIME, epochs=8))
    assert workload.ends == workload.objective.test_epochs == (4, 6, 8)
    assert values(workload.train_epoch(1))["session"] == 0
    assert len(workload.index) == 0
    assert workload.evaluate("validation").metrics["average_mrr_at_10"] == 0
    for epoch in (2, 3, 4, 5):
        seen = values(workload.train_epoch(epoch))
    assert seen["session"] == 1
    assert workload.evaluate("validation").metrics["sessions_ended"] == 1


def test_objective_rises_with_each_session_to_the_mean_over_sessions(finished: Lifelong) -> None:
    averages = []
    for epochs in (1, 2):
        found = trained(epochs).evaluate("validation").metrics
        averages.append(found["average_mrr_at_10"])
    last = finished.evaluate("validation")
    assert averages[0] < averages[1] < last.metrics["average_mrr_at_10"]
    of_sessions = last.tables["sessions"]["mrr_at_10"]
    assert last.metrics["average_mrr_at_10"] == pytest.approx(of_sessions.mean())
    assert last.metrics["mrr_at_10"] == pytest.approx(of_sessions[-1])
    for name in ("average_mrr_at_10", "average_recall_at_100", "bm25_average_mrr_at_10"):
        assert last.units[name].mean() == pytest.approx(last.metrics[name])


def test_mrr_of_a_session_counts_only_documents_indexed_by_then(finished: Lifelong) -> None:
    """MRR@10 of session 1, computed by hand."""
    data, split = finished.data, finished.data.queries.test
    arrived = data.sessions.session
    found = []
    for query in split.tolist():
        rows = data.data.judgements[data.data.judgements[:, 0] == query]
        relevant = {int(doc) for _, doc, grade in rows if grade > 0 and 0 <= arrived[doc] <= 1}
        if relevant:
            ranks = [rank for rank, doc in enumerate(finished.rankings[1][query][:10].tolist(), 1) if doc in relevant]
            found.append(1 / ranks[0] if ranks else 0.0)
    table = finished.evaluate("test").tables["sessions"]
    assert table["mrr_at_10"][1] == pytest.approx(np.mean(found))
    assert table["queries"][1] == len(found)


@pytest.mark.slow
def test_training_raises_mrr_of_the_training_queries() -> None:
    """Queries of all sessions count; in later sessions, they find stored documents after further training."""

    def found(**params: Any) -> float:
        workload = build(replace(RUNTIME, epochs=16), **params)
        for epoch in range(1, 17):
            workload.train_epoch(epoch)
        evaluator = SessionEvaluator(workload.data, workload.data.train)
        return evaluator.evaluation(workload.rankings, workload.costs, units=False).metrics["mrr_at_10"]

    assert found(n_new=12, lr=1e-9) < 0.65
    assert found(n_new=12) > 0.9


def test_labels_of_later_sessions_are_never_trained_on(finished: Lifelong) -> None:
    arrived = finished.data.sessions.session
    assert all((arrived[docs] == 0).all() for docs in finished.data.positives)
    for docs, relevant in zip(finished.data.candidates[0], finished.data.positives):
        assert not np.isin(docs, relevant).any()
    for session, docs in enumerate(finished.data.candidates):
        assert (arrived[docs[docs >= 0]] == session).all()


def test_replayed_negatives_come_from_earlier_sessions(finished: Lifelong) -> None:
    arrived = finished.data.sessions.session
    held = finished.replayed[finished.replayed >= 0].numpy()
    assert len(held)
    assert set(arrived[held].tolist()) <= {0, 1}
    kept = finished.memory[finished.memory >= 0].numpy()
    assert 2 in arrived[kept]


@pytest.mark.parametrize(
    "params",
    [
        {"memory": "none", "compatible": "frozen"},
        {"memory": "random", "new": "random", "compatible": "embedding"},
        {"memory": "mir", "new": "random"},
        {"memory": "gss", "new": "bm25", "standardise": None},
        {"memory": "ocs", "alpha": 0.9, "standardise": True},
        {"update": "retrain"},
    ],
)
def test_every_method_trains_to_finite_test_metrics(params: dict[str, Any]) -> None:
    found = trained(**params)
    assert found.session == 2
    assert np.isfinite(list(found.evaluate("test").metrics.values())).all()


def test_mir_restores_the_weights_after_its_virtual_step() -> None:
    workload = trained(2, memory="mir")
    before = {name: value.clone() for name, value in workload.encoder.state_dict().items()}
    workload._begin(2, 3)
    assert all(torch.equal(value, before[name]) for name, value in workload.encoder.state_dict().items())
    assert (workload.replayed >= 0).any()


def test_mir_compares_losses_in_float32_when_trained_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def record(before: torch.Tensor, after: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        compared.append((before, after))
        return after - before

    workload = trained(2, memory="mir")
    monkeypatch.setattr("workloads.lifelong.baselines.mir", record)
    monkeypatch.setattr(Lifelong, "_backward", lambda *_: None)  # the virtual step does not change the weights
    for precision in ("fp32", "bf16"):
        workload.encoder.precision = precision  # type: ignore[assignment]
        workload._interfered(2, 3)
    (full, _), (half, after) = compared[-2:]
    assert torch.equal(half, full)
    assert torch.equal(half, after)
    assert workload.encoder.precision == "bf16"


def test_no_update_leaves_the_model_of_session_0() -> None:
    first, last = trained(1, update="none"), trained(update="none")
    for name, value in first.encoder.state_dict().items():
        assert torch.equal(value, last.encoder.state_dict()[name])
    assert len(last.index) == len(last.data.sessions.until(2))


def test_retraining_starts_each_session_from_the_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def spoil(workload: Lifelong, session: int, epoch: int) -> tuple[float, float]:
        begun.append(workload.index_encoder.embed(np.arange(3)))
        for parameter in workload.encoder.parameters():
            parameter.data.zero_()
        return 0.0, 0.0

    monkeypatch.setattr(Lifelong, "_train", spoil)
    trained(update="retrain")
    assert begun[0].any()
    assert torch.equal(begun[0], begun[1])
    assert torch.equal(begun[0], begun[2])


def test_index_in_files_equals_index_in_memory_after_a_crash_and_resume(tmp_path: Path, finished: Lifelong) -> None:
    halfway = build(index=str(tmp_path))
    halfway.train_epoch(1)
    state = copy.deepcopy(halfway.state_dict())
    halfway.train_epoch(2)  # the checkpoint of epoch 2 is never written
    assert len(list(tmp_path.rglob("session-*.arrow"))) == 2
    fresh = build(index=str(tmp_path))
    fresh.load_state_dict(state)
    assert len(list(tmp_path.rglob("session-*.arrow"))) == 1
    assert fresh.costs == halfway.costs[:1]
    assert fresh.costs[0].seconds > 0
    for epoch in (2, 3):
        fresh.train_epoch(epoch)
    assert np.array_equal(fresh.index.vectors(), finished.index.vectors())
    assert values(fresh.evaluate("test")) == values(finished.evaluate("test"))
    served = served_by(fresh)
    assert served.predict(pd.DataFrame({"query": ["said0x1 said0x2"]}), k=3)["rank"].tolist() == [1, 2, 3]


@pytest.mark.slow
def test_runs_that_share_a_folder_write_separate_indexes(tmp_path: Path) -> None:
    """Both have one lineage: a repeated run, and a run that differs only in parameters that may change mid-run."""
    first = trained(index=str(tmp_path))
    query = pd.DataFrame({"query": ["said0x1 said0x2"]})
    before = served_by(first).predict(query)
    others = [trained(index=str(tmp_path)), trained(index=str(tmp_path), lr=5e-3)]
    assert len({one.index.folder for one in (first, *others)}) == 3
    assert {one.index.lineage for one in others} == {first.index.lineage}
    pd.testing.assert_frame_equal(served_by(first).predict(query), before)
    changed = build(index=str(tmp_path), lr=5e-3, weight_decay=0.1)
    changed.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(changed.index.vectors(), first.index.vectors())


def served_by(workload: Lifelong) -> Predictor:
    return loaded(workload.servable())


def loaded(servable: Servable) -> Predictor:
    config = json.loads(json.dumps(dict(servable.config)))
    return Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, config)


def test_the_served_model_ranks_as_the_trained_one(finished: Lifelong) -> None:
    queries = finished.data.data.queries.to_pylist()[:4]
    found = served_by(finished).predict(pd.DataFrame({"query": queries}), k=5)
    for number, query in enumerate(queries):
        expected = [finished.data.data.doc_ids[int(doc)].as_py() for doc in finished.rankings[-1][number][:5]]
        assert found.loc[found["query"] == query, "document"].tolist() == expected
    example = finished.servable().example
    assert len(served_by(finished).predict(pd.DataFrame(example), k=2)) == 4


def test_large_index_is_searched_approximately_with_the_reported_recall(
    finished: Lifelong, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approximate search is used from a number of rows on, and only for the model's own index."""
    frame = pd.DataFrame({"query": [*finished.data.data.queries.to_pylist()[:30], ""]})
    served = served_by(finished)
    exact = served.predict(frame, k=5)
    assert "recall" not in exact
    small = served.predict(frame, k=5, recall=0.6)
    pd.testing.assert_frame_equal(small.drop(columns="recall"), exact)
    assert small["recall"].eq(1).all()
    monkeypatch.setattr(approximate, "LEAST_ROWS", 10)
    found = served.predict(frame, k=5, recall=0.6)
    names = ["query", "document"]
    shared = len(found.merge(exact, on=names))
    assert shared / len(exact) == pytest.approx(found["recall"][0], abs=1e-6)
    assert 0.6 <= found["recall"][0] < 1
    assert set(found["document"]) <= set(finished.data.data.doc_ids.to_pylist())
    with pytest.raises(ValueError, match="recall must be above 0"):
        served.predict(frame, recall=0.0)


def test_servable_model_has_its_lineage_in_config_and_tags(finished: Lifelong) -> None:
    lineage = finished.servable().config["lineage"]
    assert (lineage["session"], lineage["parent"], lineage["sessions_seen"]) == (2, 1, [0, 1, 2])
    assert build(lr=5e-4).index.lineage == finished.index.lineage  # lr may change mid-run
    assert build(alpha=0.1).index.lineage != finished.index.lineage
    tags = finished.servable().tags
    assert tags["lineage"] == finished.index.lineage
    assert (tags["session"], tags["sessions_seen"], tags["index"]) == ("2", "0 to 2", "in the model")
    assert len(tags) == 4, "rows and checksums of segments are in the model, since they grow with each session"
    assert sum(segment["rows"] for segment in lineage["segments"]) == len(finished.index)


def test_an_index_of_other_models_is_refused(tmp_path: Path, finished: Lifelong) -> None:
    other = trained(index=str(tmp_path), alpha=0.1)
    assert other.index.folder is not None
    query = pd.DataFrame({"query": ["said0x1"]})
    with pytest.raises(ValueError, match="belongs to models of another lineage"):
        served_by(finished).predict(query, index=str(other.index.folder))
    with pytest.raises(ValueError, match="holds no index"):
        served_by(finished).predict(query, index=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("compatible", ["ranking", "no"])
def test_model_of_a_session_searches_only_its_part_of_a_growing_index(tmp_path: Path, compatible: str) -> None:
    workload = build(index=str(tmp_path), compatible=compatible)
    workload.train_epoch(1)
    workload.train_epoch(2)
    early = copy.deepcopy(workload.servable())  # the servable's weights are those of the model, not copies
    assert early.tags["index"] == str(workload.index.folder)
    query = pd.DataFrame({"query": workload.data.data.queries.to_pylist()[:3]})
    before = loaded(early).predict(query, k=1000)
    workload.train_epoch(3)
    pd.testing.assert_frame_equal(loaded(early).predict(query, k=1000), before)
    assert len(before) == 3 * len(workload.data.sessions.until(1))
    assert len(served_by(workload).predict(query, k=1000)) == 3 * len(workload.data.sessions.until(2))

    with pytest.raises(ValueError, match=r"models of sessions \[.*2\], which the model of session 1 cannot read"):
        loaded(early).predict(query, index=str(workload.index.folder))
    assert workload.index.folder is not None
    written = workload.index.folder / "session-0001.arrow"
    kept = read_segment(written)
    other = Index(workload.index.lineage, workload.index.dim, compatible != "no", tmp_path / "other")
    other.append(1, kept.docs, np.zeros_like(kept.vectors))
    written.unlink()
    (tmp_path / "other" / written.name).replace(written)
    with pytest.raises(ValueError, match=r"session-0001\.arrow is not the one that the model was registered"):
        loaded(early)
    written.unlink()
    with pytest.raises(ValueError, match=r"session-0001\.arrow is missing, truncated or damaged"):
        loaded(early)


def test_invalid_prediction_inputs_are_refused(finished: Lifelong) -> None:
    served = served_by(finished)
    with pytest.raises(ValueError, match="needs the column 'query'"):
        served.predict(pd.DataFrame({"text": ["a"]}))
    with pytest.raises(ValueError, match="got nothing in row 1"):
        served.predict(pd.DataFrame({"query": ["a", None]}))
    with pytest.raises(ValueError, match="k must be at least 1"):
        served.predict(pd.DataFrame({"query": ["a"]}), k=0)
    assert len(served.predict(pd.DataFrame({"query": ["", "said0x1"]}), k=3)) == 3


def test_queries_without_negatives_are_counted_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build(memory="none", compatible="frozen")
    nothing = tuple(np.full_like(docs, -1) for docs in workload.data.candidates)
    workload.data = replace(workload.data, candidates=nothing)
    seen = values(workload.train_epoch(1))
    assert seen["without_negatives"] == 1.0
    assert seen["loss"] == 0.0


def test_a_checkpoint_of_other_sessions_is_refused(finished: Lifelong) -> None:
    with pytest.raises(ValueError, match="other sessions of dataset 'synthetic-retrieval'"):
        build(split_seed=1).load_state_dict(finished.state_dict())
    with pytest.raises(ValueError, match="belongs to another run"):
        build(n_new=3).load_state_dict(finished.state_dict())


def test_settings_that_do_not_fit_the_sessions_or_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs=2 are too few for 3 sessions"):
        build(replace(RUNTIME, epochs=2))
    with pytest.raises(ValueError, match="the nearest that does is 15"):
        build(replace(RUNTIME, world_size=3))
    with pytest.raises(ValueError, match="leaves a session without documents"):
        build(replace(RUNTIME, epochs=999), split_sessions=900, split_first=0.9)
    with pytest.raises(ValueError, match="a refit has no validation split"):
        build(replace(RUNTIME, holdout=False)).evaluate("validation")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"new": "random", "alpha": 0.3}, "alpha=0.3 has no effect with new=random"),
        ({"memory": "none", "capacity": 3}, "capacity=3 has no effect with memory=none"),
        ({"compatible": "frozen", "align_weight": 2}, "align_weight=2.0 has no effect with compatible=frozen"),
        ({"update": "none", "memory": "isd"}, "update=none. Set memory=none, or update=continue"),
        ({"update": "retrain", "compatible": "ranking"}, "got ranking. Set compatible=no, or update=continue"),
        ({"n_new": 60}, "n_new=60 is more than the candidates=50"),
        ({"n_memory": 9, "capacity": 8}, "n_memory=9 is more than the memory's capacity=8"),
        ({"n_new": 2, "capacity": 9}, "capacity=9 is more than a query's memory can ever be offered"),
        ({"index": "here"}, "index=here is not an absolute path"),
        ({"dataset": "ml-100k"}, "holds another kind of data"),
        ({"encoder": "/nowhere"}, "there is no encoder"),
    ],
)
def test_contradictory_or_invalid_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_default_parameters_follow_from_the_given_ones() -> None:
    assert Params().compatible == "ranking"
    assert Params(update="retrain").compatible == "no"
    assert Params(update="none").memory == "none"
    assert (Params(n_new=2).capacity, Params(n_new=1, split_sessions=2).n_memory) == (8, 2)
    assert Params(**Params(memory="mir").model_dump()) == Params(memory="mir")


def test_prepared_stream_is_cached_within_a_process() -> None:
    params = Params(**SMALL)
    assert prepare(params, Path(), True) is prepare(params.model_copy(update={"lr": 0.1}), Path(), True)


def test_index_too_large_for_checkpoints_requires_an_index_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size = 4 * build().index.dim * len(build().data.data.docs)
    monkeypatch.setattr(module, "SAVED_BYTES", size)
    build()
    monkeypatch.setattr(module, "SAVED_BYTES", size - 1)
    with pytest.raises(ValueError, match=r"would be in every checkpoint\. Set index to the absolute path of a folder"):
        build()
    build(index=str(tmp_path))


def test_documents_are_embedded_in_parts_with_equal_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = build().index_encoder
    docs = np.arange(50)[::-1]
    at_once = encoder.embed(docs).numpy()
    monkeypatch.setattr(index_encoder, "AT_ONCE", 7)
    sizes = []
    embed = encoder.embed
    monkeypatch.setattr(encoder, "embed", lambda texts: sizes.append(len(texts)) or embed(texts))
    np.testing.assert_allclose(encoder.embed_in_parts(docs), at_once, atol=1e-6)
    assert sizes == [7] * 7 + [1]


def test_queries_search_the_index_in_parts(monkeypatch: pytest.MonkeyPatch, finished: Lifelong) -> None:
    encoder = finished.index_encoder
    queries = len(finished.data.data.queries)
    vectors = encoder.queries(np.arange(queries))
    sizes = []

    def search(part: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Rank by each query's vector alone, so that no sum over other queries changes the result."""
        return torch.topk(part, 5)

    monkeypatch.setattr(encoder, "queries", lambda numbers: vectors[numbers])
    monkeypatch.setattr(index_encoder, "sharded_topk", search)
    at_once = encoder.ranked(queries, 5)
    monkeypatch.setattr(index_encoder, "QUERIES", 7)
    monkeypatch.setattr(index_encoder, "sharded_topk", lambda *given: sizes.append(len(given[0])) or search(*given))
    assert (encoder.ranked(queries, 5) == at_once).all()
    assert sizes == [7] * (queries // 7) + [queries % 7] * (queries % 7 > 0)


def test_bm25_rankings_are_cached_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    params = Params(**SMALL)
    dataset._prepare.cache_clear()
    first = prepare(params, Path(), True)
    dataset._prepare.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "_ranked", lambda *args: pytest.fail("computed again"))
        again = prepare(params, Path(), True)
    for name in ("bm25", "candidates"):
        for ours, theirs in zip(getattr(again, name), getattr(first, name), strict=True):
            assert np.array_equal(ours, theirs)
    dataset._prepare.cache_clear()
    other = prepare(params.model_copy(update={"candidates": params.candidates + 1}), Path(), True)
    assert other.candidates[0].shape[1] == first.candidates[0].shape[1] + 1
    texts = [first.data.docs[doc].as_py() for doc in first.sessions.until(0).tolist()]
    found = search(texts, first.data.queries.to_pylist(), dataset.DEPTH).docs
    assert np.array_equal(np.where(found < 0, -1, first.sessions.until(0)[found]), first.bm25[0])


def test_resume_from_a_truncated_index_raises_data_error(tmp_path: Path) -> None:
    workload = build(index=str(tmp_path))
    workload.train_epoch(1)
    state = workload.state_dict()
    (file,) = tmp_path.rglob("session-*.arrow")
    cut = file.read_bytes()[:-20]
    file.unlink()
    file.write_bytes(cut)
    with pytest.raises(DataError, match="the index file is truncated or damaged"):
        build(index=str(tmp_path)).load_state_dict(state)


def test_topics_without_queries_in_the_split_are_left_out_of_evaluation() -> None:
    """With this many sessions each topic is once the main topic, and validation has queries of only some topics."""
    workload = build(replace(RUNTIME, epochs=5), split_sessions=4, split_topics=8)
    for epoch in range(1, 6):
        workload.train_epoch(epoch)
    found = workload.evaluate("validation")
    topics = set(workload.data.topic[workload.data.queries.validation].tolist())
    assert len(topics) < 8
    assert set(found.tables["topics"]["topic"].tolist()) <= topics
    assert np.isfinite(list(found.metrics.values())).all()


def test_engine_seals_test_metrics_per_session_and_selects_the_last_epoch() -> None:
    workload = build(replace(RUNTIME, epochs=6))
    reports = list(run_epochs(workload, Plan(epochs=6, refit=False), on_test_epoch=lambda *_: None))
    rows = [row for report in reports for row in report.rows]
    sealed = [row for row in rows if "test/average_mrr_at_10" in row.metrics]
    assert [row.epoch for row in sealed] == list(workload.ends) == [3, 4, 6]
    # A sweep's winner is evaluated once, at its end: the table has the metrics of each session's model.
    sessions = workload.evaluate("test").tables["sessions"]
    for name in MEASURES:
        assert sessions[name].tolist() == [row.metrics[f"test/{name}"] for row in sealed]
    assert reports[-1].progress.best_epoch == 6
    assert rows[4].metrics["validation/average_mrr_at_10"] == rows[3].metrics["validation/average_mrr_at_10"]


@pytest.mark.parametrize("vector", [0.0, torch.nan])  # of an empty text, of a diverged model
def test_query_with_zero_or_nan_vector_gets_no_documents(
    finished: Lifelong, monkeypatch: pytest.MonkeyPatch, vector: float
) -> None:
    encoder = finished.index_encoder
    vectors = encoder.queries(np.arange(5))
    vectors[2] = vector
    monkeypatch.setattr(encoder, "queries", lambda numbers: vectors[numbers])
    ranked = encoder.ranked(5, 10)
    assert (ranked[2] == -1).all()
    assert (np.delete(ranked, 2, 0) >= 0).all()
