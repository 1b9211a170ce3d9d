"""The recommender workload: matrix factorisation or LightGCN on sampled negatives, and baselines in closed form."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from workloads.checks import check_batch, check_limits, check_split
from workloads.contract import Direction, Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.data import load_interactions
from workloads.data.interactions.load import variant_identity
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.initial_weights import check_shapes
from workloads.memory import available_bytes
from workloads.recommender import packed
from workloads.recommender.adam import Adam
from workloads.recommender.backbones import BACKBONES, table_memory_error, weight_decay
from workloads.recommender.baselines import IALS, Baseline
from workloads.recommender.batches import Batch, Draws, batches, choice
from workloads.recommender.calibration import Calibration, Calibrator
from workloads.recommender.data_checks import check_block
from workloads.recommender.dataset import History, sampled_users
from workloads.recommender.epoch_metrics import EpochMetrics
from workloads.recommender.evaluation import DIRECTIONS, evaluation, rank_users
from workloads.recommender.graph_contrast import GraphContrast
from workloads.recommender.loss_calls import Scores, loss_settings
from workloads.recommender.losses import LOSSES
from workloads.recommender.model import LightGCN, MatrixFactorisation, normal, xavier
from workloads.recommender.params import Params as RecommenderParams
from workloads.recommender.samplers import sampler
from workloads.recommender.scorers import Factors, Scorer
from workloads.recommender.sgd import INITIAL, BatchedSGD, SequentialSGD
from workloads.recommender.shared import prepare_on_node
from workloads.schedule import steps_per_pass
from workloads.seeding import derive
from workloads.step_log import StepLog


class Recommender:
    """Rank a user's unseen items, learning from its interactions.

    bf16 applies to LightGCN's propagation only, where it halves the memory traffic. Tables, optimiser, scores and
    evaluation are float32. Matrix factorisation multiplies no matrices in training and ignores it.
    """

    Params: ClassVar[type[RecommenderParams]] = RecommenderParams
    objective: Objective = Objective("ndcg_at_20", "max", refit=True)
    directions: Mapping[str, Direction] = DIRECTIONS

    def __init__(self, params: RecommenderParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``; the data is loaded once per process.

        Raises:
            ValueError: the batch does not divide over the workers, there is nothing to train on, the table or a
                baseline does not fit into memory, or a baseline has to be trained in parts.
            workloads.data.DataError: the dataset is unknown, missing or damaged.
        """
        check_limits(params.limits, runtime)
        if BACKBONES[params.backbone].learnt:
            check_batch(params.batch_size, runtime)
        self.params = params
        self.runtime = runtime
        variant = (params.dataset, runtime.data, params.split, params.dataset_noise, params.dataset_min_rating)
        interactions = load_interactions(*variant)
        identity = variant_identity(*variant)
        self.data = prepare_on_node(interactions, params.split_seed, runtime.holdout, runtime.device, identity)
        if self.data.pairs.shape[1] == 0:
            raise ValueError(f"dataset {params.dataset!r} has no interaction that a negative item exists for")
        self.step_log = StepLog(runtime.log_every, runtime.device)
        self.baseline: Baseline | None = None
        if BACKBONES[params.backbone].learnt:
            values = params.model_dump()
            available = available_bytes(runtime.device)
            if message := table_memory_error(values, self.data.n_users, self.data.n_items, available):
                raise ValueError(message)
            self._build_learnt(params, runtime)
        else:
            self.baseline = BACKBONES[params.backbone].load()(params, runtime, self.data)

    def _build_learnt(self, params: RecommenderParams, runtime: Runtime) -> None:
        """Model, optimiser and sampler of a backbone that is trained on sampled negatives."""
        self.weight_decay = weight_decay(params.weight_decay, params.optimizer, self.data.n_users)
        if params.optimizer == "adam":
            initial = xavier(self.data.n_users, self.data.n_items, params.dim, runtime.seed)
        else:
            initial = normal(self.data.n_users + self.data.n_items, params.dim, INITIAL, runtime.seed)
        initial = initial.to(runtime.device)
        if params.backbone == "lightgcn":
            dtype = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
            self.model: MatrixFactorisation = LightGCN(initial, self.data.graph, params.layers, dtype)
        else:
            self.model = MatrixFactorisation(initial)
        if params.optimizer == "sgd":
            table = self.model.embedding.detach()
            self.optimizer: Adam | BatchedSGD | SequentialSGD = SequentialSGD(
                params, runtime, self.data, table, self.weight_decay
            )
        else:
            kind = Adam if params.optimizer == "adam" else BatchedSGD
            self.optimizer = kind(self.model.embedding, self.weight_decay)
        self.replica = wrap(self.model, runtime)
        self.contrast: GraphContrast | None = None
        if params.contrast is not None:
            assert isinstance(self.model, LightGCN)  # checked by Params
            self.contrast = GraphContrast(params, self.data, self.model, runtime.seed)
        negatives, extras = LOSSES[params.loss].counts(params.model_dump())
        self.draws = Draws(sampler(params, self.data, runtime.data), negatives, extras, of_item=params.loss == "gbpr")
        self.settings = loss_settings(params, self.data.density)
        self.liked = self.data.liked("planted") if LOSSES[params.loss].true_negatives else None
        self.calibrate = Calibrator(params, runtime, self.data, self.settings, self.embeddings)

    def pack_shape(self) -> Hashable | None:
        """A key that is equal for matrix factorisations that can be trained together."""
        return packed.shape(self.params, self.runtime, self.data)

    def pack_bytes(self) -> int:
        """Stacked table and moments, next to the member's own until they are replaced, gradient and update."""
        return 0 if self.baseline is not None else 5 * self.model.embedding.nbytes

    @classmethod
    def pack_size(cls, params: RecommenderParams, device: torch.device) -> int:
        """The number of members that is worthwhile."""
        return packed.size(params, device)

    @classmethod
    def pack(cls, members: Sequence[Recommender]) -> packed.RecommenderPack:
        """Build a pack."""
        return packed.RecommenderPack(members)

    def train_epoch(self, epoch: int) -> Metrics:
        """One pass, or ``runtime.steps_per_epoch`` steps of one.

        Returns:
            The mean ``loss`` of an interaction; with ``quality`` also ``tnr`` and ``inf`` of the negatives; with
            planted truth ``fnr``, the share of the negatives that their users like; with planted truth or injected
            noise ``fpr``, the weighted share of false interactions; depending on the loss ``clamped`` (dpl),
            ``alpha`` (bcl calibrated by the AUC) and ``ks`` (bprac on matrix factorisation); with graph contrastive
            learning ``contrast``, the mean of its weighted term over the steps. Of the baselines ials alone has a
            ``loss``.

        Raises:
            MemoryError: the scores of ``sampler=in_batch`` do not fit into a CPU's memory.
        """
        if self.baseline is not None:
            return self.baseline.train_epoch(epoch)
        params = self.params
        runtime = self.runtime
        data = self.data
        check_block(params.model_dump(), data.pairs.shape[1], runtime)
        lr = self.learning_rate(epoch)
        if isinstance(self.optimizer, SequentialSGD):
            calibrated = self.calibrate(epoch)
            return {**self.optimizer.train_epoch(epoch, lr, calibrated.weights), **calibrated.metrics}
        if self.draws.sampler.dynamic:
            table = self.model.embeddings().detach()
            self.draws.sampler.begin(table, epoch, derive(runtime.seed, "memory", epoch))
        calibrated = self.calibrate(epoch)
        if isinstance(self.optimizer, Adam):
            self.optimizer.weight_decay = self.weight_decay * calibrated.mean_weight  # (3.29) weighs both terms
        if self.contrast is not None:
            self.contrast.begin(self.model.embedding, epoch)
        measured = EpochMetrics(params, data, runtime)
        steps = runtime.steps_per_epoch or steps_per_pass(data.pairs.shape[1], params.batch_size)
        drawn = batches(data, self.draws, params.batch_size, runtime, epoch)
        for step, batch in enumerate(drawn, (epoch - 1) * steps):
            parts = batch.split(runtime.accumulate)
            for part in parts:
                with nullcontext() if part is parts[-1] else without_sync(self.replica):
                    losses, nodes = self._losses(part, epoch, step, calibrated, measured)
                    loss = cost = losses.sum()
                    over = batch.size
                    if self.contrast is not None:
                        term = self.contrast(self.model.embedding, part)
                        measured.add_contrast(term, part.parts)
                        cost = cost + term * batch.size
                    if isinstance(self.optimizer, BatchedSGD):
                        cost = cost + self.optimizer.penalty(nodes, calibrated.of(part.rows))
                        over = 1
                    # DDP averages over ranks: this factor gives the mean (or sum) over the global batch.
                    torch.autograd.backward(cost * (runtime.world_size / over))
                measured.add(losses, loss)
                self.step_log.add(step + 1, loss, 1 / batch.size, last=part is parts[-1])
            self.optimizer.update(lr)
        return {**measured.metrics(), **calibrated.metrics}

    def take_steps(self) -> list[StepValues]:
        """The mean loss of each ``runtime.log_every`` steps."""
        return self.step_log.take()

    def _losses(
        self, part: Batch, epoch: int, step: int, calibrated: Calibration, measured: EpochMetrics
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each interaction of a micro-batch, (b,), and its nodes, (1 + n, b)."""
        extras = self.draws.extras
        sampler = self.draws.sampler
        choose = choice(self.draws, part, epoch, self.data.n_users)
        shared = (part.items, sampler.masked(part.nodes[0], part.items - self.data.n_users)) if sampler.shared else None
        scores, nodes = self.replica(part.nodes, choose, extras if self.draws.of_item else 0, shared)
        positive, extra, negative = scores.split([1, extras, len(scores) - 1 - extras])
        if measured.needs_negatives or self.liked is not None:
            items = nodes[2 + extras :] if shared is None else part.items.unsqueeze(1).expand(-1, len(part.rows))
            items = items - self.data.n_users
            if self.liked is not None:
                negative = negative.masked_fill(self.liked.contains(nodes[0].expand_as(items), items), -torch.inf)
            measured.add_negatives(positive[0], negative, nodes[0], items)
        if sampler.log_q is not None:
            log_q = sampler.log_q * calibrated.settings["temperature"]  # the loss divides scores by it
            positive = positive - log_q.index_select(0, nodes[1] - self.data.n_users)
            negative = negative - log_q.index_select(0, part.items - self.data.n_users).unsqueeze(1)
        batch_scores = Scores(positive.squeeze(0), extra.T, negative.T, step)
        losses = LOSSES[self.params.loss].compute(batch_scores, calibrated.settings)
        weights = calibrated.of(part.rows)
        return losses if weights is None else losses * weights, nodes

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch (from 1) after decay."""
        return self.params.lr * self.params.lr_decay ** ((epoch - 1) // self.params.lr_decay_every)

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        """Rank all candidates of each user that has items in the split; users are divided over the ranks.

        On validation ``eval_users`` users are ranked, if it is set.
        Candidates exclude the user's train items and, on test, its validation items.

        Raises:
            ValueError: the validation split of a refit, which has been trained on.
        """
        relevant, excluded = self.ranking_targets(split)
        runtime = self.runtime
        rank = runtime.rank
        cutoffs = self.params.cutoffs
        scorers = [self.scorer(excluded)]
        values, lists = rank_users(scorers, relevant, excluded, rank, runtime.world_size, runtime.epochs, cutoffs)
        return evaluation(reduce_sum(values[0]), reduce_sum(lists[0]), relevant, self.data.popularity, rank, cutoffs)

    def scorer(self, known: History) -> Scorer:
        """The model's scores of users whose items are ``known``, which item_knn and ease score from."""
        return self.embeddings().only(known.numbers) if self.baseline is None else self.baseline.scorer(known)

    def embeddings(self) -> Factors:
        """Final embeddings of users (U, d) and items (I, d)."""
        return Factors(*torch.split(self.model.embeddings(), [self.data.n_users, self.data.n_items]))

    @cached_property
    def _validated(self) -> tuple[History, History]:
        """Items of the validation part and of training: of all users, or of a sample of ``eval_users``."""
        relevant = self.data.validation
        if self.params.eval_users is None:
            return relevant, self.data.train
        chosen = sampled_users(relevant, self.params.eval_users, self.params.split_seed)
        return relevant.only(chosen), self.data.train.only(chosen)

    def ranking_targets(self, split: Split) -> tuple[History, History]:
        """The relevant items and the items excluded from the candidates."""
        if split == "test":
            return self.data.test, self.data.seen
        check_split(split, self.runtime)
        return self._validated

    def state_dict(self) -> State:
        """The table, Adam's moments, held credences and the sampler's memory (srns), on the device and not copied.

        There is no stream position: it follows from the epoch.
        """
        if self.baseline is not None:
            return self.baseline.state_dict()
        state: State = {"embedding": self.model.embedding.detach()}
        if isinstance(self.optimizer, Adam):
            state["adam"] = self.optimizer.state_dict()
        if self.calibrate.held is not None:
            state["credence"] = self.calibrate.held
        if memory := self.draws.sampler.state_dict():
            state["sampler"] = memory
        return state

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rate and weight decay come from the parameters.

        Raises:
            ValueError: the state belongs to another dataset, dim or workload.
        """
        if self.baseline is not None:
            self._load_baseline(state)
            return
        shape = getattr(state.get("embedding"), "shape", None)
        if shape != self.model.embedding.shape:
            raise ValueError(
                f"the checkpoint does not fit: its embedding has shape {shape and tuple(shape)}, dataset "
                f"{self.params.dataset!r} with dim={self.params.dim} has {tuple(self.model.embedding.shape)}"
            )
        self.model.embedding.copy_(state["embedding"])
        if isinstance(self.optimizer, Adam):
            self.optimizer.load_state_dict(state["adam"])
        held = state.get("credence")
        self.calibrate.held = None if held is None else held.to(self.runtime.device, copy=True)
        if "sampler" in state:
            self.draws.sampler.load_state_dict(state["sampler"])

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start from the table of another model of the same users and items, of either learnt backbone.

        Raises:
            ValueError: one of the backbones has no such table, or users, items or dim differ.
        """
        if self.baseline is not None:
            raise ValueError(f"backbone={self.params.backbone} is computed from the data, from no initial weights")
        if config["backbone"] == "mf" and "users" in weights:
            table = torch.cat([weights["users"], weights["items"]])
        elif "embedding" in weights:
            table = weights["embedding"]
        else:
            raise ValueError(f"the weights do not fit: a model of backbone={config['backbone']} has no trainable table")
        check_shapes({"embedding": self.model.embedding.shape}, {"embedding": table.shape})
        for name in ("user_ids", "item_ids"):
            own = getattr(self.data, name)
            stored = weights.get(name)
            if own is None or stored is None:
                equal = own is None and stored is None
            else:
                equal = torch.equal(_plain(own), stored)
            if not equal:
                raise ValueError(
                    f"the weights do not fit: their {name} are those of dataset {config['dataset']!r}, not of "
                    f"{self.params.dataset!r}"
                )
        self.model.embedding.copy_(table)

    def _load_baseline(self, state: State) -> None:
        assert self.baseline is not None
        for name, tensor in self.baseline.state_dict().items():
            shape = getattr(state.get(name), "shape", None)
            if shape != tensor.shape:
                raise ValueError(
                    f"the checkpoint does not fit: its {name} has shape {shape and tuple(shape)}, "
                    f"backbone={self.params.backbone} on dataset {self.params.dataset!r} has {tuple(tensor.shape)}"
                )
            tensor.copy_(state[name])

    @torch.no_grad()
    def servable(self) -> Servable:
        """What scores come from, what each user has seen (train and validation) and the items' popularity."""
        data = self.data
        some = np.flatnonzero(data.seen.counts)[:3]
        config: dict[str, Any] = {"dataset": self.params.dataset, "backbone": self.params.backbone}
        if isinstance(self.baseline, IALS):
            config["fold_in"] = self.baseline.fold_in()
        weights = {
            **(self.embeddings()._asdict() if self.baseline is None else self.baseline.served()),
            "seen_indptr": torch.from_numpy(data.seen.indptr),
            "seen_items": data.seen.items.int(),
            "popularity": torch.bincount(data.seen.items, minlength=data.n_items),
            **{name: _plain(ids) for name in ("user_ids", "item_ids") if (ids := getattr(data, name)) is not None},
        }
        return Servable(
            predictor=Path(__file__).with_name("predictor.py"),
            weights=weights,
            training={"embedding": self.model.embedding} if self.params.backbone == "lightgcn" else {},
            config=config,
            example={"user": _names(some, data.user_ids)},
            alternatives={"history": _histories(data.seen, some, data.item_ids)},
            params={"k": 20, "exclude_seen": True, "unknown": "popular"},
            requirements=("numpy", "pandas"),
        )


def _histories(seen: History, users: np.ndarray[Any, Any], ids: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Up to five items of each user, as the source names them: lists, in an array of objects."""
    lists = np.empty(len(users), object)
    for row, user in enumerate(users):
        first, last = seen.indptr[user : user + 2]
        lists[row] = _names(seen.items[first:last][:5].cpu().numpy(), ids).tolist()
    return lists


def _plain(ids: np.ndarray[Any, Any]) -> torch.Tensor:
    """Ids as a tensor: int64, or text as rows of bytes."""
    return torch.from_numpy(ids.view("u1").reshape(len(ids), -1).copy() if ids.dtype.kind == "S" else ids.copy())


def _names(numbers: np.ndarray[Any, Any], ids: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    if ids is None:
        return numbers
    return np.char.decode(ids[numbers], "utf-8") if ids.dtype.kind == "S" else ids[numbers]
