"""GPU utilisation: counted operations and covered time, computed without a GPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from workloads.encoders.image import image_encoder


@pytest.fixture
def share() -> Any:
    return importlib.import_module("device_share")


def test_flops_of_a_linear_layer_match_hand_counts(share: Any) -> None:
    """The forward pass and the gradient of the weights count; for the second layer also the gradient of its inputs."""
    layer = nn.Linear(10, 20)
    assert share.flops_per_sample(layer, torch.ones(4, 10)) == 2 * 2 * 10 * 20
    assert share.flops_per_sample(nn.Sequential(layer, nn.Linear(20, 5)), torch.ones(4, 10)) == 800 + 3 * 2 * 20 * 5
    assert layer.weight.grad is None


def test_flops_of_resnet_18_on_cifar_match_the_known_count(share: Any) -> None:
    """The known count is 0.556 G multiply-adds in the forward pass, and the backward pass has twice as many."""
    found = share.flops_per_sample(image_encoder("resnet18", "cifar", seed=0), torch.randn(2, 3, 32, 32))
    assert found == pytest.approx(6 * 0.556e9, rel=0.01)


def test_covered_time_counts_overlapping_intervals_once(share: Any) -> None:
    assert share.covered([]) == 0
    assert share.covered([(5, 6), (0, 2), (1, 3), (1, 1.5)]) == 4
