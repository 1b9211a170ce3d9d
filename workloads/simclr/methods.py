"""Methods: what the views of an image are compared with, the loss of a step, and what is kept from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from workloads import gradient_cache
from workloads.clustering import kmeans
from workloads.conditional_params import required
from workloads.contract import Runtime, State
from workloads.data.images.resident import ImagePart
from workloads.distributed import gather
from workloads.losses.prototypes import byol_loss, concentrations, prototype_loss
from workloads.precision import encoder_precision
from workloads.scores import false_negatives, two_view_scores
from workloads.seeding import derive, generator
from workloads.simclr.losses import LOSSES
from workloads.simclr.model import SimCLR as Model
from workloads.simclr.model import Target
from workloads.simclr.params import Params

Settings: TypeAlias = dict[str, Any]
"""Parameters of the loss in an epoch, by keyword."""


class MicroBatch(NamedTuple):
    """A micro-batch: a function of its views (2b, 3, S, S), first views first, and its images' positions (b,).

    ``seed``: of what the networks draw, as some models of timm do, such as Swin, which drops paths.
    """

    make: Callable[[], torch.Tensor]
    places: torch.Tensor
    seed: int


class InBatch:
    """SimCLR: the negatives of a view are both views of all other images of the batch, over all workers."""

    def __init__(self, params: Params, runtime: Runtime, model: Model, train: ImagePart) -> None:
        """Of a model before its first step.

        Args:
            train: the training images; only ``loss=supervised`` uses their labels.
        """
        self.params = params
        self.runtime = runtime
        self.train = train
        self.row = None if params.loss is None else LOSSES[params.loss]

    @property
    def counts(self) -> dict[str, float]:
        """Metrics of an epoch that are counts: the negatives of an anchor."""
        return {"negatives": 2 * self.params.batch_size - 2}

    def begin(self, epoch: int, embeddings: Callable[[Model], torch.Tensor]) -> None:
        """Prepare an epoch. A collective.

        Args:
            embeddings: computes the embeddings (n, d) of all training images, without augmentation, by a model.
        """

    def backward(self, parts: Sequence[MicroBatch], replica: nn.Module, used: Settings) -> torch.Tensor:
        """Compute the gradients of a step.

        Args:
            parts: this rank's micro-batches.
            replica: the model, in DistributedDataParallel or not.
            used: parameters of the loss.

        Returns:
            The loss of this rank, detached; the mean over ranks, which DDP takes of gradients, is that of the batch.
        """
        labels = self._labels(parts)
        encoded = [partial(self._pairs, part, replica) for part in parts]
        return gradient_cache.backward(encoded, partial(self.loss, used=used, labels=labels), replica)

    def end_step(self, done: float) -> None:
        """Follow an update of the weights; ``done`` is the share of the run's steps that are made."""

    def loss(self, pairs: torch.Tensor, used: Settings, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Mean loss of this rank's views as anchors.

        Args:
            pairs: this rank's embeddings of both views, (b, 2, d); others' are gathered, with gradients.
            labels: classes of all images of the batch, (B,), for a loss that takes true negatives.
        """
        rank = self.runtime.rank
        ranks = self.runtime.world_size
        own = len(pairs)
        views = gather(pairs, [own] * ranks).transpose(0, 1).flatten(0, 1)
        images = torch.arange(rank * own, (rank + 1) * own, device=views.device)
        anchors = torch.cat([images, images + ranks * own])
        positive, negatives = two_view_scores(views, anchors)
        if labels is not None:
            negatives = negatives.masked_fill(false_negatives(labels.repeat(2), anchors), -torch.inf)
        losses: torch.Tensor = required(self.row).load()(positive, negatives, **used)
        return losses.mean()

    def state_dict(self) -> State:
        """What is kept from step to step; empty if nothing is."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Copy a state of :meth:`state_dict`, of the same shapes."""

    def _labels(self, parts: Sequence[MicroBatch]) -> torch.Tensor | None:
        """Classes of all images of the batch over all ranks, (B,), if the loss takes them."""
        if self.row is None or not self.row.labelled:
            return None
        own = self.train.labels[self._places(parts)]
        return gather(own, [len(own)] * self.runtime.world_size)

    def _places(self, parts: Sequence[MicroBatch]) -> torch.Tensor:
        """Positions in the training part of this rank's images, (b,), on the device."""
        return torch.cat([part.places for part in parts])

    def _pairs(self, part: MicroBatch, replica: nn.Module) -> torch.Tensor:
        """Embeddings, or predictions, of both views of a micro-batch, (b, 2, d)."""
        return _paired(self._encode(replica, part.make(), part.seed))

    def _encode(self, network: Callable[[torch.Tensor], torch.Tensor], views: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)  # gradient caching encodes a micro-batch twice, which must draw the same
        with encoder_precision(self.runtime):
            return network(views)


class Bootstrap(InBatch):
    """BYOL: a predictor learns the target network's embedding of the other view; there are no negatives."""

    def __init__(self, params: Params, runtime: Runtime, model: Model, train: ImagePart) -> None:
        super().__init__(params, runtime, model, train)
        self.target = Target(model)

    @property
    def counts(self) -> dict[str, float]:
        """None: there are no negatives."""
        return {}

    def backward(self, parts: Sequence[MicroBatch], replica: nn.Module, used: Settings) -> torch.Tensor:
        """As for :class:`InBatch`."""
        others = torch.cat([_paired(self._encode(self.target, part.make(), part.seed + 1)).flip(1) for part in parts])
        encoded = [partial(self._pairs, part, replica) for part in parts]
        return gradient_cache.backward(encoded, partial(_mean_byol_loss, others=others), replica)

    def end_step(self, done: float) -> None:
        """Move the target by the momentum at ``done``, which rises to 1 by half a cosine. BYOL, 3.2."""
        momentum = required(self.params.target_momentum)
        self.target.follow(1 - (1 - momentum) * (math.cos(math.pi * done) + 1) / 2)

    def state_dict(self) -> State:
        """The target network."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Copy a state of :meth:`state_dict`."""
        self.target.load_state_dict(state["target"])


class Queue(InBatch):
    """MoCo: an image's first view is the query, its second the key, by the momentum encoder; negatives are a queue.

    The queue holds the keys of earlier batches, over all workers; it begins with random directions. Any loss of
    positives and negatives can take them.
    """

    def __init__(self, params: Params, runtime: Runtime, model: Model, train: ImagePart) -> None:
        super().__init__(params, runtime, model, train)
        size = required(params.projection or params.subvector)
        length = required(params.queue)
        self.target = Target(model)
        drawn = torch.randn(length, size, generator=generator(runtime.seed, "queue"))
        self.queue = functional.normalize(drawn, dim=1).to(runtime.device)
        self.classes = torch.full((length,), -1, device=runtime.device)
        self.pointer = 0

    @property
    def counts(self) -> dict[str, float]:
        """Metrics of an epoch that are counts: the negatives of an anchor."""
        return {"negatives": len(self.queue)}

    def backward(self, parts: Sequence[MicroBatch], replica: nn.Module, used: Settings) -> torch.Tensor:
        """As for :class:`InBatch`; the keys enter the queue after the loss."""
        keys = torch.cat([self._encode(self.target, _halves(part.make())[1], part.seed + 1) for part in parts])
        labels = self._labels(parts)
        encoded = [partial(self._queries, part, replica) for part in parts]
        loss_of = partial(self.query_loss, keys=keys, parts=parts, used=used, labels=labels)
        loss = gradient_cache.backward(encoded, loss_of, replica)
        self._enqueue(keys, labels)
        return loss

    def end_step(self, done: float) -> None:
        """Move the momentum encoder. He et al., CVPR 2020, eq. 2."""
        self.target.follow(required(self.params.target_momentum))

    def query_loss(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        parts: Sequence[MicroBatch],
        used: Settings,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean loss of this rank's queries.

        Args:
            queries: (b, d).
            keys: of the same images, (b, d), constants.
            parts: this rank's micro-batches.
            used: parameters of the loss.
            labels: classes of all images of the batch, (B,), for a loss that takes true negatives.
        """
        positive = (queries * keys).sum(1)
        negatives = queries @ self.queue.T
        if labels is not None:
            first = self.runtime.rank * len(queries)
            own = labels[first : first + len(queries)].unsqueeze(1)
            negatives = negatives.masked_fill((own == self.classes) & (own >= 0), -torch.inf)
        losses: torch.Tensor = required(self.row).load()(positive, negatives, **used)
        return losses.mean()

    def state_dict(self) -> State:
        """The momentum encoder, the queue with its images' classes, and where the next keys go."""
        kept = {"target": self.target.state_dict(), "queue": self.queue, "pointer": self.pointer}
        return {**kept, "classes": self.classes} if self.row is not None and self.row.labelled else kept

    def load_state_dict(self, state: State) -> None:
        """Copy a state of :meth:`state_dict`."""
        self.target.load_state_dict(state["target"])
        self.queue.copy_(state["queue"])
        self.pointer = int(state["pointer"])
        if "classes" in state:
            self.classes.copy_(state["classes"])

    def _queries(self, part: MicroBatch, replica: nn.Module) -> torch.Tensor:
        return self._encode(replica, _halves(part.make())[0], part.seed)

    def _enqueue(self, keys: torch.Tensor, labels: torch.Tensor | None) -> None:
        """Replace the oldest keys by those of all ranks."""
        entering = gather(keys, [len(keys)] * self.runtime.world_size)
        rows = (self.pointer + torch.arange(len(entering), device=keys.device)) % len(self.queue)
        self.queue.index_copy_(0, rows, entering.float())
        if labels is not None:
            self.classes.index_copy_(0, rows, labels)
        self.pointer = (self.pointer + len(entering)) % len(self.queue)


class Clustering(NamedTuple):
    """Prototypes (k, d) of length one, the prototype of each training image (n,), and each one's φ (k,)."""

    prototypes: torch.Tensor
    members: torch.Tensor
    concentrations: torch.Tensor


class Prototypes(Queue):
    """ProtoNCE: to MoCo's term a second is added, whose classes are clusters of the momentum encoder's embeddings.

    They are found before each epoch (the E-step), in several granularities, and are not part of the state: the next
    epoch's follow from the momentum encoder.
    """

    def __init__(self, params: Params, runtime: Runtime, model: Model, train: ImagePart) -> None:
        super().__init__(params, runtime, model, train)
        self.sizes = [required(params.clusters) * 2**each for each in range(required(params.granularities))]
        self.warmup = required(params.prototype_warmup) * runtime.epochs
        self.clusterings: list[Clustering] = []

    @property
    def counts(self) -> dict[str, float]:
        """Metrics of an epoch that are counts: negatives of an anchor, and prototypes."""
        return {**super().counts, "prototypes": sum(len(each.prototypes) for each in self.clusterings)}

    @torch.no_grad()
    def begin(self, epoch: int, embeddings: Callable[[Model], torch.Tensor]) -> None:
        """Cluster the training images. As for :class:`InBatch`."""
        self.clusterings = []
        if epoch <= self.warmup:
            return
        points = embeddings(self.target.network)
        temperature = required(self.params.temperature)
        for number, size in enumerate(self.sizes):
            centres, members = kmeans(points, size, derive(self.runtime.seed, "clusters", epoch, number))
            if self.params.concentration == "estimated":
                phi = concentrations(points, centres, members, temperature)
            else:
                phi = torch.full_like(centres[:, 0], temperature)
            self.clusterings.append(Clustering(functional.normalize(centres, dim=1), members, phi))

    def query_loss(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        parts: Sequence[MicroBatch],
        used: Settings,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As for :class:`Queue`, with the term of prototypes after the warm-up. PCL, eq. 11."""
        instances = required(self.params.instance_weight) * super().query_loss(queries, keys, parts, used, labels)
        if not self.clusterings:
            return instances
        places = self._places(parts)
        prototypes, members, phi = zip(*self.clusterings, strict=True)
        return instances + prototype_loss(queries, prototypes, [each[places] for each in members], phi).mean()


def _paired(embeddings: torch.Tensor) -> torch.Tensor:
    """(b, 2, d) of embeddings (2b, d), first views first."""
    return embeddings.view(2, len(embeddings) // 2, -1).transpose(0, 1)


def _mean_byol_loss(pairs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Of predictions and targets, (b, 2, d) each."""
    return byol_loss(pairs.flatten(0, 1), others.flatten(0, 1)).mean()


def _halves(views: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second views, (b, 3, S, S) each."""
    return views[: len(views) // 2], views[len(views) // 2 :]
