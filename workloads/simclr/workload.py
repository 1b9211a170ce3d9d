"""The SimCLR workload: an image encoder trained to recognise the other view of an image among those of all others."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from workloads import gradient_cache
from workloads.augment import Draws, Recipe, normalise
from workloads.checks import check_batch, check_split
from workloads.contract import Evaluation, Metrics, Objective, Runtime, Servable, Split, State
from workloads.data.images.load import load_images
from workloads.data.images.resident import Part, prepare
from workloads.distributed import gather, reduce_sum, share_rows, wrap
from workloads.losses.contrastive import alpha_from_auc
from workloads.metrics.probe import false_negative_auc, linear_probe
from workloads.normalisation import synchronised
from workloads.precision import fastest_convolutions
from workloads.scores import two_view_scores
from workloads.seeding import generator
from workloads.simclr.batches import Batch, batches, place, steps_per_pass
from workloads.simclr.data_checks import check_parts, loss_settings
from workloads.simclr.evaluation import LabelledFeatures, Views, evaluation, evenly_spaced
from workloads.simclr.losses import LOSSES, default_stem
from workloads.simclr.model import SimCLR as Model
from workloads.simclr.optim import Optimizer, learning_rate
from workloads.simclr.params import Params as SimCLRParams
from workloads.simclr.serving import servable

ENCODED = 512
"""Number of images of 32 pixels encoded at once in evaluation; fewer of larger ones, by area."""

LEAST_ENCODED = {"cpu": 32, "cuda": 256}
"""Smallest number of images encoded at once: a GPU needs hundreds to be busy."""


def is_compiled(params: SimCLRParams, runtime: Runtime) -> bool:
    """Whether to compile the model: as set by the parameters, by default a ResNet on one GPU."""
    if params.compile is not None:
        return params.compile
    return runtime.device.type == "cuda" and params.encoder != "tiny" and runtime.world_size == 1


class SimCLR:
    """Learns image features without labels.

    Labels are used in evaluation, by the probe of the served model, and by ``alpha=auc``, which calibrates BCL on the
    validation images. bf16 applies to encoder and head, also in evaluation; scores, loss and metrics are float32.
    """

    Params: ClassVar[type[SimCLRParams]] = SimCLRParams
    objective: Objective = Objective("knn_top1", "max")

    def __init__(self, params: SimCLRParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. Trials of one process share the images.

        Raises:
            ValueError: the batch size is not divisible by workers and micro-batches, or there are too few images to
                train or to evaluate on.
            workloads.data.DataError: the dataset is unknown, missing or damaged.
        """
        check_batch(params.batch_size, runtime, equal_parts=True)
        self.params, self.runtime = params, runtime
        images = load_images(params.dataset, runtime.data, params.dataset_size, params.dataset_corrupt)
        self.data = prepare(images, params.split_seed, runtime.holdout, runtime.device)
        train, validation, test = map(len, (self.data.train, self.data.validation, self.data.test))
        check_parts(params.dataset, params.batch_size, train, validation, test, runtime.holdout)
        self.settings = loss_settings(params.dataset, params.of_loss(), len(self.data.classes))
        view = params.view_size or self.data.size
        self.recipe = Recipe(view, self.data.size, scale=(params.crop, 1.0), strength=params.strength, blur=params.blur)
        params = self.params = params.model_copy(update={"stem": params.stem or default_stem(params.encoder, view)})
        layout = torch.channels_last if params.channels_last else torch.contiguous_format
        model = synchronised(Model(params, runtime.seed), runtime)
        self.model = model.to(runtime.device).to(memory_format=layout)
        if is_compiled(params, runtime):
            torch.compiler.reset()  # compilations of earlier trials of this process count towards a limit
            self.model.compile()  # inside DDP: PyTorch cannot compile DDP with SyncBatchNorm (pytorch#107372)
        self.replica = wrap(self.model, runtime)
        self.layout = layout
        self.optimizer = Optimizer(self.model, params)

    @fastest_convolutions()  # batches have one shape
    def train_epoch(self, epoch: int) -> Metrics:
        """Train one pass, or ``runtime.steps_per_epoch`` steps of it.

        Returns:
            Mean ``loss`` per view; ``negatives`` (N), ``temperature``, ``learning_rate`` of the last step; for some
            losses the values of ``tau``, ``alpha`` and ``beta``; number of ``skipped`` images if that is allowed.
        """
        params = self.params
        runtime = self.runtime
        data = self.data
        steps = runtime.steps_per_epoch or steps_per_pass(len(data.train), params.batch_size)
        used = self._calibrated()
        lr = 0.0
        total = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self.model.train()
        drawn = batches(data.train, self.recipe, params.batch_size, runtime, epoch)
        for step, batch in enumerate(drawn, (epoch - 1) * steps):
            parts = [partial(self._embed, part) for part in place(batch.split(runtime.accumulate), self.recipe)]
            total += gradient_cache.backward(parts, partial(self._loss, used=used), self.replica)
            lr = learning_rate(params, step, runtime.epochs * steps)
            self.optimizer.step(lr)
        loss = reduce_sum(total).item() / (steps * runtime.world_size)
        skipped = {"skipped": len(data.skipped)} if params.dataset_corrupt == "skip" else {}
        numbers = {name: value for name, value in used.items() if not isinstance(value, str)}
        return {"loss": loss, "learning_rate": lr, "negatives": 2 * params.batch_size - 2, **numbers, **skipped}

    def _embed(self, batch: Batch) -> torch.Tensor:
        """Embeddings of both views, (b, 2, d)."""
        views = batch.views(self.recipe, self.layout)
        with self._precision():
            embeddings: torch.Tensor = self.replica(views)
        return embeddings.view(2, len(batch), -1).transpose(0, 1)

    def _loss(self, pairs: torch.Tensor, used: dict[str, Any]) -> torch.Tensor:
        """Mean loss of this rank's views. The mean over ranks, which DDP takes of gradients, is that of all views.

        Args:
            pairs: this rank's embeddings, (b, 2, d); those of other ranks are gathered, with gradients.
        """
        rank = self.runtime.rank
        ranks = self.runtime.world_size
        own = len(pairs)
        views = gather(pairs, [own] * ranks).transpose(0, 1).flatten(0, 1)
        images = torch.arange(rank * own, (rank + 1) * own, device=views.device)
        anchors = torch.cat([images, images + ranks * own])
        positive, negatives = two_view_scores(views, anchors)
        losses: torch.Tensor = LOSSES[self.params.loss].load()(positive, negatives, **used)
        return losses.mean()

    def _calibrated(self) -> dict[str, Any]:
        """Parameters of the loss in this epoch, with α from the model's current AUC (E-6.21). A collective."""
        if self.settings.get("alpha") not in ("auc", "auc_literal"):
            return self.settings
        views = self._views(self.data.validation if self.runtime.holdout else self.data.train)
        auc = false_negative_auc(views.first, views.labels).item()
        alpha = alpha_from_auc(auc, literal=self.settings["alpha"] == "auc_literal")
        return {**self.settings, "alpha": self.runtime.broadcast(alpha)}

    @torch.no_grad()
    def evaluate(self, split: Split) -> Evaluation:
        """Evaluate features by the labelled training images. Ranks share the work.

        Raises:
            ValueError: the validation split of a refit, which is training data.
        """
        check_split(split, self.runtime)
        part = self.data.test if split == "test" else self.data.validation
        with_probe = self.params.eval_probe == "always" or (self.params.eval_probe == "test" and split == "test")
        seen = LabelledFeatures(self.features(part, torch.arange(len(part))), part.labels)
        evaluated = evaluation(self.labelled(), seen, self._views(part), self.data.classes, self.params, with_probe)
        metrics = self.runtime.broadcast(dict(evaluated.metrics))
        if self.runtime.rank:
            return Evaluation(metrics)
        left_out = {"skipped": {"image": np.array(self.data.skipped)}} if self.data.skipped else {}
        return Evaluation(metrics, evaluated.units, {**evaluated.tables, **left_out})

    def labelled(self, shared: bool = True) -> LabelledFeatures:
        """Features of all labelled training images. A collective, unless ``shared`` is False."""
        train = self.data.train
        rows = train.labels.ge(0).nonzero().squeeze(1)
        return LabelledFeatures(self.features(train, rows.cpu(), shared=shared), train.labels[rows])

    @torch.no_grad()
    def _views(self, part: Part) -> Views:
        """Embeddings of two views of some labelled images, with fixed draws. A collective."""
        rows = part.labels.ge(0).nonzero().squeeze(1)
        rows = rows[evenly_spaced(len(rows), self.params.eval_sample).to(rows.device)]
        draws = self.recipe.draw(2 * len(rows), generator(self.runtime.seed, "evaluation"))
        first, second = (
            self.model.project(self.features(part, rows.cpu(), half))
            for half in (draws[: len(rows)], draws[len(rows) :])
        )
        return Views(first, second, part.labels[rows])

    @torch.no_grad()
    def features(self, part: Part, rows: torch.Tensor, draws: Draws | None = None, shared: bool = True) -> torch.Tensor:
        """Encoder output (n, d) float32, with running statistics; of augmented views if ``draws`` are given.

        The blocks of images are the same for any number of ranks, and so is the result.

        Args:
            part: the part of the images.
            rows: positions in the part, (n,), on the CPU.
            draws: draws of n views; None for images without augmentation.
            shared: whether ranks share the work, which makes this a collective.
        """
        runtime = self.runtime
        rank, ranks = (runtime.rank, runtime.world_size) if shared else (0, 1)
        least = LEAST_ENCODED.get(runtime.device.type, 32)
        at_once = min(ENCODED, max(least, ENCODED * 32**2 // self.data.size**2))
        starts = range(0, len(rows), at_once)
        shares = [len(starts) * number // ranks * at_once for number in range(ranks)] + [len(rows)]
        blocks = [slice(start, min(start + at_once, len(rows))) for start in starts]
        own = [block for block in blocks if shares[rank] <= block.start < shares[rank + 1]]
        features = torch.empty(len(rows), self.model.features, device=runtime.device)
        self.model.eval()
        for block, images in zip(own, part.stream(rows[block] for block in own)):
            inputs = normalise(images) if draws is None else self.recipe.apply(images, draws[block], self.layout)
            with self._precision():
                features[block] = self.model.encoder(inputs.contiguous(memory_format=self.layout))
        if ranks > 1:
            share_rows(features, [end - start for start, end in pairwise(shares)])
        return features

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.runtime.device.type, torch.bfloat16, enabled=self.runtime.precision == "bf16")

    def state_dict(self) -> State:
        """State of model and optimiser, on the device and not copied. The data stream follows from the epoch."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rate, weight decay and the loss' settings are those of the parameters.

        Raises:
            ValueError: the state is of another encoder, head or workload.
        """
        own = {name: tuple(value.shape) for name, value in self.model.state_dict().items()}
        shapes = {name: tuple(getattr(value, "shape", ())) for name, value in state.get("model", {}).items()}
        if wrong := [name for name in {**own, **shapes} if own.get(name) != shapes.get(name)]:
            raise ValueError(
                f"the checkpoint does not fit: {wrong[0]} is {shapes.get(wrong[0], 'missing')} there and "
                f"{own.get(wrong[0], 'missing')} with encoder={self.params.encoder}, projection="
                f"{self.params.projection}, subvector={self.params.subvector}"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def servable(self) -> Servable:
        """The encoder, with a linear classifier fitted on features of the labelled training images."""
        classifier = None
        if self.params.eval_probe != "never":
            bank = self.labelled(shared=False)
            classifier = linear_probe(bank.features, bank.labels, classes=len(self.data.classes))
        example = self.data.train.take(torch.arange(2)).cpu()
        return servable(self.model, self.params, self.data.classes, self.data.size, classifier, example)
