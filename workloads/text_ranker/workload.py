"""The text ranker workload: reranks BM25's candidates with a model trained on relevance judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from workloads.abstention.calibration import Systems, abstention_table
from workloads.checks import check_plan, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.encoders.optimisation import adamw, take_step, warmup_linear
from workloads.encoders.sources import TINY
from workloads.encoders.text import encoder_of
from workloads.initial_weights import check_tokenizer, copy_weights
from workloads.seeding import derive, seeded
from workloads.step_log import StepLog
from workloads.text_ranker.abstention import systems
from workloads.text_ranker.batches import Groups, GroupSampler
from workloads.text_ranker.dataset import Lists, prepare, texts
from workloads.text_ranker.evaluation import RankingEvaluator
from workloads.text_ranker.loss_calls import GroupBlock, pairs, query_losses
from workloads.text_ranker.model import Ranker, SequenceBuilder, packed_pairs, score_pairs
from workloads.text_ranker.params import Params as TextRankerParams
from workloads.text_ranker.serving import servable
from workloads.transfer import all_to_device

_INITIAL_WEIGHT = 0.5  # of BM25, before the first epoch


class TextRanker:
    """Learns to rank the documents that BM25 retrieves for a query.

    bf16 applies to the encoder; head, losses and metrics are float32.
    """

    Params: ClassVar[type[TextRankerParams]] = TextRankerParams
    objective: Objective = Objective("ndcg_at_10", "max")

    def __init__(self, params: TextRankerParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. The prepared data is cached in the process.

        Raises:
            ValueError: the batch size is not divisible by the number of workers, there are too few queries, or a refit
                has ``bm25_weight="validation"``: it trains on the validation part.
            workloads.data.DataError: the dataset or the encoder is unknown, missing or damaged.
        """
        check_plan(params, runtime)
        self.params = params
        self.runtime = runtime
        self.data = prepare(params, runtime.data, runtime.holdout, runtime.abstention_part)
        self.group_sampler = GroupSampler(self.data, params)
        tokenizer, encoder = encoder_of(params, runtime, self.data.vocabulary)
        own_texts = texts(self.data.data, tokenizer.definition, params.split_documents)
        self.sequence_builder = SequenceBuilder(tokenizer, own_texts, params.scoring)
        self.model = Ranker(encoder, params, runtime.seed).to(runtime.device)
        self._steps = StepLog(runtime.log_every, runtime.device)
        self.replica = wrap(self.model, runtime)
        self.optimizer = adamw(self.model, params.lr, params.weight_decay)
        self.bm25_weight = _INITIAL_WEIGHT if params.bm25_weight == "validation" else float(params.bm25_weight)
        self._evaluators: dict[Split, RankingEvaluator] = {}
        self._scores: dict[Split, tuple[torch.Tensor, float]] = {}  # cleared when the weights change
        if self.pretrained:
            self.choose_weight()

    @property
    def pretrained(self) -> bool:
        """Whether the untrained model is worth evaluating: a cross-encoder's head is randomly initialised."""
        return self.params.encoder != TINY and self.params.scoring == "bi"

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass over the training queries, or ``runtime.steps_per_epoch`` steps of one.

        Returns:
            The mean ``loss`` of a query; ``without_pairs``, the share of queries with nothing to compare;
            ``truncated``, the share of sequences that were cut; ``strength``, the margin or σ; and ``bm25_weight``, as
            chosen after the epoch.
        """
        params = self.params
        runtime = self.runtime
        steps = runtime.steps_per_epoch or self.group_sampler.steps_per_pass
        planned = runtime.epochs * steps
        loss = torch.zeros((), dtype=torch.float64, device=runtime.device)
        counts = np.zeros(4)  # queries, those without pairs, sequences, those cut
        self._scores.clear()
        sampler = self.group_sampler
        mined = None
        if params.hard_margin is not None:
            mined = sampler.mined(self._scores_of(sampler.relevant), self._scores_of(sampler.hard))
        self.model.train()
        with seeded(derive(runtime.seed, "dropout", epoch, runtime.rank), runtime.device):
            for step, (groups, weight) in enumerate(sampler.batches(runtime, epoch, mined), (epoch - 1) * steps):
                parts = groups.split(runtime.accumulate)
                for part in parts:
                    with nullcontext() if part is parts[-1] else without_sync(self.replica):
                        share = self._backward(part, weight, counts)
                    loss += share
                    self._steps.add(step + 1, share, weight, last=part is parts[-1])
                clip_grad_norm_(self.model.parameters(), params.clip)
                take_step(self.optimizer, params.lr * warmup_linear(step, planned, round(params.warmup * planned)))
        self.choose_weight()
        queries, idle, sequences, cut = reduce_sum(torch.from_numpy(counts).to(runtime.device)).tolist()
        return {
            "loss": reduce_sum(loss).item() / queries,
            "without_pairs": idle / queries,
            "truncated": cut / sequences,
            "strength": self.model.pair_scale(runtime.device).item(),
            "bm25_weight": self.bm25_weight,
        }

    def take_steps(self) -> Sequence[StepValues]:
        """The mean loss of a query in each ``runtime.log_every`` steps."""
        return self._steps.take()

    @torch.no_grad()
    def _scores_of(self, pairs: NDArray[np.int64]) -> torch.Tensor:
        """The model's scores of pairs of a query and a document, (n,) on the CPU. A collective operation."""
        own = np.arange(len(pairs))[self.runtime.rank :: self.runtime.world_size]
        scores = torch.zeros(len(pairs), device=self.runtime.device)
        scored, _, _ = score_pairs(self.model, self.sequence_builder, pairs[own, 0], pairs[own, 1])
        scores[torch.from_numpy(own).to(self.runtime.device)] = scored
        return reduce_sum(scores).cpu()

    def _backward(self, groups: Groups, weight: float, counts: NDArray[np.float64]) -> torch.Tensor:
        """Accumulate the gradient of some groups, with each query's loss times ``weight``. Returns the summed losses.

        A stand-in query on a rank without one has weight 0 and is not counted.
        """
        device = self.runtime.device
        real = groups.docs >= 0
        queries = np.broadcast_to(groups.queries[:, None], real.shape)[real]
        batch, rows, there, cut = packed_pairs(self.sequence_builder, queries, groups.docs[real], device)
        pair_scores, pair_scale = self.replica(batch, rows, there)
        sides = (real, groups.grades, pairs(groups, self.params.ties))
        mask, grades, compared = all_to_device([torch.from_numpy(side) for side in sides], device)
        scores = torch.full(mask.shape, -torch.inf, device=device).masked_scatter(mask, pair_scores)
        losses = query_losses(GroupBlock(scores, grades, compared), self.params.loss, pair_scale, self.data.gap_max)
        # DDP averages over ranks; the factor makes this the mean over the global batch.
        torch.autograd.backward(losses.sum() * (self.runtime.world_size * weight))
        if not weight:
            return torch.zeros_like(losses.sum())
        counts += len(groups), groups.alike.sum(), rows.numel(), cut
        return losses.detach().sum()

    def choose_weight(self) -> None:
        """Set ``bm25_weight`` to the best value on validation for the current model, unless the parameters fix it."""
        if self.params.bm25_weight == "validation":
            scores, _ = self._ranked("validation")
            self.bm25_weight = self.runtime.broadcast(self._evaluator("validation").best_weight(scores))

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        """Rank the candidates of every query of the split. The ranks share the work.

        Raises:
            ValueError: the validation split of a refit, which is part of its training data.
        """
        scores, cut = self._ranked(split)
        result = self._evaluator(split).evaluation(scores, self.bm25_weight, self.runtime.rank == 0)
        return Evaluation({**result.metrics, "truncated": cut}, result.units)

    def _evaluator(self, split: Split) -> RankingEvaluator:
        check_split(split, self.runtime)
        if split not in self._evaluators:
            queries = self.data.queries.test if split == "test" else self.data.queries.validation
            depth = self.params.eval_candidates
            self._evaluators[split] = RankingEvaluator(
                self.data.lists(queries, depth), self.runtime.device, depth, self.params.first_stage is None
            )
        return self._evaluators[split]

    def _ranked(self, split: Split) -> tuple[torch.Tensor, float]:
        """Scores (Q, C) of the candidates and the share of truncated sequences, cached until the weights change."""
        if split not in self._scores:
            lists = self._evaluator(split).lists
            own_rows = np.arange(self.runtime.rank, len(lists.queries), self.runtime.world_size)
            self._scores[split] = self._scored(lists, own_rows)
        return self._scores[split]

    def _scored(
        self, lists: Lists, rows: NDArray[np.int64], total: Callable[[torch.Tensor], torch.Tensor] = reduce_sum
    ) -> tuple[torch.Tensor, float]:
        """Score ``rows`` of the lists and combine with the other ranks' scores by ``total``, a collective operation."""
        device = self.runtime.device
        own = np.zeros(lists.docs.shape, np.bool_)
        own[rows] = lists.docs[rows] >= 0
        queries = np.broadcast_to(lists.queries[:, None], own.shape)[own]
        pair_scores, cut, sequences = score_pairs(self.model, self.sequence_builder, queries, lists.docs[own])
        scores = torch.zeros(own.shape, device=device).masked_scatter(torch.from_numpy(own).to(device), pair_scores)
        cut, sequences = total(torch.tensor([cut, sequences], dtype=torch.float64, device=device)).tolist()
        listed = torch.from_numpy(lists.docs >= 0).to(device)
        return total(scores).masked_fill(~listed, -torch.inf), cut / max(1.0, sequences)

    def state_dict(self) -> State:
        """Model, optimiser and BM25's weight. The data position follows from the epoch and is not stored."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "bm25_weight": self.bm25_weight,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a state. Learning rate, weight decay and a fixed ``bm25_weight`` come from the parameters.

        Raises:
            ValueError: the state is of another encoder or scoring.
        """
        try:
            self.model.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint does not fit encoder {self.params.encoder!r} with scoring={self.params.scoring}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        if self.params.bm25_weight == "validation":
            self.bm25_weight = state["bm25_weight"]
        self._scores.clear()

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start from encoder and head of another ranker, and from its learnt margin or σ if that is learnt here too.

        Raises:
            ValueError: it has another tokenizer, other layers or another scoring.
        """
        tokenizer = self.sequence_builder.tokenizer.definition
        check_tokenizer(tokenizer, config.get("tokenizer"), self.params.encoder)
        own = {name: value for name, value in self.model.state_dict().items() if name == "raw"}
        other = "abstention." if own else ("abstention.", "raw")
        copy_weights(self.model, {**own, **{n: value for n, value in weights.items() if not n.startswith(other)}})
        self._scores.clear()
        self.choose_weight()

    def servable(self) -> Servable:
        """Encoder, tokenizer and BM25's weight. The documents come with the input."""
        table = None
        if share := self.runtime.abstention_part:
            sides = (self._systems(queries) for queries in (self.data.abstention, self.data.held))
            table = abstention_table(*sides, share=share, trusted=self.runtime.holdout)
        return servable(self.model, self.sequence_builder.tokenizer, self.params, self.bm25_weight, self.data, table)

    @torch.no_grad()
    def _systems(self, queries: NDArray[np.int64]) -> Systems:
        """The model's ranking of the candidates of some queries and the interpolated one, by this rank alone."""
        lists = self.data.lists(queries, self.params.eval_candidates)
        with self.model.encoder.in_fp32():
            scores, _ = self._scored(lists, np.arange(len(queries)), torch.Tensor.clone)
        return systems(lists, scores.cpu(), self.bm25_weight)
