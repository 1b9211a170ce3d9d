"""The model: encoder and projection head."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from workloads.encoders.image import image_encoder
from workloads.seeding import generator
from workloads.simclr.params import Params


class SimCLR(nn.Module):
    """Model from images to features, and to normalised embeddings for the loss. Chen et al., ICML 2020, 2.1."""

    def __init__(self, params: Params, seed: int) -> None:
        """Initialise from the seed alone."""
        super().__init__()
        assert params.encoder is not None
        self.encoder = image_encoder(params.encoder, params.stem or "cifar", seed=seed)
        self.features = self.encoder.features
        self.subvector = params.subvector
        self.head = nn.Identity() if params.projection is None else _head(self.features, params.projection, seed)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised embeddings (B, d), float32, of images (B, 3, H, W)."""
        return self.project(self.encoder(images))

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, d) of features (B, ``features``): by the head, or DirectCLR's first ones (thesis 2.2.4.2)."""
        embeddings = self.head(features) if self.subvector is None else features[:, : self.subvector]
        return functional.normalize(embeddings.float(), dim=1)


def _head(features: int, dimensions: int, seed: int) -> nn.Sequential:
    """MLP with one hidden layer as wide as the features, with BatchNorm as in SimCLR's code."""
    hidden = nn.Linear(features, features, bias=False)  # BatchNorm has a bias
    last = nn.Linear(features, dimensions)
    source, bound = generator(seed, "head"), 1 / math.sqrt(features)  # PyTorch's default for linear layers
    with torch.no_grad():
        for layer in (hidden, last):
            layer.weight.uniform_(-bound, bound, generator=source)
        last.bias.zero_()
    return nn.Sequential(hidden, nn.BatchNorm1d(features), nn.ReLU(), last)
