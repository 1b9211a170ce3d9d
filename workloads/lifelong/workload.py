"""The lifelong workload: a retrieval model that is trained on session by session, over an index that only grows."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from workloads.checks import check_plan, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.encoders.optimisation import adamw, load_optimizer_state, optimizer_state, take_step, warmup_linear
from workloads.encoders.packing import pack
from workloads.encoders.pooling import normalised
from workloads.encoders.text import TextEncoder, load_encoder
from workloads.encoders.tokens import Tokenizer
from workloads.lifelong import baselines
from workloads.lifelong.batches import batches
from workloads.lifelong.dataset import DEPTH, prepare, tokens
from workloads.lifelong.evaluation import SessionCost, SessionEvaluator
from workloads.lifelong.index import Index
from workloads.lifelong.index_encoder import IndexEncoder
from workloads.lifelong.loss_calls import Block, losses
from workloads.lifelong.params import Params as LifelongParams
from workloads.lifelong.replay import (
    QueryVectors,
    VectorLookup,
    choose_memory,
    choose_new,
    draw_memory,
    draw_new,
    update_memory,
)
from workloads.lifelong.selection import gather_docs, top_positions
from workloads.lifelong.serving import folder_of, lineage_of, servable
from workloads.schedule import stage_ends, stage_of, steps_per_pass
from workloads.seeding import derive, seeded


class Lifelong:
    """First-stage retrieval over documents that arrive in sessions, labelled in the first one only (L2R).

    An epoch belongs to a session; at the end of a session its documents are embedded, and every query is ranked.
    Evaluations tell of the sessions that have ended. bf16 applies to the encoder's matrix products.
    """

    Params: ClassVar[type[LifelongParams]] = LifelongParams
    objective: Objective = Objective("average_mrr_at_10", "max")

    def __init__(self, params: LifelongParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``; from the second time in a process on the stream is prepared already.

        Raises:
            ValueError: the batch does not divide over the workers, there are fewer epochs than sessions, a session has
                no document, or no training query a positive in session 0.
            workloads.data.DataError: dataset or encoder are unknown, missing or damaged.
        """
        check_plan(params, runtime)
        self.params, self.runtime = params, runtime
        self.data = prepare(params, runtime.data, runtime.holdout)
        count = len(self.data.sessions)
        shares = [params.first_share, *([(1 - params.first_share) / (count - 1)] * (count - 1))]
        self.ends = stage_ends(runtime.epochs, shares)
        self.objective = replace(self.objective, test_epochs=self.ends)
        self.tokenizer, encoder = self._load()
        self.tokens = tokens(self.data.data, self.tokenizer)
        self.encoder = encoder.to(runtime.device)
        self.replica = wrap(self.encoder, runtime)
        self.optimizer = adamw(self.encoder, params.lr, params.weight_decay)
        rows = len(self.data.train)
        self.session = -1
        self.new = torch.full((rows, params.n_new), -1)
        self.replayed = torch.full((rows, params.n_memory or 0), -1)
        self.memory = torch.full((rows, params.capacity or 0), -1)
        self.rankings: list[NDArray[np.int64]] = []
        self.costs: list[SessionCost] = []
        lineage = lineage_of(params, runtime, self.data.sessions.fingerprint)
        folder = Path(params.index) / folder_of(params, lineage) if params.index else None
        self.index = Index(lineage, self.encoder.dim, params.compatible != "no", folder, runtime.rank == 0)
        self.index_encoder = IndexEncoder(self.encoder, self.tokens, len(self.data.data.docs), self.index, runtime)
        self._evaluators: dict[Split, SessionEvaluator] = {}

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass over the training queries, or ``runtime.steps_per_epoch`` steps of one, for the epoch's session.

        Returns:
            The mean ``loss`` of a query and the ``gradient_norm`` of a step before clipping, 0 in a session that trains
            nothing; the ``session``; the share of training queries ``without_negatives``; and that of all texts
            ``truncated``.
        """
        session = stage_of(epoch, self.ends) - 1
        if session != self.session:
            self._begin(session, epoch)
        loss = norm = 0.0
        if session == 0 or self.params.update != "none":
            loss, norm = self._train(session, epoch)
        if epoch == self.ends[session]:
            self._end(session)
        idle = ((self.new < 0).all(1) & (self.replayed < 0).all(1)).float().mean().item()
        return {
            "loss": loss, "gradient_norm": norm, "session": float(session), "without_negatives": idle,
            "truncated": float(self.tokens.cut.mean()),
        }  # fmt: skip

    def _begin(self, session: int, epoch: int) -> None:
        """Choose what the session is trained on, with the model as it is, and start its optimiser."""
        params, seed = self.params, self.runtime.seed
        self.session = session
        self.index.reserve_folder()
        if params.update == "none" and session:
            return
        if params.update == "retrain" and session:
            self.encoder.load_state_dict(self._load()[1].state_dict())
        self.optimizer = adamw(self.encoder, params.lr, params.weight_decay)
        candidates, lookup = self.data.candidates[session], None
        # The model of session 0 is the one that all methods begin with.
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
        """The vectors of some documents, of the memory and of each query's first positive."""
        again = self.params.update == "retrain"
        return self.index_encoder.lookup(docs, self.data.first, self.memory.numpy(), again=again)

    def _train(self, session: int, epoch: int) -> tuple[float, float]:
        """The steps of an epoch; mean loss of a query and mean norm of a gradient."""
        params, runtime = self.params, self.runtime
        steps = runtime.steps_per_epoch or steps_per_pass(len(self.data.train), params.batch_size)
        began = self.ends[session - 1] if session else 0
        planned = (self.ends[session] - began) * steps
        total = torch.zeros(2, dtype=torch.float64, device=runtime.device)
        norm = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self.encoder.train()
        with seeded(derive(runtime.seed, "dropout", epoch, runtime.rank), runtime.device):
            drawn = batches(self.data.positives, params.batch_size, runtime, epoch)
            for step, (rows, positives, weight) in enumerate(drawn, (epoch - 1 - began) * steps):
                total += self._backward(session, rows, positives, weight)
                norm += clip_grad_norm_(self.encoder.parameters(), params.clip)
                take_step(self.optimizer, params.lr * warmup_linear(step, planned, round(params.warmup * planned)))
        loss, queries = reduce_sum(total).tolist()
        return loss / queries, norm.item() / steps

    def _backward(
        self, session: int, rows: NDArray[np.int64], positives: NDArray[np.int64], weight: float
    ) -> torch.Tensor:
        """Add the gradient of this rank's part of a batch; its summed loss and its number of queries."""
        total = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        parts = [part for part in np.array_split(np.arange(len(rows)), self.runtime.accumulate) if len(part)]
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else without_sync(self.replica):
                found = losses(self._block(session, rows[part], positives[part]), self.params)
                # DDP averages over ranks: with this factor, to the mean over the global batch.
                torch.autograd.backward(found.sum() * (self.runtime.world_size * weight))
            if weight:
                total[0] += found.detach().sum()
                total[1] += len(part)
        return total

    def _block(self, session: int, rows: NDArray[np.int64], positives: NDArray[np.int64]) -> Block:
        """Positive, memory and new documents of some training queries, embedded as the loss needs them."""
        device = self.runtime.device
        docs = np.concatenate([positives[:, None], self.replayed.numpy()[rows], self.new.numpy()[rows]], 1)
        old = 1 + self.replayed.shape[1]
        reads_stored = session > 0 and self.params.compatible != "no"
        fresh = docs.copy()
        if reads_stored and self.params.compatible == "frozen":
            fresh[:, :old] = -1
        numbers, place = np.unique(fresh, return_inverse=True)
        known = numbers[numbers >= 0]
        texts = np.concatenate([known, len(self.data.data.docs) + self.data.train[rows]])
        vectors = normalised(self.replica(pack(self.tokens.take(texts), device)))
        # Filling is number -1, which sorts first: the zero vector.
        table = torch.cat([vectors.new_zeros(len(numbers) - len(known), self.encoder.dim), vectors[: len(known)]])
        return Block(
            query=vectors[len(known) :] / self.params.temperature,
            fresh=table[self.index_encoder.to_device(torch.from_numpy(place.reshape(docs.shape)))],
            there=self.index_encoder.to_device(torch.from_numpy(docs >= 0)),
            stored=self.index_encoder.stored(docs[:, :old]) if reads_stored else None,
        )

    def _end(self, session: int) -> None:
        """Embed and index what arrived, remember what was new, and rank all queries."""
        params, data = self.params, self.data
        refresh = params.compatible == "no"
        docs = data.sessions.until(session) if refresh else data.sessions.arriving(session)
        started = time.perf_counter()
        vectors = self.index_encoder.embed(docs).cpu().numpy()
        seconds = time.perf_counter() - started
        self.index.append(session, docs, vectors)
        self.costs.append(SessionCost(len(docs), self.index_encoder.read, seconds))
        self.index_encoder.read = 0
        if params.memory != "none":
            stored = self.index_encoder.stored
            self.memory = update_memory(
                params, self.memory, self.new, stored, self._query_vectors(stored), self.runtime.seed
            )
        self.rankings.append(self.index_encoder.ranked(len(data.data.queries), DEPTH))

    def _interfered(self, session: int, epoch: int) -> torch.Tensor:
        """MIR: of each query's memory the documents whose loss a virtual step on the new ones raises most."""
        params, runtime, memory = self.params, self.runtime, self.memory.numpy()
        assert params.n_memory is not None

        def pair_losses() -> torch.Tensor:
            lookup = self.index_encoder.lookup(memory, self.data.first, again=True)
            query_vectors = self._query_vectors(lookup)
            return torch.cat(
                [
                    baselines.pair_losses(
                        lookup(memory[part]),
                        query_vectors.positive[part],
                        query_vectors.query[part] * query_vectors.scale,
                    )
                    for part in query_vectors.rows()
                ]
            )

        def backward() -> None:
            self.encoder.train()
            with seeded(derive(runtime.seed, "virtual", epoch, runtime.rank), runtime.device):
                whole = replace(runtime, steps_per_epoch=None)
                drawn = list(batches(self.data.positives, params.batch_size, whole, 1))
                for rows, positives, weight in drawn:
                    self._backward(session, rows, positives, weight / len(drawn))

        before, after = baselines.virtual_step(self.encoder, pair_losses, backward, params.lr)
        scores = baselines.mir(before, after, self.index_encoder.to_device(torch.from_numpy(memory >= 0)))
        return gather_docs(self.memory, top_positions(scores, params.n_memory).cpu())

    def _query_vectors(self, lookup: VectorLookup) -> QueryVectors:
        """The training queries by the model as it is, with a positive of each."""
        return QueryVectors(
            self.index_encoder.queries(self.data.train), lookup(self.data.first), 1 / self.params.temperature
        )

    def evaluate(self, split: Split) -> Evaluation:
        """Measure the rankings of the sessions that have ended. Reads no text.

        Raises:
            ValueError: the validation split of a refit, which has been trained on.
        """
        check_split(split, self.runtime)
        if split not in self._evaluators:
            queries = self.data.queries.test if split == "test" else self.data.queries.validation
            self._evaluators[split] = SessionEvaluator(self.data, queries)
        return self._evaluators[split].evaluation(self.rankings, self.costs, self.runtime.rank == 0)

    def state_dict(self) -> State:
        """Weights, optimiser, tokenizer, what the session trains on, memory, index and rankings; not copied."""
        return {
            "encoder": self.encoder.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.encoder),
            "tokenizer": self.tokenizer.definition,
            "split": self.data.sessions.fingerprint,
            "session": self.session,
            "new": self.new,
            "replayed": self.replayed,
            "memory": self.memory,
            "index": self.index.state(),
            "rankings": [torch.from_numpy(ranked) for ranked in self.rankings],
            "work": [[one.embedded, one.read, one.seconds] for one in self.costs],
            "read": self.index_encoder.read,
        }

    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rate, weight decay, clipping and λ stay those of the parameters.

        Raises:
            ValueError: the state belongs to another encoder, vocabulary, split or run.
            workloads.data.DataError: a file of the index is missing, truncated or another one.
        """
        if state.get("tokenizer") != self.tokenizer.definition or state.get("split") != self.data.sessions.fingerprint:
            raise ValueError(
                f"the checkpoint does not fit: it is of another encoder than {self.params.encoder!r} or of other "
                f"sessions of dataset {self.params.dataset!r}"
            )
        try:
            self.encoder.load_state_dict(state["encoder"])
        except RuntimeError as error:
            raise ValueError(f"the checkpoint does not fit encoder {self.params.encoder!r}: {error}") from None
        self.index.restore(state["index"])
        load_optimizer_state(self.optimizer, self.encoder, state["optimizer"])
        self.session, self.index_encoder.read = state["session"], state["read"]
        self.new, self.replayed, self.memory = (state[name].cpu().clone() for name in ("new", "replayed", "memory"))
        self.rankings = [ranked.cpu().numpy().copy() for ranked in state["rankings"]]
        self.costs = [SessionCost(*one) for one in state["work"]]

    def servable(self) -> Servable:
        """Query encoder and index together, with their lineage."""
        return servable(self.encoder, self.tokenizer, self.index, self.params, self.data.data.doc_ids, self.session)

    def _load(self) -> tuple[Tokenizer, TextEncoder]:
        params = self.params
        return load_encoder(
            params.encoder,
            max_length=params.max_length,
            pooling=params.pooling,
            precision=self.runtime.precision,
            dropout=params.dropout,
            texts=self.data.vocabulary() if params.encoder == "tiny" else (),
            seed=self.runtime.seed,
        )
