"""Hyperparameters of SimCLR. Imports no PyTorch, so that the command line starts quickly.

The source document is Liu Bin's dissertation ("thesis", chapter 6), whose image experiments train in the framework of
Chen et al., ICML 2020 ("SimCLR"). A parameter of some losses only is None for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from workloads.common_params import WorkloadParams
from workloads.conditional_params import OneOf
from workloads.contract import MID_RUN
from workloads.data.datasets import check_kind, dataset
from workloads.simclr.data_checks import check_parts, loss_settings
from workloads.simclr.losses import CONDITIONAL, LOSSES, OPTIMIZERS, combination_error

Loss: TypeAlias = Annotated[str, OneOf(LOSSES)]
OptimizerName: TypeAlias = Annotated[str, OneOf(OPTIMIZERS)]


class Params(WorkloadParams):
    """Parameters of SimCLR."""

    tables: ClassVar[Mapping[str, Mapping[str, Any]]] = {"loss": LOSSES, "optimizer": OPTIMIZERS}
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

    encoder: Literal["tiny", "resnet18", "resnet34", "resnet50"] | None = Field(
        default=None,
        description="ResNet of that depth (thesis 6.6.2.3: resnet50) or three convolutions; unset: resnet18, and tiny "
        "for the embedded images.",
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

    loss: Loss = Field(
        default="infonce",
        description="Of 2N - 2 negatives; one of the losses listed with their sources.",
    )
    temperature: float = Field(
        default=0.5, ge=1e-3, le=100, description="t, which divides every cosine (0.5: thesis 6.6.2.3).",
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
        "converted in each convolution. All recorded results have it; no GPU has been measured yet.",
    )
    compile: bool | None = Field(
        default=None, description="Compile the model with torch.compile; unset: a ResNet on one GPU."
    )

    eval_k: int = Field(default=20, ge=1, le=10_000, description="Neighbours that vote in kNN.")
    eval_temperature: float = Field(
        default=0.1, ge=1e-3, le=100, description="Of a neighbour's vote e^(cos / t) (Wu et al., CVPR 2018: 0.07)."
    )
    eval_probe: Literal["always", "test", "never"] = Field(
        default="test",
        description="When a linear classifier is fitted (thesis 6.6.2.3): at each evaluation, on test only, never.",
    )
    eval_sample: int = Field(
        default=2048, ge=2, le=2**15,
        description="Images that alignment, uniformity and the distributions of scores are measured on, at most.",
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
        """Refuse parameters without effect."""
        if message := combination_error(self.model_dump()):
            raise ValueError(message)
        return self

    def check_data(self, root: Path, holdout: bool = True) -> None:
        """Check before a start that the dataset has enough images and classes for these parameters.

        Datasets with checksums are not decoded for this.

        Raises:
            ValueError: there are too few; the message has their numbers.
            workloads.data.DataError: no image can be held out, or as for
                :func:`~workloads.data.images.load.load_images`.
        """
        entry = dataset(self.dataset)
        if entry.files and entry.verified:  # it is large, and has several classes
            return
        from workloads.data.images.load import load_images
        from workloads.data.images.splits import split

        images = load_images(self.dataset, root, self.dataset_size, self.dataset_corrupt)
        parts = split(images, self.split_seed, holdout)
        train, validation, test = (len(part) for part in (parts.train, parts.validation, parts.test))
        check_parts(self.dataset, self.batch_size, train, validation, test, holdout)
        loss_settings(self.dataset, self.of_loss(), len(images.classes))

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
        """Parameters of the loss, by name."""
        return {"temperature": self.temperature} | {name: getattr(self, name) for name in LOSSES[self.loss].params}
