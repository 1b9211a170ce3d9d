"""Runs in this process: interruption, resume, resources and printed messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator import api
from orchestrator.cluster import preflight
from orchestrator.cluster.interrupts import Interrupts
from orchestrator.config.spec import Resources
from orchestrator.errors import Interrupted, UserError
from orchestrator.provenance import machine
from orchestrator.runs import driver
from orchestrator.storage import lease, remote
from orchestrator.storage.settings import resolve
from tests.support.toy import Toy
from tests.support.waiting import until
from workloads.contract import Metrics

RUN = {"tracking": "none", "epochs": 6, "refit": True, "name": "r1"}


def interrupted(workload: str | None, after: int, monkeypatch: pytest.MonkeyPatch, **given: object) -> list[int]:
    """Start or resume a run and stop it after ``after`` further epochs. Returns the epochs that it trained."""
    trained = []
    train = Toy.train_epoch

    def counted(toy: Toy, epoch: int) -> Metrics:
        trained.append(epoch)
        return train(toy, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "train_epoch", counted)
        patch.setattr(Interrupts, "stop_requested", lambda interrupts: len(trained) >= after)
        with pytest.raises(Interrupted):
            api.run(workload, **given)  # type: ignore[arg-type]
    return trained


def test_first_record_contains_tracking_and_experiment_for_a_resume(
    toy_workload: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can be killed before its session begins, while it reads the data."""

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(driver, "_drive", killed)
    tracking = f"sqlite:///{home}/mine.db"
    with pytest.raises(Killed):
        api.run(toy_workload, tracking=tracking, experiment="mine", name="r1", local=True)
    record = json.loads((home / "storage" / "r1" / "record.json").read_text())
    assert (record["tracking"], record["experiment"]) == (tracking, "mine")


def test_resume_message_names_the_epoch_at_which_it_continues(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    again = {"resume": "r1", "tracking": "none"}
    interrupted(toy_workload, 2, monkeypatch, **RUN)
    capsys.readouterr()
    interrupted(None, 5, monkeypatch, **again)
    assert "Resuming r1 from its checkpoint at epoch 2 of 6" in capsys.readouterr().out
    result = api.run(**again)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert "Resuming r1 from its checkpoint at refit epoch 1 of 3" in out
    assert f"({result.extra['epochs']} epochs, refitted on train + validation)" in out


def test_a_resume_that_is_stopped_while_it_starts_trains_nothing(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupted(toy_workload, 2, monkeypatch, **RUN) == [1, 2]
    assert interrupted(None, 0, monkeypatch, resume="r1", tracking="none") == []
    result = api.run(resume="r1", tracking="none")
    assert result.history()["epoch"].tolist()[:6] == [1, 2, 3, 4, 5, 6]


def test_run_is_resumed_on_a_machine_with_fewer_cpus(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = [{"CPU": 16.0, "GPU": 0.0}]
    for module in ("cluster.preflight", "sweeps.request"):
        monkeypatch.setattr(f"orchestrator.{module}.this_machine", lambda: machine)
    interrupted(toy_workload, 2, monkeypatch, **RUN)
    machine[0] = {"CPU": 1.0, "GPU": 0.0}
    capsys.readouterr()
    assert api.run(resume="r1", tracking="none").status == "finished"
    out = capsys.readouterr().out
    assert "Recorded on 1 worker of 16 CPU; continued on 1 worker of 1 CPU\n" in out
    assert "Run r1: test_toy:Toy on 1 CPU" in out.replace(toy_workload, "test_toy:Toy")


def test_resume_without_the_recorded_gpu_is_refused_unless_requested(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = [{"CPU": 8.0, "GPU": 1.0}]
    for module in ("cluster.preflight", "sweeps.request"):
        monkeypatch.setattr(f"orchestrator.{module}.this_machine", lambda: machine)
    monkeypatch.setattr("orchestrator.runs.worker.take_device", lambda resources: torch.device("cpu"))
    interrupted(toy_workload, 2, monkeypatch, **RUN, gpus_per_worker=1)
    machine[0] = {"CPU": 8.0, "GPU": 0.0}
    with pytest.raises(UserError, match="This machine is too small") as refused:
        api.run(resume="r1", tracking="none")
    assert "--gpus-per-worker" in str(refused.value)
    capsys.readouterr()
    assert api.run(resume="r1", tracking="none", gpus_per_worker=0).status == "finished"
    assert "Recorded on 1 worker of 1 GPU; continued on 1 worker of" in capsys.readouterr().out


def test_resume_of_a_cluster_run_on_one_machine_needs_explicit_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.preflight.this_machine", lambda: [{"CPU": 8.0, "GPU": 2.0}])
    said: list[str] = []

    def resumed(recorded: Resources, cluster: bool = True, **given: object) -> Resources:
        settings = resolve({"tracking": "none", "storage": str(tmp_path)})
        record = {"kind": "run", "spec": {"cluster": cluster}}
        return preflight.resumed_resources(record, recorded, given, settings, said.append, local=False)

    wanted = Resources(workers=8, gpus_per_worker=1, cpus_per_worker=8)
    with pytest.raises(UserError, match=r"ran on a Ray cluster.*--ray-address"):
        resumed(wanted)
    assert resumed(wanted, workers=2, cpus_per_worker=4) == Resources(workers=2, gpus_per_worker=1, cpus_per_worker=4)
    assert resumed(wanted, workers=2, cpus_per_worker=None, cluster=False).cpus_per_worker == 4
    elastic = Resources(workers=4, min_workers=2, cpus_per_worker=6)
    assert resumed(elastic, cluster=False) == elastic.model_copy(update={"cpus_per_worker": 4})
    assert len(said) == 3
    resumed(elastic, cluster=False, max_gpus=2)
    assert said[3].startswith("max_gpus=2 has no effect: the workers hold no GPU")


def test_a_resume_checks_its_resources_as_a_start_does(toy_workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(toy_workload, 2, monkeypatch, **RUN)
    with pytest.raises(UserError, match=r"one process: got workers=2\. Leave --workers out"):
        api.run(resume="r1", tracking="none", workers=2)
    with pytest.raises(UserError, match=r"It takes only more_trials .* gpus_per_worker"):
        api.sweep(resume="r1", workers=2)


def test_only_bf16_on_a_cpu_without_bf16_instructions_prints_a_warning(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for precision, fast in (("bf16", False), ("bf16", True), ("fp32", False)):
        monkeypatch.setattr(machine, "has_bf16_instructions", lambda fast=fast: fast)
        given = {"tracking": "none", "epochs": 1, "precision": precision, "gpus_per_worker": 0}
        api.run(toy_workload, **given)  # type: ignore[arg-type]
        said = "no instructions for bf16" in capsys.readouterr().out
        assert said == (precision == "bf16" and not fast)


def test_the_lease_is_renewed_while_the_data_are_checked(
    toy_workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of a large dataset takes longer than the validity of a lease."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    check, renewed = preflight.dataset, []

    def slow(*given: Any, **more: Any) -> str | None:
        if file := next((tmp_path / "bucket").glob(f"*/{lease.NAME}"), None):
            before = file.stat().st_mtime_ns
            until(lambda: file.stat().st_mtime_ns > before)
            renewed.append(file)
        return check(*given, **more)

    monkeypatch.setattr(preflight, "dataset", slow)
    storage = remote.mirror_of(f"file://{tmp_path}/bucket", tmp_path / "here")
    result = api.run(toy_workload, **RUN, storage=storage)  # type: ignore[arg-type]
    assert len(renewed) == 1
    assert result.metrics


def test_run_without_a_checkpoint_is_resumed_from_the_beginning(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no start")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.runs.driver.in_process", fail)
        with pytest.raises(RuntimeError):
            api.run(toy_workload, **(RUN | {"epochs": 1}))  # type: ignore[arg-type]
    api.run(resume="r1", tracking="none")
    out = capsys.readouterr().out
    assert "Resuming r1 from the beginning: it has no checkpoint" in out
    assert "(1 epoch, refitted on train + validation)" in out
