"""The lifelong workload: a retrieval model trained session by session, with an append-only index."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from workloads.abstention.calibration import Systems, abstention_table
from workloads.checks import check_plan, check_split
from workloads.contract import Direction, Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.distributed import broadcast, reduce_sum, without_sync, wrap
from workloads.encoders.optimisation import adamw, load_optimizer_state, optimizer_state, take_step, warmup_linear
from workloads.encoders.packing import pack
from workloads.encoders.pooling import normalised
from workloads.encoders.text import TextEncoder, encode, encoder_of
from workloads.initial_weights import check_tokenizer, copy_weights, text_of
from workloads.lifelong.abstention import searched
from workloads.lifelong.batches import batches
from workloads.lifelong.dataset import DEPTH, prepare, tokens
from workloads.lifelong.evaluation import DIRECTIONS, SessionCost, SessionEvaluator
from workloads.lifelong.index import Index
from workloads.lifelong.index_encoder import IndexEncoder
from workloads.lifelong.loss_calls import EmbeddedBlock, losses
from workloads.lifelong.model import TwoEncoders
from workloads.lifelong.params import Params as LifelongParams
from workloads.lifelong.replay import (
    QueryVectors,
    VectorLookup,
    choose_interfered,
    choose_memory,
    choose_new,
    draw_memory,
    draw_new,
    update_memory,
)
from workloads.lifelong.serving import folder_of, lineage_from, lineage_of, servable
from workloads.schedule import stage_ends, stage_of, steps_per_pass
from workloads.seeding import derive, seeded
from workloads.step_log import StepLog
from workloads.transfer import all_to_device

SAVED_BYTES = 2**30
"""Most bytes of vectors that an index in memory, and so each checkpoint, may have."""


class Lifelong:
    """First-stage retrieval over documents that arrive in sessions, with labels in the first session only (L2R).

    Each epoch belongs to a session. At the end of a session its documents are embedded, and every query is ranked;
    evaluations cover the finished sessions. bf16 applies to the encoder's matrix products.
    """

    Params: ClassVar[type[LifelongParams]] = LifelongParams
    objective: Objective = Objective("average_mrr_at_10", "max")
    directions: ClassVar[Mapping[str, Direction]] = DIRECTIONS
    limits: ClassVar[Mapping[str, str]] = {"patience": "its metrics change at the end of a session only"}

    def __init__(self, params: LifelongParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. The prepared data is cached in the process.

        Raises:
            ValueError: the batch size is not divisible by the number of workers, there are fewer epochs than sessions,
                a session has no documents, no training query has a positive in session 0, or the vectors of an index
                in memory are too large for checkpoints.
            workloads.data.DataError: the dataset or encoder is unknown, missing or damaged.
        """
        check_plan(params, runtime)
        self.params = params
        self.runtime = runtime
        self.data = prepare(params, runtime.data, runtime.holdout, runtime.abstention_part)
        count = len(self.data.sessions)
        shares = [params.first_share, *([(1 - params.first_share) / (count - 1)] * (count - 1))]
        self.ends = stage_ends(runtime.epochs, shares)
        self.objective = replace(self.objective, test_epochs=self.ends)
        self.tokenizer, encoder = encoder_of(params, runtime, self.data.vocabulary)
        self.tokens = tokens(self.data.data, self.tokenizer)
        self.encoder = encoder.to(runtime.device)
        self.model = TwoEncoders(self.encoder) if params.encoders == "apart" else self.encoder
        self.query_encoder = self.model.queries if isinstance(self.model, TwoEncoders) else self.encoder
        self.replica = wrap(self.model, runtime)
        self._step_log = StepLog(runtime.log_every, runtime.device)
        self.optimizer = adamw(self.model, params.lr, params.weight_decay)
        rows = len(self.data.train)
        self.session = -1
        self.new = torch.full((rows, params.n_new), -1)
        self.replayed = torch.full((rows, params.n_memory or 0), -1)
        self.memory = torch.full((rows, params.capacity or 0), -1)
        self.rankings: list[NDArray[np.int64]] = []
        self.costs: list[SessionCost] = []
        self._start: tuple[State, State] | None = None
        size = len(self.data.data.docs) * self.encoder.dim * 4
        if params.index is None and size > SAVED_BYTES:
            raise ValueError(
                f"the vectors of {len(self.data.data.docs):,} documents, {size / 2**30:.1f} GiB, would be in every "
                "checkpoint. Set index to the absolute path of a folder, where they are written once"
            )
        self._open_index(lineage_of(params, runtime, self.data.sessions.fingerprint))
        self._evaluators: dict[Split, SessionEvaluator] = {}

    def _open_index(self, lineage: str) -> None:
        """An empty index of a lineage."""
        params = self.params
        folder = Path(params.index) / folder_of(params, lineage) if params.index else None
        self.index = Index(lineage, self.encoder.dim, params.compatible != "no", folder, self.runtime.rank == 0)
        self.index_encoder = IndexEncoder(
            self.encoder, self.query_encoder, self.tokens, len(self.data.data.docs), self.index, self.runtime
        )

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass over the training queries, or ``runtime.steps_per_epoch`` steps of one, for the epoch's session.

        Returns:
            The mean ``loss`` of a query and ``gradient_norm`` of a step before clipping, 0 in a session without
            training; the ``session``; ``without_negatives``, a share of the training queries; and ``truncated``, a
            share of all texts.
        """
        session = stage_of(epoch, self.ends) - 1
        if session != self.session:
            self._begin(session, epoch)
        loss = norm = 0.0
        if session == 0 or self.params.update != "none":
            loss, norm = self._train(session, epoch)
        if epoch == self.ends[session]:
            self._end(session)
        without_negatives = ((self.new < 0).all(1) & (self.replayed < 0).all(1)).float().mean().item()
        return {
            "loss": loss, "gradient_norm": norm, "session": float(session), "without_negatives": without_negatives,
            "truncated": float(self.tokens.cut.mean()),
        }  # fmt: skip

    def _begin(self, session: int, epoch: int) -> None:
        """Choose the session's negatives with the current model, and create its optimiser."""
        params = self.params
        seed = self.runtime.seed
        self.session = session
        self.index.reserve_folder()
        if params.update == "none" and session:
            return
        if params.update == "retrain" and session:
            starts = self._start
            if starts is None:
                starts = (encoder_of(params, self.runtime, self.data.vocabulary)[1].state_dict(),) * 2
            for encoder, start in zip((self.encoder, self.query_encoder), starts):
                encoder.load_state_dict(start)
        self.optimizer = adamw(self.model, params.lr, params.weight_decay)
        candidates = self.data.candidates[session]
        lookup = None
        # In session 0 all methods train in the same way.
        if params.new == "l2r" and session:
            lookup = self._lookup(candidates)
            self.new = choose_new(params, candidates, lookup, self._query_vectors(lookup))
        else:
            self.new = draw_new(params, candidates, seed, session, first=params.new == "bm25" and session > 0)
        if params.memory == "none" or not session:
            return
        if params.memory == "mir":
            self.replayed = torch.full_like(self.replayed, -1)
            self.replayed = self._interfered(session, epoch)
        elif params.memory == "isd":
            lookup = lookup or self._lookup(self.new.numpy())
            self.replayed = choose_memory(params, self.memory, self.new, lookup, self._query_vectors(lookup))
        else:
            self.replayed = draw_memory(params, self.memory, seed, session)

    def _lookup(self, docs: NDArray[np.int64]) -> VectorLookup:
        """A lookup of the vectors of some documents, of the memory, and of each query's first positive."""
        again = self.params.update == "retrain"
        return self.index_encoder.lookup(docs, self.data.first, self.memory.numpy(), again=again)

    def _train(self, session: int, epoch: int) -> tuple[float, float]:
        """Train for an epoch. Returns the mean loss of a query and the mean norm of the gradient."""
        params = self.params
        runtime = self.runtime
        steps = runtime.steps_per_epoch or steps_per_pass(len(self.data.train), params.batch_size)
        began = self.ends[session - 1] if session else 0
        planned = (self.ends[session] - began) * steps
        total = torch.zeros(2, dtype=torch.float64, device=runtime.device)
        norm = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self.model.train()
        with seeded(derive(runtime.seed, "dropout", epoch, runtime.rank), runtime.device):
            drawn = batches(self.data.positives, params.batch_size, runtime, epoch)
            for step, (rows, positives, weight) in enumerate(drawn, (epoch - 1 - began) * steps):
                share = self._backward(session, rows, positives, weight)
                total += share
                self._step_log.add(began * steps + step + 1, share[0], weight)
                norm += clip_grad_norm_(self.model.parameters(), params.clip)
                take_step(self.optimizer, params.lr * warmup_linear(step, planned, round(params.warmup * planned)))
        loss, queries = reduce_sum(total).tolist()
        return loss / queries, norm.item() / steps

    def take_steps(self) -> list[StepValues]:
        """The mean loss of a query in each ``runtime.log_every`` steps; none in a session without training."""
        return self._step_log.take()

    def _backward(
        self, session: int, rows: NDArray[np.int64], positives: NDArray[np.int64], weight: float
    ) -> torch.Tensor:
        """Accumulate the gradient of this rank's part of a batch. Returns its summed loss and its number of queries."""
        total = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        parts = [part for part in np.array_split(np.arange(len(rows)), self.runtime.accumulate) if len(part)]
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else without_sync(self.replica):
                query_losses = losses(self._block(session, rows[part], positives[part]), self.params)
                # DDP averages over ranks; the factor makes this the mean over the global batch.
                torch.autograd.backward(query_losses.sum() * (self.runtime.world_size * weight))
            if weight:
                total[0] += query_losses.detach().sum()
                total[1] += len(part)
        return total

    def _block(self, session: int, rows: NDArray[np.int64], positives: NDArray[np.int64]) -> EmbeddedBlock:
        """Some training queries with their positive, memory and new documents, embedded as the loss needs them."""
        device = self.runtime.device
        docs = np.concatenate([positives[:, None], self.replayed.numpy()[rows], self.new.numpy()[rows]], 1)
        old = 1 + self.replayed.shape[1]
        reads_stored = session > 0 and self.params.compatible != "no"
        fresh = docs.copy()
        if reads_stored and self.params.compatible == "frozen":
            fresh[:, :old] = -1
        distinct, row = np.unique(fresh, return_inverse=True)
        real = distinct[distinct >= 0]
        vectors = self._vectors(real, len(self.data.data.docs) + self.data.train[rows])
        # Padding is -1, which sorts first: row 0 of the table is then the zero vector.
        table = torch.cat([vectors.new_zeros(len(distinct) - len(real), self.encoder.dim), vectors[: len(real)]])
        rows_of, mask = all_to_device([torch.from_numpy(row.reshape(docs.shape)), torch.from_numpy(docs >= 0)], device)
        return EmbeddedBlock(
            query=vectors[len(real) :] / self.params.temperature,
            fresh=table[rows_of],
            mask=mask,
            stored=self.index_encoder.stored(docs[:, :old]) if reads_stored else None,
        )

    def _vectors(self, docs: NDArray[np.int64], queries: NDArray[np.int64]) -> torch.Tensor:
        """Unit vectors with gradient of documents and then queries, (n + m, d)."""
        device = self.runtime.device
        if not isinstance(self.model, TwoEncoders):
            return normalised(self.replica(pack(self.tokens.take(np.concatenate([docs, queries])), device)))
        # Without documents one is embedded all the same: ranks need the same graph.
        sides = (docs if len(docs) else queries[:1], queries)
        vectors = normalised(self.replica(*(pack(self.tokens.take(side), device) for side in sides)))
        return vectors if len(docs) else vectors[1:] + 0 * vectors[:1]

    def _end(self, session: int) -> None:
        """Embed and index the session's documents, update the memory, and rank all queries."""
        params = self.params
        data = self.data
        docs = data.sessions.until(session) if params.compatible == "no" else data.sessions.arriving(session)
        started = time.perf_counter()
        vectors = self.index_encoder.embed_in_parts(docs)
        seconds = time.perf_counter() - started
        self.index.append(session, docs, vectors)
        del vectors
        if params.index is not None:
            self.index.map_last(broadcast(self.index.folder))
        self.costs.append(SessionCost(len(docs), self.index_encoder.embedded_for_negatives, seconds))
        self.index_encoder.embedded_for_negatives = 0
        if params.memory != "none":
            stored = self.index_encoder.stored
            self.memory = update_memory(
                params, self.memory, self.new, stored, self._query_vectors(stored), self.runtime.seed
            )
        self.rankings.append(self.index_encoder.ranked(len(data.data.queries), DEPTH))

    def _interfered(self, session: int, epoch: int) -> torch.Tensor:
        """MIR: the documents of each query's memory whose loss rises most by a virtual step on the new documents."""

        def vectors() -> tuple[VectorLookup, QueryVectors]:
            with self.encoder.in_fp32(), self.query_encoder.in_fp32():  # small differences of losses, without rounding
                lookup = self.index_encoder.lookup(self.memory.numpy(), self.data.first, again=True)
                return lookup, self._query_vectors(lookup)

        def backward() -> None:
            self.model.train()
            with seeded(derive(self.runtime.seed, "virtual", epoch, self.runtime.rank), self.runtime.device):
                whole = replace(self.runtime, steps_per_epoch=None)
                drawn = list(batches(self.data.positives, self.params.batch_size, whole, 1))
                for rows, positives, weight in drawn:
                    self._backward(session, rows, positives, weight / len(drawn))

        return choose_interfered(self.params, self.memory, self.model, vectors, backward)

    def _query_vectors(self, lookup: VectorLookup) -> QueryVectors:
        """Vectors of the training queries by the current model, with a positive of each."""
        return QueryVectors(
            self.index_encoder.queries(self.data.train), lookup(self.data.first), 1 / self.params.temperature
        )

    def evaluate(self, split: Split) -> Evaluation:
        """Compute the metrics of the finished sessions' stored rankings. Encodes no text.

        Raises:
            ValueError: the validation split of a refit, which is part of its training data.
        """
        check_split(split, self.runtime)
        if split not in self._evaluators:
            queries = self.data.queries.test if split == "test" else self.data.queries.validation
            arrivals = self.data.query_sessions if self.params.split_queries == "arriving" else None
            self._evaluators[split] = SessionEvaluator(self.data, queries, arrivals)
        return self._evaluators[split].evaluation(self.rankings, self.costs, self.runtime.rank == 0)

    def state_dict(self) -> State:
        """Weights, optimiser, tokenizer, the session's negatives, memory, index and rankings; not copied."""
        return {
            "encoder": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "tokenizer": self.tokenizer.definition,
            "split": self.data.sessions.fingerprint,
            "session": self.session,
            "new": self.new,
            "replayed": self.replayed,
            "memory": self.memory,
            "index": self.index.state(),
            "rankings": [torch.from_numpy(ranked) for ranked in self.rankings],
            "work": [[one.embedded, one.embedded_for_negatives, one.seconds] for one in self.costs],
            "read": self.index_encoder.embedded_for_negatives,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a state. Learning rate, weight decay, clipping and λ come from the parameters.

        Raises:
            ValueError: the state is of another encoder, vocabulary, split or run.
            workloads.data.DataError: a file of the index is missing, truncated or not the checkpoint's.
        """
        if state.get("tokenizer") != self.tokenizer.definition or state.get("split") != self.data.sessions.fingerprint:
            raise ValueError(
                f"the checkpoint does not fit: it was made with another encoder than {self.params.encoder!r} or with "
                f"other sessions of dataset {self.params.dataset!r}"
            )
        try:
            self.model.load_state_dict(state["encoder"])
        except RuntimeError as error:
            raise ValueError(f"the checkpoint does not fit encoder {self.params.encoder!r}: {error}") from None
        self.index.restore(state["index"])
        load_optimizer_state(self.optimizer, self.model, state["optimizer"])
        self.session = state["session"]
        self.index_encoder.embedded_for_negatives = state["read"]
        self.new, self.replayed, self.memory = (state[name].cpu().clone() for name in ("new", "replayed", "memory"))
        self.rankings = [ranked.cpu().numpy().copy() for ranked in state["rankings"]]
        self.costs = [SessionCost(*one) for one in state["work"]]

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start session 0, and with ``update=retrain`` each session, from the encoders of another model.

        With ``encoders=apart`` both begin with the one of its queries, if it has no other for documents. The index is
        one of a lineage of its own. Raises ValueError if the model has another tokenizer or other layers.
        """
        check_tokenizer(self.tokenizer.definition, text_of(weights.get("tokenizer")), self.params.encoder)
        apart = self.params.encoders == "apart" and any(name.startswith("documents.") for name in weights)
        copy_weights(self.encoder.model, weights, "documents." if apart else "model.")
        copy_weights(self.query_encoder.model, weights, "model.")
        if self.params.update == "retrain":
            self._start = _copied(self.encoder), _copied(self.query_encoder)
        self._open_index(lineage_from(self.index.lineage, weights))

    def servable(self) -> Servable:
        """The query encoder with its index and their lineage."""
        doc_ids = self.data.data.doc_ids
        documents = self.encoder if self.params.encoders == "apart" else None
        table = None
        if share := self.runtime.abstention_part:
            sides = (self._searched(queries) for queries in (self.data.abstention, self.data.held))
            table = abstention_table(*sides, share=share, plain=self.params.temperature, trusted=self.runtime.holdout)
        return servable(
            self.query_encoder, self.tokenizer, self.index, self.params, doc_ids, self.session, documents, table
        )

    @torch.no_grad()
    def _searched(self, queries: NDArray[np.int64]) -> Systems:
        """The first documents of the index for some queries, by this rank alone."""
        with self.query_encoder.in_fp32():
            vectors = normalised(encode(self.query_encoder, self.tokens.take(len(self.data.data.docs) + queries)))
        return searched(self.data, queries, vectors, self.index)


def _copied(encoder: TextEncoder) -> State:
    """The encoder's weights on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in encoder.state_dict().items()}
