"""The model: encoder, projection head and, for BYOL, predictor; and the target network that follows it."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from workloads.contract import State
from workloads.encoders.image import image_encoder, load_weights
from workloads.seeding import generator
from workloads.simclr.losses import too_long_subvector
from workloads.simclr.params import Params


class SimCLR(nn.Module):
    """Model from images to features, and to normalised embeddings for the loss. Chen et al., ICML 2020, 2.1."""

    def __init__(self, params: Params, seed: int, side: int = 32) -> None:
        """Initialise from the seed, and the encoder from ``encoder_weights`` if set.

        Args:
            side: side of the views, in pixels.

        Raises:
            ValueError: there is no such encoder, its package is missing, its weights do not fit, or it has fewer
                features than ``subvector``.
        """
        super().__init__()
        assert params.encoder is not None
        self.encoder = image_encoder(params.encoder, params.stem or "cifar", seed=seed, side=side)
        if params.encoder_weights is not None:
            load_weights(self.encoder, Path(params.encoder_weights))
        self.features = self.encoder.features
        self.side = side
        self.subvector = params.subvector
        if self.subvector is not None and self.subvector > self.features:
            raise ValueError(too_long_subvector(self.subvector, self.features, params.encoder))
        self.head: nn.Module = nn.Identity()
        if params.projection is not None:
            self.head = _mlp(self.features, self.features, params.projection, seed, "head")
        self.predictor: nn.Module = nn.Identity()
        if params.predictor is not None:
            size = params.projection or params.subvector
            assert size is not None
            self.predictor = _mlp(size, params.predictor, size, seed, "predictor")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised embeddings (B, d), float32, of images (B, 3, H, W); with a predictor, predictions of them."""
        return functional.normalize(self.predictor(self._embed(self.encoder(images))).float(), dim=1)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Normalised embeddings (B, d), float32, of features (B, ``features``), without the predictor."""
        return functional.normalize(self._embed(features).float(), dim=1)

    def _embed(self, features: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, d): by the head, or DirectCLR's first features (thesis 2.2.4.2)."""
        embeddings: torch.Tensor = self.head(features) if self.subvector is None else features[:, : self.subvector]
        return embeddings


class Target:
    """The target network, or momentum encoder: encoder and head whose weights are a moving average of the model's.

    Thesis 2.2.4.1 and 2.2.4.2. It has no gradient and no predictor; its batch normalisation has statistics of its own.
    """

    def __init__(self, model: SimCLR) -> None:
        """Begin as a copy of the model."""
        self.network = copy.deepcopy(model).requires_grad_(False)
        self.network.predictor = nn.Identity()
        online = dict(model.named_parameters())
        own = dict(self.network.named_parameters())
        self._weights: list[torch.Tensor] = list(own.values())
        self._followed: list[torch.Tensor] = [online[name] for name in own]

    @torch.no_grad()
    def __call__(self, views: torch.Tensor) -> torch.Tensor:
        """Normalised embeddings (B, d) of views (B, 3, H, W), normalised by the batch as in training."""
        self.network.train()
        embeddings: torch.Tensor = self.network(views)
        return embeddings

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Update the weights: ``momentum`` times their own plus ``1 - momentum`` times the model's."""
        torch._foreach_lerp_(self._weights, self._followed, 1 - momentum)

    def state_dict(self) -> State:
        """Its weights and statistics."""
        return self.network.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Copy a state of :meth:`state_dict`."""
        self.network.load_state_dict(state)


def _mlp(inputs: int, hidden: int, outputs: int, seed: int, stream: str) -> nn.Sequential:
    """MLP with one hidden layer, with BatchNorm as in SimCLR's and BYOL's code."""
    first = nn.Linear(inputs, hidden, bias=False)  # BatchNorm has a bias
    last = nn.Linear(hidden, outputs)
    source = generator(seed, stream)
    with torch.no_grad():
        for layer in (first, last):
            bound = 1 / math.sqrt(layer.in_features)  # PyTorch's default for linear layers
            layer.weight.uniform_(-bound, bound, generator=source)
        last.bias.zero_()
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), last)
