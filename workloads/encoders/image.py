"""Image encoders without a classifier: torchvision's ResNets with ImageNet's or CIFAR's stem, a tiny one, and timm's.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. The stem for small images is that of SimCLR's
appendix B.9: a 3x3 convolution of stride 1 instead of the 7x7 one of stride 2, without pooling.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

Stem: TypeAlias = Literal["cifar", "imagenet"]

ENCODERS = ("tiny", "resnet18", "resnet34", "resnet50")

TIMM = "timm/"
"""Prefix of the name of a model of the package timm (Wightman, PyTorch Image Models)."""

_CLASSIFIERS = ("fc.", "head.", "classifier.", "head_dist.")
"""Names of weights that a file may have in addition to the encoder's."""

_TINY_WIDTHS = (32, 64, 128)


class ImageEncoder(nn.Module):
    """Encoder from images to features. ``features``: their number.

    Its BatchNorms are not synchronised: convert them if several processes share a batch.
    """

    def __init__(self, layers: nn.Module, features: int) -> None:
        super().__init__()
        self.layers = layers
        self.features = features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features (B, ``features``) of normalised images (B, 3, H, W)."""
        features: torch.Tensor = self.layers(images)
        return features


def image_encoder(name: str, stem: Stem = "cifar", *, seed: int, side: int = 32) -> ImageEncoder:
    """Create an encoder in float32, with channels-last convolutions, the fastest layout on CPUs and GPUs.

    In a ResNet the weight of the last BatchNorm of each residual branch is 0 (Goyal et al., 2017).

    Args:
        name: one of :data:`ENCODERS`, or ``timm/NAME``. ``tiny`` is three convolutions with 128 features, for small
            images and tests; it has only one stem.
        stem: stem of a ResNet.
        seed: seed of the initial weights. The global random state is neither used nor changed.
        side: side of the images, in pixels, for a model of timm that has positions, such as a ViT; where the model
            allows it, images of other sizes are encoded too.

    Raises:
        ValueError: there is no encoder with this name, its package is not installed, or it does not take such images.
    """
    if name not in ENCODERS and not name.startswith(TIMM):
        raise ValueError(f"unknown encoder {name!r}; expected one of {', '.join(ENCODERS)} or {TIMM}NAME")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name.startswith(TIMM):
            encoder = _timm(name.removeprefix(TIMM), side)
        else:
            encoder = _tiny() if name == "tiny" else _resnet(name, stem)
    return encoder.to(memory_format=torch.channels_last)


def load_weights(encoder: ImageEncoder, file: Path) -> None:
    """Load an encoder's weights from a safetensors file, with or without those of a classifier.

    Raises:
        ValueError: the file cannot be read, or its names or shapes are not the encoder's.
    """
    from safetensors.torch import load_file

    try:
        given = load_file(file)
    except Exception as error:  # of safetensors or the file system
        raise ValueError(f"the weights {file} cannot be read: {error}") from None
    own = encoder.layers.state_dict()
    for name, value in own.items():
        shape = tuple(given[name].shape) if name in given else "missing"
        if shape != tuple(value.shape) and not name.endswith("num_batches_tracked"):
            raise ValueError(f"the weights {file} do not fit: {name} is {shape} there and {tuple(value.shape)} here")
    if further := [name for name in given if name not in own and not name.startswith(_CLASSIFIERS)]:
        raise ValueError(f"the weights {file} do not fit: they have {further[0]}, which the encoder does not have")
    encoder.layers.load_state_dict({name: given.get(name, value) for name, value in own.items()})


def _timm(name: str, side: int) -> ImageEncoder:
    """A model of timm without its classifier. Nothing is downloaded."""
    try:
        import timm
    except ImportError:
        raise ValueError(f"encoder {TIMM}{name} needs the package timm, which is not installed") from None
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=1, cutoff=0.5)
        raise ValueError(f"timm has no model {name!r}" + (f"; did you mean {TIMM}{close[0]}?" if close else ""))
    for sized in ({"img_size": side, "dynamic_img_size": True}, {"img_size": side}, {}):
        try:
            layers = timm.create_model(name, pretrained=False, num_classes=0, **sized)
            break
        except TypeError as error:  # the model has no such option
            if not sized:
                raise ValueError(f"timm cannot create {name!r}: {error}") from None
        except AssertionError as error:  # patches that do not divide the image
            raise ValueError(f"{TIMM}{name} does not take images of {side} pixels: {error}") from None
    return ImageEncoder(layers, check_side(layers, f"{TIMM}{name}", side))


def check_side(layers: nn.Module, name: str, side: int) -> int:
    """Number of features that a model, left in training mode, has of images of ``side`` pixels.

    Raises ValueError when it does not take such images.
    """
    try:
        with torch.no_grad():
            features = layers.eval()(torch.zeros(1, 3, side, side))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"{name} does not take images of {side} pixels: {error}") from None
    layers.train()
    return int(features.shape[1])


def _resnet(name: str, stem: Stem) -> ImageEncoder:
    # Imported here: it takes a second.
    from torchvision.models import resnet

    build: Callable[..., resnet.ResNet] = getattr(resnet, name)
    layers = build(weights=None, zero_init_residual=True)
    features = layers.fc.in_features
    layers.fc = nn.Identity()
    if stem == "cifar":
        layers.conv1 = _convolution(3, 64, stride=1)
        layers.maxpool = nn.Identity()
    return ImageEncoder(layers, features)


def _tiny() -> ImageEncoder:
    """Convolution, BatchNorm and ReLU for each width, halving the image from the second on, then the mean."""
    layers: list[nn.Module] = []
    for block, (before, after) in enumerate(zip((3, *_TINY_WIDTHS), _TINY_WIDTHS)):
        layers += [_convolution(before, after, stride=min(block, 1) + 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return ImageEncoder(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), _TINY_WIDTHS[-1])


def _convolution(before: int, after: int, stride: int) -> nn.Conv2d:
    """A 3x3 convolution, initialised as in torchvision's ResNets."""
    convolution = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
