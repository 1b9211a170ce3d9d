"""``--profile``: a trace of real steps, its summary, and unchanged training."""

from __future__ import annotations

import gzip
import json
import re
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

import orchestrator
from orchestrator.config.spec import ExperimentSpec
from orchestrator.errors import UserError
from orchestrator.runs import profiling
from workloads import memory


def test_profiled_run_has_a_trace_and_unchanged_metrics(home: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"local": True, "tracking": "none", "epochs": 1, "batch_size": 512}
    plain = orchestrator.run("recommender", **settings)
    traced = orchestrator.run("recommender", profile=3, **settings)
    assert traced.metrics == plain.metrics
    said = capsys.readouterr().out
    assert "Profile of 3 steps in " in said
    assert re.search(r"collectives 0%; largest: \S.* \d+%", said)  # names of operations hold "#", "." and blanks
    with gzip.open(traced.folder / "profile" / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"] == "aten::index_select" for event in events) > 3
    found = json.loads((traced.folder / "profile" / "summary.json").read_text())
    assert 0 <= found["waiting"] < 1
    assert sum(share for _, share in found["largest"]) <= 1


def test_profiled_workload_is_freed_before_memory_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two models are on the device until Python's next collection of reference cycles."""

    class Traced:
        def train_epoch(self, epoch: int) -> dict[str, float]:
            return {"loss": 0.0}

    built: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def build(spec: ExperimentSpec) -> Any:
        workload = Traced()
        built.append(weakref.ref(workload))
        return workload

    monkeypatch.setattr(memory, "release", lambda device: alive.extend(ref() is not None for ref in built))
    profiling.trace(build, ExperimentSpec(workload="toy", params={}), 2, torch.device("cpu"), None)
    assert alive == [False]


@pytest.mark.parametrize("steps", [0, 1001])
def test_invalid_number_of_profile_steps_raises_user_error(steps: int, home: Any) -> None:
    with pytest.raises(UserError, match=f"--profile is not valid: got {steps}; allowed: 1 to 1000 steps"):
        orchestrator.run("recommender", local=True, tracking="none", profile=steps)


def event(
    name: str, start: float, end: float, device: DeviceType = DeviceType.CPU, thread: int = 1, annotation: bool = False
) -> Any:
    return SimpleNamespace(
        name=name, device_type=device, thread=thread, is_user_annotation=annotation, self_cpu_time_total=end - start,
        time_range=SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start),
    )  # fmt: skip


def test_profile_summary_has_shares_of_waiting_idle_and_operations() -> None:
    us = 1e5  # a tenth of a second
    events = [
        event("aten::mm", 0, 2 * us), event("cudaLaunchKernel", us, 2 * us),
        event("cudaStreamSynchronize", 4 * us, 5 * us), event("c10d::allreduce_", 5 * us, 7 * us),
        event("aten::copy_", 0, 9 * us, thread=2),
        event("gemm", us, 4 * us, DeviceType.CUDA), event("relu", 3 * us, 5 * us, DeviceType.CUDA),
    ]  # fmt: skip
    found = profiling.summary(events, 1.0, cuda=True)
    assert found["waiting"] == pytest.approx(0.5)  # 2 + 1 + 2 tenths are operations of the main thread
    assert found["collectives"] == 0
    assert found["idle"] == pytest.approx(0.6)
    assert found["syncs"] == 1
    assert found["largest"] == [["gemm", pytest.approx(0.3)], ["relu", pytest.approx(0.2)]]
    on_cpu = profiling.summary(events[:2], 1.0, cuda=False)
    assert set(on_cpu) == {"waiting", "collectives", "largest"}
    assert profiling.summary(events[3:4], 1.0, cuda=False)["collectives"] == pytest.approx(0.2)


def test_nccl_kernels_are_counted_as_collectives() -> None:
    """A launch takes the host microseconds. Annotations, which span kernels and pauses, are not counted."""
    ms = 1e3
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        event("c10d::allreduce_", 0, ms), event("nccl:all_reduce", 0, ms, annotation=True),
        event("gemm", 100 * ms, 200 * ms, DeviceType.CUDA), event(reduce, 200 * ms, 600 * ms, DeviceType.CUDA),
        event("nccl:all_reduce", 200 * ms, 600 * ms, DeviceType.CUDA, annotation=True),
        event("Optimizer.step#AdamW.step", 100 * ms, 900 * ms, DeviceType.CUDA, annotation=True),
    ]  # fmt: skip
    found = profiling.summary(events, 1.0, cuda=True)
    assert found["collectives"] == pytest.approx(0.4)
    assert found["idle"] == pytest.approx(0.5)
    assert found["largest"] == [[reduce, pytest.approx(0.4)], ["gemm", pytest.approx(0.1)]]
