"""VERA: conformance, weights trained by each stage and loss, and queries held back for calibration."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.readme_tree import ROOT
from tests.support.small_vera import RUNTIME, SMALL, build
from tests.support.spoiled import half_tested, prepared_from
from workloads.data.questions.load import load_questions
from workloads.data.questions.types import GraphQuestions
from workloads.encoders.pooling import normalised
from workloads.encoders.text import encode
from workloads.schedule import Progress
from workloads.testing import Conformance, values
from workloads.vera import dataset, inference, workload
from workloads.vera.batches import batches
from workloads.vera.dataset import hold_back
from workloads.vera.loss_calls import Counts, losses
from workloads.vera.stages import Stage, Stages
from workloads.vera.workload import Vera


class VeraConformance(Conformance):
    workload: ClassVar[type[Any]] = Vera
    start_seed: ClassVar[int] = 7  # the frozen encoder "tiny" depends on it
    earlier: ClassVar[tuple[Path, ...]] = (ROOT / "tests/recorded/predictors/vera.py",)
    ranked: ClassVar[tuple[str, ...]] = ("threshold", "*_low", "*_high", "calib/ece*", "selective/*", "success_at_*")

    def spoiled_test(self) -> AbstractContextManager[None]:
        """Move every second question out of the test part."""

        def spoiled(name: str, root: Path) -> GraphQuestions:
            whole = load_questions(name, root)
            part = whole.part.copy()
            part[np.flatnonzero(part == 2)[::2]] = 3
            return replace(whole, part=part)

        return prepared_from(dataset, load_questions=spoiled)


class TestVera(VeraConformance):
    params: ClassVar[Mapping[str, Any]] = SMALL


class TestMessagesWithSoftplus(VeraConformance):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "graph_layers": 1, "evidence_map": "softplus"}
    earlier: ClassVar[tuple[Path, ...]] = ()  # predictors of earlier versions support neither
    test_two_processes_equal_one = None  # type: ignore[assignment]  # expensive; run for TestVera


class TestTrainedEncoder(VeraConformance):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "encoder_lr": 1e-3}
    earlier: ClassVar[tuple[Path, ...]] = ()
    test_another_seed_other_metrics = None  # type: ignore[assignment]  # expensive; run for TestVera
    test_training_never_reads_the_test_split = None  # type: ignore[assignment]


class TestPlateauOverDocuments(VeraConformance):
    """Documents, a backbone that is trained in later stages, too, and stages that end early."""

    params: ClassVar[Mapping[str, Any]] = {
        **SMALL, "dataset": "synthetic-retrieval", "batch_size": 8, "stage_switch": "plateau", "stage_patience": 1,
        "stage_backbone": (1.0, 1.0, 0.1), "cand_to_backbone": True, "recalibration": "platt", "eval_k": 2,
    }  # fmt: skip
    test_two_processes_equal_one = None  # type: ignore[assignment]  # expensive; run for TestVera

    def spoiled_test(self) -> AbstractContextManager[None]:
        return prepared_from(dataset, load_retrieval=half_tested)


def weights(vera: Vera, part: str) -> torch.Tensor:
    return torch.cat(
        [side.flatten().clone() for name, side in vera.model.state_dict().items() if name.startswith(part)]
    )


@pytest.mark.slow
def test_encoder_is_trained_only_in_the_stages_of_the_backbone() -> None:
    """The encoder is trained in stage 1 only; the vectors of all texts are those of its current weights."""
    plain, trained = build(), build(encoder_lr=1e-3)
    encoder = trained.model.backbone.encoder
    assert encoder is not None
    before = copy.deepcopy(encoder.state_dict())
    first = [one.evaluate("validation").metrics for one in (plain, trained)]
    assert first[0] == first[1]
    seen = []
    for epoch in (1, 2, 3):
        trained.train_epoch(epoch)
        vectors = normalised(encode(encoder, trained.data.tokenizer(list(trained.data.pool.texts))))
        torch.testing.assert_close(trained.data.texts, vectors)
        seen.append(copy.deepcopy(encoder.state_dict()))
    states = [before, *seen]
    moved = [any(not torch.equal(one[name], other[name]) for name in one) for one, other in pairwise(states)]
    assert moved == [True, True, False], "stage 3 begins with epoch 3"
    assert torch.equal(plain.data.encoder.state_dict()["model.embeddings.word_embeddings.weight"], before[
        "model.embeddings.word_embeddings.weight"
    ]), "encoders of other trials do not change"  # fmt: skip


def test_pooling_parameter_determines_the_text_vectors() -> None:
    mean, first = (build(pooling=pooling).data for pooling in ("mean", "cls"))
    tokens = mean.tokenizer(list(mean.pool.texts))
    assert torch.equal(first.texts, normalised(encode(first.encoder, tokens)))
    assert not torch.allclose(first.texts, mean.texts)


def test_each_stage_trains_only_its_own_weights() -> None:
    vera = build(replace(RUNTIME, epochs=3), stage_share=(1.0, 1.0, 1.0))
    parts = ("backbone", "ranking", "evidence")
    changed = []
    for epoch in (1, 2, 3):
        before = [weights(vera, part) for part in parts]
        metrics = values(vera.train_epoch(epoch))
        assert metrics["stage"] == epoch
        changed.append([not torch.equal(old, weights(vera, part)) for old, part in zip(before, parts)])
    assert changed == [[True, True, False], [False, False, True], [False, False, True]]


def test_each_stage_draws_batches_from_its_own_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking is trained on queries that are not held back, the calibration on those that are."""
    vera = build(replace(RUNTIME, epochs=3), stage_share=(1.0, 1.0, 1.0))
    seen: list[NDArray[np.int64]] = []

    def drawn(*given: Any) -> Iterator[NDArray[np.int64]]:
        for batch in batches(*given):
            seen.append(batch)
            yield batch

    monkeypatch.setattr(workload, "batches", drawn)
    assert not set(vera.ranked_by) & set(vera.calibrated_by)
    for epoch, own in ((1, vera.ranked_by), (2, vera.calibrated_by), (3, vera.calibrated_by)):
        seen.clear()
        assert values(vera.train_epoch(epoch))["stage"] == epoch
        assert set(np.concatenate(seen)) <= set(own)


def test_dropout_is_off_in_a_frozen_backbone() -> None:
    vera = build(replace(RUNTIME, epochs=3, steps_per_epoch=1), stage_share=(1.0, 1.0, 1.0), dropout=0.5)
    drops: list[bool] = []
    vera.model.backbone.dropout.register_forward_hook(lambda module, *_: drops.append(module.training))
    for epoch, learns in ((1, True), (2, False), (3, False)):
        drops.clear()
        vera.train_epoch(epoch)
        assert any(drops) == learns
        assert not all(drops)  # validation is evaluated as well, without dropout


@pytest.mark.parametrize(
    ("params", "loss", "reached"),
    [
        ({}, "rank", {"backbone", "ranking"}),
        ({}, "cand", {"evidence"}),
        ({}, "query", {"evidence"}),
        ({}, "cons", {"evidence"}),
        ({"cand_to_backbone": True}, "cand", {"evidence", "backbone"}),
        ({"cand_to_backbone": True}, "query", {"evidence"}),
        ({"query_to_backbone": True}, "query", {"evidence", "backbone"}),
        ({"query_to_backbone": True}, "cand", {"evidence"}),
        ({"cons_to_ranking": True}, "cons", {"evidence", "ranking", "backbone"}),
    ],
)
def test_each_loss_has_gradients_only_for_its_own_modules(params: dict[str, Any], loss: str, reached: set[str]) -> None:
    vera = build(query_target="eps", **params)
    block = vera.data.block(vera.ranked_by[:16])
    one = Stage(3, **{name: float(name == loss) for name in ("rank", "cand", "query", "cons")})
    outputs = vera.model(vera.data, block)
    found = losses(outputs, block, vera.params, one, 1, None, Counts(16, 16, 16 * 8))
    assert (found > 0).sum() == 1
    torch.autograd.backward(found.sum() + outputs.anchor)
    got = {name.partition(".")[0] for name, side in vera.model.named_parameters() if (side.grad != 0).any()}
    assert got == reached


def test_interaction_by_query_equals_the_interaction_formula() -> None:
    vera = build()
    block = vera.data.block(vera.ranked_by[:9])
    query, candidate = torch.randn(9, 8), torch.randn(len(block.row), 8)
    backbone = vera.model.backbone
    torch.testing.assert_close(
        backbone.interact_by_query(query, candidate, block), backbone.interact(query, candidate, block)
    )


@pytest.mark.parametrize("params", [{"dropout": 0.5}, {"query_to_backbone": True}])
def test_cached_outputs_of_a_frozen_backbone_train_equal_weights(params: dict[str, Any]) -> None:
    """An epoch that reads each query three times, with z cached and with z computed in each step."""
    runtime = replace(RUNTIME, steps_per_epoch=6)
    kept, anew = build(runtime, **params), build(runtime, **params)
    with pytest.MonkeyPatch.context() as patch:
        for vera in (kept, anew):
            assert len(vera.calibrated_by) * 3 < 6 * vera.params.batch_size
            vera.train_epoch(3)
            patch.setattr(inference, "_MOST_CACHED", 0)
    for name, side in kept.model.state_dict().items():
        torch.testing.assert_close(anew.model.state_dict()[name], side, atol=2e-5, rtol=1e-4, msg=name)


def test_micro_batches_give_the_same_weights() -> None:
    whole, parts = build(), build(replace(RUNTIME, accumulate=3))
    for epoch in (1, 3):
        whole.train_epoch(epoch)
        parts.train_epoch(epoch)
    for name, side in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], side, atol=2e-5, rtol=1e-4, msg=name)


def test_stages_end_on_a_plateau_also_after_a_restore_of_their_state() -> None:
    vera = build(
        replace(RUNTIME, epochs=30),
        calibration_share=0.0,
        stage_switch="plateau",
        stage_patience=1,
        stage_share=(1.0, 1.0, 1.0),
        lr=1e-9,
    )
    seen = []
    for epoch in range(1, 7):
        seen.append(int(values(vera.train_epoch(epoch))["stage"]))
        state = vera.state_dict()["stages"]
        json.dumps(state)
        vera.stages = Stages(vera.params, vera.runtime)
        vera.stages.progress = Progress(**state)
    assert seen == [1, 1, 2, 2, 3, 3]


def test_state_contains_the_stage_with_a_fixed_schedule() -> None:
    vera = build(replace(RUNTIME, epochs=3), stage_share=(1.0, 1.0, 1.0))
    seen = [vera.state_dict()["stages"]["stage"]]
    for epoch in (1, 2, 3):
        vera.train_epoch(epoch)
        seen.append(vera.state_dict()["stages"]["stage"])
    assert seen == [1, 2, 3, 3]
    vera.stages.progress = Progress(stage=1, began=0, best=None, stale=0)  # the form of an earlier version
    assert vera.stages.of(3).number == 3


def test_the_learning_rate_falls_over_each_stage() -> None:
    vera = build(replace(RUNTIME, steps_per_epoch=5), stage_lr=(1.0, 1.0, 3.0), lr=1e-3)
    left = [[vera.stages.of(epoch).left(done) for done in (epoch - 1, epoch)] for epoch in (1, 2, 3, 4)]
    assert left == [[1, 0.5], [0.5, 0], [1, 0.5], [0.5, 0]]
    for epoch, last in ((2, 1e-4), (3, 3e-3 * 0.6)):
        vera.train_epoch(epoch)
        assert vera.optimizer.param_groups[epoch // 3]["lr"] == pytest.approx(last)
    constant = build(replace(RUNTIME, steps_per_epoch=5), lr_decay="none", lr=1e-3)
    constant.train_epoch(2)
    assert constant.optimizer.param_groups[0]["lr"] == 1e-3


def test_stage_after_an_early_end_starts_at_its_full_learning_rate() -> None:
    vera = build(
        replace(RUNTIME, epochs=8), stage_switch="plateau", stage_patience=1, stage_share=(1.0, 0.0, 1.0), lr=1e-9
    )
    for epoch in (1, 2):
        vera.train_epoch(epoch)
    third = vera.stages.of(3)
    assert (third.number, third.left(2), third.left(8)) == (3, 1, 0)


def test_losses_without_a_weight_are_reported_as_zero() -> None:
    vera = build()
    first, third = (values(vera.train_epoch(epoch)) for epoch in (1, 4))
    assert first.keys() == third.keys()
    assert first["loss_query"] == 0 < third["loss_query"]


def test_queries_held_back_for_calibration_do_not_split_families() -> None:
    pool = build().data.pool
    pool = replace(pool, family=np.arange(len(pool.queries)) // 4)
    queries = np.arange(400)
    ranking, calibration = hold_back(pool, queries, 0.25, 7)
    assert len(ranking) + len(calibration) == 400
    assert len(calibration) == 100
    assert not set(pool.family[ranking]) & set(pool.family[calibration])
    assert all(np.array_equal(side, queries) for side in hold_back(pool, queries, 0, 7))


def test_calibration_on_validation_trains_the_ranking_on_all_of_train() -> None:
    vera = build(calibration_part="validation")
    parts = vera.data.parts
    assert np.array_equal(vera.ranked_by, parts.train)
    assert np.array_equal(vera.calibrated_by, parts.validation)
    before = [side.clone() for side in vera.model.evidence.parameters()]
    for epoch in range(1, vera.runtime.epochs + 1):
        vera.train_epoch(epoch)
    assert not all(torch.equal(*sides) for sides in zip(before, vera.model.evidence.parameters()))


def test_ranking_metrics_of_a_nan_backbone_are_nan() -> None:
    vera = build()
    with torch.no_grad():
        next(vera.model.backbone.parameters()).fill_(torch.nan)
    metrics = vera.evaluate("validation").metrics
    assert np.isnan([metrics["mrr"], metrics["ndcg_at_10"]]).all()
