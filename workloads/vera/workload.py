"""The VERA workload: ranks candidates and estimates the probability that an answer is among the first k."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_

from workloads.checks import check_plan
from workloads.contract import Direction, Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.distributed import reduce_sum, without_sync, wrap
from workloads.encoders.optimisation import load_optimizer_state, optimizer_state
from workloads.encoders.sources import TINY
from workloads.initial_weights import check_tokenizer, copy_weights
from workloads.losses.evidential import group_rates, quantile_groups
from workloads.schedule import Progress, steps_per_pass
from workloads.seeding import derive, generator, seeded
from workloads.step_log import StepLog
from workloads.vera.abstention import abstention_table, scored
from workloads.vera.batches import batches, micro_batches
from workloads.vera.confidence import Ranked, confidence
from workloads.vera.dataset import prepare, split_training
from workloads.vera.evaluation import DIRECTIONS, Choice, LabelledQueries, choose, evaluation
from workloads.vera.inference import MASKS, FrozenFeatures, frozen_features, rank
from workloads.vera.loss_calls import NAMES, Counts, losses, weights
from workloads.vera.model import Retriever
from workloads.vera.params import Params as VeraParams
from workloads.vera.serving import ENCODER, servable
from workloads.vera.stages import Stage, Stages

_LEAST_IN_GROUP = 50  # queries (E-V1)
_HEAD = 2  # version of the evidential head's parametrisation


class Vera:
    """Learns to rank in the first stage, and to estimate the ranking's reliability in the next two.

    bf16 applies to the encoder; backbone, heads, losses and metrics are float32.
    """

    Params: ClassVar[type[VeraParams]] = VeraParams
    objective: Objective = Objective("quality", "max")
    directions: ClassVar[Mapping[str, Direction]] = DIRECTIONS

    def __init__(self, params: VeraParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. The prepared data is cached in the process.

        Raises:
            ValueError: the batch size is not divisible by the number of workers, there are too few queries, or this is
                a refit: it trains on the validation part, where k and the threshold are chosen.
            workloads.data.DataError: the dataset or the encoder is unknown, missing or damaged.
        """
        check_plan(params, runtime)
        self.params = params
        self.runtime = runtime
        self.stages = Stages(params, runtime)
        self.data = prepare(params, runtime)
        self.data = replace(self.data, graph=params.graph_layers > 0)
        if params.encoder_lr is not None:
            self.data = self.data.tokenised()
        self.ranked_by, self.calibrated_by = split_training(self.data, params, runtime.seed)
        self.model = Retriever(self.data, params, runtime.seed).to(runtime.device)
        self.model.backbone.scale_to(self.data.numbers[self.data.block(self.ranked_by).pool_row])
        self.replica = wrap(self.model, runtime)
        self._step_log = StepLog(runtime.log_every, runtime.device)
        encoder = self.model.backbone.encoder
        trained = {} if encoder is None else dict.fromkeys(encoder.parameters())
        ranking = [*self.model.backbone.parameters(), *self.model.ranking.parameters()]
        groups = [
            {"params": [each for each in ranking if each not in trained]},
            {"params": list(self.model.evidence.parameters())},
            *([{"params": list(trained)}] if trained else []),
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=params.lr, weight_decay=params.weight_decay, fused=True)
        self.choice = Choice(params.eval_k if isinstance(params.eval_k, int) else 1)
        self._labels: dict[Split, LabelledQueries] = {}
        self._ranked: Ranked | None = None  # of the validation part; None after the weights change

    def train_epoch(self, epoch: int) -> Metrics:
        """Train for the steps of one pass over all training queries, in every stage, or ``runtime.steps_per_epoch``.

        Returns:
            The mean ``loss`` of a step and its unweighted parts ``loss_rank``, ``loss_cand``, ``loss_query`` and
            ``loss_cons``, 0 for those without weight; ``stage``, from 1; ``k`` and ``threshold`` as chosen after the
            epoch.
        """
        runtime = self.runtime
        stage = self.stages.of(epoch)
        if epoch == 1 and stage.query:
            self._choose()  # the loss needs k
        queries = self.calibrated_by if stage.calibrates else self.ranked_by
        size = self.params.batch_size
        total = torch.zeros(len(NAMES), dtype=torch.float64, device=runtime.device)
        steps = runtime.steps_per_epoch or steps_per_pass(len(self.data.parts.train), size)
        repeats = steps * size > len(queries)
        cached = frozen_features(self.model, self.data, queries) if repeats and not stage.backbone else None
        rates = self._rates(queries, cached) if stage.query and self.params.query_target != "eps" else None
        self.model.train()
        self.model.backbone.train(stage.backbone > 0)  # a frozen backbone has no dropout
        self._ranked = None
        with seeded(derive(runtime.seed, "dropout", epoch, runtime.rank), runtime.device):
            for step, batch in enumerate(batches(queries, size, steps, epoch, runtime.seed)):
                shares = self._backward(batch, stage, rates, cached)
                total += shares
                if runtime.log_every:
                    loss_share = (shares * weights(stage, runtime.device)).sum()
                    self._step_log.add((epoch - 1) * steps + step + 1, loss_share)
                self._set_rates(stage, epoch - 1 + step / steps)
                clip_grad_norm_(self.model.parameters(), self.params.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
        means = reduce_sum(total) / steps
        loss = (means * weights(stage, runtime.device)).sum().item()
        self.stages.finish(epoch, loss)
        if stage.backbone:
            self._embed()
        self._choose(settled=stage.query > 0)
        parts = {f"loss_{name}": value for name, value in zip(NAMES, means.tolist())}
        current = {"stage": float(stage.number), "k": float(self.choice.k), "threshold": self.choice.threshold}
        return {"loss": loss, **parts, **current}

    def take_steps(self) -> list[StepValues]:
        """The mean weighted loss of each ``runtime.log_every`` steps."""
        return self._step_log.take()

    def _set_rates(self, stage: Stage, epochs: float) -> None:
        """Set the learning rates of the step after ``epochs`` epochs, a fraction."""
        params = self.params
        decay = stage.left(epochs) if params.lr_decay == "linear" else 1
        factors = (params.lr * stage.backbone, params.lr * stage.evidence, (params.encoder_lr or 0) * stage.backbone)
        for group, factor in zip(self.optimizer.param_groups, factors):
            group["lr"], group["weight_decay"] = factor * stage.lr * decay, params.weight_decay

    def _embed(self) -> None:
        """Compute the vectors of all texts by the encoder as it is now, if it is trained."""
        if self.model.backbone.encoder is not None:
            self.data = self.data.embedded(self.model.backbone.encoder, self.runtime)

    def _backward(
        self, batch: NDArray[np.int64], stage: Stage, rates: torch.Tensor | None, cached: FrozenFeatures | None
    ) -> torch.Tensor:
        """Compute the gradients of a global batch. Returns this rank's share of its losses, (4,), detached."""
        data = self.data
        runtime = self.runtime
        counts = Counts(len(batch), int(data.answerable(batch).sum()), int(data.pool.lengths[batch].sum()))
        total = torch.zeros(len(NAMES), device=runtime.device)
        parts = micro_batches(batch, runtime)
        for number, (queries, weight) in enumerate(parts, 1):
            block = data.block(queries)
            with nullcontext() if number == len(parts) else without_sync(self.replica):
                head_inputs = None if cached is None else cached.of(queries)
                outputs = self.replica(data, block, stage.backbone > 0, stage.evidence > 0, head_inputs)
                values = losses(outputs, block, self.params, stage, self.choice.k, rates, counts) * weight
                loss = (values * weights(stage, runtime.device)).sum() + outputs.anchor
                # DDP averages over ranks; the factor makes this the sum of their shares.
                torch.autograd.backward(loss * runtime.world_size)
            total += values.detach()
        return total

    def _rates(self, queries: NDArray[np.int64], cached: FrozenFeatures | None) -> torch.Tensor:
        """The success rate p of each query's group under the current model, (Q,). E-V1."""
        params = self.params
        ranked = rank(self.model, self.data, queries, params, self.runtime, cached)
        labelled = LabelledQueries.of(self.data, queries)
        bins = min(params.group_bins or 1, max(1, len(queries) // _LEAST_IN_GROUP))
        if params.groups == "type":
            groups = torch.from_numpy(self.data.pool.type[queries]).to(self.runtime.device)
        else:
            groups = quantile_groups(confidence(ranked, self.choice.k, params), bins)
        rates = group_rates(labelled.success(ranked, self.choice.k), groups).float()
        index = torch.from_numpy(queries).to(rates.device)
        return rates.new_full((len(self.data.pool.queries),), 0.5).index_put((index,), rates)

    def _choose(self, settled: bool = False) -> None:
        """Choose the settings on validation for the current model. ``settled``: keep k, since a loss uses it."""
        keep = settled or isinstance(self.params.eval_k, int)
        labelled = self._labelled("validation")
        self.choice = choose(labelled, self._rank("validation"), self.params, self.choice.k if keep else None)

    def evaluate(self, split: Split) -> Evaluation:
        """Rank the candidates of every query of the split. The ranks share the work."""
        labelled = self._labelled(split)
        ranked = self._rank(split)
        source = generator(self.runtime.seed, f"bootstrap {split}")
        return evaluation(labelled, ranked, self.params, self.choice, source, self.runtime.rank == 0)

    def _labelled(self, split: Split) -> LabelledQueries:
        if split not in self._labels:
            self._labels[split] = LabelledQueries.of(self.data, getattr(self.data.parts, split))
        return self._labels[split]

    def _rank(self, split: Split) -> Ranked:
        """Rank a split. The validation part is cached until the weights change."""
        if split == "validation" and self._ranked is not None:
            return self._ranked
        ranked = rank(self.model, self.data, self._labelled(split).queries, self.params, self.runtime)
        if split == "validation":
            self._ranked = ranked
        return ranked

    def state_dict(self) -> State:
        """Model, optimiser, stage, and the settings chosen on validation. The data position follows from the epoch."""
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "stages": asdict(self.stages.progress),
            "chosen": self.choice.state_dict(),
            "head": _HEAD,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a state. Learning rates, weights of the losses and a fixed k come from the parameters.

        Raises:
            ValueError: the state is of another dataset, encoder, width or method, or of an earlier version of VERA.
        """
        if state.get("head") != _HEAD:
            raise ValueError(
                "the checkpoint is of another version of VERA, whose evidential head uses its weights differently. "
                "Start a new run"
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
        self._embed()
        self._ranked = None

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start from another model, on the same encoder if it is frozen, with k, threshold and map chosen for it here.

        Raises:
            ValueError: the frozen encoder is another one, or the layers differ.
        """
        if self.model.backbone.encoder is not None:
            check_tokenizer(self.data.tokenizer.definition, config.get("tokenizer"), self.params.encoder)
            weights = {re.sub(r"^encoder\.", f"{ENCODER}model.", name): value for name, value in weights.items()}
        else:
            frozen = self.data.encoder.model.state_dict()
            given = {
                name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")
            }
            if given.keys() != frozen.keys() or any(not torch.equal(frozen[n].cpu(), given[n]) for n in given):
                why = ", whose weights depend on the seed" if self.params.encoder == TINY else ""
                raise ValueError(
                    f"the weights do not fit: their frozen encoder is another {self.params.encoder!r}{why}"
                )
        other = ("encoder.", "map", "abstention.")
        copy_weights(self.model, {name: value for name, value in weights.items() if not name.startswith(other)})
        self._embed()
        self._ranked = None
        self._choose()  # the weights may be evaluated and registered as epoch 0

    def servable(self) -> Servable:
        """Encoder, model, k, threshold and map. The candidates come with the input."""
        table = None
        if self.runtime.abstention_part:
            alone = replace(self.runtime, rank=0, world_size=1)  # other ranks do not take part
            data = self.data.in_fp32(self.params.encoder, self.model.backbone.encoder, alone)
            part, validation = (
                scored(rank(self.model, data, queries, self.params, alone), data, queries)
                for queries in (self.data.abstention, self.data.parts.validation)
            )
            table = abstention_table(part, validation, self.params, self.choice.k, self.runtime.abstention_part)
        mask_seed = derive(self.runtime.seed, MASKS)
        return servable(self.model, self.data, self.params, self.choice, mask_seed, table)
