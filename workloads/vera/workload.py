"""The VERA workload: rank candidates, and say how probable it is that an answer is among the first k."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from workloads.checks import check_plan
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.encoders.optimisation import load_optimizer_state, optimizer_state
from workloads.losses.evidential import group_rates, quantile_groups
from workloads.schedule import Progress, steps_per_pass
from workloads.seeding import derive, generator, seeded
from workloads.vera.batches import batches, micro_batches
from workloads.vera.confidence import Ranked, confidence
from workloads.vera.dataset import prepare, split_training
from workloads.vera.evaluation import Choice, LabelledQueries, choose, evaluation
from workloads.vera.inference import FrozenFeatures, frozen_features, rank
from workloads.vera.loss_calls import NAMES, Counts, losses, weights
from workloads.vera.model import Retriever
from workloads.vera.params import Params as VeraParams
from workloads.vera.serving import servable
from workloads.vera.stages import Stage, Stages

_LEAST_IN_GROUP = 50  # queries (E-V1)
_HEAD = 2  # of the evidential head: what its weights mean


class Vera:
    """Learn to rank in a first stage, and when to trust the ranking in the next two.

    bf16 applies to the frozen encoder; backbone, heads, losses and metrics are float32.
    """

    Params: ClassVar[type[VeraParams]] = VeraParams
    objective: Objective = Objective("quality", "max")

    def __init__(self, params: VeraParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``; from the second time in a process on the data is there already.

        Raises:
            ValueError: the batch does not divide over the workers, there are too few queries, or it is a refit,
                which would choose k and the threshold on what it trains on.
            workloads.data.DataError: the dataset or the encoder is unknown, missing or damaged.
        """
        check_plan(params, runtime)
        self.params, self.runtime = params, runtime
        self.stages = Stages(params, runtime)
        self.data = prepare(params, runtime)
        self.ranked_by, self.calibrated_by = split_training(self.data, params, runtime.seed)
        self.model = Retriever(self.data, params, runtime.seed).to(runtime.device)
        self.model.backbone.scale_to(self.data.numbers[self.data.block(self.ranked_by).pool_row])
        self.replica = wrap(self.model, runtime)
        ranking = [*self.model.backbone.parameters(), *self.model.ranking.parameters()]
        groups = [{"params": ranking}, {"params": list(self.model.evidence.parameters())}]
        self.optimizer = torch.optim.AdamW(groups, lr=params.lr, weight_decay=params.weight_decay, fused=True)
        self.choice = Choice(params.eval_k if isinstance(params.eval_k, int) else 1)
        self._labels: dict[Split, LabelledQueries] = {}
        self._ranked: Ranked | None = None  # the validation part by the model as it is

    def train_epoch(self, epoch: int) -> Metrics:
        """As many steps in every stage: those of a pass over all training queries, or ``runtime.steps_per_epoch``.

        Returns:
            The mean ``loss`` of a step and its parts ``loss_rank``, ``loss_cand``, ``loss_query`` and ``loss_cons``,
            unweighted, 0 where they have no weight; the ``stage``, from 1; k and threshold as chosen after the epoch.
        """
        runtime, stage = self.runtime, self.stages.of(epoch)
        queries = self.calibrated_by if stage.calibrates else self.ranked_by
        size, total = self.params.batch_size, torch.zeros(len(NAMES), dtype=torch.float64, device=runtime.device)
        steps = runtime.steps_per_epoch or steps_per_pass(len(self.data.parts.train), size)
        again = not stage.backbone and steps * size > len(queries)
        known = frozen_features(self.model, self.data, queries) if again else None
        rates = self._rates(queries, known) if stage.query and self.params.query_target != "eps" else None
        self.model.train()
        self.model.backbone.train(stage.backbone > 0)  # frozen, it drops no units
        self._ranked = None
        with seeded(derive(runtime.seed, "dropout", epoch, runtime.rank), runtime.device):
            for step, batch in enumerate(batches(queries, size, steps, epoch, runtime.seed)):
                total += self._backward(batch, stage, rates, known)
                self._set_rates(stage, epoch - 1 + step / steps)
                clip_grad_norm_(self.model.parameters(), self.params.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
        means = reduce_sum(total) / steps
        loss = (means * weights(stage, runtime.device)).sum().item()
        self.stages.finish(epoch, loss)
        self._choose(stage)
        parts = {f"loss_{name}": value for name, value in zip(NAMES, means.tolist())}
        now = {"stage": float(stage.number), "k": float(self.choice.k), "threshold": self.choice.threshold}
        return {"loss": loss, **parts, **now}

    def _set_rates(self, stage: Stage, epochs: float) -> None:
        """Learning rates of the step that follows after so many epochs."""
        lr = self.params.lr * stage.lr * (stage.left(epochs) if self.params.lr_decay == "linear" else 1)
        for group, factor in zip(self.optimizer.param_groups, (stage.backbone, stage.evidence)):
            group["lr"], group["weight_decay"] = lr * factor, self.params.weight_decay

    def _backward(
        self, batch: NDArray[np.int64], stage: Stage, rates: torch.Tensor | None, known: FrozenFeatures | None
    ) -> torch.Tensor:
        """Gradients of a global batch; this rank's share of its losses, (4,), without a gradient."""
        data, runtime = self.data, self.runtime
        counts = Counts(len(batch), int(data.answerable(batch).sum()), int(data.pool.lengths[batch].sum()))
        found = torch.zeros(len(NAMES), device=runtime.device)
        parts = micro_batches(batch, runtime)
        for number, (queries, weight) in enumerate(parts, 1):
            block = data.block(queries)
            with nullcontext() if number == len(parts) else without_sync(self.replica):
                seen = None if known is None else known.of(queries)
                outputs = self.replica(data, block, stage.backbone > 0, stage.evidence > 0, seen)
                values = losses(outputs, block, self.params, stage, self.choice.k, rates, counts) * weight
                loss = (values * weights(stage, runtime.device)).sum() + outputs.anchor
                # DDP averages over ranks: with this factor, to the sum of their shares.
                torch.autograd.backward(loss * runtime.world_size)
            found += values.detach()
        return found

    def _rates(self, queries: NDArray[np.int64], known: FrozenFeatures | None) -> torch.Tensor:
        """p of each query's group under the model as it is, at the query's number, (Q,). E-V1."""
        params, ranked = self.params, rank(self.model, self.data, queries, self.params, self.runtime, known)
        labelled = LabelledQueries.of(self.data, queries)
        bins = min(params.group_bins or 1, max(1, len(queries) // _LEAST_IN_GROUP))
        if params.groups == "type":
            groups = torch.from_numpy(self.data.pool.type[queries]).to(self.runtime.device)
        else:
            groups = quantile_groups(confidence(ranked, self.choice.k, params), bins)
        found = group_rates(labelled.success(ranked, self.choice.k), groups).float()
        index = torch.from_numpy(queries).to(found.device)
        return found.new_full((len(self.data.pool.queries),), 0.5).index_put((index,), found)

    def _choose(self, stage: Stage) -> None:
        """Choose on validation what depends on the model as it is; k as long as no loss reads it."""
        labelled, ranked = self._labelled("validation"), self._rank("validation")
        settled = isinstance(self.params.eval_k, int) or stage.query > 0
        self.choice = choose(labelled, ranked, self.params, self.choice.k if settled else None)

    def evaluate(self, split: Split) -> Evaluation:
        """Rank the candidates of every query of the split; queries are shared out over the ranks."""
        labelled, ranked = self._labelled(split), self._rank(split)
        source = generator(self.runtime.seed, f"bootstrap {split}")
        return evaluation(labelled, ranked, self.params, self.choice, source, self.runtime.rank == 0)

    def _labelled(self, split: Split) -> LabelledQueries:
        if split not in self._labels:
            self._labels[split] = LabelledQueries.of(self.data, getattr(self.data.parts, split))
        return self._labels[split]

    def _rank(self, split: Split) -> Ranked:
        """Read a split; the validation part once for each state of the model."""
        if split == "validation" and self._ranked is not None:
            return self._ranked
        found = rank(self.model, self.data, self._labelled(split).queries, self.params, self.runtime)
        if split == "validation":
            self._ranked = found
        return found

    def state_dict(self) -> State:
        """Model, optimiser, stage, and what was chosen on validation. No stream position: it follows from the epoch."""
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "stages": asdict(self.stages.progress),
            "chosen": self.choice.state_dict(),
            "head": _HEAD,
        }

    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rates, weights of the losses and a k that is given stay those of the parameters.

        Raises:
            ValueError: the state belongs to another dataset, encoder, width or method, or to an earlier VERA.
        """
        if state.get("head") != _HEAD:
            raise ValueError(
                "the checkpoint is of another version of VERA, to whose evidential head the same weights mean "
                "something else. Start a new run"
            )
        try:
            self.model.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint does not fit dataset {self.params.dataset!r} with encoder {self.params.encoder!r}, "
                f"hidden={self.params.hidden} and method={self.params.method}: {str(error).splitlines()[0]}"
            ) from None
        load_optimizer_state(self.optimizer, self.model, state["optimizer"])
        self.stages.progress = Progress(**state["stages"])
        self.choice = Choice.from_state(state["chosen"], self.params)
        self._ranked = None

    def servable(self) -> Servable:
        """Encoder, model, k, threshold and map; candidates come with the input."""
        return servable(self.model, self.data, self.params, self.choice)
