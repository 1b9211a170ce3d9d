"""The text ranker: conformance, documents of a group, losses, passages, serving, and invalid input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support.readme_tree import ROOT
from tests.support.spoiled import half_tested, prepared_from
from workloads.contract import Runtime
from workloads.data import DataError
from workloads.encoders.served_text import passages
from workloads.losses.ranknet import bounded, margin_ranking_loss, ranknet_loss
from workloads.scores import standardised
from workloads.testing import Conformance, values
from workloads.text_ranker import dataset
from workloads.text_ranker.batches import Groups, GroupSampler
from workloads.text_ranker.evaluation import interpolated
from workloads.text_ranker.loss_calls import GroupBlock, pairs, query_losses
from workloads.text_ranker.model import SequenceBuilder, best, score_pairs
from workloads.text_ranker.params import Params
from workloads.text_ranker.predictor import Predictor
from workloads.text_ranker.workload import TextRanker

SMALL = {"max_length": 32, "batch_size": 8, "lr": 3e-3, "eval_candidates": 30, "pool": 10}
RUNTIME = Runtime(device=torch.device("cpu"), data=Path(), seed=7, epochs=2)


class RankerConformance(Conformance):
    workload: ClassVar[type[Any]] = TextRanker
    earlier: ClassVar[tuple[Path, ...]] = (ROOT / "tests/recorded/predictors/text_ranker.py",)
    ranked: ClassVar[tuple[str, ...]] = ("bm25_weight",)  # chosen by the ranking of the validation queries
    compared: ClassVar[Mapping[str, Any]] = {"lr": 1e-6}

    def spoiled_test(self) -> AbstractContextManager[None]:
        return prepared_from(dataset, load_retrieval=half_tested)


class TestCrossEncoder(RankerConformance):
    # Of 25 training queries, the last batch of a pass has one, so one of two workers has none.
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "split_validation": 0.22}

    def test_the_last_batch_has_one_query(self) -> None:
        ranker = self.build()
        assert isinstance(ranker, TextRanker)
        assert len(ranker.group_sampler.queries) % ranker.params.batch_size == 1


class TestBiEncoderWithLearnableMargin(RankerConformance):
    params: ClassVar[Mapping[str, Any]] = {
        **SMALL, "scoring": "bi", "loss": "adaptive_margin", "learnable": True, "positives": 2, "hard": 0.5,
    }  # fmt: skip
    test_two_processes_equal_one = None  # type: ignore[assignment]  # expensive; run for the cross-encoder


class TestBestPassages(RankerConformance):
    """Documents of several passages, in batches that also have documents of one passage."""

    params: ClassVar[Mapping[str, Any]] = {
        **SMALL, "long_documents": "best_passage", "passage_words": 6, "passage_stride": 4, "passages": 3,
    }  # fmt: skip
    earlier: ClassVar[tuple[Path, ...]] = ()  # predictors of earlier versions do not support passages
    test_two_processes_equal_one = None  # type: ignore[assignment]  # expensive; run for the cross-encoder


def build(**params: Any) -> TextRanker:
    return TextRanker(Params(**{**SMALL, **params}), RUNTIME)


def test_training_raises_ndcg_on_validation() -> None:
    ranker = build(eval_candidates=50)
    before = ranker.evaluate("validation").metrics["ndcg_at_10"]
    for epoch in (1, 2, 3):
        ranker.train_epoch(epoch)
    assert ranker.evaluate("validation").metrics["ndcg_at_10"] > before + 0.2


def test_passages_overlap_and_cover_a_text() -> None:
    text = " ".join(str(word) for word in range(10))
    assert passages(text, 4, 3, 9) == ["0 1 2 3", "3 4 5 6", "6 7 8 9"]
    assert passages(text, 4, 2, 9)[-1] == "6 7 8 9"
    assert passages(text, 4, 3, 2) == ["0 1 2 3", "3 4 5 6"]
    assert passages(text, 7, 3, 9) == ["0 1 2 3 4 5 6", "3 4 5 6 7 8 9"]
    assert passages("  one  text ", 4, 3, 9) == ["  one  text "]
    assert passages("", 4, 3, 9) == [""]


@pytest.mark.parametrize("scoring", ["cross", "bi"])
def test_a_document_has_the_score_of_its_best_passage(scoring: str) -> None:
    """Each passage is scored as a separate text."""
    split = {"passage_words": 6, "passage_stride": 4, "passages": 3}
    ranker = build(scoring=scoring, long_documents="best_passage", **split)
    queries, docs = np.array([0, 1, 2, 0]), np.array([5, 9, 3, 7])
    texts = [ranker.data.data.docs[int(doc)].as_py() for doc in docs]
    parts = [passages(text, 6, 4, 3) for text in texts]
    assert {len(own) for own in parts} > {1} or max(map(len, parts)) > 1
    found, _, sequences = score_pairs(ranker.model, ranker.sequence_builder, queries, docs)
    assert sequences == {"cross": 1, "bi": 2}[scoring] * sum(map(len, parts))
    served = ranker.servable()
    plain = Predictor(
        {name: value.numpy() for name, value in served.weights.items()}, {**served.config, "passages": None}
    )
    own = [ranker.data.data.queries[int(query)].as_py() for query in queries]
    rows = [{"query": query, "document": part} for query, every in zip(own, parts) for part in every]
    scores = plain.predict(pd.DataFrame(rows))["score"].to_numpy()
    ends = np.cumsum([len(every) for every in parts])[:-1]
    expected = [block.max() for block in np.split(scores, ends)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    whole = Predictor({name: value.numpy() for name, value in served.weights.items()}, dict(served.config))
    again = whole.predict(pd.DataFrame({"query": own, "document": texts}))["score"]
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)


def test_gradient_flows_only_through_the_best_passage() -> None:
    scores = torch.tensor([0.1, 0.9, 0.3, 0.2], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = best(scores, mask)
    assert found.tolist() == pytest.approx([0.9, 0.2])
    torch.autograd.backward(found.sum())
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 1, 0, 1]
    assert best(scores, None) is scores


def test_truncated_share_is_zero_if_passages_cover_all_documents() -> None:
    """A document that is longer than its last passage counts as truncated."""
    split = {"long_documents": "best_passage", "passage_words": 6, "passage_stride": 6}
    longest = max(len(text.split()) for text in build().data.data.docs.to_pylist())
    whole = build(**split, passages=1 + longest // 6).evaluate("validation").metrics["truncated"]
    assert whole == 0
    assert build(**split, passages=1).evaluate("validation").metrics["truncated"] > 0.5


@pytest.mark.parametrize("depth", [1, 30])
def test_truncated_share_of_a_bi_encoder_is_that_of_both_sequences_of_each_pair(depth: int) -> None:
    """The queries fit into eight tokens, and most documents do not."""
    ranker = build(scoring="bi", bm25_weight=0.5, max_length=8, eval_candidates=depth)
    lists = ranker.data.lists(ranker.data.queries.validation, depth)
    builder = ranker.sequence_builder
    cut = builder.tokenizer.single(builder.texts.docs).cut
    assert not builder.tokenizer.single(builder.texts.queries).cut.any()
    share = cut[lists.docs[lists.docs >= 0]].mean() / 2
    assert ranker.evaluate("validation").metrics["truncated"] == pytest.approx(share)


def test_first_stage_run_replaces_bm25_candidates_and_metrics(tmp_path: Path) -> None:
    """Documents of the run replace those of BM25 as candidates and hard negatives; metrics have its name."""
    from orchestrator.report.samples import evaluated_on  # imported here since a GPU machine may lack its dependencies

    plain = build()
    data = plain.data.data
    queries, docs = data.query_ids.to_pylist(), data.doc_ids.to_pylist()
    listed = {query: [(7 * number + step) % len(docs) for step in range(12)] for number, query in enumerate(queries)}
    run = tmp_path / "run.trec"
    run.write_text(
        "".join(
            f"{query} Q0 {docs[doc]} {rank} {20 - rank} other\n"
            for query, own in listed.items()
            for rank, doc in enumerate(own, 1)
        )
    )
    ranker = build(first_stage=str(run))
    assert ranker.data.candidates.docs[3, :12].tolist() == listed[queries[3]]
    found = ranker.evaluate("validation").metrics
    names = plain.evaluate("validation").metrics
    renamed = {name for name in names if name.startswith("bm25_")} - {"bm25_weight"}
    assert found.keys() == (names.keys() - renamed) | {name.replace("bm25", "first_stage") for name in renamed}
    assert values(ranker.train_epoch(1))["loss"] > 0
    assert evaluated_on(ranker.params.model_dump()) != evaluated_on(plain.params.model_dump())
    (tmp_path / "run.trec").write_text("q1 Q0 nothing 1 1.0 other\n")
    with pytest.raises(DataError, match="names a text that is not there"):
        build(first_stage=str(run))


@pytest.mark.parametrize(
    "params",
    [
        {"loss": "margin"}, {"loss": "adaptive_ranknet", "ties": "judged"}, {"loss": "listwise"},
        {"loss": "lambdarank", "learnable": True}, {"ties": "all", "pooling": "max"},
    ],
)  # fmt: skip
def test_every_loss_trains_with_finite_metrics(params: dict[str, Any]) -> None:
    metrics = values(build(positives=2, **params).train_epoch(1))
    assert metrics["loss"] > 0
    assert np.isfinite(list(metrics.values())).all()


def test_groups_contain_relevant_documents_and_bm25_negatives() -> None:
    group_sampler = GroupSampler(build().data, Params(**SMALL, positives=2, negatives=4))
    groups = group_sampler.groups(seed=1, number=1)
    found = group_sampler.data.candidates.docs
    assert groups.docs.shape == (len(group_sampler.queries), 6)
    for query, docs, grades in zip(groups.queries, groups.docs, groups.grades):
        assert (grades[:2] > 0).all()
        assert (grades[2:] == 0).all()
        hard = docs[2:]
        assert len(set(hard)) == 4
        assert set(hard) <= set(found[query, : group_sampler.params.pool].tolist())
    again, other = group_sampler.groups(1, 1), group_sampler.groups(1, 2)
    assert np.array_equal(groups.docs, again.docs)
    assert not np.array_equal(groups.docs, other.docs)


def test_groups_are_filled_with_other_documents_if_bm25_finds_too_few() -> None:
    group_sampler = GroupSampler(build().data, Params(**{**SMALL, "pool": 2}, negatives=6))
    groups = group_sampler.groups(seed=1, number=1)
    there = groups.docs >= 0
    assert there[:, 1:].sum(1).min() >= 4
    for docs in groups.docs:
        kept = docs[docs >= 0]
        assert len(set(kept)) == len(kept)
    assert (groups.grades[:, 1:] == 0).all()


def groups_of(grades: list[list[float]], judged: list[list[bool]]) -> Groups:
    shape = np.array(grades).shape
    docs = np.where(np.array(grades) < 0, -1, np.arange(shape[1]))
    return Groups(np.arange(shape[0]), docs, np.maximum(grades, 0).astype(np.float32), np.array(judged))


def test_compared_pairs_follow_the_ties_parameter() -> None:
    groups = groups_of([[2, 1, 1, 0, -1]], [[True, True, True, False, False]])
    preferred = [[0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 1, 3], [0, 2, 3]]
    assert pairs(groups, "none").T.tolist() == preferred
    assert sorted(pairs(groups, "judged").T.tolist()) == sorted([*preferred, [0, 1, 2]])
    alike = groups_of([[0, 0, 0]], [[True, True, False]])
    assert pairs(alike, "none").shape == (3, 0)
    assert pairs(alike, "judged").T.tolist() == [[0, 0, 1]]
    assert len(pairs(alike, "all").T) == 3
    assert alike.alike.tolist() == [True]
    assert groups.alike.tolist() == [False]


def test_query_loss_is_the_mean_over_its_pairs() -> None:
    grades = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    scores = torch.tensor([[0.2, 0.5, -1.0], [0.2, 0.5, -torch.inf]], requires_grad=True)
    compared = torch.tensor([[0, 0, 1], [0, 0, 0], [1, 2, 1]])
    found = query_losses(GroupBlock(scores, grades, compared), "ranknet", 1.0, 1.0)
    torch.autograd.backward(found.sum())
    each = ranknet_loss(torch.tensor([0.2, 0.2]), torch.tensor([0.5, -1.0]), torch.ones(2))
    assert found.tolist() == pytest.approx([each.mean().item(), each[0].item()])
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    plain = query_losses(GroupBlock(scores, grades, compared), "margin", 0.3, 1.0)
    hinge = margin_ranking_loss(torch.tensor([0.2, 0.2]), torch.tensor([0.5, -1.0]), torch.ones(2), 0.3)
    assert plain.tolist() == pytest.approx([hinge.mean().item(), hinge[0].item()])


def test_a_learnt_margin_starts_at_its_value_and_moves_inside_its_bounds() -> None:
    ranker = build(loss="margin", margin=0.5, learnable=True)
    assert ranker.model.pair_scale(torch.device("cpu")).item() == pytest.approx(0.5)
    found = values(ranker.train_epoch(1))["strength"]
    assert 0.1 < found < 0.5
    assert ranker.model.raw is not None
    assert found == pytest.approx(bounded(ranker.model.raw).item())


def test_interpolation_standardises_each_query() -> None:
    scores = torch.tensor([[10.0, 30.0, -torch.inf], [5.0, 5.0, 5.0], [-torch.inf] * 3])
    bm25 = torch.tensor([[1.0, 3.0, -torch.inf], [3.0, 2.0, 1.0], [-torch.inf] * 3])
    assert standardised(scores)[:2].tolist() == [[-1, 1, 0], [0, 0, 0]]
    found = interpolated(scores, bm25, 0.5)
    assert found[0].tolist() == [-1, 1, -torch.inf]
    assert found[1].argsort(descending=True).tolist() == [0, 1, 2]
    assert found[2].tolist() == [-torch.inf] * 3


def test_metrics_of_a_nan_model_are_nan_and_not_those_of_bm25() -> None:
    ranker = build()
    with torch.no_grad():
        next(ranker.model.encoder.parameters()).fill_(torch.nan)
    metrics = ranker.evaluate("validation").metrics
    assert math.isfinite(metrics["bm25_ndcg_at_10"])
    assert math.isnan(metrics["ndcg_at_10"])
    assert math.isnan(metrics["fused_ndcg_at_10"])


def test_bm25_weight_is_the_best_on_validation_and_kept_in_the_state() -> None:
    ranker = build(eval_candidates=50)
    ranker.train_epoch(1)
    scores, _ = ranker._ranked("validation")
    evaluator = ranker._evaluator("validation")
    means = [evaluator.evaluation(scores, step / 20, False).metrics["fused_ndcg_at_10"] for step in range(21)]
    assert means[round(20 * ranker.bm25_weight)] == max(means)
    fresh = build(eval_candidates=50)
    fresh.load_state_dict(ranker.state_dict())
    assert fresh.bm25_weight == ranker.bm25_weight
    given = build(eval_candidates=50, bm25_weight=0.3)
    given.load_state_dict(ranker.state_dict())
    assert given.bm25_weight == 0.3
    served = ranker.servable()
    started = build(eval_candidates=50)
    started.bm25_weight = -1.0
    started.load_weights(dict(served.weights), served.config)
    assert started.bm25_weight == ranker.bm25_weight


def test_bm25_weight_of_a_pretrained_bi_encoder_is_chosen_before_training(tmp_path: Path) -> None:
    """If epoch 0 is selected, its bm25_weight must be the best one, too. A cross-encoder's head is not pretrained."""
    scratch = build(scoring="bi")
    scratch.model.encoder.model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(scratch.sequence_builder.tokenizer.definition)
    ranker = build(scoring="bi", encoder=str(tmp_path))
    assert [scratch.pretrained, ranker.pretrained, build(encoder=str(tmp_path)).pretrained] == [False, True, False]
    chosen, untouched = ranker.bm25_weight, values(ranker.evaluate("validation"))
    ranker.choose_weight()
    assert ranker.bm25_weight == chosen == untouched["bm25_weight"]
    assert untouched["fused_ndcg_at_10"] >= max(untouched["ndcg_at_10"], untouched["bm25_ndcg_at_10"])
    saved = deepcopy(ranker.state_dict())
    ranker.train_epoch(1)
    ranker.load_state_dict(saved)
    assert values(ranker.evaluate("validation")) == untouched


def test_fused_ndcg_is_that_of_bm25_at_weight_1_and_of_the_model_at_0() -> None:
    for weight, system in ((1.0, "bm25_"), (0.0, "")):
        metrics = build(bm25_weight=weight).evaluate("test").metrics
        assert metrics["fused_ndcg_at_10"] == pytest.approx(metrics[f"{system}ndcg_at_10"])


def test_metrics_at_100_are_left_out_with_fewer_candidates() -> None:
    metrics = {depth: build(eval_candidates=depth).evaluate("test").metrics for depth in (5, 20, 100)}
    assert "recall_at_100" in metrics[100]
    assert metrics[100].keys() - metrics[20].keys() == {
        f"{system}{name}_at_100" for system in ("", "bm25_", "fused_") for name in ("ndcg", "mrr", "recall", "success")
    }
    assert "ndcg_at_10" in metrics[5]


@pytest.mark.parametrize("params", [{}, {"scoring": "bi"}, {"pooling": "mean"}, {"scoring": "bi", "pooling": "max"}])
def test_the_predictor_scores_as_the_workload_does(params: dict[str, Any]) -> None:
    ranker = build(**params)
    ranker.train_epoch(1)
    servable = ranker.servable()
    predictor = Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, dict(servable.config))
    lists = ranker._evaluator("test").lists
    scores = ranker._ranked("test")[0].numpy()
    data = ranker.data.data
    rows = [(0, place) for place in range(3)] + [(1, place) for place in range(2)]
    inputs = pd.DataFrame(
        {
            "query": [data.queries[int(lists.queries[q])].as_py() for q, _ in rows],
            "document": [data.docs[int(lists.docs[q, place])].as_py() for q, place in rows],
        }
    )
    found = predictor.predict(inputs, batch_size=2)
    assert found["score"].tolist() == pytest.approx([scores[pair] for pair in rows], abs=1e-4)
    assert sorted(found["rank"][:3]) == [1, 2, 3]
    assert found["rank"][:3].tolist() == (1 + np.argsort(np.argsort(-scores[0, :3]))).tolist()
    with_bm25 = predictor.predict(inputs.assign(bm25=[lists.bm25[pair] for pair in rows]))
    together = interpolated(
        torch.from_numpy(scores[:1, :3]), torch.from_numpy(lists.bm25[:1, :3].copy()), ranker.bm25_weight
    )
    assert with_bm25["fused"][:3].tolist() == pytest.approx(together[0].tolist(), abs=1e-4)
    tokenizer, unread = ranker.sequence_builder.tokenizer, ["", "\u200b", data.docs[0].as_py()]
    places = np.array([(query, doc) for query in range(3) for doc in range(3)])
    bare = tokenizer.bare(unread)
    sequence_builder = SequenceBuilder(tokenizer, dataset.Texts(bare, bare), ranker.params.scoring)
    expected, _, _ = score_pairs(ranker.model.eval(), sequence_builder, places[:, 0], places[:, 1])
    texts = {name: [unread[place] for place in side] for name, side in zip(("query", "document"), places.T)}
    assert predictor.predict(pd.DataFrame(texts), batch_size=1)["score"].tolist() == pytest.approx(
        expected.tolist(), abs=1e-4
    )
    if ranker.params.scoring == "bi":
        assert not expected[:-1].any()


def test_invalid_prediction_inputs_are_refused() -> None:
    servable = build().servable()
    predictor = Predictor({name: tensor.numpy() for name, tensor in servable.weights.items()}, dict(servable.config))
    good = pd.DataFrame({"query": ["a", "a"], "document": ["", "x " * 99]})
    assert np.isfinite(predictor.predict(good)["score"]).all()
    assert len(predictor.predict(good[:0])) == 0
    for inputs, message in (
        (good[["query"]], r"needs the columns 'query' and 'document', got \['query'\]"),
        (good.assign(document=[3, "x"]), "column 'document' holds texts, got 3 in row 0 of the input"),
        (good.assign(document=["x", None]), "column 'document' holds texts, got nothing in row 1 of the input"),
        (
            good.assign(document=["x", ["a", "b"]]),
            r"column 'document' holds texts, got \['a', 'b'\] in row 1 of the input",
        ),
        (good.assign(bm25=[1, 1e300]), "column 'bm25' holds numbers, got 1e[+]300 in row 1 of the input"),
        (good.assign(bm25=["1", "much"]), "column 'bm25' holds numbers, got 'much' in row 1 of the input"),
    ):
        with pytest.raises(ValueError, match=message):
            predictor.predict(inputs)


def test_refit_without_a_given_bm25_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="a refit trains on the validation part, where bm25_weight would be chosen"):
        TextRanker(Params(**SMALL), replace(RUNTIME, holdout=False))
    refit = TextRanker(Params(**SMALL, bm25_weight=0.3), replace(RUNTIME, holdout=False))
    refit.train_epoch(1)
    with pytest.raises(ValueError, match="a refit has no validation split"):
        refit.evaluate("validation")
    assert refit.evaluate("test").metrics["ndcg_at_10"] > 0


def test_batch_size_that_does_not_divide_over_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size=8 .* does not divide over 3 workers; the nearest that does is 9"):
        TextRanker(Params(**SMALL), replace(RUNTIME, world_size=3))


def test_state_of_another_scoring_is_refused() -> None:
    with pytest.raises(ValueError, match="the checkpoint does not fit encoder 'tiny' with scoring=cross"):
        build().load_state_dict(build(scoring="bi").state_dict())


def collection(tmp_path: Path, docs: list[str], queries: list[str], judged: str) -> str:
    folder = tmp_path / "own"
    folder.mkdir()
    for name, texts in (("corpus", docs), ("queries", queries)):
        rows = (json.dumps({"_id": f"{name[0]}{number}", "text": text}) for number, text in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    rows = (row.replace(" ", "\t") for row in judged.split(";"))
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return str(folder)


def test_empty_and_long_texts_and_queries_without_candidates_are_evaluated(tmp_path: Path) -> None:
    """An empty query and one without BM25 results count with score 0; a long document is truncated."""
    docs = ["cats purr", "", "dogs bark", "cats bark " * 100, "dogs purr"]
    queries = ["cats", "", "unheard", "dogs", "purr", "bark"]
    name = collection(tmp_path, docs, queries, "q0 c0 1;q1 c1 1;q2 c2 1;q3 c2 1;q4 c0 1;q5 c2 1")
    ranker = build(dataset=name, split_validation=0.4, split_test=0.5)
    trained = values(ranker.train_epoch(1))
    assert trained["truncated"] > 0
    seen = [ranker.evaluate(split) for split in ("validation", "test")]
    assert all(np.isfinite(list(one.metrics.values())).all() for one in seen)
    rows = np.concatenate([one.units["id"] for one in seen])
    without = [row for row in rows if row in (1, 2)]
    counted = sum(one.metrics["no_candidates"] * len(one.units["id"]) for one in seen)
    assert counted == pytest.approx(len(without))


def test_collection_with_equal_grades_trains_against_unjudged_documents(tmp_path: Path) -> None:
    docs = ["cats purr", "dogs bark", "cats bark"]
    name = collection(tmp_path, docs, ["cats", "dogs", "bark", "purr"], "q0 c0 2;q1 c1 2;q2 c2 2;q3 c0 2")
    ranker = build(dataset=name, loss="adaptive_ranknet")
    found = values(ranker.train_epoch(1))
    assert found["loss"] > 0
    assert found["without_pairs"] == 0


def test_mined_negatives_are_those_with_the_highest_scores_below_the_margin() -> None:
    ranker = build(hard_margin=0.01, negatives=2)
    sampler = ranker.group_sampler
    relevant, hard = (ranker._scores_of(pairs) for pairs in (sampler.relevant, sampler.hard))
    mined = sampler.mined(relevant, hard)
    for row, query in enumerate(sampler.queries.tolist()):
        lowest = min(float(score) for (own, _), score in zip(sampler.relevant, relevant) if own == query)
        fit = [(-float(score), int(doc)) for (own, doc), score in zip(sampler.hard, hard)
               if own == query and score <= lowest - 0.01]  # fmt: skip
        chosen = [doc for doc in mined[row].tolist() if doc >= 0]
        assert len(chosen) == min(2, len(fit))
        assert {-score for score, doc in fit if doc in chosen} == {-score for score, _ in sorted(fit)[:2]}
    groups = sampler.groups(7, 0, mined)
    assert set(groups.docs[0, 1:].tolist()) >= set(mined[0][mined[0] >= 0].tolist())
    again = build(hard_margin=0.01, negatives=2)
    ranker.train_epoch(1)
    again.load_state_dict(deepcopy(ranker.state_dict()))
    assert values(again.train_epoch(2)) == values(ranker.train_epoch(2))


def test_hard_margin_without_hard_negatives_is_refused() -> None:
    with pytest.raises(ValueError, match="hard_margin=1 has no effect without hard negatives"):
        Params(hard_margin=1, hard=0)
    with pytest.raises(ValueError, match=r"hard=0.1 of negatives=3 is none. Set hard to 0.333 or more"):
        Params(hard_margin=1, hard=0.1, negatives=3)
