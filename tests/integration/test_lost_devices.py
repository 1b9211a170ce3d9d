"""A GPU that trials lose again and again is kept from the others, on Ray's own bookkeeping of logical GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from orchestrator.cluster.lost_devices import LostDevices, this_device
from orchestrator.config.spec import Resources
from tests.support.clusters import logical, named, soon


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with logical(monkeypatch, [{"num_cpus": 2, "num_gpus": 3}]) as address:
        yield address


def test_a_device_that_is_lost_twice_is_nobody_s(address: str) -> None:
    there = ray.remote(this_device).options(num_cpus=0, num_gpus=1)
    bad = ray.get(there.remote())
    assert bad.startswith("GPU ")
    lines: list[str] = []
    devices = LostDevices(Resources(gpus_per_worker=0.5), lines.append)
    for cause in (f"the accelerator was lost ({bad}): an illegal access 1 time", "its process died", "out of memory"):
        devices.report(cause)
    assert (devices.room(6), lines) == (6, [])
    devices.report(f"the accelerator was lost ({bad}): an illegal access 2 times")
    assert lines == [f"{bad} was lost 2 times: it is left out for the rest of the sweep"]

    def settled() -> bool:
        devices.look()
        return not devices._asked and len(named("_Holder")) == 1

    assert soon(settled)
    assert devices.room(6) == 4
    assert devices.room(1) == 0
    assert all(ray.get(there.remote()) != bad for _ in range(6))
    devices.close()
    assert soon(lambda: not named("_Holder"))
    assert soon(lambda: ray.available_resources().get("GPU") == 3)
