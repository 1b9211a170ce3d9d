"""Elastic runs: as many workers as there is room for, between two numbers; every number of them divides the batch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.cluster import polling, preemption, preflight, reservation
from orchestrator.cluster.connection import check_fit
from orchestrator.config.parsing import read_experiment, read_overrides, validate
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.storage import records, usage_log
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import request
from tests.support.commands import SPACES

ELASTIC = Resources(workers="1:4")  # type: ignore[arg-type]


# Requested workers


@pytest.mark.parametrize(("written", "least", "most"), [("1:4", 1, 4), ("2:2", 2, 2), ("3", 3, 3), (3, 3, 3)], ids=str)
def test_workers_are_parsed_from_a_number_or_a_range(written: Any, least: int, most: int) -> None:
    resources = validate(Resources, {"workers": written}, "resource")
    assert (resources.fewest_workers, resources.workers) == (least, most)
    assert resources.min_workers == (least if least < most else None)
    assert Resources.model_validate(resources.model_dump()) == resources


@pytest.mark.parametrize("written", ["4:1", "0:2", ":3", "2:", "1:2:3", "a:b", "1.5:2"])
def test_malformed_range_of_workers_raises_user_error(written: str) -> None:
    with pytest.raises(UserError, match=r"workers=.* is not valid; allowed: a number, or MIN:MAX") as caught:
        validate(Resources, {"workers": written}, "resource")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["resources: {workers: 1:4}", "resources:\n  workers: 1:4", "resources: {workers: '1:4'}"]
)
def test_range_of_workers_in_yaml_is_not_read_as_base_60(text: str, tmp_path: Path) -> None:
    """YAML would read 1:4 as 64, a number of base 60."""
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    assert validate(Resources, read_experiment(file).values["resources"], "resource") == ELASTIC


def test_min_workers_above_workers_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_workers=3 is more than workers=2"):
        Resources(workers=2, min_workers=3)


def test_command_of_a_spec_contains_the_range_of_workers() -> None:
    spec = ExperimentSpec(workload="toy", params={}, resources=ELASTIC)
    assert "--workers=1:4" in shlex.split(spec.command())
    assert spec.fingerprint() == ExperimentSpec(workload="toy", params={}).fingerprint()


@given(size=st.integers(1, 3000), least=st.integers(1, 4), more=st.integers(0, 3))
def test_every_number_of_workers_divides_the_batch(size: int, least: int, more: int) -> None:
    resources = Resources(workers=f"{least}:{least + more}")  # type: ignore[arg-type]

    def check(batch_size: int) -> None:
        preflight.batch({"batch_size": batch_size}, resources, Plan())

    def divides(batch_size: int) -> bool:
        return all(batch_size % workers == 0 for workers in range(least, least + more + 1))

    if divides(size):
        check(size)
        return
    with pytest.raises(UserError) as caught:
        check(size)
    offered = int(str(caught.value).rpartition("batch_size=")[2].rstrip("."))
    check(offered)
    assert not any(divides(n) for n in range(1, 6000) if abs(n - size) < abs(offered - size))


def test_fewest_workers_must_fit_the_cluster() -> None:
    assert check_fit([{"CPU": 1.0, "GPU": 0.0}], ELASTIC) == 1
    two = Resources(workers=4, min_workers=2)
    with pytest.raises(UserError, match=r"too small: got at least 2 worker\(s\) of 1 CPU each") as caught:
        check_fit([{"CPU": 1.0, "GPU": 0.0}], two)
    assert caught.value.code == UNAVAILABLE


def test_sweep_with_a_range_of_workers_is_refused(toy_workload: str) -> None:
    with pytest.raises(UserError, match=r"fixed number of workers: got workers=1:4\. Use --workers 4"):
        request.sweep("toy", resolve({}), resources={"workers": "1:4"}, search={"space": f"{SPACES}:space"})


def test_local_cpus_are_divided_by_the_largest_number_of_workers(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "this_machine", lambda: [{"CPU": 8.0, "GPU": 0.0}])
    for words in ({"resources": {"workers": "1:4"}}, {"overrides": read_overrides(["resources.workers=1:4"])}):
        overrides = {"batch_size": "12", **words.get("overrides", {})}
        spec = request.experiment("toy", resolve({}), **words | {"overrides": overrides})
        assert spec.resources == Resources(workers=4, min_workers=1, cpus_per_worker=2)


# Waiting for resources


@dataclass
class Cluster:
    """A cluster with room for ``free`` workers; larger groups stay pending, and waits advance the clock ``now``."""

    free: int
    now: float = 0.0
    asked: list[int] = field(default_factory=list)
    held: int = 0
    changes: Callable[[Cluster], None] = lambda cluster: None

    def monotonic(self) -> float:
        return self.now

    def placement_group(self, bundles: list[Any]) -> Group:
        self.asked.append(len(bundles))
        return Group(self, len(bundles))

    def remove(self, group: Group) -> None:
        self.held -= group.size if group.there else 0
        group.there = False


@dataclass
class Group:
    cluster: Cluster
    size: int
    there: bool = False

    def wait(self, seconds: float) -> bool:
        cluster = self.cluster
        cluster.changes(cluster)
        if self.size <= cluster.free - cluster.held and not self.there:
            self.there, cluster.held = True, cluster.held + self.size
        cluster.now += 0 if self.there else seconds
        return self.there


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(free=4)
    for module in (reservation, polling):
        monkeypatch.setattr(module, "time", cluster)
    monkeypatch.setattr(reservation, "placement_group", cluster.placement_group)
    monkeypatch.setattr(reservation, "remove_placement_group", cluster.remove)
    monkeypatch.setattr(reservation, "room", lambda resources: cluster.free - cluster.held)
    return cluster


@pytest.mark.parametrize(("free", "asked"), [(6, [4]), (4, [4]), (3, [4, 3]), (1, [4, 1])])
def test_all_workers_are_requested_first_and_then_as_many_as_fit(free: int, asked: list[int], cluster: Cluster) -> None:
    cluster.free = free
    assert reservation.wait_for_room(ELASTIC, lambda: True) == Resources(workers=asked[-1])
    assert (cluster.asked, cluster.held) == (asked, 0), "no group may be left"


def test_reservation_waits_for_resources_that_are_being_released(cluster: Cluster) -> None:
    cluster.free = 0
    cluster.changes = lambda cluster: setattr(cluster, "free", 4 if cluster.now >= 1 else 0)
    assert reservation.wait_for_room(ELASTIC, lambda: True) == Resources(workers=4)
    assert cluster.asked == [4]


def test_request_that_stays_pending_is_reduced_by_one_worker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.free = 2
    monkeypatch.setattr(reservation, "room", lambda resources: 3)
    assert reservation.wait_for_room(ELASTIC, lambda: True) == Resources(workers=2)
    assert cluster.asked == [4, 3, 2]
    assert cluster.now > reservation.TRY_SECONDS


def test_reservation_waits_for_the_fewest_workers_until_a_stop(cluster: Cluster) -> None:
    cluster.free = 0
    assert reservation.wait_for_room(Resources(workers=4, min_workers=2), lambda: cluster.now < 30) is None
    assert (cluster.asked, cluster.held) == ([4, 2], 0)


def test_fixed_number_of_workers_is_not_reduced(cluster: Cluster) -> None:
    cluster.free = 3
    assert reservation.wait_for_room(Resources(workers=4), lambda: cluster.now < 30) is None
    assert cluster.asked == [4]


def test_room_for_more_workers_is_checked_at_intervals(cluster: Cluster) -> None:
    cluster.free = 0
    more = reservation.has_room_for_more(ELASTIC)
    assert not more()
    cluster.free = 1
    assert not more(), "the room must not be checked before the interval has passed"
    cluster.now += reservation.GROW_SECONDS
    assert more()
    cluster.free = 0
    assert more(), "once there was room, the answer must stay true"


# Use of devices


def test_mean_devices_are_weighted_by_the_time_they_were_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = records.create(tmp_path, "run", "toy", {}, "command")
    now = [1000.0]
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(usage_log.time, clock, lambda: now[0])
    log = usage_log.UsageLog(folder.path)
    for workers, seconds in ((4, 60), (1, 30)):
        with log.holding("run", ELASTIC.fixed(workers)):
            now[0] += seconds
        now[0] += 500  # no devices are held
    assert usage_log.mean_devices(folder) == pytest.approx((4 * 60 + 30) / 90)


# Draining nodes


def test_draining_node_of_the_run_requests_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    going: set[str] = set()
    now = [0.0]
    monkeypatch.setattr(preemption, "draining_nodes", lambda: going)
    monkeypatch.setattr(polling.time, "monotonic", lambda: now[0])
    stop = preemption.nodes_leaving(["mine", "ours"])
    now[0] += 2
    assert not stop()
    going |= {"theirs", "ours"}
    assert not stop(), "the nodes must not be checked before the interval has passed"
    now[0] += 2
    assert stop()
    going.clear()
    assert stop(), "a requested stop must not be withdrawn"
