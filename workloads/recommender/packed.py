"""Packs: matrix factorisations of one shape trained together on stacked tables.

K tables of N nodes are one table of K·N: node n of member k is row k·N + n. Gather, scatter and loss run on that
table as on a single one, so results equal those of separate training.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from workloads.contract import Evaluation, Metrics, Runtime, Split
from workloads.recommender.adam import Adam, StackedAdam
from workloads.recommender.batches import Draws, packed_nodes
from workloads.recommender.dataset import History, RecommenderData
from workloads.recommender.evaluation import evaluation, rank_users
from workloads.recommender.loss_calls import Scores
from workloads.recommender.losses import LOSSES
from workloads.recommender.model import MatrixFactorisation
from workloads.recommender.params import Params
from workloads.recommender.quality import wrong_share
from workloads.recommender.scorers import Scorer
from workloads.recommender.sgd import BatchedSGD, SequentialSGD
from workloads.schedule import steps_per_pass
from workloads.step_log import StepLog

VARYING_PARAMS = {"lr", "lr_decay", "lr_decay_every", "weight_decay"}
"""Parameters that may differ between members, as may their seeds."""

_GATHERED = {"cpu": 2**19}
"""Most embedding entries that a gather of a step (users, items or negatives) reads: what fits a CPU's caches."""

_OVERHEAD = 2**14
"""Up to this many entries in such a gather, a CPU's step is mostly overhead."""

_VECTOR = 64
"""A multiple of the number of floats in any CPU's vector register."""

_FUSED = {"cpu"}
"""Devices on which a fused optimiser step for each member is cheaper than one step for all."""


class Member(Protocol):
    """What a pack uses of a recommender."""

    params: Params
    runtime: Runtime
    data: RecommenderData
    model: MatrixFactorisation
    optimizer: Adam | BatchedSGD | SequentialSGD
    weight_decay: float
    draws: Draws
    settings: Mapping[str, Any]
    step_log: StepLog

    def learning_rate(self, epoch: int) -> float: ...

    def scorer(self, known: History) -> Scorer: ...

    def ranking_targets(self, split: Split) -> tuple[History, History]: ...


def shape(params: Params, runtime: Runtime, data: RecommenderData) -> Hashable | None:
    """A key that is equal for trials that can share a pack; None for those that cannot be packed.

    Not packed: LightGCN, SGD, losses of several negatives or with weights, samplers that use the model, measures of
    quality, several workers, micro-batches and virtual epochs.
    """
    if not _packable(params) or runtime.world_size > 1 or runtime.accumulate > 1 or runtime.steps_per_epoch:
        return None
    return (*params.model_dump(exclude=VARYING_PARAMS).items(), id(data), runtime.log_every)


def _packable(params: Params) -> bool:
    static = params.sampler in ("uniform", "popularity")
    return (
        params.backbone == "mf"
        and params.optimizer == "adam"
        and LOSSES[params.loss].pointwise
        and static
        and not params.quality
    )


def size(params: Params, device: torch.device) -> int:
    """The worthwhile number of members, as measured by benchmarks/packing.py.

    On a CPU core small steps are mostly overhead, which members share; larger ones are bound by memory, which is not
    shared. A GPU idles between the launches of a single trial of any size; how many tables fit into its memory is seen
    there (``pack_bytes``).
    """
    if not _packable(params):
        return 1
    if device.type == "cpu":
        return 8 if params.batch_size * params.dim <= _OVERHEAD else 1
    return max(1, min(32, 2**13 // params.dim))


class RecommenderPack:
    """The members' tables and moments, stacked; the members' own tensors become rows of the stack."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        own = [(m.model.embedding.detach(), *_adam(m).state_dict().values()) for m in members]
        self._stack = [torch.stack(tensors) for tensors in zip(*own)]
        for member, embedding, *moments in zip(members, *self._stack):
            adam = _adam(member)
            member.model.embedding = adam.parameter = nn.Parameter(embedding)
            adam.exp_avg, adam.exp_avg_sq, adam.step = moments

    def train_epoch(self, epochs: Sequence[int]) -> list[Metrics]:
        """One pass for each member; a step takes as many members as fit the device's caches."""
        first = self.members[0]
        gathered = first.params.batch_size * first.params.dim
        limit = _GATHERED.get(first.runtime.device.type)
        at_once = max(1, limit // gathered) if limit else len(self.members)
        metrics: list[Metrics] = []
        for start in range(0, len(self.members), at_once):
            metrics += self._train(slice(start, start + at_once), epochs[start : start + at_once])
        return metrics

    def _train(self, part: slice, epochs: Sequence[int]) -> list[Metrics]:
        members = self.members[part]
        stack = [tensor[part] for tensor in self._stack]
        data = members[0].data
        params = members[0].params
        settings = members[0].settings
        row = LOSSES[params.loss]

        def loss_of(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
            scores = Scores(positive, positive.new_empty(len(positive), 0), negative.unsqueeze(1), 0)
            values: torch.Tensor = row.compute(scores, settings)
            return values

        table = MatrixFactorisation(stack[0].flatten(0, 1))
        offsets = torch.arange(len(members), device=data.pairs.device)[:, None] * (data.n_users + data.n_items)
        total = torch.zeros(len(members), dtype=torch.float64, device=data.pairs.device)
        false_negatives = torch.zeros(len(members), dtype=torch.int64, device=data.pairs.device)
        passes = [(member.runtime.seed, epoch) for member, epoch in zip(members, epochs)]
        update = _optimizer(members, stack, epochs)
        step_log = StepLog(members[0].runtime.log_every, data.pairs.device, len(members))
        for step, nodes in enumerate(packed_nodes(data, members[0].draws, params.batch_size, passes), 1):
            size = nodes.shape[2]
            scores, _ = table((nodes + offsets).flatten(1))
            losses = _each(loss_of, scores[0], scores[1], size)
            torch.autograd.backward(losses, torch.full_like(losses, 1 / size))
            sums = losses.detach().view(len(members), size).sum(1)
            total += sums
            step_log.add(step, sums, 1 / size)
            if data.planted is not None:
                false_negatives += data.planted.contains(nodes[0], nodes[2] - data.n_users).sum(1)
            gradient = table.embedding.grad
            assert gradient is not None
            table.embedding.grad = None
            update(gradient.view_as(stack[0]))
        n = data.pairs.shape[1]
        for number, (member, epoch) in enumerate(zip(members, epochs)):
            member.step_log.extend(step_log.take(number, after=(epoch - 1) * steps_per_pass(n, params.batch_size)))
        fpr = None if data.wrong is None else wrong_share(data.wrong).item()
        metrics: list[Metrics] = []
        for loss, count in zip(total.tolist(), false_negatives.tolist()):
            own = {"loss": loss / n}
            if fpr is not None:
                own["fpr"] = fpr
            if data.planted is not None:
                own["fnr"] = count / n
            metrics.append(own)
        return metrics

    @torch.no_grad()
    def evaluate(self, members: Sequence[int], split: Split) -> list[Evaluation]:
        """Rank for several members at once, with shared masks."""
        chosen = [self.members[index] for index in members]
        relevant, excluded = chosen[0].ranking_targets(split)
        scorers = [member.scorer(excluded) for member in chosen]
        cutoffs = chosen[0].params.cutoffs
        ranked = rank_users(scorers, relevant, excluded, evaluations=chosen[0].runtime.epochs, cutoffs=cutoffs)
        return [evaluation(*own, relevant, chosen[0].data.popularity, cutoffs=cutoffs) for own in zip(*ranked)]


def _adam(member: Member) -> Adam:
    assert isinstance(member.optimizer, Adam)  # checked by shape()
    return member.optimizer


def _each(
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    positive: torch.Tensor,
    negative: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """The losses of all members, (K·B,), from the scores of batches of ``size``.

    A CPU computes the remainder of a batch that does not fill a vector register by another routine, whose last digit
    differs. In concatenated batches the remainder would fall elsewhere, so such batches are computed one by one.
    """
    if positive.device.type != "cpu" or size % _VECTOR == 0:
        return loss_of(positive, negative)
    return torch.cat([loss_of(*scores) for scores in zip(torch.split(positive, size), torch.split(negative, size))])


def _optimizer(
    members: Sequence[Member], stack: Sequence[torch.Tensor], epochs: Sequence[int]
) -> Callable[[torch.Tensor], None]:
    """Build the epoch's Adam step, a function of stacked gradients.

    On a CPU each member takes its own fused step, whose tensors fit a cache; elsewhere one step serves all.
    """
    lr = [member.learning_rate(epoch) for member, epoch in zip(members, epochs)]
    if stack[0].device.type not in _FUSED:
        decay = [member.weight_decay for member in members]
        steps = steps_per_pass(members[0].data.pairs.shape[1], members[0].params.batch_size)
        return StackedAdam(stack, lr, decay, steps).update

    def update_each(gradients: torch.Tensor) -> None:
        for adam, rate, gradient in zip(map(_adam, members), lr, gradients):
            adam.parameter.grad = gradient
            adam.update(rate)

    return update_each
