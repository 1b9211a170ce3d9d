"""The model to register: weights with the names of the standalone predictor, and an example."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from workloads.augment import MEAN, STD
from workloads.contract import Servable
from workloads.simclr.losses import TIMM
from workloads.simclr.model import SimCLR
from workloads.simclr.params import Params

ENCODED = 512 * 32**2
"""Pixels of the images that a served model encodes at once by default, as evaluation on a CPU does of small ones."""


def trained_name(served: str) -> str:
    """The name in the trained model's state of a weight of the servable."""
    return f"encoder.layers.{served.removeprefix('encoder.')}" if served.startswith("encoder.") else served


def servable(
    model: SimCLR,
    params: Params,
    classes: tuple[str, ...],
    size: int,
    classifier: tuple[torch.Tensor, torch.Tensor] | None,
    example: torch.Tensor,
) -> Servable:
    """The encoder, with or without a linear classifier.

    Args:
        size: side of the training images, in pixels.
        classifier: W (classes, d) and b (classes,), on encoder features.
        example: images (n, 3, S, S), uint8, on the CPU.
    """
    weights = {f"encoder.{name}": value for name, value in model.encoder.layers.state_dict().items()}
    training = {name: value for name, value in model.state_dict().items() if not name.startswith("encoder.layers.")}
    if classifier is not None:
        weights |= {"classifier.weight": classifier[0], "classifier.bias": classifier[1]}
    needed = ("timm",) if str(params.encoder).startswith(TIMM) else ()
    return Servable(
        predictor=Path(__file__).with_name("predictor.py"),
        weights=weights,
        training=training,
        config={
            "dataset": params.dataset,
            "encoder": params.encoder,
            "stem": params.stem,
            "side": model.side,
            "size": size,
            "mean": list(MEAN),
            "std": list(STD),
            "classes": list(classes),
        },
        example={"image": np.array([_png(image) for image in example], dtype=object)},
        params={"unit_length": False, "batch_size": max(1, min(256, ENCODED // size**2))},
        requirements=("numpy", "pandas", "pillow", "torch", "torchvision", *needed),
    )


def _png(image: torch.Tensor) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, format="PNG")
    return stream.getvalue()
