"""A GPU that trials lose repeatedly is excluded from the sweep, on a cluster of logical GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import ray

from orchestrator.cluster.connection import nodes_by_id
from orchestrator.cluster.lost_devices import LostDevices, this_device
from orchestrator.config.spec import Resources
from tests.support.clusters import logical, named, soon


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as monkeypatch, logical(monkeypatch, [{"num_cpus": 2, "num_gpus": 3}]) as address:
        yield address


@pytest.fixture
def lines(address: str) -> list[str]:
    assert soon(lambda: not named("_Holder") and _free() == 3), "the last test's devices are still held"
    return []


def _free() -> float:
    return float(ray.available_resources().get("GPU", 0))


def _devices(lines: list[str], gpus: float) -> closing[LostDevices]:
    resources = Resources(gpus_per_worker=gpus, cpus_per_worker=0.25)
    return closing(LostDevices(resources, nodes_by_id(), lines.append))


def _assigned(gpus: int = 1) -> str:
    return str(ray.get(ray.remote(this_device).options(num_cpus=0, num_gpus=gpus).remote()))


def _settled(devices: LostDevices, holders: int) -> Callable[[], bool]:
    def settled() -> bool:
        devices.poll()
        return not devices._asked and len(named("_Holder")) == holders

    return settled


def test_device_lost_twice_is_left_out_of_the_sweep(lines: list[str]) -> None:
    bad = _assigned()
    assert bad.startswith("GPU ")
    with _devices(lines, gpus=0.5) as devices:
        for cause in (f"the accelerator was lost ({bad}): an illegal access 1 time", "its process died"):
            devices.report(cause)
        assert (devices.room(6), lines) == (6, [])
        devices.report(f"the accelerator was lost ({bad}): an illegal access 2 times")
        assert lines == [f"{bad} was lost 2 times: it is left out for the rest of the sweep"]
        assert soon(_settled(devices, 1))
        assert (devices.room(6), devices.room(1)) == (4, 1), "one trial at once has room on the other devices"
        assert all(_assigned() != bad for _ in range(6))


def test_loss_in_a_process_of_two_devices_counts_for_both(lines: list[str]) -> None:
    both = _assigned(gpus=2)
    numbers, node = both.removeprefix("GPU ").split(" of node ")
    with _devices(lines, gpus=2) as devices:
        for _ in range(2):
            devices.report(f"the accelerator was lost ({both}): an illegal access")
        first, second = (f"GPU {number} of node {node} was lost 2 times" for number in numbers.split(","))
        assert [line.split(":")[0] for line in lines] == [first, second]
        assert devices.room(1) == 0
        assert soon(_settled(devices, 2))
        assert soon(lambda: _free() == 1), "the third device is not free"


def test_other_devices_stay_free_while_a_lost_device_is_in_use(lines: list[str]) -> None:
    owner = ray.remote(_Owner).options(num_cpus=0, num_gpus=1).remote()
    bad = ray.get(owner.device.remote())
    with _devices(lines, gpus=1) as devices:
        devices.report(bad)
        devices.report(bad)
        assert soon(_settled(devices, 0))
        assert soon(lambda: _free() == 2), "devices that are not lost are held"
        ray.kill(owner)
        devices.report(bad)
        assert soon(_settled(devices, 1))
        assert all(_assigned() != bad for _ in range(3))


class _Owner:
    def device(self) -> str:
        return this_device()
