"""The bi-encoder workload: one encoder embeds both sentences of a pair, and their cosine is the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from workloads import gradient_cache
from workloads.bi_encoder.abstention import collection
from workloads.bi_encoder.batches import Batch, batches
from workloads.bi_encoder.dataset import TokenisedPairs, prepare, sentences, training_texts
from workloads.bi_encoder.evaluation import evaluation
from workloads.bi_encoder.loss_calls import EmbeddedBatch, batch_loss
from workloads.bi_encoder.losses import check_positives, dims_error
from workloads.bi_encoder.model import CrossEncoder
from workloads.bi_encoder.params import Params as BiEncoderParams
from workloads.bi_encoder.serving import servable
from workloads.checks import check_batch, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.data.pairs.load import load_pairs
from workloads.distributed import reduce_sum, wrap
from workloads.encoders.optimisation import adamw, load_optimizer_state, optimizer_state, take_step, warmup_linear
from workloads.encoders.packing import Packed, pack
from workloads.encoders.pooling import cosine, normalised
from workloads.encoders.sharded import sharded_encode
from workloads.encoders.sources import TINY
from workloads.encoders.text import encoder_of
from workloads.initial_weights import check_tokenizer, copy_weights, text_of
from workloads.memory import not_in_training
from workloads.sampling.hard import hardest
from workloads.schedule import steps_per_pass
from workloads.seeding import derive, seeded
from workloads.step_log import StepLog

_SCORES = 2**24
"""Scores in memory at once while hard negatives are mined."""


class BiEncoder:
    """Learns sentence vectors whose cosine is the similarity of two sentences.

    bf16 applies to the encoder's matrix products, also in evaluation; pooling, cosines, losses, parameters and metrics
    are float32. The result does not depend on the number of workers or micro-batches, except for the dropout masks.
    """

    Params: ClassVar[type[BiEncoderParams]] = BiEncoderParams
    objective: Objective = Objective("spearman", "max")

    def __init__(self, params: BiEncoderParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. The tokenised data is cached in the process.

        Raises:
            ValueError: the batch size is not divisible by the number of workers, no pair can be an anchor, or there are
                no scored pairs.
            workloads.data.DataError: the dataset or encoder is unknown, missing or damaged.
        """
        check_batch(params.batch_size, runtime)
        self.params = params
        self.runtime = runtime
        pairs = load_pairs(params.dataset, runtime.data, params.split, seed=params.split_seed)
        check_positives(params.positives, pairs.train.hidden)
        train = training_texts(pairs, runtime.holdout)
        self.tokenizer, encoder = encoder_of(params, runtime, lambda: train.first + train.second)
        self.data = prepare(pairs, runtime.holdout, self.tokenizer, params.scoring == "cross")
        if params.positives == "dropout":
            self.data = replace(self.data, train=sentences(self.data.train))
        _check_anchors(params, self.data.train)
        if message := dims_error(params.dims, params.scoring, params.encoder, encoder.dim):
            raise ValueError(message)
        self._mined: NDArray[np.int64] | None = None
        self._steps = StepLog(runtime.log_every, runtime.device)
        self.encoder = encoder.to(runtime.device)
        self.model = (
            CrossEncoder(encoder, runtime.seed).to(runtime.device) if params.scoring == "cross" else self.encoder
        )
        self.replica = wrap(self.model, runtime)
        self.optimizer = adamw(self.model, self.lr, params.weight_decay)

    @property
    def pretrained(self) -> bool:
        """Whether the encoder is pretrained, so that epoch 0 is worth evaluating. The cosine has no weights.

        A cross-encoder's head is randomly initialised.
        """
        return self.params.encoder != TINY and self.params.scoring == "bi"

    @property
    def lr(self) -> float:
        """The peak learning rate of the run."""
        assert self.params.lr is not None
        return self.params.lr

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass, or ``runtime.steps_per_epoch`` steps of one.

        Returns:
            The mean ``loss`` and ``gradient_norm`` (before clipping) of a step, and ``truncated``: the share of the
            training sentences that are longer than ``max_length`` and were cut.
        """
        params = self.params
        runtime = self.runtime
        train = self.data.train
        self._mined = self._mine() if params.hard_negatives else None
        steps = runtime.steps_per_epoch or steps_per_pass(len(train), params.batch_size)
        planned = runtime.epochs * steps
        total, norm = torch.zeros(2, dtype=torch.float64, device=runtime.device)
        self.model.train()
        with seeded(runtime.seed, runtime.device):  # _embed seeds again for each micro-batch
            drawn = batches(len(train), params.batch_size, runtime, epoch)
            for step, batch in enumerate(drawn, (epoch - 1) * steps):
                loss = self._backward(batch, step)
                total += loss
                self._steps.add(step + 1, loss, 1 / runtime.world_size)
                norm += torch.nn.utils.clip_grad_norm_(self.model.parameters(), params.clip)
                take_step(self.optimizer, self.lr * warmup_linear(step, planned, round(params.warmup * planned)))
        # Each rank's loss is its share times the world size, because DistributedDataParallel averages gradients.
        mean, gradient_norm = (reduce_sum(torch.stack([total, norm])) / (steps * runtime.world_size)).tolist()
        return {"loss": mean, "gradient_norm": gradient_norm, "truncated": float(train.tokens.cut.mean())}

    def take_steps(self) -> Sequence[StepValues]:
        """The mean loss of each ``runtime.log_every`` steps."""
        return self._steps.take()

    def _backward(self, batch: Batch, step: int) -> torch.Tensor:
        """Compute the gradients of a global batch. Returns a loss whose mean over the ranks is the batch's loss."""
        rows = batch.rows[batch.own]
        micro = [part for part in np.array_split(rows, self.runtime.accumulate) if len(part)] or [rows]
        parts = [partial(self._embed, self._pack(part), step, number) for number, part in enumerate(micro)]

        mined = None if self._mined is None else self._mined[rows] >= 0
        settings = self.params.of_loss()

        def loss_of(vectors: torch.Tensor) -> torch.Tensor:
            whole = EmbeddedBatch(vectors, batch, self.data.train, mined)
            cuts = [whole.cut(dim) for dim in self.params.dims or ()] or [whole]
            share = batch_loss(cuts[0], self.params.loss, settings)
            for cut in cuts[1:]:
                share = share + batch_loss(cut, self.params.loss, settings)
            return share * self.runtime.world_size

        return gradient_cache.backward(parts, loss_of, self.replica)

    def _pack(self, rows: NDArray[np.int64]) -> Packed:
        """Both sentences of some training pairs with their hard negatives, or their sequences."""
        train = self.data.train
        texts = train.pairs[rows]
        if self._mined is not None:  # where one is missing, the first sentence takes its place, and is masked
            mined = self._mined[rows]
            texts = np.concatenate([texts, np.where(mined < 0, texts[:, :1], mined)], 1)
        return pack(train.tokens.take(texts.ravel()), self.runtime.device)

    @torch.no_grad()
    @not_in_training()
    def _mine(self) -> NDArray[np.int64]:
        """The hard negatives of each training pair among all training sentences, (n, k), padded with -1.

        Only pairs that are anchors have some. What is in a positive pair with the anchor's sentence is no negative.
        """
        train = self.data.train
        params = self.params
        assert params.positive_from is not None
        vectors = normalised(self._vectors(train))
        mined = np.full((len(train), params.hard_negatives), -1, np.int64)
        anchors = np.flatnonzero(train.grades >= params.positive_from)
        partners: dict[int, set[int]] = {}
        for first, second in train.pairs[anchors].tolist():
            partners.setdefault(first, {first}).add(second)
            partners.setdefault(second, {second}).add(first)
        for rows in np.array_split(anchors, max(1, len(anchors) * len(vectors) // _SCORES)):
            first, second = torch.from_numpy(train.pairs[rows]).to(vectors.device).unbind(1)
            scores = vectors[first] @ vectors.T
            excluded = torch.zeros_like(scores, dtype=torch.bool)
            texts = enumerate(train.pairs[rows, 0].tolist())
            cells = np.array([(row, partner) for row, text in texts for partner in partners[text]], np.int64)
            excluded[torch.from_numpy(cells.reshape(-1, 2)).to(vectors.device).unbind(1)] = True
            positive = scores.gather(1, second.unsqueeze(1)).squeeze(1)
            chosen = hardest(scores, positive, params.hard_negatives, params.hard_margin or 0.0, excluded)
            mined[rows] = chosen.cpu().numpy()
        return mined

    def _embed(self, packed: Packed, step: int, number: int) -> torch.Tensor:
        """Vectors of both sentences of b pairs and their k hard negatives in one pass, (b, 2 + k, d), or a
        cross-encoder's similarities, (b,).

        Deterministic, dropout included.
        """
        torch.manual_seed(derive(self.runtime.seed, f"dropout {number}", step + 1, self.runtime.rank))
        vectors: torch.Tensor = self.replica(packed)
        if vectors.dim() == 1:
            return vectors
        return vectors.view(-1, 2 + self.params.hard_negatives, self.encoder.dim)

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        """Correlate cosines with scores. Each distinct sentence is encoded once; the ranks share the work.

        ``truncated`` is the share of the part's sentences that are longer than ``max_length`` and were cut.

        Raises:
            ValueError: the validation split of a refit, which is part of its training data.
        """
        check_split(split, self.runtime)
        part = self.data.test if split == "test" else self.data.validation
        device = self.runtime.device
        vectors = self._vectors(part)
        if isinstance(self.model, CrossEncoder):
            cosines = self.model.similarity(vectors)
        else:
            first, second = torch.from_numpy(part.pairs).to(device).unbind(1)
            cosines = cosine(vectors.index_select(0, first), vectors.index_select(0, second))
        grades = torch.from_numpy(part.grades).to(device)
        result = evaluation(cosines, grades, self.runtime.rank)
        metrics = {**result.metrics, "truncated": float(part.tokens.cut.mean())}
        units = dict(result.units)
        for dim in (self.params.dims or ())[1:]:
            short = vectors[:, :dim]
            cosines = cosine(short.index_select(0, first), short.index_select(0, second))
            cut = evaluation(cosines, grades, self.runtime.rank)
            for name in ("spearman", "pearson"):
                metrics[f"{name}_dim_{dim}"] = cut.metrics[name]
                units |= {f"{name}_dim_{dim}": cut.units[name]} if cut.units else {}
        return Evaluation(metrics, units)

    def _vectors(self, part: TokenisedPairs) -> torch.Tensor:
        """Vectors of the part's m texts, or of the sequences of its pairs, (m, d). A collective operation."""
        return sharded_encode(self.encoder, part.tokens, self.runtime)

    def state_dict(self) -> State:
        """Weights, optimiser and tokenizer, not copied. The data position follows from the epoch and is not stored."""
        return {
            "encoder": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "tokenizer": self.tokenizer.definition,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a state. Learning rate and weight decay come from the parameters, not the state.

        Raises:
            ValueError: the state is of another encoder or vocabulary.
        """
        if state.get("tokenizer") != self.tokenizer.definition:
            raise ValueError(
                f"the checkpoint does not fit: its tokenizer is not that of encoder {self.params.encoder!r} "
                f"for dataset {self.params.dataset!r}"
            )
        try:
            self.model.load_state_dict(state["encoder"])
        except RuntimeError as error:
            raise ValueError(f"the checkpoint does not fit encoder {self.params.encoder!r}: {error}") from None
        load_optimizer_state(self.optimizer, self.model, state["optimizer"])

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start from the encoder of another model, and a cross-encoder from its head.

        Raises:
            ValueError: it has another tokenizer, other layers or another scoring.
        """
        check_tokenizer(self.tokenizer.definition, text_of(weights.get("tokenizer")), self.params.encoder)
        head = self.model.head if isinstance(self.model, CrossEncoder) else nn.Identity()
        copy_weights(head, weights, "head.")
        copy_weights(self.encoder.model, weights, "model.")

    def servable(self) -> Servable:
        """The encoder with its tokenizer: embeds sentences or compares pairs. A cross-encoder compares pairs only."""
        head = self.model.head.state_dict() if isinstance(self.model, CrossEncoder) else None
        searched = None
        if (name := self.params.calibrate_on) is not None:
            seed = self.params.split_seed
            searched = collection(name, self.runtime.data, seed, self.tokenizer, self.encoder)
        return servable(self.encoder, self.tokenizer, self.params.dataset, head, searched)


def _check_anchors(params: BiEncoderParams, train: TokenisedPairs) -> None:
    if params.positive_from is not None and not (train.grades >= params.positive_from).any():
        raise ValueError(
            f"loss={params.loss} has no training examples: no training pair has a score of positive_from="
            f"{params.positive_from:g} or more; the highest is {train.grades.max():g}"
        )
