"""The bi-encoder workload: one encoder embeds both sentences of a pair, and their cosine is the score."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from workloads import gradient_cache
from workloads.bi_encoder.batches import Batch, batches
from workloads.bi_encoder.dataset import Part, prepare, training_texts
from workloads.bi_encoder.evaluation import evaluation
from workloads.bi_encoder.loss_calls import EmbeddedBatch, batch_loss
from workloads.bi_encoder.params import Params as BiEncoderParams
from workloads.bi_encoder.serving import servable
from workloads.checks import check_batch, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.data.pairs.load import load_pairs
from workloads.distributed import reduce_sum, wrap
from workloads.encoders.optimisation import adamw, load_optimizer_state, optimizer_state, take_step, warmup_linear
from workloads.encoders.packing import Packed, pack
from workloads.encoders.pooling import cosine
from workloads.encoders.sources import TINY
from workloads.encoders.text import encode, load_encoder
from workloads.schedule import steps_per_pass
from workloads.seeding import derive, seeded


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
            ValueError: the batch size is not divisible by the number of workers, or no pair can be an anchor.
            workloads.data.DataError: the dataset or encoder is unknown, missing or damaged.
        """
        check_batch(params.batch_size, runtime)
        self.params = params
        self.runtime = runtime
        pairs = load_pairs(params.dataset, runtime.data, params.split, seed=params.split_seed)
        texts = training_texts(pairs, runtime.holdout)
        self.tokenizer, encoder = load_encoder(
            params.encoder,
            max_length=params.max_length,
            pooling=params.pooling,
            precision=runtime.precision,
            dropout=params.dropout,
            texts=texts.first + texts.second,
            seed=runtime.seed,
        )
        self.data = prepare(pairs, runtime.holdout, self.tokenizer)
        _check_anchors(params, self.data.train)
        self.encoder = encoder.to(runtime.device)
        self.replica = wrap(self.encoder, runtime)
        self.optimizer = adamw(self.encoder, self.lr, params.weight_decay)

    @property
    def pretrained(self) -> bool:
        """Whether the encoder is pretrained, so that epoch 0 is worth evaluating. The cosine has no weights."""
        return self.params.encoder != TINY

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
        steps = runtime.steps_per_epoch or steps_per_pass(len(train), params.batch_size)
        planned = runtime.epochs * steps
        total, norm = torch.zeros(2, dtype=torch.float64, device=runtime.device)
        self.encoder.train()
        with seeded(runtime.seed, runtime.device):  # _embed seeds again for each micro-batch
            drawn = batches(len(train), params.batch_size, runtime, epoch)
            for step, batch in enumerate(drawn, (epoch - 1) * steps):
                total += self._backward(batch, step)
                norm += torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), params.clip)
                take_step(self.optimizer, self.lr * warmup_linear(step, planned, round(params.warmup * planned)))
        # Each rank's loss is its share times the world size, because DistributedDataParallel averages gradients.
        loss, gradient_norm = (reduce_sum(torch.stack([total, norm])) / (steps * runtime.world_size)).tolist()
        return {"loss": loss, "gradient_norm": gradient_norm, "truncated": float(train.tokens.cut.mean())}

    def _backward(self, batch: Batch, step: int) -> torch.Tensor:
        """Compute the gradients of a global batch. Returns a loss whose mean over the ranks is the batch's loss."""
        rows = batch.rows[batch.own]
        micro = [part for part in np.array_split(rows, self.runtime.accumulate) if len(part)] or [rows]
        parts = [partial(self._embed, self._pack(part), step, number) for number, part in enumerate(micro)]

        def loss_of(vectors: torch.Tensor) -> torch.Tensor:
            share = batch_loss(EmbeddedBatch(vectors, batch, self.data.train), self.params.loss, self.params.of_loss())
            return share * self.runtime.world_size

        return gradient_cache.backward(parts, loss_of, self.replica)

    def _pack(self, rows: NDArray[np.int64]) -> Packed:
        """Both sentences of some training pairs."""
        train = self.data.train
        return pack(train.tokens.take(train.pairs[rows].ravel()), self.runtime.device)

    def _embed(self, packed: Packed, step: int, number: int) -> torch.Tensor:
        """Vectors of both sentences of b pairs in one pass, (b, 2, d). Deterministic, dropout included."""
        torch.manual_seed(derive(self.runtime.seed, f"dropout {number}", step + 1, self.runtime.rank))
        vectors: torch.Tensor = self.replica(packed)
        return vectors.view(len(packed) // 2, 2, self.encoder.dim)

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
        first, second = torch.from_numpy(part.pairs).to(device).unbind(1)
        cosines = cosine(vectors.index_select(0, first), vectors.index_select(0, second))
        result = evaluation(cosines, torch.from_numpy(part.grades).to(device), self.runtime.rank)
        return Evaluation({**result.metrics, "truncated": float(part.tokens.cut.mean())}, result.units)

    def _vectors(self, part: Part) -> torch.Tensor:
        """Vectors of the part's m texts, (m, d). A collective operation."""
        own = np.arange(len(part.tokens))[self.runtime.rank :: self.runtime.world_size]
        vectors = torch.zeros(len(part.tokens), self.encoder.dim, device=self.runtime.device)
        vectors[torch.from_numpy(own).to(self.runtime.device)] = encode(self.encoder, part.tokens.take(own))
        return reduce_sum(vectors)

    def state_dict(self) -> State:
        """Weights, optimiser and tokenizer, not copied. The data position follows from the epoch and is not stored."""
        return {
            "encoder": self.encoder.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.encoder),
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
            self.encoder.load_state_dict(state["encoder"])
        except RuntimeError as error:
            raise ValueError(f"the checkpoint does not fit encoder {self.params.encoder!r}: {error}") from None
        load_optimizer_state(self.optimizer, self.encoder, state["optimizer"])

    def servable(self) -> Servable:
        """The encoder with its tokenizer: embeds sentences or compares pairs."""
        return servable(self.encoder, self.tokenizer, self.params.dataset)


def _check_anchors(params: BiEncoderParams, train: Part) -> None:
    if params.positive_from is not None and not (train.grades >= params.positive_from).any():
        raise ValueError(
            f"loss={params.loss} has no training examples: no training pair has a score of positive_from="
            f"{params.positive_from:g} or more; the highest is {train.grades.max():g}"
        )
