"""Hyperparameters of SimCLR. Imports no PyTorch, so that the command line starts quickly.

The source document is Liu Bin's dissertation ("thesis", chapter 6), whose image experiments train in the framework of
Chen et al., ICML 2020 ("SimCLR"). A parameter of some methods or losses only is None for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from workloads.common_params import AbsoluteFile, WorkloadParams
from workloads.conditional_params import OneOf
from workloads.contract import MID_RUN
from workloads.data.cache import local_path
from workloads.data.datasets import check, check_kind, dataset
from workloads.data.interactions.tables import is_path
from workloads.simclr.data_checks import (
    check_clusters,
    check_encoder,
    check_parts,
    check_probe,
    errors_of_probe,
    loss_settings,
)
from workloads.simclr.losses import CONDITIONAL, FEATURES, LOSSES, METHODS, OPTIMIZERS, TABLES, TIMM, combination_error

if TYPE_CHECKING:
    from workloads.data.images.splits import Parts
    from workloads.data.images.types import Images

Method: TypeAlias = Annotated[str, OneOf(METHODS)]
Loss: TypeAlias = Annotated[str, OneOf(LOSSES)]
OptimizerName: TypeAlias = Annotated[str, OneOf(OPTIMIZERS)]


def _known(name: str) -> str:
    if name not in FEATURES and not name.startswith(TIMM):
        expected = f"{', '.join(map(repr, FEATURES))} or '{TIMM}NAME'"
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return name


def _has_checksums(name: str) -> bool:
    entry = dataset(name)
    return bool(entry.files) and entry.verified


Encoder: TypeAlias = Annotated[str, AfterValidator(_known)]


class Params(WorkloadParams):
    """Parameters of SimCLR."""

    tables: ClassVar[Mapping[str, Mapping[str, Any]]] = TABLES
    conditional = CONDITIONAL

    dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, "images"))] = Field(
        default="synthetic-images", min_length=1, description="Images to learn from; `data list` has the names."
    )
    dataset_size: int | None = Field(
        default=None,
        ge=8,
        le=512,
        description="Side of the square that images are scaled and cut to, in pixels; unset: the source's own.",
    )
    dataset_corrupt: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="What an image that cannot be decoded does: end the run, or be left out and named.",
    )
    split_seed: int = Field(default=0, ge=0, description="Seed of the validation split: a tenth of each class' images.")

    encoder: Encoder | None = Field(
        default=None,
        description="resnet18, resnet34 or resnet50 (thesis 6.6.2.3), tiny, which is three convolutions, or timm/NAME, "
        "a model of the package timm, such as timm/vit_tiny_patch16_224; unset: resnet18, and tiny for the embedded "
        "images.",
    )
    encoder_weights: AbsoluteFile | None = Field(
        default=None,
        description="Absolute path of a safetensors file with the encoder's first weights; unset: random ones.",
    )
    stem: Literal["cifar", "imagenet"] | None = Field(
        default=None,
        description="First layer of a ResNet: cifar is 3x3 without pooling, for small images (SimCLR appendix B.9), "
        "imagenet 7x7 with it; unset: cifar for views below 96 pixels.",
    )
    projection: int | None = Field(
        default=None,
        ge=2,
        le=8192,
        description="Dimensions of the projection head, an MLP of one hidden layer (128: thesis 6.6.2.3).",
    )
    subvector: int | None = Field(
        default=None,
        ge=2,
        le=8192,
        description="DirectCLR (thesis 2.2.4.2): no head, the loss sees the first so many features; unset: a head.",
    )

    method: Method = Field(
        default="simclr",
        description="What a view is compared with; one of the methods listed with their sources.",
    )
    loss: Loss | None = Field(
        default=None,
        description="Of a positive and the method's negatives; one of the losses listed with their sources.",
    )
    temperature: float | None = Field(
        default=None, ge=1e-3, le=100,
        description="t, which divides every cosine (simclr 0.5: thesis 6.6.2.3; with a queue 0.1: MoCo's CIFAR demo).",
        json_schema_extra=MID_RUN,
    )  # fmt: skip
    queue: int | None = Field(
        default=None, ge=2, le=2**20, description="Keys of earlier batches that are the negatives (MoCo: 65,536)."
    )
    target_momentum: float | None = Field(
        default=None, ge=0, le=1,
        description="m of the target network, whose weights are m times their own plus 1 - m times the trained ones "
        "(MoCo: 0.999; BYOL: 0.996, which rises to 1 by half a cosine).",
        json_schema_extra=MID_RUN,
    )  # fmt: skip
    predictor: int | None = Field(
        default=None, ge=2, le=8192,
        description="Hidden units of byol's predictor, an MLP from embeddings to embeddings (BYOL: 4,096).",
    )  # fmt: skip
    clusters: int | None = Field(
        default=None, ge=2, le=2**20, description="Prototypes of the first clustering (PCL: 25,000 for ImageNet)."
    )
    granularities: int | None = Field(
        default=None, ge=1, le=8, description="Clusterings M, each of twice as many prototypes as the last (PCL: 3)."
    )
    concentration: Literal["estimated", "constant"] | None = Field(
        default=None,
        description="What divides a prototype's cosines: φ estimated from its cluster (PCL, eq. 12), or t for all.",
    )
    prototype_warmup: float | None = Field(
        default=None, ge=0, le=1, description="Share of the epochs trained without prototypes (PCL: 20 of 200 epochs)."
    )
    instance_weight: float | None = Field(
        default=None, ge=0, le=100,
        description="Weight of the term of instances next to that of prototypes (PCL: 1; thesis: 0).",
        json_schema_extra=MID_RUN,
    )  # fmt: skip
    tau: float | Literal["classes"] | None = Field(
        default=None,
        description="τ+ in [0, 1), share of the anchor's class among the negatives; classes: 1 / C (thesis table 6.7).",
        json_schema_extra=MID_RUN,
    )
    alpha: float | Literal["auc", "auc_literal"] | None = Field(
        default=None,
        description="α of bcl in [.5, 1], how well scores tell the classes; auc: from the AUC of validation images "
        "before each epoch (E-6.21), auc_literal: that AUC itself, as printed.",
        json_schema_extra=MID_RUN,
    )
    beta: float | Literal["classes"] | None = Field(
        default=None,
        description="β, hardness of negatives: for bcl in [0, 1], classes: 1 - 1 / C (thesis 6.6.4); for hcl from 0 "
        "(5.52; its code: 1).",
        json_schema_extra=MID_RUN,
    )

    ties: Literal["le", "mid"] | None = Field(
        default=None,
        description="Equal scores of bcl: le, all of them are below (6.30); mid, half of them, so that a collapsed "
        "encoder's negatives weigh 1 (E-6.30).",
    )

    optimizer: OptimizerName = Field(default="adam", description="One of the optimisers listed with their sources.")
    lr: float = Field(
        default=1e-3,
        gt=0,
        le=100,
        description="Learning rate after the warm-up (adam 0.001: thesis 6.6.2.3; lars 0.3 x batch / 256: SimCLR 2.2).",
        json_schema_extra=MID_RUN,
    )
    warmup: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the steps over which lr rises to its value (SimCLR: 10 of 1000 epochs).",
    )
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description="lr after the warm-up: to 0 by half a cosine (SimCLR 2.2), or as it is (thesis)."
    )
    weight_decay: float = Field(
        default=1e-6, ge=0, le=1, description="L2, not on biases and normalisations (SimCLR 2.2: 1e-6).",
        json_schema_extra=MID_RUN,
    )  # fmt: skip
    momentum: float | None = Field(default=None, ge=0, lt=1, description="Of sgd and lars (SimCLR's code: 0.9).")
    batch_size: int = Field(
        default=256, le=2**16, description="Images in a global batch, over all workers (thesis 6.6.3.2: 256)."
    )
    shuffle_buffer: int | None = Field(
        default=None, ge=4,
        description="Images in memory at a time, over all workers, if the dataset has more: blocks of them are "
        "shuffled, then the images of half the buffer, while the other half is read; unset: all, or 2 GiB of a dataset "
        "that is larger than half of the memory.",
    )  # fmt: skip

    view_size: int | None = Field(
        default=None,
        ge=8,
        le=512,
        description="Side of the views that train, in pixels; unset: the images'. Images are judged at their own.",
    )
    crop: float = Field(
        default=0.2, gt=0, le=1, description="Least area of a random crop (SimCLR: 0.08; CIFAR as common: 0.2)."
    )
    strength: float = Field(
        default=0.5, ge=0, le=2, description="Of the colour jitter (SimCLR: 1; on CIFAR 0.5, appendix B.9)."
    )
    blur: float = Field(
        default=0.0, ge=0, le=1, description="Share of views that are blurred (SimCLR: 0.5; on CIFAR 0, appendix B.9)."
    )
    channels_last: bool = Field(
        default=True,
        description="Keep images and weights channels last, the layout that tensor cores and oneDNN read: others are "
        "converted in each convolution. All recorded results have it.",
    )
    compile: bool | None = Field(
        default=None,
        description="Compile the model with torch.compile; unset: a ResNet on one GPU, where there are a C compiler "
        "and Python's headers. There, without micro-batches, steps are replayed as CUDA graphs.",
    )

    eval_k: int = Field(default=20, ge=1, le=10_000, description="Neighbours that vote in kNN.")
    eval_temperature: float = Field(
        default=0.1, ge=1e-3, le=100, description="Of a neighbour's vote e^(cos / t) (Wu et al., CVPR 2018: 0.07)."
    )
    eval_probe: Literal["always", "test", "never"] = Field(
        default="test",
        description="When a linear classifier is fitted (thesis 6.6.2.3): at each evaluation, on test only, never.",
    )
    probe_dataset: Annotated[str, AfterValidator(lambda name: check_kind(name, "images"))] | None = Field(
        default=None,
        description="Other images, on whose features a linear classifier is fitted and judged whenever eval_probe fits "
        "one: transfer_top1 and transfer_top5. They are scaled to the size of the images that train.",
    )
    eval_bank: int | None = Field(
        default=None, ge=2, le=2**22,
        description="Labelled training images, evenly spaced, that kNN and the linear classifier learn from, at most; "
        "unset: 200,000, whose features are in memory.",
    )  # fmt: skip
    eval_sample: int = Field(
        default=2048, ge=2, le=2**15,
        description="Images that alignment, uniformity, rank and the distributions of scores are measured on, at most.",
    )  # fmt: skip

    @field_validator("batch_size")
    @classmethod
    def _has_negatives(cls, value: int) -> int:
        """Check that a batch has negatives."""
        if value < 2:
            raise ValueError(
                f"batch_size={value} leaves an image no negatives: 2 x {value} - 2 of them. Set it to 2 or more"
            )
        return value

    @model_validator(mode="after")
    def _no_unused_parameter(self) -> Self:
        """Refuse parameters without effect, and a buffer that is too small."""
        if message := combination_error(self.model_dump()):
            raise ValueError(message)
        if self.shuffle_buffer is not None and self.shuffle_buffer < 2 * self.batch_size:
            raise ValueError(
                f"shuffle_buffer={self.shuffle_buffer} holds less than two batches of batch_size={self.batch_size}. "
                f"Set it to {2 * self.batch_size} or more"
            )
        return self

    @staticmethod
    def input_files(values: Mapping[str, Any]) -> dict[str, Path]:
        """The encoder's weights, and the folder of ``probe_dataset``."""
        weights, other = values.get("encoder_weights"), values.get("probe_dataset")
        own = {"encoder_weights": Path(weights)} if weights else {}
        return own | ({"probe_dataset": local_path(other)} if other and is_path(other) else {})

    def check_data(self, root: Path, holdout: bool = True) -> None:
        """Check before a start that the dataset has enough images and classes for these parameters.

        Datasets with checksums are not decoded for this, unless their size is that of the images of ``probe_dataset``.

        Raises:
            ValueError: there are too few; the message has their numbers. The encoder's package or weights are missing,
                or the weights are damaged.
            workloads.data.DataError: no image can be held out, or as for
                :func:`~workloads.data.images.load.load_images`.
        """
        check_encoder(self.encoder, self.encoder_weights)
        if not _has_checksums(self.dataset):  # others are large, and have several classes
            images, parts = self._split(self.dataset, root, self.dataset_size, holdout)
            train, validation, test = (len(part) for part in (parts.train, parts.validation, parts.test))
            check_parts(self.dataset, self.batch_size, train, validation, test, holdout)
            check_clusters(self.dataset, self.clusters, self.granularities, train)
            loss_settings(self.dataset, self.of_loss(), len(images.classes))
        if (other := self.probe_dataset) is None:
            return
        with errors_of_probe(other):
            check(other, root)
        if _has_checksums(other):
            return
        size = self.dataset_size or self._split(self.dataset, root, None, holdout)[0].size
        with errors_of_probe(other):
            images, parts = self._split(other, root, size, holdout)
        check_probe(other, int((images.train.labels[parts.train] >= 0).sum()), len(parts.test))

    def _split(self, name: str, root: Path, size: int | None, holdout: bool) -> tuple[Images, Parts]:
        from workloads.data.images.load import load_images
        from workloads.data.images.splits import split

        images = load_images(name, root, size, self.dataset_corrupt)
        return images, split(images, self.split_seed, holdout)

    def check_objectives(self, metrics: Sequence[str]) -> None:
        """Check that the classifiers of the objectives are fitted on validation.

        Raises:
            ValueError: one is not; the message names the parameters that fit it.
        """
        for metric in metrics:
            transfers = metric.startswith("transfer_top")
            lacking = ["eval_probe=always"] if self.eval_probe != "always" else []
            lacking += ["probe_dataset"] if transfers and self.probe_dataset is None else []
            if lacking and (transfers or metric.startswith("probe_top")):
                needed = " and ".join(lacking)
                raise ValueError(f"validation has no {metric} without {needed}. Set {needed}, or another objective")

    def check_accumulate(self) -> None:
        """Refuse micro-batches, since batch normalisation would use their statistics.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "accumulate=auto would change the result: batch normalisation uses the statistics of a micro-batch. "
            "Set accumulate=N to accept that, or a smaller batch_size"
        )

    def of_loss(self) -> dict[str, Any]:
        """Parameters of the loss, by name; empty for a method without one."""
        if self.loss is None:
            return {}
        return {"temperature": self.temperature} | {name: getattr(self, name) for name in LOSSES[self.loss].params}
