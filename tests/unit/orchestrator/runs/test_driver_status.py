"""Status that a driver publishes in a file and as Ray metrics; failures of publishing are ignored."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runs import driver_status as module
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher, read
from orchestrator.runs.prometheus import DEVICE_SECONDS, EPOCHS, SPOOL, STATES, TRIALS, Exported
from orchestrator.storage import records
from orchestrator.storage.names import STATUS_FILE
from orchestrator.storage.records import RunFolder
from tests.support.toy import Clock
from tests.support.waiting import HANG_SECONDS

VITALS = DriverStatus(
    done=3,
    target=8,
    trials={"complete": 2, "fail": 1, "running": 2},
    best={"trial": 1, "error": 0.5},
    seconds_left=12.5,
    device_seconds={"cpus": 7.5, "gpus": 2.0},
    trouble="trial 2: train/loss is nan at epoch 3",
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return records.create(tmp_path, "sweep", "toy", {}, "orchestrator sweep toy", "s")


class Series:
    """A replacement of Ray's gauge that keeps the last value of each label."""

    known: Mapping[str, Series]

    def __init__(self, name: str, description: str, labels: tuple[str, ...]) -> None:
        assert description
        self.labels, self.values = labels, dict[str, float]()
        type(self).known = {**getattr(type(self), "known", {}), name: self}

    def set_default_tags(self, about: Mapping[str, str]) -> None:
        assert about == {"id": "s", "kind": "sweep", "workload": "toy"}

    def set(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        self.values["".join((tags or {}).values())] = value


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, float]]:
    from ray.util import metrics

    monkeypatch.setattr(metrics, "Gauge", Series)
    return lambda name: Series.known[name].values


# The file


def test_status_file_contains_progress_epochs_spool_and_queue(folder: RunFolder) -> None:
    with StatusPublisher(folder, lambda: 4, {"queue": "team", "priority": 2}) as publisher:
        publisher.set_source(lambda: VITALS)
        publisher.trained(5)
        publisher.trained(6)
    said = read(folder)
    assert (said["done"], said["target"], said["trials"]) == (3, 8, {"complete": 2, "fail": 1, "running": 2})
    assert (said["epochs"], said["spool"], said["queue"], said["priority"]) == (11, 4, "team", 2)
    assert (said["best"], said["seconds_left"]) == ({"trial": 1, "error": 0.5}, 12.5)
    assert said["device_seconds"] == {"cpus": 7.5, "gpus": 2.0}
    assert said["trouble"] == VITALS.trouble


def test_status_is_published_repeatedly_at_the_interval(folder: RunFolder) -> None:
    beats = threading.Semaphore(0)

    def current_status() -> DriverStatus:
        beats.release()
        return VITALS

    with StatusPublisher(folder, interval=0.01) as publisher:
        publisher.set_source(current_status)
        assert all(beats.acquire(timeout=HANG_SECONDS) for _ in range(3))


def test_errors_while_publishing_the_status_are_ignored(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def current_status() -> DriverStatus:
        raise RuntimeError("the study is just being written")

    with StatusPublisher(folder) as publisher:
        publisher.set_source(current_status)
    assert read(folder) == {}
    monkeypatch.setattr(Path, "replace", _full)
    with StatusPublisher(folder) as publisher:
        publisher.set_source(lambda: VITALS)
    assert read(folder) == {}


def _full(*of: Any) -> int:
    raise OSError(28, "No space left on device")


def test_publisher_that_was_not_entered_writes_no_status_file(folder: RunFolder) -> None:
    StatusPublisher(folder).__exit__(None, None, None)
    assert not (folder.path / STATUS_FILE).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "done": 1}', '{"format": 1', "{}"])
def test_status_file_of_another_format_or_cut_short_reads_as_empty(folder: RunFolder, text: str) -> None:
    (folder.path / STATUS_FILE).write_text(text)
    assert read(folder) == {}


def test_epoch_rate_is_computed_over_the_last_changes(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    publisher = StatusPublisher(folder)
    assert publisher._rate() == 0
    for _ in range(module.WINDOW):  # a start without an epoch, and then four a second
        clock.sleep(10)
        publisher._rate()
    for _ in range(2 * module.WINDOW):
        clock.sleep(2)
        publisher.trained(8)
        rate = publisher._rate()
    assert rate == 4
    clock.sleep(58)  # an epoch that takes longer: the rate falls, and is not 0
    assert publisher._rate() == 2


def test_seconds_left_of_a_run_are_estimated_from_its_rate(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    publisher = StatusPublisher(folder)
    publisher.set_source(lambda: DriverStatus(done=20, target=100))
    clock.sleep(10)
    publisher.trained(20)
    publisher._publish()
    assert read(folder)["seconds_left"] == 40


# Ray's metrics


def test_ray_metrics_are_set_while_connected_and_unchanged_afterwards(
    folder: RunFolder, series: Callable[[str], dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = StatusPublisher(folder, lambda: 4)
    publisher.set_source(lambda: VITALS)
    publisher.trained(11)
    with publisher.on_cluster():
        pass
    assert series(TRIALS) == {"waiting": 0, "running": 2, "complete": 2, "pruned": 0, "fail": 1}
    assert (series(EPOCHS), series(SPOOL)) == ({"": 11}, {"": 4})
    assert series(DEVICE_SECONDS) == {"cpus": 7.5, "gpus": 2}
    publisher.trained(1)
    publisher._publish()
    assert series(EPOCHS) == {"": 11}, "without a cluster, metrics are not updated"


def test_trial_state_without_trials_is_exported_as_0(series: Callable[[str], dict[str, float]]) -> None:
    exported = Exported("s", "sweep", "toy")
    exported.update({"running": 2}, 3, {"cpus": 10.0}, 0)
    exported.update({"complete": 2}, 9, {"cpus": 25.0}, 0)
    assert series(TRIALS) == {**dict.fromkeys(STATES, 0), "complete": 2}
    assert series(DEVICE_SECONDS) == {"cpus": 25, "gpus": 0}


def test_failing_ray_metrics_do_not_prevent_the_status_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.util import metrics

    monkeypatch.setattr(metrics, "Gauge", _full)
    publisher = StatusPublisher(folder)
    publisher.set_source(lambda: VITALS)
    with publisher.on_cluster():
        pass
    assert json.loads((folder.path / STATUS_FILE).read_text())["done"] == 3
