"""Failures of processes, devices and storage: their reported cause, advice, and consequences."""

from __future__ import annotations

import errno
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.train import WorkerGroupError

from orchestrator.cluster.lost_devices import LostDevices
from orchestrator.cluster.preemption import Preempted
from orchestrator.config.spec import Resources
from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import Checkpoint
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.runs import reports, train, worker
from orchestrator.storage import disk
from orchestrator.sweeps import actor_failures
from orchestrator.sweeps.sweep import _on_working_devices
from orchestrator.sweeps.trial import TrialActor
from tests.support.clusters import KILLED, TOLD, Lost
from tests.support.toy import hog

# Memory


def test_memory_error_at_the_limit_is_described_as_out_of_memory() -> None:
    with pytest.raises(MemoryError) as caught:
        hog()
    words = "out of memory: accumulate=auto, a smaller batch_size or fewer trials at once (--concurrency) may fit"
    assert reports.describe(caught.value) == words


def test_pytorch_cpu_allocation_error_is_described_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert reports.describe(caught.value).startswith("out of memory (")
    assert "\n" not in reports.describe(caught.value)


def test_kill_by_the_memory_monitor_is_reported_as_the_cause() -> None:
    assert reports.death_cause(str(KILLED)) == reports.describe(KILLED) == TOLD
    assert reports.death_cause(str(ActorDiedError())) == "its process died"
    alone = ConnectionError("[...] Connection closed by peer [127.0.0.1]:10475.")
    group = WorkerGroupError("lost", {0: alone, 1: Lost(KILLED)})
    assert train.failure_text(group) == f"worker 1: {TOLD}"
    assert train.needs_less_memory(group) is KILLED
    assert not train.lost_a_process(group), "the same settings need the same memory"


@pytest.mark.parametrize("last", [KILLED, actor_failures.Died(str(KILLED))], ids=["starting", "training"])
def test_the_last_death_of_a_trial_is_its_cause(last: Exception, tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(
        f"Failure # 1 (occurred at noon)\n{ActorDiedError()}\nFailure # 2 (occurred at one)\n{last}\n"
    )  # as Tune writes it
    assert actor_failures.death_text(SimpleNamespace(error_file=tmp_path / "error.txt", num_failures=2)) == TOLD
    (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at noon)\n{ActorDiedError()}\n")
    trial = SimpleNamespace(error_file=tmp_path / "error.txt", num_failures=1)
    assert actor_failures.death_text(trial) == "its process died 1 time"
    assert actor_failures.death_text(None) == "its process did not start"


def test_preempted_task_error_is_an_actor_error_marked_preempted() -> None:
    """After it crosses a process as a task's error, Tune treats it as the actor's error and does not count it."""
    wrapped = RayTaskError("step", "trace", pickle.loads(pickle.dumps(Preempted()))).as_instanceof_cause()
    assert isinstance(wrapped, RayTaskError)
    assert isinstance(wrapped, RayActorError)
    assert wrapped.preempted


# Accelerators


def test_lost_accelerator_is_reported_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # imports fail, as if Ray were not installed
    monkeypatch.delitem(sys.modules, "orchestrator.cluster.lost_devices")
    with pytest.raises(reports.DeviceLost, match=r"^the accelerator was lost: CUDA error: an illegal access$"):
        reports.check_device(torch.AcceleratorError("CUDA error: an illegal access"))


@pytest.mark.parametrize(
    ("message", "memory", "device"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUDA error: out of memory", True, False),
        ("Triton Error [CUDA]: out of memory", True, False),
        ("GET was unable to find an engine to execute this computation", True, False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", False, True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False, True),
        ("Triton Error [CUDA]: an illegal memory access was encountered", False, True),
        ("Cuda failure 2 'out of memory'", True, False),
        ("[gloo] cuda: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx`", False, True),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`", False, False),
        ("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`", False, False),
        ("Triton Error [CUDA]: invalid argument", False, False),
        ("backend='inductor' raised:\nRuntimeError: Triton Error [CUDA]: misaligned address", False, True),
        ("unknown error in page 3", False, False),
        ("Triton Error [CUDA]: device kernel image is invalid", False, False),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
    ],
)
def test_cuda_library_errors_are_classified_as_memory_or_device_loss(message: str, memory: bool, device: bool) -> None:
    error = RuntimeError(message)
    assert reports.is_out_of_memory(error) == memory
    with pytest.raises(reports.DeviceLost) if device else nullcontext():
        reports.check_device(error)


def test_invalid_cuda_call_is_not_a_lost_accelerator() -> None:
    advice = "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    reports.check_device(torch.AcceleratorError(f"CUDA error: invalid configuration argument{advice}"))
    with pytest.raises(reports.DeviceLost):
        reports.check_device(torch.AcceleratorError(f"CUDA error: an error without a name{advice}"))


def test_advice_for_gpu_memory_names_gpus_per_worker() -> None:
    assert "--gpus-per-worker" in reports.describe(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"))
    assert "--concurrency" in reports.describe(RuntimeError("DefaultCPUAllocator: can't allocate memory"))


def test_accelerator_error_in_a_trials_step_raises_device_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error may come from any call. If the process were kept, it would fail each later trial."""

    def step(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    actor = TrialActor.__new__(TrialActor)
    actor._hung, actor._new, actor._slot = None, [], SimpleNamespace(step=step)  # type: ignore[assignment]
    with pytest.raises(reports.DeviceLost):
        actor.step()


def test_local_run_without_a_gpu_raises_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "current_device", none)
    with pytest.raises(UserError, match=r"cannot be used.*No CUDA GPUs.*--gpus-per-worker 0") as caught:
        worker.own_device(Resources(gpus_per_worker=1), print).__enter__()
    assert caught.value.code == UNAVAILABLE


def test_thread_limit_of_a_run_does_not_remain_for_a_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    worker._threads.cache_clear()
    for cpus, expected in ((1, 1), (2, 2), (8, 4)):
        worker.take_device(Resources(cpus_per_worker=cpus))
        assert threads == [expected]
    worker._threads.cache_clear()


def test_devices_that_were_lost_are_not_used_and_without_any_the_sweep_stops() -> None:
    manager = SimpleNamespace(refusal=None)
    devices = LostDevices(Resources(gpus_per_worker=1), {"a": {"CPU": 8.0, "GPU": 2.0}}, print)
    hold = _on_working_devices(lambda wanted: wanted, devices, 2, cast(Any, manager))
    assert hold(2) == 2
    devices._excluded = {("a", "0")}
    assert (hold(2), manager.refusal) == (1, None)
    devices._excluded = {("a", "0"), ("a", "1")}
    hold(2)
    assert manager.refusal.code == UNAVAILABLE


@pytest.mark.parametrize(
    ("gpus", "workers", "rooms"),
    [
        (1, 1, [8, 7, 6]),
        (0.5, 1, [16, 14, 12]),
        (2, 1, [4, 3, 3]),  # three devices of the node are left: a pair and one more
        (1, 4, [2, 1, 1]),
    ],
)
def test_room_counts_the_trials_that_fit_on_working_devices(gpus: float, workers: int, rooms: list[int]) -> None:
    resources = Resources(gpus_per_worker=gpus, workers=workers, cpus_per_worker=0.1)
    nodes = {name: {"CPU": 8.0, "GPU": 4.0} for name in "ab"}
    devices = LostDevices(resources, nodes, print)
    room = []
    for excluded in ([], ["0"], ["0", "1"]):
        devices._excluded = {("a", number) for number in excluded}
        room.append(devices.room(99))
    assert room == rooms
    assert devices.room(1) == 1, "lost devices that are not needed must not lower the limit"


def test_device_that_fails_to_initialise_raises_device_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither an error of the workload nor one that ends the sweep: another device may start."""

    def broken() -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "current_device", broken)
    error = RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized")
    with pytest.raises(reports.DeviceLost, match="the accelerator was lost: Unexpected error") as caught:
        worker.take_device(Resources(gpus_per_worker=1))
    assert train.lost_a_process(WorkerGroupError("failed", {0: caught.value}))
    error = RuntimeError("Found no NVIDIA driver on your system")
    with pytest.raises(RuntimeError, match="no NVIDIA driver"):
        worker.take_device(Resources(gpus_per_worker=1))


def test_lost_device_of_a_rank_is_the_cause_of_the_groups_failure() -> None:
    """The other of the two ranks reports a lost connection."""
    lost = reports.DeviceLost("the accelerator was lost (GPU 3 of node ab): CUDA error: an illegal access")
    group = WorkerGroupError("lost", {0: ConnectionError("Connection closed by peer"), 1: lost})
    assert train.failure_text(group) == f"worker 1: {lost}"


NCCL = "NCCL error in: NCCLUtils.cpp:77, {}, NCCL version 2.29.7\nLast error:\n{}"


@pytest.mark.parametrize(
    ("what", "last", "kind"),
    [
        ("unhandled cuda error", "Cuda failure 719 'unspecified launch failure'", reports.DeviceLost),
        ("unhandled cuda error", "Cuda failure 702 'the launch timed out and was terminated'", reports.DeviceLost),
        ("unhandled cuda error", "Cuda failure 2 'out of memory'", None),
        ("remote process exited or there was a network error", "socket: Connection reset by peer", ConnectionError),
    ],
)
def test_nccl_error_is_classified_as_lost_device_or_lost_connection(
    what: str, last: str, kind: type[Exception] | None, tmp_path: Path
) -> None:
    """Otherwise the sweep would not count the device, and the run would name another worker."""
    error = torch.distributed.DistBackendError(NCCL.format(what, last))
    with pytest.raises(kind) if kind else nullcontext():
        train._raise_cause(error, tmp_path, 9.0)


# Storage


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_checkpoint_write_failure_keeps_the_previous_checkpoint(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Checkpoint({"workload": "toy"}, 1, {"x": torch.ones(2)})
    checkpoint.write(tmp_path / checkpoint.name(1), state)

    def full(file: Path, tensors: Any) -> None:
        file.write_bytes(b"half")
        raise OSError(number, "No room")

    monkeypatch.setattr("orchestrator.engine.tensor_file.write", full)
    with pytest.raises(
        UserError, match=rf"The storage {tmp_path} cannot be written: got No room\. Free space"
    ) as caught:
        checkpoint.write(tmp_path / checkpoint.name(2), state)
    assert caught.value.code == UNAVAILABLE
    assert checkpoint.latest(tmp_path) == tmp_path / checkpoint.name(1)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name(1)], "a partial checkpoint takes space"


def test_is_full_is_true_only_for_a_full_storage() -> None:
    assert disk.is_full(OSError(errno.ENOSPC, "full"))
    assert not disk.is_full(FileNotFoundError(errno.ENOENT, "gone"))
    assert not disk.is_full(ValueError("no"))


def test_failure_payload_marks_unwritable_storage_as_refused() -> None:
    said = reports.failure_payload(disk.unwritable(Path("/storage"), OSError(errno.ENOSPC, "No space left on device")))
    assert said["refused"] == UNAVAILABLE
    assert reports.failure_payload(UserError("The checkpoint is of another run"))["refused"] is None
