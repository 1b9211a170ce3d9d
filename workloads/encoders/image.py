"""Image encoders: torchvision's ResNets without their classifier, with ImageNet's or CIFAR's stem, and a tiny one.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. The stem for small images is that of SimCLR's
appendix B.9: a 3x3 convolution of stride 1 instead of the 7x7 one of stride 2, without pooling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

Name: TypeAlias = Literal["tiny", "resnet18", "resnet34", "resnet50"]
Stem: TypeAlias = Literal["cifar", "imagenet"]

ENCODERS: tuple[Name, ...] = get_args(Name)

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


def image_encoder(name: Name, stem: Stem = "cifar", *, seed: int, zero_init: bool = True) -> ImageEncoder:
    """Create an encoder in float32, with channels-last convolutions, the fastest layout on CPUs and GPUs.

    Args:
        name: ``tiny`` is three convolutions with 128 features, for small images and tests; it has only one stem.
        stem: stem of a ResNet.
        seed: seed of the initial weights. The global random state is neither used nor changed.
        zero_init: initialise the weight of the last BatchNorm of each residual branch to zero (Goyal et al., 2017).

    Raises:
        ValueError: there is no encoder with this name.
    """
    if name not in ENCODERS:
        raise ValueError(f"unknown encoder {name!r}; expected one of {', '.join(ENCODERS)}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = _tiny() if name == "tiny" else _resnet(name, stem, zero_init)
    return encoder.to(memory_format=torch.channels_last)


def _resnet(name: Name, stem: Stem, zero_init: bool) -> ImageEncoder:
    # Imported here: it takes a second.
    from torchvision.models import resnet

    build: Callable[..., resnet.ResNet] = getattr(resnet, name)
    layers = build(weights=None, zero_init_residual=zero_init)
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
