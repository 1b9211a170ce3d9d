"""Whether a dataset is one that these parameters can be trained on. Imports no PyTorch: it is asked before a start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.simclr.params import Params


def check_data(params: Params, root: Path, holdout: bool) -> None:
    """Refuse, before a worker starts, what :func:`check_parts` and :func:`settings` refuse in it.

    Datasets of known checksums are not decoded for that: they are large, and hold several classes.

    Raises:
        ValueError: there are too few images, or classes.
        workloads.data.DataError: nothing can be held out, or as for
            :func:`~workloads.data.images.load.load_images`.
    """
    from workloads.data import dataset
    from workloads.data.images.load import load_images
    from workloads.data.images.splits import split

    known = dataset(params.dataset)
    if known.files and known.verified:
        return
    images = load_images(params.dataset, root, params.dataset_size, params.dataset_corrupt)
    parts = split(images, params.split_seed, holdout)
    check_parts(params, len(parts.train), len(parts.validation), len(parts.test), holdout)
    settings(params, len(images.classes))


def check_parts(params: Params, train: int, validation: int, test: int, holdout: bool) -> None:
    """Refuse numbers of images of which no batch can be made, or which can not be evaluated.

    Raises:
        ValueError: says how many there are.
    """
    if train < params.batch_size:
        raise ValueError(
            f"batch_size={params.batch_size} is more than the {train} training images of dataset "
            f"{params.dataset!r}. Set it to at most {train}"
        )
    for split, images in (("validation", validation), ("test", test)):
        if images < 2 and (split == "test" or holdout):
            raise ValueError(
                f"dataset {params.dataset!r} has {images} images in its {split} part, which can not be evaluated: "
                "two or more are needed. Give it more images of each class"
            )


def settings(params: Params, classes: int) -> dict[str, Any]:
    """The parameters that the formula takes; ``alpha`` may still be a word.

    Raises:
        ValueError: a default is to come from the number of classes and there are none.
    """
    by_classes = {"tau": 1 / max(1, classes), "beta": 1 - 1 / max(1, classes)}
    found = params.of_loss()
    for name, value in found.items():
        if value == "classes":
            if classes < 2:
                raise ValueError(
                    f"{name}=classes needs a dataset of several classes, {params.dataset!r} has {classes}. "
                    f"Set {name} to a number"
                )
            found[name] = by_classes[name]
    return found
