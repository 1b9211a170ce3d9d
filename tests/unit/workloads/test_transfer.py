"""Copies to a device: several tensors in one copy, and constants only once."""

from __future__ import annotations

import torch

from tests.support.virtual_device import CUDA, virtual_cuda
from workloads.transfer import all_to_device, constant, to_device

SENT = [
    torch.arange(3),
    torch.tensor([True, False, True]),
    torch.rand(2, 5),
    torch.empty(0),
    torch.tensor(2.5).double(),
]


def test_tensors_are_copied_unchanged_without_blocking() -> None:
    with virtual_cuda() as log:
        arrived = all_to_device(SENT, CUDA)
        assert not log.uploads
        assert not log.syncs
        assert {tensor.device for tensor in arrived} == {CUDA}
        for sent, found in zip(SENT, arrived, strict=True):
            assert found.dtype == sent.dtype
            assert torch.equal(found.cpu(), sent)


def test_tensors_are_not_copied_if_the_target_is_the_cpu() -> None:
    arrived = all_to_device(SENT, torch.device("cpu"))
    assert all(found is sent for found, sent in zip(arrived, SENT))
    assert to_device(SENT[0], torch.device("cpu")) is SENT[0]


def test_a_constant_is_copied_once() -> None:
    with virtual_cuda() as log:
        constant.cache_clear()
        for _ in range(3):
            assert constant((0.5, 1.0), CUDA).device == CUDA
        assert sum(log.uploads.values()) == 1
    constant.cache_clear()


def test_a_constant_has_the_type_of_its_number() -> None:
    whole, real = (constant(value, torch.device("cpu")) for value in (1, 1.0))
    assert (whole.dtype, real.dtype) == (torch.int64, torch.float32)
