"""VERA with extreme data and parameters: few candidates, no positives, large scores, refused settings."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.support.small_vera import BASELINE, RUNTIME, build
from workloads.losses.evidential import vera_loss
from workloads.testing import values
from workloads.vera.confidence import confidence
from workloads.vera.dataset import split_training
from workloads.vera.evaluation import LabelledQueries
from workloads.vera.inference import rank
from workloads.vera.model import LINEAR_FROM, Messages
from workloads.vera.params import Params
from workloads.vera.predictor import grown


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Some questions have one candidate, which is the answer; one question is the only one of its set."""
    graph = [(f"e{number}", f"rel{number % 3}", f"o{number % 5}x{number}") for number in range(90)]
    graph += [(f"e{number}", "also", f"p{number}") for number in range(0, 90, 2)]
    rows = [
        {
            "id": f"q{number}", "kb": "g", "hops": 1, "question": f"rel{number % 3} of e{number}",
            "topic_entity": f"e{number}", "path": [graph[number]], "split": ("train", "dev", "test")[number % 3],
            "set": "alone" if number == 3 else "other",
        }
        for number in range(90)
    ]  # fmt: skip
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "g.tsv").write_text("\n".join("\t".join(triple) for triple in graph))
    return tmp_path


def test_queries_whose_answer_is_not_a_candidate_count_as_no_positive(own: Path) -> None:
    file = own / "questions.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows[1:3]:
        row["path"] = rows[30]["path"]  # a triple in another part of the graph, far from the topic
    file.write_text("\n".join(map(json.dumps, rows)))
    vera = build(dataset=str(own), eval_candidates=1, batch_size=8)
    relevant = vera.data.pool.relevant
    assert (relevant >= 0).all()
    assert not np.isin([1, 2], relevant[:, 0]).any()
    assert vera.evaluate("test").metrics["no_positive"] == pytest.approx(1 / 30)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"encoder_lr": 1e-3},
        {"groups": "type"},
        {"method": "edl", **BASELINE},
        {"method": "softmax", **BASELINE},
    ],
)
def test_metrics_are_finite_with_fewer_candidates_than_k_and_single_groups(own: Path, params: dict[str, Any]) -> None:
    vera = build(dataset=str(own), eval_candidates=1, eval_k=3, batch_size=4, **params)
    lengths = vera.data.pool.lengths
    assert lengths.min() == 1
    assert lengths.max() == 2
    assert (vera.data.block(np.flatnonzero(lengths == 1)).positive).all()
    for epoch in range(1, 5):
        assert np.isfinite(list(values(vera.train_epoch(epoch)).values())).all()
    found = vera.evaluate("test")
    assert np.isfinite(list(found.metrics.values())).all()
    assert found.metrics["success"] == 1


def test_queries_without_positives_or_candidates_have_zero_success(tmp_path: Path) -> None:
    docs = [{"_id": f"d{number}", "title": "", "text": f"word{number} common"} for number in range(12)]
    queries = [{"_id": f"q{number}", "text": f"word{number}" if number % 4 else "unheard"} for number in range(12)]
    queries[1]["text"] = "word2"  # finds a document that does not answer the query
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, docs)))
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    lines = "\n".join(f"q{number}\td{number}\t1" for number in range(12))
    (tmp_path / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    vera = build(dataset=str(tmp_path), eval_candidates=5, batch_size=3, calibration_share=0.4)
    assert (vera.data.pool.lengths[vera.data.parts.train] > 0).all()
    for epoch in range(1, 5):
        assert np.isfinite(list(values(vera.train_epoch(epoch)).values())).all()
    blind = np.array([0, 4, 8])
    read = rank(vera.model, vera.data, np.array([0, 1, 4, 8]), vera.params, vera.runtime)
    labelled = LabelledQueries.of(vera.data, np.array([0, 1, 4, 8]))
    assert confidence(read, 1, vera.params).tolist()[0] == 0
    assert labelled.success(read, 1).tolist() == [0, 0, 0, 0]
    assert (vera.data.pool.lengths[blind] == 0).all()
    assert np.isfinite(list(vera.evaluate("test").metrics.values())).all()


def test_calibration_on_validation_without_candidates_is_refused(own: Path) -> None:
    data = build(dataset=str(own), batch_size=4).data
    indptr = np.zeros_like(data.pool.indptr)
    blind = replace(data, pool=replace(data.pool, indptr=indptr))
    with pytest.raises(ValueError, match=r"no validation query of dataset .* Set calibration_part=train"):
        split_training(blind, Params(calibration_part="validation"), 0)
    assert len(split_training(data, Params(calibration_part="validation"), 0)[1]) == 30


def test_evidence_beyond_the_linear_limit_grows_and_has_a_gradient() -> None:
    side = torch.tensor([-1.0, 0.5, LINEAR_FROM, LINEAR_FROM + 2, 100.0], requires_grad=True)
    outputs = grown(side, LINEAR_FROM)
    torch.testing.assert_close(outputs[1:3], side[1:3].expm1())
    assert (outputs.diff() > 0).all()
    outputs.sum().backward()
    assert side.grad is not None
    assert (side.grad[1:] > 0).all()
    assert side.grad[2:].tolist() == pytest.approx([math.exp(LINEAR_FROM)] * 3, rel=1e-5)


def test_loss_is_finite_at_the_least_eps() -> None:
    """In float32, a clip below 3e-8 would leave p = 1."""
    eps = Params(query_target="eps", eps=1e-7).eps
    assert eps is not None
    clipped = torch.tensor([0.0, 1.0]).clamp(eps, 1 - eps)
    assert vera_loss(torch.full((2,), -0.5), clipped, clipped).isfinite().all()


def test_training_stays_finite_with_very_large_scores(own: Path) -> None:
    vera = build(dataset=str(own), eval_candidates=50, batch_size=8)
    with torch.no_grad():
        vera.model.ranking.weight.mul_(1e6)
        vera.model.evidence[2].bias.copy_(torch.tensor([1e4, -1e4]))
    for epoch in (1, 3):
        assert np.isfinite(list(values(vera.train_epoch(epoch)).values())).all()
    assert np.isfinite(list(vera.evaluate("validation").metrics.values())).all()
    assert all(side.isfinite().all() for side in vera.model.state_dict().values())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"method": "softmax", "cand_weight": 0.1},
            "cand_weight=0.1 has no effect with method=softmax. Drop cand_weight",
        ),
        ({"eps": 0.1}, "eps=0.1 has no effect with query_target=hybrid. Drop eps, or set query_target=eps"),
        ({"stage_patience": 2}, "or set stage_switch=plateau"),
        (
            {"calibration_part": "validation", "calibration_share": 0.2},
            "calibration_share=0.2 has no effect with calibration_part=validation. Drop calibration_share",
        ),
        (
            {"method": "edl", "confidence": "softmax"},
            "method=edl has no confidence=softmax. Set confidence to evidence",
        ),
        ({"method": "softmax", "confidence": "mc_dropout", "dropout": 0}, "mc_dropout needs dropout"),
        ({"stage_share": (0, 0, 0)}, "leaves no stage to train in"),
        (
            {"calibration_part": "validation", "stage_backbone": (1, 0, 0.1)},
            r"trains the ranking on validation queries. Set stage_rank=\[1,0,0\], or stage_backbone=\[1,0,0\]",
        ),
        (
            {
                "calibration_part": "validation",
                "stage_backbone": (1, 0.1, 0),
                "stage_rank": (1, 0, 0),
                "cons_to_ranking": True,
            },
            "Set cons_to_ranking=false, or stage_backbone",
        ),
        *(
            (
                {
                    "calibration_part": "validation",
                    "stage_rank": (1, 0, 0),
                    "stage_backbone": (1, 1, 1),
                    f"{loss}_to_backbone": True,
                },
                f"Set {loss}_to_backbone=false, or stage_backbone",
            )
            for loss in ("cand", "query")
        ),
        ({"eval_k": 0}, "eval_k=0 is not from 1 to 1000"),
        ({"dataset": "synthetic"}, "holds another kind of data: got interactions"),
        ({"query_alpha": 1.5}, "less than or equal to 1"),
        ({"query_target": "eps", "eps": 1e-8}, "greater than or equal to 0.0000001"),
    ],
)
def test_contradictory_or_invalid_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**params)


@pytest.mark.parametrize(
    ("runtime", "params", "message"),
    [
        ({"world_size": 3}, {}, "batch_size=64 is the global batch and does not divide over 3 workers"),
        ({"holdout": False}, {}, "Set refit=false"),
    ],
)
def test_refit_and_batch_size_that_does_not_divide_are_refused(
    runtime: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(replace(RUNTIME, **runtime), **params)


def test_state_of_an_earlier_version_of_vera_is_refused() -> None:
    vera = build()
    state = {name: side for name, side in vera.state_dict().items() if name != "head"}
    with pytest.raises(ValueError, match=r"another version of VERA.* Start a new run"):
        vera.load_state_dict(state)


def test_a_state_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the checkpoint does not fit dataset 'synthetic-questions'.*hidden=8"):
        build().load_state_dict(build(hidden=4).state_dict())


def test_softplus_evidence_matches_its_formula() -> None:
    """α = λ+ + softplus(a) and β = λ- + softplus(b), note 2."""
    vera = build(evidence_map="softplus", evidence_context=False)
    z = torch.randn(5, vera.params.hidden, generator=torch.Generator().manual_seed(1)) * 30
    block = vera.data.block(vera.ranked_by[:1])
    block = replace(block, row=block.row[:5], column=block.column[:5])
    found = vera.model._evidence(z, block)
    a, b = vera.model.evidence(z).unbind(1)
    for side, prior, raw in ((found.alpha, 0.05, a), (found.beta, 1.0, b)):
        expected = [prior + math.log1p(math.exp(value)) for value in raw.tolist()]
        assert side[0, block.column].tolist() == pytest.approx(expected, rel=1e-4)
    grown = build(evidence_context=False).model._evidence(z, block)
    assert (grown.alpha >= found.alpha - 1e-4).all()
    assert (grown.alpha[0, block.column][a > 2] > 2 * found.alpha[0, block.column][a > 2]).all()


def test_messages_are_means_over_triples_that_share_an_entity() -> None:
    """The reference uses loops. Triples of another question with the same entity do not contribute."""
    vera = build(graph_layers=2)
    block = vera.data.block(vera.ranked_by[:3])
    pool = vera.data.pool
    assert pool.ends is not None
    layer = vera.model.backbone.layers[0]
    assert isinstance(layer, Messages)
    given = torch.randn(len(block.row), vera.params.hidden, generator=torch.Generator().manual_seed(2))
    ends = pool.ends[block.pool_row.numpy()]
    rows = block.row.tolist()

    def entity(row: int, name: int) -> torch.Tensor:
        own = [given[p] for p in range(len(rows)) for end in ends[p] if rows[p] == row and end == name]
        return torch.stack(own).mean(0)

    found = layer(given, block)
    for place in (0, 7, len(rows) - 1):
        said = layer.subject(entity(rows[place], ends[place][0])) + layer.target(entity(rows[place], ends[place][1]))
        torch.testing.assert_close(found[place], given[place] + torch.nn.functional.gelu(said))


def test_message_passing_needs_a_graph() -> None:
    with pytest.raises(ValidationError, match="graph_layers=1 needs questions over a graph, and dataset 'synthetic-r"):
        Params(dataset="synthetic-retrieval", graph_layers=1)
    assert not any("layers" in name for name in build().model.state_dict())


def test_k_is_chosen_before_the_first_loss_that_uses_it() -> None:
    vera = build(dataset="synthetic-retrieval", eval_candidates=30, batch_size=8, stage_share=(0, 0, 1))
    vera._choose()
    assert vera.choice.k > 1
    chosen = vera.choice.k
    fresh = build(dataset="synthetic-retrieval", eval_candidates=30, batch_size=8, stage_share=(0, 0, 1))
    assert values(fresh.train_epoch(1))["k"] == chosen


def test_loaded_weights_keep_k_and_the_abstention_threshold() -> None:
    vera = build(eval_candidates=8)
    for epoch in range(1, 5):
        vera.train_epoch(epoch)
    served = vera.servable()
    fresh = build(eval_candidates=8)
    fresh.load_weights(dict(served.weights), served.config)
    assert fresh.choice.k == vera.choice.k
    assert fresh.servable().config["threshold"] == pytest.approx(served.config["threshold"]) != 0
