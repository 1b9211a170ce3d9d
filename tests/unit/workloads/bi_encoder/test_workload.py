"""The bi-encoder: the conformance suite under each kind of loss, and what is its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
import torch
from pydantic import ValidationError

from search_spaces import bi_encoder as spaces
from tests.support.readme_tree import ROOT
from workloads.bi_encoder import dataset
from workloads.bi_encoder.batches import batches
from workloads.bi_encoder.evaluation import evaluation
from workloads.bi_encoder.loss_calls import EmbeddedBatch, batch_loss
from workloads.bi_encoder.losses import LOSSES, SCRATCH_LR
from workloads.bi_encoder.params import Params
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.data.pairs.load import load_pairs
from workloads.data.pairs.types import SentencePairs
from workloads.testing import Conformance, values
from workloads.testing_distributed import run_on_ranks

CPU = torch.device("cpu")


def runtime(**settings: Any) -> Runtime:
    return replace(Runtime(device=CPU, data=Path(), seed=7, epochs=2), **settings)


class BiEncoderConformance(Conformance):
    workload: ClassVar[type[Any]] = BiEncoder
    earlier: ClassVar[tuple[Path, ...]] = (ROOT / "tests/recorded/predictors/bi_encoder.py",)

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        """Half of the test part is missing."""

        def spoiled(*names: Any, **settings: Any) -> SentencePairs:
            whole = load_pairs(*names, **settings)
            assert whole.test is not None
            return replace(whole, test=whole.test.take(np.arange(0, len(whole.test), 2)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("workloads.bi_encoder.workload.load_pairs", spoiled)
            yield


class TestInBatchNegatives(BiEncoderConformance):
    params: ClassVar[Mapping[str, Any]] = {"batch_size": 160, "loss": "bcl", "pooling": "max"}


class OneProcess(BiEncoderConformance):
    """Without the spawn of two processes, which is dear: the sums below say what it would."""

    test_two_processes_equal_one = None  # type: ignore[assignment]


class TestRegression(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {"batch_size": 160}


class TestOrder(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {"batch_size": 160, "loss": "cosent"}


def built(runtime_settings: Mapping[str, Any] | None = None, **params: Any) -> BiEncoder:
    return BiEncoder(Params(**{"batch_size": 160, **params}), runtime(**(runtime_settings or {})))


@pytest.fixture(scope="module")
def part() -> dataset.Part:
    """Training pairs, tokenised."""
    return built().data.train


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_ranks_shares_are_the_loss_of_one_process(
    loss: str, part: dataset.Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradient, with ranks of different sizes."""
    params, source = Params(loss=loss), torch.Generator().manual_seed(3)
    whole = next(batches(len(part), 33, runtime(), 1))
    vectors = torch.randn(33, 2, 16, generator=source, dtype=torch.float64, requires_grad=True)
    expected = batch_loss(EmbeddedBatch(vectors, whole, part), loss, params.of_loss())
    (gradient,) = torch.autograd.grad(expected, vectors)

    def gathered(own: torch.Tensor, counts: list[int]) -> torch.Tensor:
        assert counts == [16, 17]
        every = vectors[:, 1] / vectors[:, 1].norm(dim=1, keepdim=True)
        cosines = (every * vectors[:, 0]).sum(1) / vectors[:, 0].norm(dim=1)
        return cosines if own.ndim == 1 else every

    monkeypatch.setattr("workloads.bi_encoder.loss_calls.gather", gathered)
    shares = []
    for rank in range(2):
        batch = next(batches(len(part), 33, runtime(rank=rank, world_size=2), 1))
        shares.append(batch_loss(EmbeddedBatch(vectors[batch.own], batch, part), loss, params.of_loss()))
    torch.testing.assert_close(sum(shares), expected)
    torch.testing.assert_close(torch.autograd.grad(sum(shares), vectors)[0], gradient)


def test_the_text_itself_and_its_partner_are_no_negatives(part: dataset.Part) -> None:
    """Of anchor 0: its own partner, the same text elsewhere, and the anchor's own text; loss by hand."""
    twice = replace(part, pairs=np.array([[0, 1], [2, 1], [3, 0], [4, 5]]), grades=np.array([5, 0, 0, 0], np.float32))
    source = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(4, 2, 8, generator=source, dtype=torch.float64), dim=2)
    (batch,) = list(batches(4, 4, runtime(), 1))
    rows = torch.from_numpy(batch.rows)
    found = batch_loss(
        EmbeddedBatch(vectors[rows], batch, twice), "infonce", {"temperature": 0.05, "positive_from": 4.0}
    )
    own, other = (float(vectors[0, 0] @ vectors[place, 1]) / 0.05 for place in (0, 3))
    assert found.item() == pytest.approx(math.log1p(math.exp(other - own)))


def test_a_batch_without_a_pair_that_belongs_together_costs_nothing(part: dataset.Part) -> None:
    none = replace(part, grades=np.zeros(len(part), np.float32))
    (batch,) = list(batches(len(part), len(part), runtime(), 1))
    vectors = torch.randn(len(part), 2, 8, requires_grad=True)
    for loss in ("infonce", "decoupled", "dcl", "hcl", "bcl"):
        found = batch_loss(EmbeddedBatch(vectors, batch, none), loss, Params(loss=loss).of_loss())
        assert found.item() == 0
        assert not torch.autograd.grad(found, vectors)[0].any()


def gradient_of(rank: int, loss: str, world: int = 2) -> list[list[list[float]]]:
    """Of a rank's own vectors, where only the first half of the batch's pairs belong together."""
    (batch,) = list(batches(4, 4, runtime(rank=rank, world_size=world), 1))
    grades = np.zeros(4, np.float32)
    grades[batch.rows[:2]] = 5
    part = replace(built().data.train, pairs=np.arange(8).reshape(4, 2), grades=grades)
    source = torch.Generator().manual_seed(0)
    vectors = torch.randn(4, 2, 8, generator=source, dtype=torch.float64)[batch.own].requires_grad_()
    batch_loss(EmbeddedBatch(vectors, batch, part), loss, Params(loss=loss).of_loss()).backward()
    assert vectors.grad is not None
    found: list[list[list[float]]] = vectors.grad.tolist()
    return found


@pytest.mark.parametrize("loss", ["infonce", "decoupled", "dcl", "hcl", "bcl", "cosent"])
def test_a_rank_without_an_anchor_takes_part_in_every_collective(loss: str) -> None:
    """Collectives are matched by their order: one that a rank leaves out, in its backward too, is a hang."""
    first, second = run_on_ranks(gradient_of, loss)
    torch.testing.assert_close(torch.tensor(first + second), torch.tensor(gradient_of(0, loss, world=1)))


def test_a_rank_without_a_pair_takes_part() -> None:
    """The last batch has one pair, the first of two ranks none of it: it has gradients, all 0, for the others."""
    workload = built({"world_size": 1})
    (batch,) = list(batches(1, 2, runtime(rank=0, world_size=2), 1))
    assert batch.counts == [0, 1]
    vectors = workload._embed(workload._pack(batch.rows[batch.own]), 0, 0)
    batch_loss(EmbeddedBatch(vectors, batch, workload.data.train), "mse", {"lowest_cosine": -1.0}).backward()
    assert all(parameter.grad is not None for parameter in workload.encoder.parameters())
    assert not any(parameter.grad.any() for parameter in workload.encoder.parameters() if parameter.grad is not None)


def test_every_pair_once_a_pass_in_another_order_each_time() -> None:
    first, second = ([batch.rows for batch in batches(10, 4, runtime(), epoch)] for epoch in (1, 2))
    assert [len(rows) for rows in first] == [4, 4, 2]
    assert sorted(np.concatenate(first)) == list(range(10))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    virtual = [list(batches(10, 4, runtime(steps_per_epoch=2), epoch)) for epoch in (1, 2, 3)]
    cut = [batch.rows for part in virtual for batch in part]
    assert all(np.array_equal(one, other) for one, other in zip(cut, first + second))


def test_it_learns_which_words_mean_the_same() -> None:
    workload = built({"epochs": 4}, loss="infonce", batch_size=32)
    before = values(workload.evaluate("test"))["spearman"]
    for epoch in range(1, 5):
        workload.train_epoch(epoch)
    after = values(workload.evaluate("test"))["spearman"]
    assert before < 0.5
    assert after > 0.7


def test_a_pretrained_encoder_can_be_taken_back_to_as_it_came(tmp_path: Path) -> None:
    """Epoch 0 may be the best one: its state, with an optimiser that has done nothing, can be loaded again."""
    scratch = built()
    scratch.encoder.model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(scratch.tokenizer.definition)
    workload = built(encoder=str(tmp_path))
    assert (scratch.pretrained, workload.pretrained) == (False, True)
    untouched, saved = values(workload.evaluate("validation")), deepcopy(workload.state_dict())
    assert untouched == values(scratch.evaluate("validation"))
    workload.train_epoch(1)
    assert values(workload.evaluate("validation")) != untouched
    workload.load_state_dict(saved)
    assert values(workload.evaluate("validation")) == untouched


def test_dropout_is_drawn_anew_in_each_step_and_the_same_in_both_looks_at_a_micro_batch() -> None:
    workload = built(dropout=0.5)
    packed = workload._pack(np.arange(4))
    first, again, next_step = (workload._embed(packed, step, 0) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, next_step)
    assert values(workload.train_epoch(1)) != values(built().train_epoch(1))


def test_a_refit_learns_from_the_validation_part_as_well() -> None:
    whole = built({"holdout": False})
    assert len(whole.data.train) == len(built().data.train) + len(built().data.validation)
    with pytest.raises(ValueError, match="no validation split"):
        whole.evaluate("validation")


def test_units_resample_to_the_metric() -> None:
    found = built().evaluate("test")
    for name in ("spearman", "pearson"):
        assert found.units[name].mean() == pytest.approx(found.metrics[name], abs=1e-12)
    assert found.units["score"].max() <= 5


def test_a_constant_prediction_is_said_and_not_nan() -> None:
    with pytest.warns(UserWarning, match="the same cosine"):
        found = evaluation(torch.full((4,), 0.1), torch.tensor([0.0, 1.0, 2.0, 5.0]))
    assert found.metrics["spearman"] == found.metrics["pearson"] == 0.0
    assert found.metrics["constant"] == 1.0


def test_cut_sentences_are_counted() -> None:
    assert built().train_epoch(1)["truncated"] == 0.0
    cut = built(max_length=4)
    assert cut.train_epoch(1)["truncated"] == 1.0
    assert [values(cut.evaluate(split))["truncated"] for split in ("validation", "test")] == [1.0, 1.0]
    assert values(built().evaluate("test"))["truncated"] == 0.0


def test_a_checkpoint_of_another_vocabulary_is_refused() -> None:
    workload = built()
    state = {**workload.state_dict(), "tokenizer": "{}"}
    with pytest.raises(ValueError, match="tokenizer is not that of encoder 'tiny'"):
        workload.load_state_dict(state)


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="the nearest that does is 33"):
        built({"world_size": 3}, batch_size=32)


def test_a_loss_without_an_anchor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def low(*names: Any, **settings: Any) -> SentencePairs:
        whole = load_pairs(*names, **settings)
        return replace(whole, train=replace(whole.train, scores=np.minimum(whole.train.scores, 3)))

    monkeypatch.setattr("workloads.bi_encoder.workload.load_pairs", low)
    with pytest.raises(ValueError, match="positive_from=4 or more; the highest is 3"):
        built(loss="infonce")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tau": 0.1}, "tau=0.1 has no effect with loss=mse"),
        ({"loss": "bcl", "beta": 2}, "beta=2 of loss=bcl is not in"),
        ({"encoder": "/nowhere"}, "/nowhere: there is no encoder"),
        ({"encoder": "a b"}, "Unknown encoder: got 'a b'"),
        ({"loss": "msee"}, "Input should be"),
    ],
)
def test_what_can_not_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_a_dataset_goes_by_its_other_name_too() -> None:
    assert Params(dataset="glue/stsb", split="dev").dataset == "glue-stsb"


@pytest.mark.parametrize(
    "preset", ["space", "tiny", "bert_base", "mse", "cosent", "cosine_embedding", "infonce", "dcl", "hcl", "bcl"]
)
def test_search_spaces_draw_valid_parameters(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.encoders.sources._check_hub", lambda *_: None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [Params(**getattr(spaces, preset)(study.ask())) for _ in range(20)]
    assert {one.encoder for one in drawn} == {"tiny"}
    if preset == "mse":
        assert 0.1 in {one.lowest_cosine for one in drawn}


def test_what_is_left_open_goes_with_encoder_and_loss() -> None:
    assert Params().lr == SCRATCH_LR
    assert Params().lowest_cosine == 0.0, "E-S0: with -1 a pretrained encoder becomes worse than it was"
    assert Params(loss="bcl").beta == 0.7
    assert Params(loss="infonce", temperature=0.1).temperature == 0.1
    assert Params(loss="mse").temperature is None
