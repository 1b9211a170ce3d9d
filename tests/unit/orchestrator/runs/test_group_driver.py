"""Reports of a group of workers to its driver: their file, errors, and time limits."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import ActorDiedError, RayTaskError
from ray.train import WorkerGroupError

from orchestrator.cluster.train_group import START_VARIABLE
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.loop import Diverged, EpochReport, Progress, Row
from orchestrator.runs import group_driver, heartbeat, reports, train
from orchestrator.runs.session import Session
from orchestrator.storage import settings
from orchestrator.storage.names import TRAIN
from tests.support.clusters import Lost
from tests.support.waiting import HANG_SECONDS
from workloads.testing_distributed import run_on_ranks


def payload(epoch: int) -> dict[str, Any]:
    progress = Progress(epoch=epoch, best_epoch=1, best_value=0.1, best_metrics={"validation/error": 0.1})
    return reports.payload(EpochReport((Row(epoch, 1.5, {"train/loss": 1 / 3}),), progress, False, None))


def test_sent_reports_are_received_once_and_complete(tmp_path: Path) -> None:
    file = tmp_path / "inbox"
    with file.open("w") as out, file.open() as inbox:
        assert list(reports.receive(inbox)) == []
        reports.send(out, payload(1))
        reports.send(out, payload(2))
        assert next(reports.receive(inbox)) == payload(1)
        assert list(reports.receive(inbox)) == [payload(2)]
        line = json.dumps(payload(3)) + "\n"
        out.write(line[:40])  # the line is not complete yet
        out.flush()
        assert list(reports.receive(inbox)) == []
        out.write(line[40:])
        out.flush()
        assert list(reports.receive(inbox)) == [payload(3)]


def test_rows_that_a_dead_driver_did_not_read_are_delivered(tmp_path: Path) -> None:
    """The run of the dead driver has ended, so no later report repeats the rows."""
    (tmp_path / TRAIN).mkdir()
    with (tmp_path / TRAIN / train.INBOX).open("w") as out:
        reports.send(out, payload(1))
    (tmp_path / "outcome.json").write_text(json.dumps({"metrics": {}}))
    got: list[list[Row]] = []
    spec = ExperimentSpec(workload="toy", params={})
    assert group_driver.follow(spec, tmp_path, cast(Session, None), got.append)
    assert got == [[Row(1, 1.5, {"train/loss": 1 / 3})]]


def test_worker_group_is_killed_when_the_driver_fails(tmp_path: Path) -> None:
    """In a notebook the connection to Ray stays open, so the group would continue to run."""
    with (tmp_path / train.INBOX).open("w") as out:
        reports.send(out, payload(1))
    killed: list[float] = []
    group: Any = SimpleNamespace(ended=lambda seconds: False, kill=killed.append)
    calm = SimpleNamespace(stop_requested=lambda: False)
    session: Any = SimpleNamespace(interrupts=calm, console=SimpleNamespace(say=print))

    def full(rows: list[Row]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        group_driver._watch(group, tmp_path, session, full, heartbeat.TrialMonitor(None), None)
    assert killed == [group_driver.END_SECONDS]


def test_error_from_another_process_is_described_with_file_and_line() -> None:
    error = ValueError("the third layer is missing")  # not raised in this process, so without a traceback
    assert reports.describe(error) == "ValueError: the third layer is missing"
    trace = (
        'Traceback:\n  File "/somewhere/model.py", line 12, in build\n  File "/somewhere/layers.py", line 7, in pick\n'
    )
    assert reports.describe(error, trace) == "ValueError: the third layer is missing (layers.py:7)"


def test_out_of_memory_error_is_described_with_remedies() -> None:
    """The rest of PyTorch's message, which has several lines, is omitted."""
    words = "CUDA out of memory. Tried to allocate 2.00 GiB.\nIf reserved but unallocated memory is large, try ..."
    with pytest.raises(torch.OutOfMemoryError) as caught:
        raise torch.OutOfMemoryError(words)
    assert reports.describe(caught.value) == (
        "out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.): accumulate=auto, a smaller batch_size or a "
        "larger --gpus-per-worker, precision=bf16 may fit"
    )


def test_failure_payload_contains_all_unsent_rows_and_the_error() -> None:
    first, second = (Row(epoch, 1.5, {"train/loss": float(epoch)}) for epoch in (1, 2))
    said = reports.failure_payload(Diverged(3, "train/loss", math.nan, (second,)), [first])
    assert list(reports.rows_from_json(json.loads(json.dumps(said["rows"])))) == [first, second]
    assert (said["error"], said["refused"], said["done"]) == ("train/loss is nan at epoch 3", None, True)


def test_timeouts_of_the_settings_are_passed_to_ray_train(
    toy_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings come from environment variables; the real TorchTrainer would need a cluster."""
    parts: dict[str, Any] = {}

    class Trainer:
        def __init__(self, worker: Any, **given: Any) -> None:
            parts.update(given)

        def fit(self) -> Any:
            parts["start"] = os.environ[START_VARIABLE]
            return SimpleNamespace(return_value=None)

    monkeypatch.setattr(train, "torch_trainer", lambda: Trainer)
    monkeypatch.setenv("ORCHESTRATOR_COLLECTIVE_TIMEOUT", "17")
    monkeypatch.setenv("ORCHESTRATOR_START_TIMEOUT", "23")
    monkeypatch.setenv(START_VARIABLE, "99")  # also restores it after the test
    timeouts = settings.resolve().timeouts
    spec = ExperimentSpec(workload="toy", params={})
    group = train.start(spec, tmp_path / "train", tmp_path, stop_file=tmp_path / "stop", timeouts=timeouts)
    assert group.ended(HANG_SECONDS)
    assert group.result() is None
    assert (parts["torch_config"].timeout_s, parts["start"]) == (17, "23")
    assert parts["train_loop_config"]["timeout"] == 17


def test_failure_text_names_the_workload_error_not_lost_connections() -> None:
    text = (
        '[Rank 0,2 Error Snippet]:\n  File "/somewhere/pair.py", line 5, in read\n'
        '[Rank 1 Error Snippet]:\n  File "/somewhere/layers.py", line 7, in pick\nValueError: it is missing'
    )  # in the form of Ray Train
    for others in ({}, {0: ConnectionError("closed by peer"), 2: ConnectionError("closed by peer")}):
        error = WorkerGroupError(text, {**others, 1: ValueError("the third layer is missing")})
        assert train.failure_text(error) == "worker 1: ValueError: the third layer is missing (layers.py:7)"


CLOSED = ConnectionError("Connection closed by peer")
WRONG = ValueError("the third layer is missing")


@pytest.mark.parametrize(
    ("failures", "lost"),
    [
        ({1: Lost(ActorDiedError())}, True),
        ({0: CLOSED, 1: Lost(ActorDiedError())}, True),
        ({0: CLOSED}, True),
        ({0: CLOSED, 1: reports.DeviceLost("the accelerator was lost")}, True),
        ({1: WRONG}, False),
        ({0: CLOSED, 1: WRONG}, False),
        ({0: Lost(ActorDiedError()), 1: WRONG}, False),
        ({1: RayTaskError("poll", "trace", WRONG)}, False),
        ({}, False),
    ],
)
def test_worker_group_counts_as_lost_only_without_a_workload_error(failures: dict[int, Exception], lost: bool) -> None:
    assert train.lost_a_process(WorkerGroupError("lost", failures)) is lost


def test_best_state_is_broadcast_to_all_workers_without_pickling_tensors() -> None:
    """Pickling would need four times the size of the state on each worker at the end of training."""
    for rank, (state, pickled) in enumerate(run_on_ranks(_best_state)):
        assert state["weights"][1].tolist() == [1.0] * 10_000, f"on rank {rank}"
        assert state["step"] == 7
        assert pickled < 1_000


def _best_state(rank: int) -> tuple[Any, int]:
    """The state that rank ``rank`` receives from rank 0, and the bytes of its largest broadcast object."""
    sizes = [0]
    plain = dist.broadcast_object_list

    def measured(values: list[Any], src: int) -> None:
        plain(values, src=src)
        sizes.append(len(pickle.dumps(values)))

    best = {"weights": {1: torch.ones(10_000)}, "step": 7} if rank == 0 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "broadcast_object_list", measured)
        return train._broadcast_state(best, torch.device("cpu")), max(sizes)
