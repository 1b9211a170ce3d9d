"""The SimCLR workload: an image encoder that learns from two views of each image, by one of several methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from workloads.augment import Draws, Recipe, normalise
from workloads.c_compiler import has_compiler
from workloads.checks import check_batch, check_split
from workloads.contract import Direction, Evaluation, Metrics, Objective, Runtime, Servable, Split, State, StepValues
from workloads.data.images.load import load_images
from workloads.data.images.resident import ImageData, ImagePart, fits_memory, prepare
from workloads.distributed import reduce_sum, share_rows, wrap
from workloads.encoders.image import TIMM, check_side
from workloads.encoders.optimisation import load_optimizer_state, optimizer_state, take_step
from workloads.initial_weights import copy_weights
from workloads.losses.contrastive import alpha_from_auc
from workloads.metrics.probe import false_negative_auc, linear_probe
from workloads.normalisation import synchronised
from workloads.precision import encoder_precision, fastest_convolutions
from workloads.seeding import derive, generator, seeded
from workloads.simclr.batches import Batch, batches, buffer_size, place, steps_per_pass
from workloads.simclr.data_checks import check_clusters, check_parts, check_probe, errors_of_probe, loss_settings
from workloads.simclr.evaluation import DIRECTIONS, EmbeddedViews, LabelledFeatures, evaluation, evenly_spaced, transfer
from workloads.simclr.losses import METHODS, default_stem
from workloads.simclr.methods import InBatch, MicroBatch
from workloads.simclr.model import SimCLR as Model
from workloads.simclr.optim import learning_rate, optimizer_of
from workloads.simclr.params import Params as SimCLRParams
from workloads.simclr.serving import servable, trained_name
from workloads.step_log import StepLog

ENCODED = 512
"""Number of images of 32 pixels encoded at once in evaluation; fewer of larger ones, by area."""

LEAST_ENCODED = {"cpu": 32, "cuda": 256}
"""Smallest number of images encoded at once: a GPU needs hundreds to be busy."""


BANK = 200_000
"""Most training images whose features kNN and the linear classifier learn from, unless ``eval_bank`` is set."""


def is_compiled(params: SimCLRParams, runtime: Runtime) -> bool:
    """Whether to compile the model: as set by the parameters, by default a ResNet on one GPU that has a C compiler."""
    if params.compile is not None:
        return params.compile
    alone = runtime.device.type == "cuda" and runtime.world_size == 1
    return alone and str(params.encoder).startswith("resnet") and has_compiler()


def is_replayed(runtime: Runtime) -> bool:
    """Whether a compiled step is replayed as CUDA graphs: by one GPU, without micro-batches.

    A graph's embeddings last until its next replay; gradient caching keeps those of all micro-batches.
    """
    return runtime.device.type == "cuda" and runtime.world_size == 1 and runtime.accumulate == 1


class SimCLR:
    """Learns image features without labels.

    Labels are used in evaluation, by the probe of the served model, by ``alpha=auc``, which calibrates BCL on the
    validation images, and by ``loss=supervised``. bf16 applies to encoder, head and predictor, also in evaluation;
    scores, loss and metrics are float32.
    """

    Params: ClassVar[type[SimCLRParams]] = SimCLRParams
    objective: Objective = Objective("knn_top1", "max")
    directions: ClassVar[Mapping[str, Direction]] = DIRECTIONS

    def __init__(self, params: SimCLRParams, runtime: Runtime) -> None:
        """Build on ``runtime.device``. Trials of one process share the images.

        Raises:
            ValueError: the batch size is not divisible by workers and micro-batches, or there are too few images to
                train or to evaluate on, or in ``probe_dataset``.
            workloads.data.DataError: the dataset is unknown, missing or damaged.
        """
        check_batch(params.batch_size, runtime, equal_parts=True)
        if params.queue is not None and params.batch_size == runtime.accumulate:  # a part has one view of each image
            raise ValueError(
                f"accumulate={runtime.accumulate} leaves one image in a part of batch_size={params.batch_size}, which "
                f"method={params.method} cannot normalise: two or more are needed. Set accumulate=1"
            )
        self.params, self.runtime = params, runtime
        images = load_images(params.dataset, runtime.data, params.dataset_size, params.dataset_corrupt)
        self.buffer = runtime.broadcast(buffer_size(params.shuffle_buffer, images, runtime.device))
        self.data = prepare(images, params.split_seed, runtime.holdout, runtime.device, self.buffer is not None)
        train, validation, test = map(len, (self.data.train, self.data.validation, self.data.test))
        check_parts(params.dataset, params.batch_size, train, validation, test, runtime.holdout)
        check_clusters(params.dataset, params.clusters, params.granularities, train)
        self.other: ImageData | None = None
        if params.probe_dataset is not None:
            with errors_of_probe(params.probe_dataset):
                others = load_images(params.probe_dataset, runtime.data, self.data.size, params.dataset_corrupt)
                too_large = not fits_memory(others, runtime.device)
                self.other = prepare(others, params.split_seed, runtime.holdout, runtime.device, too_large)
            check_probe(params.probe_dataset, int(self.other.train.labels.ge(0).sum()), len(self.other.test))
        self.settings = loss_settings(params.dataset, params.of_loss(), len(self.data.classes))
        view = params.view_size or self.data.size
        self.recipe = Recipe(view, self.data.size, scale=(params.crop, 1.0), strength=params.strength, blur=params.blur)
        params = self.params = params.model_copy(update={"stem": params.stem or default_stem(params.encoder, view)})
        layout = torch.channels_last if params.channels_last else torch.contiguous_format
        model = synchronised(Model(params, runtime.seed, view), runtime)
        if params.encoder is not None and params.encoder.startswith(TIMM):  # images are judged at their own size
            check_side(model.encoder, params.encoder, self.data.size)
        self.model = model.to(runtime.device).to(memory_format=layout)
        self.method: InBatch = METHODS[params.method].load()(params, runtime, self.model, self.data.train)
        if is_compiled(params, runtime):
            torch.compiler.reset()  # compilations of earlier trials of this process count towards a limit
            # inside DDP: PyTorch cannot compile DDP with SyncBatchNorm (pytorch#107372)
            self.model.compile(mode="reduce-overhead" if is_replayed(runtime) else None)
        self._steps = StepLog(runtime.log_every, runtime.device)
        self.replica = wrap(self.model, runtime)
        self.layout = layout
        self.optimizer = optimizer_of(self.model, params)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the images that cannot be decoded, of the dataset and of ``probe_dataset``."""
        other = self.other.skipped if self.other else ()
        return tuple(dict.fromkeys((*self.data.skipped, *other)))  # both may be one dataset

    @fastest_convolutions()  # batches have one shape
    def train_epoch(self, epoch: int) -> Metrics:
        """Train one pass, or ``runtime.steps_per_epoch`` steps of it.

        Returns:
            Mean ``loss`` per view, or per query of a method with a queue; ``learning_rate`` of the last step;
            ``negatives`` (N) and ``prototypes`` of a method that has them; ``temperature``, ``tau``, ``alpha`` and
            ``beta`` of a loss that has them; number of ``skipped`` images if that is allowed; ``shuffle_buffer`` if
            the images are shuffled in parts.
        """
        params = self.params
        runtime = self.runtime
        data = self.data
        steps = runtime.steps_per_epoch or steps_per_pass(len(data.train), params.batch_size)
        used = self._calibrated()
        self.method.begin(epoch, self._embeddings)
        lr = 0.0
        total = torch.zeros((), dtype=torch.float64, device=runtime.device)
        self.model.train()
        drawn = batches(data.train, self.recipe, params.batch_size, runtime, epoch, self.buffer)
        with seeded(runtime.seed, runtime.device):  # each micro-batch is seeded again
            for step, batch in enumerate(drawn, (epoch - 1) * steps):
                parts = self._micro_batches(place(batch.split(runtime.accumulate), self.recipe), step)
                share = self.method.backward(parts, self.replica, used)
                total += share
                self._steps.add(step + 1, share, 1 / runtime.world_size)
                lr = learning_rate(params, step, runtime.epochs * steps)
                take_step(self.optimizer, lr)
                self.method.end_step(min(1.0, (step + 1) / (runtime.epochs * steps)))
        loss = reduce_sum(total).item() / (steps * runtime.world_size)
        counts = {"skipped": len(self.skipped)} if params.dataset_corrupt == "skip" else {}
        if self.buffer is not None:
            counts["shuffle_buffer"] = self.buffer
        numbers = {name: value for name, value in used.items() if not isinstance(value, str)}
        return {"loss": loss, "learning_rate": lr, **self.method.counts, **numbers, **counts}

    def take_steps(self) -> Sequence[StepValues]:
        """The mean loss of each ``runtime.log_every`` steps."""
        return self._steps.take()

    def _micro_batches(self, parts: list[Batch], step: int) -> list[MicroBatch]:
        """One :class:`MicroBatch` per part of a step's batch.

        A single one is augmented once; several are augmented at each call, so that one is in memory at a time.
        """
        makers: list[Callable[[], torch.Tensor]] = [partial(part.views, self.recipe, self.layout) for part in parts]
        if len(parts) == 1:
            views = makers[0]()
            makers = [lambda: views]
        runtime = self.runtime
        seeds = [derive(runtime.seed, f"dropout {number}", step + 1, runtime.rank) for number in range(len(parts))]
        return [MicroBatch(make, part.places, seed) for make, part, seed in zip(makers, parts, seeds)]

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
        evaluated = evaluation(self.bank(), seen, self._views(part), self.data.classes, self.params, with_probe)
        further = self._transfer(split) if with_probe else {}
        metrics = self.runtime.broadcast({**evaluated.metrics, **further})
        if self.runtime.rank:
            return Evaluation(metrics)
        left_out = {"skipped": {"image": np.array(self.skipped)}} if self.skipped else {}
        return Evaluation(metrics, evaluated.units, {**evaluated.tables, **left_out})

    def bank(self, part: ImagePart | None = None, shared: bool = True) -> LabelledFeatures:
        """Features of the training images that classifiers learn from. A collective, unless ``shared`` is False.

        ``part``: by default the training part. They are evenly spaced where there are more than ``eval_bank``.
        """
        return self._labelled(self.data.train if part is None else part, shared, self.params.eval_bank or BANK)

    def _labelled(self, part: ImagePart, shared: bool = True, most: int | None = None) -> LabelledFeatures:
        """Features of labelled images of a part, all or ``most`` of them. A collective if ``shared``."""
        rows = part.labels.ge(0).nonzero().squeeze(1)
        if most is not None and len(rows) > most:
            rows = rows[evenly_spaced(len(rows), most).to(rows.device)]
        return LabelledFeatures(self.features(part, rows.cpu(), shared=shared), part.labels[rows])

    def _transfer(self, split: Split) -> dict[str, float]:
        """Accuracies of a linear classifier on the images of ``probe_dataset``. A collective."""
        if self.other is None:
            return {}
        part = self.other.test if split == "test" else self.other.validation
        return transfer(self.bank(self.other.train), self._labelled(part), len(self.other.classes))

    @torch.no_grad()
    def _views(self, part: ImagePart) -> EmbeddedViews:
        """Embeddings of two views of some labelled images, with fixed draws. A collective."""
        rows = part.labels.ge(0).nonzero().squeeze(1)
        rows = rows[evenly_spaced(len(rows), self.params.eval_sample).to(rows.device)]
        draws = self.recipe.draw(2 * len(rows), generator(self.runtime.seed, "evaluation"))
        first, second = (
            self.model.project(self.features(part, rows.cpu(), half))
            for half in (draws[: len(rows)], draws[len(rows) :])
        )
        return EmbeddedViews(first, second, part.labels[rows])

    @torch.no_grad()
    def _embeddings(self, model: Model) -> torch.Tensor:
        """Embeddings (n, d) by a model of all training images, without augmentation. A collective."""
        train = self.data.train
        return model.project(self.features(train, torch.arange(len(train)), model=model))

    @torch.no_grad()
    def features(
        self,
        part: ImagePart,
        rows: torch.Tensor,
        draws: Draws | None = None,
        shared: bool = True,
        model: Model | None = None,
    ) -> torch.Tensor:
        """Encoder output (n, d) float32, with running statistics; of augmented views if ``draws`` are given.

        The blocks of images are the same for any number of ranks, and so is the result.

        Args:
            part: the part of the images.
            rows: positions in the part, (n,), on the CPU.
            draws: draws of n views; None for images without augmentation.
            shared: whether ranks share the work, which makes this a collective.
            model: whose encoder it is; None for the trained one.
        """
        model = self.model if model is None else model
        runtime = self.runtime
        rank, ranks = (runtime.rank, runtime.world_size) if shared else (0, 1)
        least = LEAST_ENCODED.get(runtime.device.type, 32)
        at_once = min(ENCODED, max(least, ENCODED * 32**2 // self.data.size**2))
        starts = range(0, len(rows), at_once)
        shares = [len(starts) * number // ranks * at_once for number in range(ranks)] + [len(rows)]
        blocks = [slice(start, min(start + at_once, len(rows))) for start in starts]
        own = [block for block in blocks if shares[rank] <= block.start < shares[rank + 1]]
        features = torch.empty(len(rows), self.model.features, device=runtime.device)
        model.eval()
        for block, images in zip(own, part.stream(rows[block] for block in own)):
            inputs = normalise(images) if draws is None else self.recipe.apply(images, draws[block], self.layout)
            with encoder_precision(runtime):
                features[block] = model.encoder(inputs.contiguous(memory_format=self.layout))
        if ranks > 1:
            share_rows(features, [end - start for start, end in pairwise(shares)])
        return features

    def state_dict(self) -> State:
        """State of model, optimiser and method, on the device, not copied.

        The data stream follows from the epoch and ``shuffle_buffer``, which depends on the machine if it is unset.
        """
        state: State = {"model": self.model.state_dict(), "optimizer": optimizer_state(self.optimizer, self.model)}
        if kept := self.method.state_dict():
            state["method"] = kept
        if self.buffer is not None:
            state["shuffle_buffer"] = self.buffer
        return state

    def load_state_dict(self, state: State) -> None:
        """Copy a state. Learning rate, weight decay and the loss' settings are those of the parameters.

        The order of the images is that of the state, on any machine, unless ``shuffle_buffer`` is set.

        Raises:
            ValueError: the state is of another encoder, head, method or workload.
        """
        own = _shapes(self.state_dict())
        shapes = _shapes(state)
        if wrong := [name for name in {**own, **shapes} if own.get(name) != shapes.get(name)]:
            params = self.params
            raise ValueError(
                f"the checkpoint does not fit: {wrong[0]} is {shapes.get(wrong[0], 'missing')} there and "
                f"{own.get(wrong[0], 'missing')} with method={params.method}, encoder={params.encoder}, projection="
                f"{params.projection}, subvector={params.subvector}"
            )
        self.model.load_state_dict(state["model"])
        load_optimizer_state(self.optimizer, self.model, state["optimizer"])
        self.method.load_state_dict(state.get("method", {}))
        if self.params.shuffle_buffer is None:
            self.buffer = state.get("shuffle_buffer")

    def load_weights(self, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Start from encoder, head and predictor of another model; a target network begins as a copy of them.

        Raises:
            ValueError: they differ in layers.
        """
        own = {trained_name(name): value for name, value in weights.items() if not name.startswith("classifier.")}
        copy_weights(self.model, own)
        self.method = METHODS[self.params.method].load()(self.params, self.runtime, self.model, self.data.train)

    def servable(self) -> Servable:
        """The encoder, with a linear classifier fitted on features of the labelled training images."""
        classifier = None
        if self.params.eval_probe != "never":
            bank = self.bank(shared=False)
            classifier = linear_probe(bank.features, bank.labels, classes=len(self.data.classes))
        example = self.data.train.take(torch.arange(2)).cpu()
        return servable(self.model, self.params, self.data.classes, self.data.size, classifier, example)


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of model and method, by name; () of a number."""
    method = dict(state.get("method", {}))
    values = {**state.get("model", {}), **{f"target.{name}": value for name, value in method.pop("target", {}).items()}}
    return {name: tuple(getattr(value, "shape", ())) for name, value in {**values, **method}.items()}
