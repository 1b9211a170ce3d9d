"""Check that SimCLR can be trained on a dataset with given parameters. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workloads.data.errors import DataError
from workloads.simclr.losses import TIMM


def check_parts(dataset: str, batch_size: int, train: int, validation: int, test: int, holdout: bool) -> None:
    """Check that there are enough images for a batch and for evaluation.

    Raises:
        ValueError: there are too few; the message has their numbers.
    """
    if train < batch_size:
        raise ValueError(
            f"batch_size={batch_size} is more than the {train} training images of dataset "
            f"{dataset!r}. Set it to at most {train}"
        )
    for split, images in (("validation", validation), ("test", test)):
        if images < 2 and (split == "test" or holdout):
            raise ValueError(
                f"dataset {dataset!r} has {images} images in its {split} part, which cannot be evaluated: "
                "two or more are needed. Give it more images of each class"
            )


def check_probe(dataset: str, train: int, test: int) -> None:
    """Check that a classifier can be fitted and judged on the labelled images of ``probe_dataset``.

    Raises:
        ValueError: a part has none.
    """
    for part, images in (("training", train), ("test", test)):
        if not images:
            raise ValueError(
                f"probe_dataset={dataset} has no labelled image in its {part} part. Give it two or more images of each "
                "class, or leave it out"
            )


@contextmanager
def errors_of_probe(dataset: str) -> Iterator[None]:
    """Say in errors about the images of ``probe_dataset`` that they are of that one."""
    try:
        yield
    except DataError as error:
        raise error.of(f"probe_dataset={dataset}") from None


def check_encoder(encoder: str | None, weights: str | None) -> None:
    """Check that the encoder's package and file of weights are there, and the file's header and length.

    Raises:
        ValueError: one is missing, or the file is damaged.
    """
    if encoder is not None and encoder.startswith(TIMM) and find_spec("timm") is None:
        raise ValueError(
            f"encoder={encoder} needs the package timm, which is not installed. Install it: "
            "pip install 'ray-experiment-orchestrator[images]'"
        )
    if weights is None:
        return
    if not Path(weights).is_file():
        raise ValueError(f"encoder_weights={weights} is not a file on this machine. Set the path of a safetensors file")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"encoder_weights={weights} cannot be read as a safetensors file: {error}. Set the path of another"
        ) from None


def check_clusters(dataset: str, clusters: int | None, granularities: int | None, train: int) -> None:
    """Check that there are enough images for the prototypes of the finest clustering.

    Raises:
        ValueError: there are too few; the message has their numbers.
    """
    if clusters is None or granularities is None:
        return
    finest = clusters * 2 ** (granularities - 1)
    if finest > train:
        raise ValueError(
            f"clusters={clusters} with granularities={granularities} makes {finest} prototypes of the {train} training "
            f"images of dataset {dataset!r}. Set fewer"
        )


def loss_settings(dataset: str, of_loss: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The parameters ``of_loss`` with defaults filled in; ``alpha`` may still be ``auc``.

    Raises:
        ValueError: a default depends on the number of classes and there are none.
    """
    by_classes = {"tau": 1 / max(1, classes), "beta": 1 - 1 / max(1, classes)}
    settings = dict(of_loss)
    for name, value in of_loss.items():
        if value == "classes":
            if classes < 2:
                raise ValueError(
                    f"{name}=classes needs a dataset of several classes, {dataset!r} has {classes}. "
                    f"Set {name} to a number"
                )
            settings[name] = by_classes[name]
    return settings
