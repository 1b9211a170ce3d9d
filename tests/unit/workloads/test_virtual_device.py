"""Every workload on a virtual CUDA device: no mixing of devices, no more waiting than is listed, NCCL's rules."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.device_cases import CASES, SYNCS, counted, train
from tests.support.virtual_device import CPU, CUDA, DeviceError, Log, device_of, virtual_cuda
from workloads import distributed, normalisation
from workloads.sampling.lists import Lists
from workloads.testing_distributed import run_on_ranks
from workloads.testing_states import through_plain_data


@pytest.fixture
def log() -> Iterator[Log]:
    with virtual_cuda() as log:
        yield log


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The device itself


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


@pytest.mark.parametrize(
    "operation",
    [
        lambda: there(2) + torch.ones(2),
        lambda: torch.cat([there(2), torch.ones(2)]),
        lambda: there(2, 2) @ torch.ones(2, 2),
        lambda: torch.stack([there(), torch.ones(())]),
        lambda: nn.Linear(2, 2)(there(2, 2)),
        lambda: torch.ones(3)[torch.tensor([0], device="cuda")],
        lambda: there(3).index_put_((torch.tensor([0, 1]),), torch.ones(2)),
        lambda: there(2).numpy(),
        lambda: there(2).pin_memory(),
        lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
        lambda: torch.rand(2, generator=torch.Generator("cuda")),
        lambda: there(2).uniform_(generator=torch.Generator()),
    ],
)
def test_what_cuda_refuses(operation: Callable[[], Any], log: Log) -> None:
    with pytest.raises(DeviceError):
        operation()


def test_what_cuda_allows(log: Log) -> None:
    mixed = (there(2) * torch.tensor(3.0) + 1).to(torch.bfloat16)
    assert mixed.device == CUDA
    assert mixed.is_cuda
    assert there(2).uniform_(generator=torch.Generator("cuda")).device == CUDA
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(there(3, 2)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert {device_of(parameter.grad) for parameter in model.parameters()} == {CUDA}
    assert not log.syncs, "clipping and the optimiser do not wait"
    assert there(3).cpu().device == CPU


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool(x.sum() > 0), "item"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "boolean mask"),
        (lambda x: x.long().bincount(), "bincount"),
        (lambda x: x.unique(), "unique"),
        (lambda x: torch.repeat_interleave(x, x.long()), "repeat_interleave"),
        (lambda x: x.cpu(), "to the host"),
        (lambda x: x.to("cpu"), "to the host"),
        (lambda x: torch.empty(2).copy_(x), "copy to the host"),
        (lambda x: x.tolist(), "tolist"),
    ],
)
def test_what_waits_is_counted(operation: Callable[[Tensor], Any], kind: str, log: Log) -> None:
    given = there(2)
    log.clear()
    operation(given)
    assert dict(log.syncs) == {(kind, "?"): 1}


def test_what_does_not_wait(log: Log) -> None:
    given, index = there(2), torch.tensor([0], device="cuda")
    log.clear()
    torch.repeat_interleave(given, given.long(), output_size=2)
    torch.ones(2).pin_memory().to("cuda", non_blocking=True)
    given[index] = 0.0
    assert not log.syncs
    assert not log.uploads
    torch.ones(2).to("cuda", non_blocking=True)  # from pageable memory it does wait
    assert dict(log.uploads) == {("to the device", "?"): 1}


def test_the_place_is_the_workloads_function(log: Log) -> None:
    lists = Lists(torch.tensor([0, 2], device="cuda"), torch.tensor([1, 3], device="cuda"), 4)
    assert lists.having(there(1).long() - 1, there(1).long()).tolist() == [[True]]
    assert log.syncs["repeat_interleave", "sampling/lists.py:expand"] == 1


def test_nothing_of_it_is_left() -> None:
    before = {name: getattr(torch, name) for name in ("ones", "Generator", "autocast", "compile")}
    methods = dict(vars(Tensor))
    with virtual_cuda():
        assert torch.cuda.is_available()
    assert {name: getattr(torch, name) for name in before} == before
    assert dict(vars(Tensor)) == methods
    assert torch.ones(2).device == CPU


# The workloads on it


@pytest.mark.parametrize("name", CASES)
def test_a_workload_mixes_no_devices_and_waits_no_more_than_before(name: str, log: Log) -> None:
    case = CASES[name]
    built = train(case, log)
    waits = counted(log)
    built.evaluate("validation")
    built.evaluate("test")
    state = through_plain_data(built.state_dict())
    resumed = case.build()
    resumed.load_state_dict(state)
    resumed.train_epoch(built.runtime.epochs)
    assert resumed.servable().weights
    listed = tomllib.loads(SYNCS.read_text())[name]
    assert waits == listed, "if fewer: python -m tests.support.device_cases; if more: keep the values on the device"


# Two ranks


@pytest.mark.parametrize("name", ["lightgcn-bf16", "bcl-in-batch", "simclr-bcl-lars", "ranker-cross", "vera"])
def test_collectives_follow_nccls_rules(name: str) -> None:
    """Tensors on the device and contiguous, the same collectives on both ranks."""
    first, second = run_on_ranks(_collectives, name)
    assert first == second
    assert first, "no collective was seen"


def _collectives(rank: int, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Train two epochs and evaluate; the collectives in their order."""
    torch.set_num_threads(1)
    called: list[tuple[str, tuple[int, ...]]] = []

    def checked(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            for tensor in [each for arg in args for each in (arg if isinstance(arg, list) else [arg])]:
                if isinstance(tensor, Tensor):
                    _check(tensor, collective.__name__)
                    called.append((collective.__name__, tuple(tensor.shape)))
            return collective(*args, **kwargs)

        return call

    class Checked(DistributedDataParallel):
        def __init__(self, module: nn.Module, device_ids: Any = None, **options: Any) -> None:
            # DDP flattens them into buckets, so weights may be channels last.
            assert {device_of(tensor) for tensor in (*module.parameters(), *module.buffers())} == {CUDA}
            super().__init__(module, **options)

    with virtual_cuda(), pytest.MonkeyPatch.context() as patch:
        for collective in ("all_reduce", "all_gather", "broadcast"):
            patch.setattr(dist, collective, checked(getattr(dist, collective)))
        patch.setattr(distributed, "DistributedDataParallel", Checked)
        patch.setattr(nn.SyncBatchNorm, "convert_sync_batchnorm", staticmethod(normalisation._converted))
        built = CASES[name].build(rank=rank, world_size=2, broadcast=distributed.broadcast)
        for epoch in (1, 2):
            built.train_epoch(epoch)
        built.evaluate("validation")
    return called


def _check(tensor: Tensor, collective: str) -> None:
    if device_of(tensor) != CUDA or not tensor.is_contiguous():
        raise DeviceError(f"{collective} of {tuple(tensor.shape)} on {device_of(tensor)}, strides {tensor.stride()}")
