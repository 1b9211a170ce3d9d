"""The live view of running and recently ended runs, from records and from a cluster, as text and as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cli import top
from orchestrator.cluster import usage
from orchestrator.cluster.usage import Usage
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher
from orchestrator.storage import records
from orchestrator.storage.names import STATUS_FILE
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings, resolve
from tests.support.waiting import HANG_SECONDS

CLUSTER = Usage("head:6379", 3, {"CPU": 16.0, "GPU": 4.0}, {"CPU": 12.0, "GPU": 2.5})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(resolve(), storage=tmp_path)


def folder(settings: Settings, name: str, current_status: DriverStatus | None = None, epochs: int = 0) -> RunFolder:
    """A folder of a sweep that this process drives, with ``current_status`` as its published status."""
    found = records.create(settings.storage, "sweep", "toy", {}, "orchestrator sweep toy", name)
    if current_status:
        with StatusPublisher(found, lambda: 3, {"queue": "team", "priority": 2}) as publisher:
            publisher.set_source(lambda: current_status)
            publisher.trained(epochs)
    return found


RUNNING = DriverStatus(
    2, 8, {"complete": 1, "fail": 1, "running": 3}, {"trial": 0, "error": 0.25}, 100.0, {"cpus": 30.0, "gpus": 0.0},
    "trial 1: train/loss is nan at epoch 2", 0.42,
)  # fmt: skip


def look_at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    """Set the view's clock to ``moment``, so that a slow machine does not change what is shown."""
    monkeypatch.setattr(top, "time", SimpleNamespace(time=lambda: moment))


def test_running_sweep_is_shown_with_progress_and_devices(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = folder(settings, "s", RUNNING, epochs=40)
    look_at(monkeypatch, json.loads((driven.path / STATUS_FILE).read_text())["time"] + 0.5)
    seen = top.snapshot(settings, CLUSTER)
    (told,) = seen["runs"]
    assert (told["id"], told["status"], told["done"], told["target"]) == ("s", "running", 2, 8)
    assert told["seconds_left"] == 99.5
    assert told["epochs_per_second"] > 0
    heading, _, row, trouble = top.as_text(seen).splitlines()
    assert heading.endswith("1 running  3 nodes at head:6379: 12 of 16 CPUs, 2.5 of 4 GPUs in use")
    for part in ("2/8 trials", "1 complete, 1 fail, 3 running", "error 0.25", "1 min", "30 s CPU", "42%", "team x2"):
        assert part in row
    assert trouble == "s: trial 1: train/loss is nan at epoch 2"
    assert json.loads(json.dumps(seen)) == seen
    driven.release("finished", 0)
    assert top.snapshot(settings, None)["runs"][0]["status"] == "finished"


def test_running_sweeps_precede_those_that_ended_within_the_hour(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    look_at(monkeypatch, now.timestamp())
    for name, minutes in (("early", 59), ("long-ago", 61), ("just-now", 1)):
        ended = folder(settings, name, DriverStatus(1, 1, device_seconds={"cpus": 1.0, "gpus": 7200.0}))
        ended.release("failed", 1, error=f"{name} failed")
        ended.update(ended=(now - timedelta(minutes=minutes)).isoformat())
    driven = folder(settings, "new")
    seen = top.snapshot(settings, None)
    assert driven.status() == "running"
    assert [told["id"] for told in seen["runs"]] == ["new", "just-now", "early"]
    lines = top.as_text(seen).splitlines()
    assert "1 running  no cluster is configured" in lines[0]
    assert "failed 1 min 00 s ago" in lines[3]
    assert "2 h 00 min GPU" in lines[3]
    assert lines[-2:] == ["just-now: just-now failed", "early: early failed"]


def test_dead_driver_is_lost_and_driver_without_recent_status_is_silent(settings: Settings) -> None:
    lost, silent = folder(settings, "lost", RUNNING), folder(settings, "silent", RUNNING)
    for each in (lost, silent):
        said = json.loads((each.path / STATUS_FILE).read_text())
        (each.path / STATUS_FILE).write_text(json.dumps(said | {"time": time.time() - 2 * top.QUIET_SECONDS}))
        each.update(started=(datetime.now(UTC) - timedelta(hours=5)).isoformat())
    assert lost._lock
    lost._lock.close()
    states = {told["id"]: told["status"] for told in top.snapshot(settings, None)["runs"]}
    assert states == {"silent": "silent", "lost": "lost"}


def test_view_of_an_empty_storage_shows_zero_running(settings: Settings) -> None:
    (line,) = top.as_text(top.snapshot(settings, None)).splitlines()
    assert line.endswith("0 running  no cluster is configured")


def test_view_without_a_terminal_is_printed_once(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    folder(settings, "s", RUNNING)
    top.top(settings, once=False, as_json=False, every=9)
    assert "2/8 trials" in capsys.readouterr().out
    top.top(settings, once=False, as_json=True, every=9)
    assert json.loads(capsys.readouterr().out)["runs"][0]["id"] == "s"


def test_view_on_a_terminal_is_updated_until_ctrl_c(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "200", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            folder(settings, "s", RUNNING)
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        top.top(settings, once=False, as_json=False, every=0.7)
    assert looks == [0.7, 0.7]
    assert "2/8 trials" in capsys.readouterr().out


# The cluster


def test_cluster_that_does_not_answer_is_reported_in_a_line(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    top.top(replace(settings, ray_address="127.0.0.1:1"), once=True, as_json=False, every=9)
    assert "cluster 127.0.0.1:1: No Ray answers at 127.0.0.1:1" in capsys.readouterr().out
    assert usage.as_text(usage.usage("ray://head:10001")).endswith("this wants the cluster's own address, HOST:6379")


def test_hanging_head_node_does_not_block_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def ask(address: str) -> Usage:
        answer.wait()
        return CLUSTER

    monkeypatch.setattr(usage, "usage", ask)
    watch = usage.UsageMonitor("head:6379", 0.01)
    assert watch.first(0.01).trouble == "no answer yet"
    answer.set()
    assert watch.first(HANG_SECONDS) == CLUSTER
    watch.close()


def test_gpus_are_omitted_for_a_cluster_without_gpus() -> None:
    without = replace(CLUSTER, nodes=1, total={"CPU": 4.0, "GPU": 0.0}, used={"CPU": 0.0, "GPU": 0.0})
    assert usage.as_text(without) == "1 node at head:6379: 0 of 4 CPUs in use"
