"""Workloads on a virtual CUDA device: no mixed devices, no unlisted synchronisations, NCCL's rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support import device_cases
from tests.support.device_cases import CASES, PACK, Waits, grown, listed_waits, train, train_pack
from tests.support.virtual_device import CPU, CUDA, ROOT, DeviceError, Log, device_of, virtual_cuda
from workloads import distributed, normalisation
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


# The virtual device itself


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda: there(2) + torch.ones(2), "add: tensors of shape [(2,)] are on the CPU"),
        (lambda: torch.ones(2) * there(), "mul: tensors of shape [(2,)] are on the CPU"),
        (lambda: torch.zeros(()).add_(there()), "add_: the tensor that is written to is on the CPU"),
        (lambda: torch.cat([there(2), torch.ones(2)]), "cat"),
        (lambda: torch.stack([there(), torch.ones(())]), "stack"),
        (lambda: there(2, 2) @ torch.ones(2, 2), "mm"),
        (lambda: nn.Linear(2, 2)(there(2, 2)), "addmm"),
        (lambda: there(2).where(torch.tensor([True, False]), there(2)), "where"),
        (lambda: torch.ones(3)[torch.tensor([0], device="cuda")], "index: the tensor is on the CPU"),
        (lambda: there(3).index_put_((torch.tensor([0, 1]),), torch.ones(2)), "index_put_: the values are on the CPU"),
        (lambda: torch._foreach_add([there(2)], [torch.ones(2)]), "_foreach_add"),
        (lambda: there(2).numpy(), "numpy of a CUDA tensor"),
        (lambda: np.asarray(there(2)), "__array__ of a CUDA tensor"),
        (lambda: there(2).pin_memory(), "only dense CPU tensors can be pinned"),
        (lambda: torch.rand(2, device="cuda", generator=torch.Generator()), "rand: generator on cpu"),
        (lambda: torch.rand(2, generator=torch.Generator("cuda")), "rand: generator on cuda:0"),
        (lambda: there(2).uniform_(generator=torch.Generator()), "uniform_: the generator is on cpu"),
        (lambda: torch.ones(2).uniform_(generator=torch.Generator("cuda")), "uniform_: the generator is on cuda:0"),
        (lambda: torch.multinomial(there(2), 1, generator=torch.Generator()), "multinomial: the generator is on cpu"),
    ],
)
def test_operations_that_cuda_does_not_support_raise_device_error(
    operation: Callable[[], Any], message: str, log: Log
) -> None:
    with pytest.raises(DeviceError, match=re.escape(message)):
        operation()


def test_operations_that_cuda_supports_run_on_the_device(log: Log) -> None:
    mixed = (there(2) * torch.tensor(3.0) + 1).to(torch.bfloat16)
    assert mixed.device == CUDA
    assert mixed.dtype == torch.bfloat16
    assert mixed.is_cuda
    assert there(2).uniform_(generator=torch.Generator("cuda")).device == CUDA
    assert torch.multinomial(there(2), 1, generator=torch.Generator("cuda")).device == CUDA
    assert nn.functional.one_hot(there(2).long()).tolist() == [[0, 1]] * 2
    assert torch._C._nn.one_hot(there(2).long(), 3).device == CUDA, "the zeros are made in C++"
    assert there(3).cpu().device == CPU
    assert there(3).to("cpu", torch.float64).dtype == torch.float64
    torch.cuda.set_device(0)
    assert torch.cuda.current_device() == 0
    with torch.autocast("cuda", torch.bfloat16):
        assert (there(2, 2) @ there(2, 2)).dtype == torch.bfloat16


def test_compiled_functions_run_on_the_virtual_device(log: Log) -> None:
    @torch.compile(dynamic=True)
    def twice(x: Tensor) -> Tensor:
        return x * 2

    assert twice(there(2)).device == CUDA
    assert torch.compile(nn.Linear(2, 2).to(CUDA))(there(2)).device == CUDA


def test_training_step_causes_no_synchronisation(log: Log) -> None:
    """Neither gradients, of which C++ makes some, nor clipping nor the optimiser synchronise."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("cuda", torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    log.clear()
    outputs = model(there(3, 2))
    (outputs.sum() + outputs.unbind()[0].sum()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert {device_of(parameter.grad) for parameter in model.parameters()} == {CUDA}
    assert not log.syncs
    assert not log.uploads


def test_module_is_moved_to_the_device_with_its_dtype(log: Log) -> None:
    model = nn.Linear(2, 2).to(torch.float64).to("cuda")
    assert {(each.dtype, each.device) for each in model.parameters()} == {(torch.float64, CUDA)}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool(x.sum() > 0), "item"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "boolean mask"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.index_put_((x > 0,), x + 1), "boolean mask"),
        (lambda x: x.index_put_((x > 0,), x.sum()), "boolean mask"),
        (lambda x: x.long().bincount(), "bincount"),
        (lambda x: x.unique(), "unique"),
        (lambda x: torch.repeat_interleave(x, x.long()), "repeat_interleave"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: torch.linalg.cholesky(x.diag()), "linalg check"),
        (lambda x: x.cpu(), "to the host"),
        (lambda x: x.to("cpu"), "to the host"),
        (lambda x: torch.empty(2).copy_(x), "copy to the host"),
        (lambda x: torch.tensor([x[0], x[1]]), "tensor of device values"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_synchronising_operation_is_counted_with_its_line(
    operation: Callable[[Tensor], Any], kind: str, log: Log
) -> None:
    given = there(2)
    log.clear()
    operation(given)
    assert dict(log.syncs) == {(kind, line_of(operation)): 1}


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (lambda x: torch.ones(2).to("cuda"), "to the device"),
        (lambda x: torch.ones(2).to("cuda", non_blocking=True), "to the device"),  # blocks: the memory is pageable
        (lambda x: torch.ones(2).pin_memory().to("cuda"), "to the device"),
        (lambda x: torch.tensor([1.0, 2.0], device="cuda"), "tensor"),
        (lambda x: x.new_tensor([1.0]), "new_tensor"),
        (lambda x: x.copy_(torch.ones(2)), "copy"),
        (lambda x: x[torch.tensor([0])], "index"),
    ],
)
def test_a_blocking_copy_to_the_device_is_counted(operation: Callable[[Tensor], Any], kind: str, log: Log) -> None:
    given = there(2)
    log.clear()
    operation(given)
    assert dict(log.uploads) == {(kind, line_of(operation)): 1}
    assert not log.syncs


def line_of(operation: Callable[..., Any]) -> str:
    return f"{Path(__file__).relative_to(ROOT)}:{operation.__code__.co_firstlineno}"


def test_nonblocking_operations_are_not_counted(log: Log) -> None:
    given, index, mask = there(2), torch.tensor([0], device="cuda"), there(2) > 0
    log.clear()
    torch.repeat_interleave(given, given.long(), output_size=2)
    torch.ones(2).pin_memory().to("cuda", non_blocking=True)
    torch.empty(8, pin_memory=True)[2:4].to("cuda", non_blocking=True)
    given.copy_(torch.ones(2).pin_memory(), non_blocking=True)
    torch.empty(2, pin_memory=True).copy_(given, non_blocking=True)
    given[index] = 0.0
    given[mask] = 0.0
    given.index_put_((mask,), torch.tensor(0.0))
    nn.functional.one_hot(given.long(), 3)
    assert not log.syncs
    assert not log.uploads


def test_synchronisation_is_attributed_to_the_workload_function(log: Log) -> None:
    """Python 3.11 has a frame for a comprehension, and Python 3.12 has none."""
    source = "class Workload:\n    def step(self, x):\n        return [value.item() for value in x]\n"
    names: dict[str, Any] = {}
    exec(compile(source, ROOT / "workloads" / "mine" / "workload.py", "exec"), names)
    names["Workload"]().step(there(3))
    assert dict(log.syncs) == {("item", "mine/workload.py:step"): 3}


def test_refused_operations_are_listed_without_strict_mode() -> None:
    with virtual_cuda(strict=False) as log:
        operation: Callable[[], Any] = lambda: there(2) + torch.ones(2)  # noqa: E731
        assert operation().tolist() == [2.0, 2.0]
        ((message, place),) = log.errors
    assert message.startswith("add: ")
    assert place == line_of(operation)


def test_virtual_device_removes_its_patches_also_after_an_error() -> None:
    patched = (torch, torch.cuda, torch.amp, torch.random, nn.functional, Tensor, nn.Parameter, torch.optim.Optimizer)
    with virtual_cuda():
        pass  # imports the modules that it needs
    before = [dict(vars(owner)) for owner in patched]
    with suppress(DeviceError), virtual_cuda():
        assert torch.cuda.is_available()
        there(2).numpy()
        pytest.fail("an error takes the patches back as well")
    assert [dict(vars(owner)) for owner in patched] == before
    assert torch.ones(2).device == CPU
    assert torch.ones(2).numpy().sum() == 2


# Workloads on the virtual device

# These cases run in make test, the others in make test-faults.
QUICK = {
    "mf", "bcl-bns-sampled", "large", "sgd-batched", "simclr-bcl-lars", "bi-encoder", "ranker-cross", "vera",
    "lifelong",
}  # fmt: skip


# These run in make test-long and take half of the time of all cases.
LONG = {
    "simclr-resnet-bf16", "simclr-hcl-blur", "simclr-on-host", "lightgcl", "simgcl-bf16", "ncl", "sgl", "sgl-nodes",
    "vera-encoder",
}  # fmt: skip


def marked(name: str) -> Any:
    marks = [] if name in QUICK else [pytest.mark.faults, *([pytest.mark.long] if name in LONG else [])]
    return pytest.param(name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("name", map(marked, CASES))
def test_workload_mixes_no_devices_and_has_only_listed_synchronisations(name: str, log: Log) -> None:
    case = CASES[name]
    built, waits = train(case, log)
    built.evaluate("validation")
    built.evaluate("test")
    state = through_plain_data(built.state_dict())
    resumed = case.build()
    resumed.load_state_dict(state)
    resumed.train_epoch(built.runtime.epochs)
    assert resumed.servable().weights
    _compare(name, waits)


def test_pack_mixes_no_devices_and_has_only_listed_synchronisations(log: Log) -> None:
    pack, members, waits = train_pack(log)
    _compare(PACK, waits)
    pack.evaluate(range(len(members)), "validation")
    members[0].train_epoch(3)
    through_plain_data(members[1].state_dict())


def _compare(name: str, waits: Waits) -> None:
    listed = listed_waits()[name]
    assert not waits.more_than(listed), "values must stay on the device"
    assert waits == listed, "fewer: run python -m tests.support.device_cases and commit syncs.toml"


def test_list_of_synchronisations_has_exactly_the_cases() -> None:
    assert listed_waits().keys() == {*CASES, PACK}


def test_only_step_logging_synchronises_within_a_step() -> None:
    waiting = {name: waits.step for name, waits in listed_waits().items() if waits.step}
    copied = {"step_log.py:_copy (tolist)": 1}
    assert waiting == {f"{name}-steps": copied for name in ("mf", "bi-encoder", "vera", "lifelong")}


def test_step_of_simclr_makes_at_most_two_copies_to_the_device() -> None:
    """Both views with all their steps are one copy, and so are all micro-batches."""
    copies = {name: waits.copies for name, waits in listed_waits().items() if name.startswith("simclr")}
    assert len(copies) >= 5
    assert max(copies.values()) <= 2


class WaitsInEachStep(CASES["mf"].workload):  # type: ignore[name-defined, misc]
    """A fault: the loss is read on the host in each step."""

    def _losses(self, *args: Any) -> Any:
        losses, nodes = super()._losses(*args)
        losses.sum().item()
        return losses, nodes


def test_synchronisation_in_a_step_is_distinguished_from_one_in_an_epoch(log: Log) -> None:
    """The message has the line of the workload that synchronises."""
    before = listed_waits()["mf"]
    _, waits = train(device_cases.Case(WaitsInEachStep, CASES["mf"].params), log)
    assert waits.step == {"recommender/workload.py:train_epoch (item)": 1}
    assert waits.epoch == before.epoch
    (more,) = waits.more_than(before)
    assert re.fullmatch(
        r"recommender/workload.py:train_epoch line \[\d+.*\]: 1 times \(item\) in step, listed are 0", more
    )


def test_list_of_synchronisations_grows_only_with_the_grow_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_cases, "SYNCS", tmp_path / "syncs.toml")
    few = {"mf": Waits({}, {"a.py:f (item)": 1}, 2), "vera": Waits({"b.py:g (tolist)": 1}, {}, 1)}
    with pytest.raises(SystemExit, match=r"vera: b\.py:g"):
        device_cases.write(few)  # a new case with a synchronisation in a step
    device_cases.write(few, grow=True)
    assert listed_waits() == few
    many = {**few, "mf": Waits({}, {"a.py:f (item)": 2}, 3, {"a.py:f": {17}})}
    assert grown(few, many) == [
        "mf: a.py:f line [17]: 2 times (item) in epoch, listed are 1", "mf: 3 copies in a step, listed are 2"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="give --grow"):
        device_cases.write(many)
    assert listed_waits() == few
    device_cases.write({"mf": Waits({}, {}, 0)})
    assert listed_waits() == {"mf": Waits({}, {}, 0)}


# Two ranks

COLLECTIVE = [
    "mf",
    "lightgcn-bf16",
    "bcl-in-batch",
    "simclr-hcl-blur",
    "bi-encoder-bcl-max",
    "ranker-cross",
    "vera",
    "lifelong",
]


@pytest.mark.faults  # long
@pytest.mark.parametrize("name", COLLECTIVE)
def test_collectives_follow_nccls_rules(name: str) -> None:
    """Tensors are on the device and contiguous, and both ranks call the same collectives."""
    first, second = run_on_ranks(_collectives, name)
    assert first == second
    assert first, "no collective was called"


def _collectives(rank: int, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Train two epochs and evaluate. Returns the collectives in order."""
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
            # DDP flattens weights into buckets, so they may be channels last.
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


@pytest.mark.parametrize("tensor", [lambda: torch.ones(2, 3), lambda: there(2, 3).T, lambda: there(4)[::2]])
def test_tensor_that_nccl_refuses_raises_device_error(tensor: Callable[[], Tensor], log: Log) -> None:
    _check(there(2, 3), "all_reduce")
    with pytest.raises(DeviceError, match="all_reduce of"):
        _check(tensor(), "all_reduce")
