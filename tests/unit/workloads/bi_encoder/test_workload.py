"""The bi-encoder: the conformance suite under each kind of loss, and its own behaviour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from search_spaces import bi_encoder as spaces
from tests.support.readme_tree import ROOT
from tests.support.small_data import small_pairs
from workloads.bi_encoder import dataset
from workloads.bi_encoder.batches import batches
from workloads.bi_encoder.dataset import TokenisedPairs
from workloads.bi_encoder.evaluation import evaluation
from workloads.bi_encoder.loss_calls import EmbeddedBatch, batch_loss
from workloads.bi_encoder.losses import LOSSES, SCRATCH_LR
from workloads.bi_encoder.params import Params
from workloads.bi_encoder.predictor import Predictor
from workloads.bi_encoder.workload import BiEncoder
from workloads.contract import Runtime
from workloads.data.pairs.load import load_pairs
from workloads.data.pairs.types import SentencePairs
from workloads.testing import Conformance, values
from workloads.testing_distributed import run_on_ranks

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"dataset": small_pairs(), "batch_size": 80}


def runtime(**settings: Any) -> Runtime:
    return replace(Runtime(device=CPU, data=Path(), seed=7, epochs=2), **settings)


class BiEncoderConformance(Conformance):
    workload: ClassVar[type[Any]] = BiEncoder
    weights: ClassVar[str] = "encoder"
    earlier: ClassVar[tuple[Path, ...]] = (ROOT / "tests/recorded/predictors/bi_encoder.py",)

    @contextmanager
    def spoiled_test(self) -> Iterator[None]:
        """Remove half of the test part."""

        def spoiled(*names: Any, **settings: Any) -> SentencePairs:
            whole = load_pairs(*names, **settings)
            assert whole.test is not None
            return replace(whole, test=whole.test.take(np.arange(0, len(whole.test), 2)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("workloads.bi_encoder.workload.load_pairs", spoiled)
            yield


class TestInBatchNegatives(BiEncoderConformance):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "loss": "bcl", "pooling": "max"}


class OneProcess(BiEncoderConformance):
    """The suite without the slow spawn of two processes; the test of loss shares below checks the same property."""

    test_two_processes_equal_one = None  # type: ignore[assignment]


class TestRegression(OneProcess):
    params: ClassVar[Mapping[str, Any]] = SMALL


class TestPlainSentences(OneProcess):
    """SimCSE."""

    params: ClassVar[Mapping[str, Any]] = {
        **SMALL, "loss": "infonce", "positives": "dropout", "dropout": 0.1,
    }  # fmt: skip
    test_micro_batches_give_the_same_gradient = None  # type: ignore[assignment]  # positives depend on dropout masks


class TestCrossEncoder(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "scoring": "cross"}
    earlier: ClassVar[tuple[Path, ...]] = ()  # predictors of earlier versions have no head


class TestOrder(OneProcess):
    params: ClassVar[Mapping[str, Any]] = {**SMALL, "loss": "cosent"}


def built(runtime_settings: Mapping[str, Any] | None = None, **params: Any) -> BiEncoder:
    return BiEncoder(Params(**{**SMALL, **params}), runtime(**(runtime_settings or {})))


@pytest.fixture(scope="module")
def part() -> dataset.TokenisedPairs:
    """Training pairs, tokenised."""
    return built().data.train


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_loss_shares_of_ranks_sum_to_the_loss_of_one_process(
    loss: str, part: dataset.TokenisedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradient are compared, with ranks of different sizes."""
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


def test_own_text_and_partner_are_excluded_from_the_negatives(part: dataset.TokenisedPairs) -> None:
    """Anchor 0 excludes its partner, the partner's text in another pair, and its own text: one negative is left."""
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


def test_batch_without_positive_pairs_has_zero_loss_and_gradient(part: dataset.TokenisedPairs) -> None:
    none = replace(part, grades=np.zeros(len(part), np.float32))
    (batch,) = list(batches(len(part), len(part), runtime(), 1))
    vectors = torch.randn(len(part), 2, 8, requires_grad=True)
    for loss in ("infonce", "decoupled", "dcl", "hcl", "bcl"):
        found = batch_loss(EmbeddedBatch(vectors, batch, none), loss, Params(loss=loss).of_loss())
        assert found.item() == 0
        assert not torch.autograd.grad(found, vectors)[0].any()


def gradient_of(rank: int, loss: str, world: int = 2) -> list[list[list[float]]]:
    """The gradient of a rank's own vectors; only the first half of the batch's pairs are positive."""
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
def test_gradient_with_a_rank_without_anchors_equals_that_of_one_process(loss: str) -> None:
    """Collectives are matched by their order. If a rank omits one, also in backward, the other rank hangs."""
    first, second = run_on_ranks(gradient_of, loss)
    torch.testing.assert_close(torch.tensor(first + second), torch.tensor(gradient_of(0, loss, world=1)))


def test_rank_without_a_pair_has_zero_gradients() -> None:
    """The last batch has one pair, which rank 1 has. Rank 0 still needs gradients of 0 for the sum over ranks."""
    workload = built({"world_size": 1})
    (batch,) = list(batches(1, 2, runtime(rank=0, world_size=2), 1))
    assert batch.counts == [0, 1]
    vectors = workload._embed(workload._pack(batch.rows[batch.own]), 0, 0)
    batch_loss(EmbeddedBatch(vectors, batch, workload.data.train), "mse", {"lowest_cosine": -1.0}).backward()
    assert all(parameter.grad is not None for parameter in workload.encoder.parameters())
    assert not any(parameter.grad.any() for parameter in workload.encoder.parameters() if parameter.grad is not None)


def test_each_epoch_has_every_pair_once_in_another_order() -> None:
    first, second = ([batch.rows for batch in batches(10, 4, runtime(), epoch)] for epoch in (1, 2))
    assert [len(rows) for rows in first] == [4, 4, 2]
    assert sorted(np.concatenate(first)) == list(range(10))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    virtual = [list(batches(10, 4, runtime(steps_per_epoch=2), epoch)) for epoch in (1, 2, 3)]
    cut = [batch.rows for part in virtual for batch in part]
    assert all(np.array_equal(one, other) for one, other in zip(cut, first + second))


def test_a_cross_encoder_reads_both_sentences_at_once() -> None:
    """A pair is one sequence. The loss is the squared error of a sigmoid to label / 5; served scores are equal."""
    cross = built(scoring="cross", batch_size=8)
    train = cross.data.train
    pairs = load_pairs(SMALL["dataset"], Path(), "official", seed=0)
    sides = (cross.tokenizer.bare(side[:3]) for side in (pairs.train.first, pairs.train.second))
    both = cross.tokenizer.pairs(*sides)
    for row in range(3):
        assert np.array_equal(train.tokens.take(np.array([row])).ids, both.take(np.array([row])).ids)
    batch = next(iter(batches(len(train), 8, cross.runtime, 1)))
    found = cross._embed(cross._pack(batch.rows), 0, 0)
    assert found.shape == (8,)
    loss = batch_loss(EmbeddedBatch(found, batch, train), "mse", cross.params.of_loss())
    expected = [(score - grade / 5) ** 2 for score, grade in zip(found.tolist(), train.grades[batch.rows].tolist())]
    assert loss.item() == pytest.approx(math.fsum(expected) / 8, rel=1e-5)
    served = cross.servable()
    predictor = Predictor({name: value.detach().numpy() for name, value in served.weights.items()}, dict(served.config))
    judged = pairs.validation
    assert judged is not None
    answer = predictor.predict(pd.DataFrame({"sentence1": judged.first, "sentence2": judged.second}))
    units = cross.evaluate("validation").units
    np.testing.assert_allclose(answer["similarity"], units["cosine"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="compares pairs and has no vectors: drop the column 'sentence'"):
        predictor.predict(pd.DataFrame({"sentence": ["one"]}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "infonce"}, "scoring=cross has no vectors of sentences, which loss=infonce needs. Set loss=mse or"),
        (
            {"loss": "mse", "lowest_cosine": -1},
            "lowest_cosine=-1 is no target of scoring=cross, whose score",
        ),
    ],
)
def test_cross_encoder_with_vector_loss_or_lowest_cosine_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(scoring="cross", **given)


def test_plain_sentences_are_their_own_positives() -> None:
    """A pass has each distinct sentence once, encoded twice with different masks; other sentences are negatives."""
    simcse = built(batch_size=8, loss="infonce", positives="dropout", dropout=0.1, temperature=0.05)
    train = simcse.data.train
    assert train.pairs.tolist() == [[text, text] for text in range(len(train.tokens))]
    scored = built(batch_size=8).data.train
    assert len(train) == len(np.unique(scored.pairs)) == len(scored.tokens)
    batch = next(iter(batches(len(train), 8, simcse.runtime, 1)))
    simcse.encoder.train()
    vectors = simcse._embed(simcse._pack(batch.rows), 0, 0)
    assert not torch.allclose(vectors[:, 0], vectors[:, 1])
    found = batch_loss(EmbeddedBatch(vectors, batch, train), "infonce", simcse.params.of_loss())
    first, second = torch.nn.functional.normalize(vectors, dim=2).unbind(1)
    expected = torch.nn.functional.cross_entropy(first @ second.T / 0.05, torch.arange(8))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_train_part_of_plain_sentences_needs_positives_dropout(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("sentence\n" + "".join(f"word{n} word{n % 7}\n" for n in range(64)))
    for part in ("dev", "test"):
        rows = "".join(f"word{n} word3,word{n + 1} word2,{n % 6}\n" for n in range(12))
        (tmp_path / f"{part}.csv").write_text(f"sentence1,sentence2,score\n{rows}")
    scored = Params(dataset=str(tmp_path), encoder="tiny", loss="infonce")
    with pytest.raises(ValueError, match=r"training part has plain sentences\. Set positives=dropout"):
        scored.check_data(tmp_path)
    own = {"dataset": str(tmp_path), "batch_size": 8, "loss": "infonce", "positives": "dropout", "dropout": 0.1}
    Params(encoder="tiny", **own).check_data(tmp_path)
    simcse = built(**own)
    assert len(simcse.data.train) == 64
    assert simcse.train_epoch(1)["loss"] > 0
    assert np.isfinite(simcse.evaluate("validation").metrics["spearman"])


def test_training_on_plain_sentences_is_independent_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    params: dict[str, Any] = {"loss": "infonce", "positives": "dropout", "dropout": 0.1}
    once = built(**params).train_epoch(1)

    def without(*names: Any, **settings: Any) -> SentencePairs:
        whole = load_pairs(*names, **settings)
        return replace(whole, train=replace(whole.train, scores=np.zeros_like(whole.train.scores)))

    monkeypatch.setattr("workloads.bi_encoder.workload.load_pairs", without)
    assert built(**params).train_epoch(1) == once


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "mse"}, "positives=dropout has no scores, which loss=mse needs. Set loss=infonce or loss=decoupled"),
        ({"loss": "infonce"}, "both vectors are equal: encoder=tiny has none of its own. Set dropout=0.1"),
        ({"loss": "infonce", "dropout": 0}, "both vectors are equal: dropout=0. Set"),
    ],
)
def test_plain_sentences_without_dropout_or_in_batch_loss_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(positives="dropout", **given)


@pytest.mark.slow
def test_training_raises_the_spearman_correlation_on_synthetic_pairs() -> None:
    workload = built({"epochs": 4}, dataset="synthetic-pairs", loss="infonce", batch_size=32)
    before = values(workload.evaluate("test"))["spearman"]
    for epoch in range(1, 5):
        workload.train_epoch(epoch)
    after = values(workload.evaluate("test"))["spearman"]
    assert before < 0.5
    assert after > 0.7


def test_pretrained_encoder_is_restored_to_its_state_before_training(tmp_path: Path) -> None:
    """Epoch 0 may be the best one, so its state, with an optimiser without steps, can be loaded."""
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


def test_dropout_is_equal_within_a_step_and_differs_between_steps() -> None:
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


def test_mean_of_units_equals_the_metric() -> None:
    found = built().evaluate("test")
    for name in ("spearman", "pearson"):
        assert found.units[name].mean() == pytest.approx(found.metrics[name], abs=1e-12)
    assert found.units["score"].max() <= 5


@pytest.mark.parametrize("rounding", [0, 1e-7])
def test_constant_prediction_warns_and_has_zero_correlation(rounding: float) -> None:
    cosines = 0.9 + rounding * torch.tensor([0, 1, 2, 5])
    with pytest.warns(UserWarning, match="the same cosine"):
        found = evaluation(cosines, torch.tensor([0.0, 1.0, 2.0, 5.0]))
    assert found.metrics["spearman"] == found.metrics["pearson"] == 0.0
    assert found.metrics["constant"] == 1.0


def test_small_differences_of_a_cross_encoder_are_no_constant_prediction() -> None:
    found = evaluation(1e-8 * torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 2.0, 5.0]))
    assert found.metrics["spearman"] == pytest.approx(1)
    assert found.metrics["constant"] == 0.0


def test_share_of_truncated_sentences_is_reported() -> None:
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


def test_batch_size_that_world_size_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="the nearest that does is 33"):
        built({"world_size": 3}, batch_size=32)


def test_infonce_without_a_pair_that_reaches_positive_from_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_or_unused_parameters_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Params(**given)


def test_dataset_alias_is_replaced_by_its_name() -> None:
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


def test_default_parameters_depend_on_encoder_and_loss() -> None:
    assert Params().lr == SCRATCH_LR
    assert Params().lowest_cosine == 0.0, "E-S0: with -1 a pretrained encoder becomes worse than it was"
    assert Params(loss="bcl").beta == 0.7
    assert Params(loss="infonce", temperature=0.1).temperature == 0.1
    assert Params(loss="mse").temperature is None


def test_matryoshka_sums_the_loss_of_cut_vectors_and_reports_each_length() -> None:
    workload = BiEncoder(Params(**SMALL, loss="infonce"), runtime())
    dim = workload.encoder.dim
    batch = next(batches(len(workload.data.train), 80, runtime(), 1))
    nested = BiEncoder(Params(**SMALL, loss="infonce", dims=f"{dim},{dim // 4}"), runtime())
    before = nested.encoder.state_dict()["model.embeddings.word_embeddings.weight"].clone()
    settings = workload.params.of_loss()
    vectors = workload._embed(workload._pack(batch.rows), 0, 0)
    expected = sum(
        batch_loss(EmbeddedBatch(vectors[:, :, :length], batch, workload.data.train), "infonce", settings).item()
        for length in (dim, dim // 4)
    )
    assert nested._backward(batch, 0).item() == pytest.approx(expected, rel=1e-5)
    nested.optimizer.zero_grad()
    nested.train_epoch(1)
    assert not torch.equal(before, nested.encoder.state_dict()["model.embeddings.word_embeddings.weight"])
    result = nested.evaluate("validation")
    part = nested.data.validation
    cut = nested._vectors(part)[:, : dim // 4]
    cosines = torch.cosine_similarity(cut[part.pairs[:, 0]], cut[part.pairs[:, 1]])
    ranks = pd.Series(cosines.detach().numpy()).corr(pd.Series(part.grades), method="spearman")
    assert result.metrics[f"spearman_dim_{dim // 4}"] == pytest.approx(ranks, abs=1e-5)
    assert result.units[f"spearman_dim_{dim // 4}"].mean() == pytest.approx(ranks, abs=1e-5)


def test_positives_in_either_order_are_excluded_from_hard_negatives() -> None:
    """With pairs (A, B), (C, A) and (D, E), anchor A excludes B and C, although C is nearer than D and E."""
    vectors = torch.tensor([[1.0, 0, 0], [0.98, 0.2, 0], [0.97, 0, 0.25], [0, 1, 0], [0, 0.9, 0.3]])
    train = TokenisedPairs(cast("Any", vectors), np.array([[0, 1], [2, 0], [3, 4]]), np.full(3, 5.0, np.float32))
    params = SimpleNamespace(positive_from=4.0, hard_negatives=1, hard_margin=0.0)
    unit = torch.nn.functional.normalize(vectors)
    workload = SimpleNamespace(data=SimpleNamespace(train=train), params=params, _vectors=lambda part: unit)
    assert BiEncoder._mine(cast("BiEncoder", workload)).tolist() == [[3], [1], [1]]


def test_out_of_memory_while_mining_is_marked_as_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(BiEncoder, "_vectors", full)
    workload = BiEncoder(Params(**SMALL, loss="infonce", hard_negatives=2), runtime())
    with pytest.raises(torch.OutOfMemoryError) as caught:
        workload.train_epoch(1)
    assert caught.value.in_training is False  # type: ignore[attr-defined]


def test_hard_negatives_are_the_nearest_sentences_below_the_margin() -> None:
    params = Params(**SMALL, loss="infonce", hard_negatives=2, hard_margin=0.05)
    workload = BiEncoder(params, runtime())
    train = workload.data.train
    vectors = torch.nn.functional.normalize(workload._vectors(train), eps=1e-8).detach()
    mined = workload._mine()
    related = [tuple(pair) for pair, grade in zip(train.pairs.tolist(), train.grades) if grade >= 4]
    positives = {*related, *((second, first) for first, second in related)}
    for row, (first, second) in enumerate(train.pairs.tolist()):
        if train.grades[row] < 4:
            assert mined[row].tolist() == [-1, -1]
            continue
        cosines = vectors @ vectors[first]
        fit = [text for text in range(len(vectors)) if text != first and (first, text) not in positives
               and cosines[text] <= cosines[second] - 0.05]  # fmt: skip
        best = sorted(fit, key=lambda text: (-float(cosines[text]), text))[:2]
        for chosen, right in zip(mined[row].tolist(), [*best, -1, -1]):
            assert chosen == right or abs(float(cosines[chosen] - cosines[right])) < 1e-5
    plain = BiEncoder(Params(**SMALL, loss="infonce"), runtime())
    assert values(workload.train_epoch(1))["loss"] > values(plain.train_epoch(1))["loss"], "more negatives, larger loss"
    again = BiEncoder(params, runtime())
    again.load_state_dict(deepcopy(workload.state_dict()))
    assert values(again.train_epoch(2)) == values(workload.train_epoch(2))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dims": "96,192"}, "dims=96,192 are not lengths of vectors from the longest to the shortest"),
        ({"dims": "192,0"}, "dims=192,0 are not lengths"),
        ({"dims": "64,32", "scoring": "cross"}, "scoring=cross has no vectors, which dims=64,32 cuts"),
        ({"hard_negatives": 2}, "hard_negatives=2 are negatives in the batch, which loss=mse has not. Set loss="),
        ({"hard_negatives": 2, "scoring": "cross"}, "which loss=mse has not. Set scoring=bi, and loss=infonce or"),
        ({"batch_size": 1, "loss": "cosent"}, "batch_size=1 leaves loss=cosent no other pair to compare with"),
        ({"batch_size": 1, "loss": "infonce"}, "batch_size=1 leaves loss=infonce no other pair to compare with"),
        ({"hard_margin": 0.1}, "hard_margin=0.1 has no effect without hard negatives"),
        (
            {"hard_negatives": 2, "loss": "infonce", "positives": "dropout", "dropout": 0.1},
            "positives=dropout has not. Set positives=scored",
        ),
    ],
)
def test_invalid_dims_batches_and_hard_negatives_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Params(**given)
    assert Params(dims="64").dims == (64,)
    assert Params(batch_size=1).batch_size == Params(batch_size=1, loss="infonce", hard_negatives=1).batch_size == 1
    with pytest.raises(ValidationError, match="dims=5,3 does not begin with 64, the length of a vector of encoder"):
        Params(dims=[5, 3])
