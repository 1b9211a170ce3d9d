"""Processes of packs that die or hang: the other trials continue, and the trial that caused it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.cluster import lost_devices
from orchestrator.cluster.fair_share import SlotLimit
from orchestrator.cluster.lost_devices import LIMIT, LostDevices, _Holder
from orchestrator.config.spec import Resources, Search, SweepSpec
from orchestrator.errors import RunFailed
from orchestrator.runs import worker
from orchestrator.runs.report_pace import ReportPace
from orchestrator.runs.reports import DeviceLost
from orchestrator.runs.train import RETRIES
from orchestrator.sweeps import pack as pack_placement
from orchestrator.sweeps.pack import Packs
from orchestrator.sweeps.sweep import _on_working_devices

EPOCHS = 6
FOLDER = SimpleNamespace(id="s", log="s/log.txt")


class Runner:
    """Replaces PackRunner: a step is an epoch of every trial. ``saved`` outlives the runner, as checkpoints do."""

    saved: dict[int, int]
    seen: list[set[int]]

    def __init__(self, device: object, stop: Callable[[], bool]) -> None:
        self.seed_runs: set[int] = set()
        self.stop = stop
        self.pace, self.timed = ReportPace(), True

    def leave(self, wait: bool) -> None:
        self.seed_runs.clear()

    def begin(self, config: Mapping[str, Any]) -> None:
        self.seed_runs.add(config["number"])

    def drop(self, seed_run: int) -> None:
        self.seed_runs.discard(seed_run)

    def step(self) -> list[tuple[int, dict[str, Any]]]:
        if self.seed_runs:
            Runner.seen.append(set(self.seed_runs))
        said = []
        for seed_run in sorted(self.seed_runs):
            Runner.saved[seed_run] = epoch = Runner.saved.get(seed_run, 0) + 1
            said.append((seed_run, {"epoch": epoch, "done": epoch >= EPOCHS}))
        if self.stop():
            self.seed_runs.clear()
        return said


@dataclass(eq=False)
class Answer:
    """The pending answer to a step; ``seed_runs`` are the trials in it."""

    handle: Any
    begin: list[Any]
    drop: list[int]
    stopping: bool

    @property
    def seed_runs(self) -> set[int]:
        new, runner = {config["number"] for config in self.begin}, self.handle.actor._runner
        return ((runner.seed_runs if runner else set()) | new) - set(self.drop)


class Cluster:
    """Replaces Ray: an answer is computed when fetched. Processes die with a fatal trial, hang with a hanging one.

    Every step with trials raises ``broken``, if it is given. With ``gpus`` each process waits for one of them, and a
    process that trains on the ``bad`` one loses it.
    """

    exceptions = ray.exceptions

    def __init__(
        self,
        fatal: Sequence[int] = (),
        hanging: Sequence[int] = (),
        stillborn: bool = False,
        broken: Exception | None = None,
        gpus: Sequence[str] = (),
        bad: str = "",
    ) -> None:
        self.fatal, self.hanging, self.stillborn, self.broken = set(fatal), set(hanging), stillborn, broken
        self.started, self.dead = 0, set[int]()
        self.answered = Counter[int]()
        self.now = 0.0
        self.free, self.bad, self.with_gpus = list(gpus), bad, bool(gpus)
        self.queue: list[Any] = []
        self.trained_on = Counter[str]()
        """Processes with trials by device."""

    def remote(self, cls: type) -> Any:
        cluster = self

        class Handle:
            gpu = ""

            def __init__(self, *args: Any) -> None:
                self.actor, self.step, self.device = cls(*args), self, self
                cluster.started += 1
                self.number = cluster.started
                cluster.queue.append(self)
                cluster.place()

            def remote(self, begin: Sequence[Any] = (), drop: Sequence[int] = (), stopping: bool = False) -> Any:
                return Answer(self, list(begin), list(drop), stopping)

        class Options:
            remote = Handle

            def options(self, **need: float) -> Any:
                assert need["num_gpus"] == cluster.with_gpus
                return self

        return Options()

    def place(self) -> None:
        while self.free and self.queue:
            self.queue.pop(0).gpu = self.free.pop(0)

    def wait(
        self, answers: Sequence[Answer], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[Answer], list[Answer]]:
        placed = [answer for answer in answers if answer.handle.gpu or not self.with_gpus]
        there = [
            answer for answer in placed
            if isinstance(answer.handle.actor, _Holder) or not answer.seed_runs & self.hanging
        ]  # fmt: skip
        if not timeout:
            return there, []
        if there:  # in turns
            first = min(there, key=lambda answer: self.answered[answer.handle.number])
            self.answered[first.handle.number] += 1
            return [first], []
        self.now += timeout
        return [], list(answers)

    def get(self, answer: Answer) -> Any:
        if isinstance(answer.handle.actor, _Holder):
            return answer.handle.gpu
        self.trained_on[answer.handle.gpu] += bool(answer.begin)
        if self.bad and answer.handle.gpu == self.bad and answer.seed_runs:
            raise DeviceLost(f"the accelerator was lost ({self.bad}): an illegal access")
        if self.stillborn or answer.handle.number in self.dead or answer.seed_runs & self.fatal:
            raise ray.exceptions.ActorDiedError()
        if self.broken and answer.seed_runs:
            trace = 'File "/somewhere/devices.py", line 3, in take_device'
            raise ray.exceptions.RayTaskError("step", trace, self.broken)
        return answer.handle.actor.step(answer.begin, answer.drop, answer.stopping)

    def kill(self, handle: Any) -> None:
        self.dead.add(handle.number)
        self.free += [handle.gpu] if handle.gpu else []
        self.queue = [waiting for waiting in self.queue if waiting is not handle]
        self.place()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Book:
    refusal: Exception | None = None

    def __init__(self, trials: int, stop_after: int | None = None) -> None:
        self.trials, self.stop_after, self.given = trials, stop_after, 0
        self.complete: list[int] = []
        self.failed: dict[int, str] = {}
        self.reports = self.most = 0
        self.held, self.released = dict[int, int](), set[int]()
        self.parts: list[list[int]] = []

    def hold(self, seed_run: int, of: int) -> None:
        self.held[seed_run] = of

    def release(self, seed_run: int) -> None:
        del self.held[seed_run]
        self.released.add(seed_run)

    def note_wait(self) -> None:
        pass

    def next(self, *, hold: bool) -> dict[str, Any] | None:
        assert not hold, "its share of the devices is not known yet"
        if self.exhausted:
            return None
        self.given += 1
        self.most = max(self.most, self.given - len(self.complete) - len(self.failed))
        return {"number": self.given - 1}

    def ask_ahead(self) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self.given == self.trials

    def result(self, seed_run: int, payload: Mapping[str, Any]) -> bool:
        self.reports += 1
        self.parts.append(sorted(self.held.values()))
        assert seed_run in self.held, "its devices are not charged"
        if payload["done"]:
            self.complete.append(seed_run)
            del self.held[seed_run]
        return bool(payload["done"])

    def died(self, seed_run: int, cause: str) -> None:
        self.failed[seed_run] = cause

    def stopping(self) -> bool:
        return self.stop_after is not None and self.reports >= self.stop_after


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    def drive(
        book: Book,
        *capacities: int,
        timeout: float | None = None,
        slot_limit: SlotLimit = lambda wanted: wanted,
        lost: Callable[..., None] = lambda *loss: None,
        **faults: Any,
    ) -> Cluster:
        cluster = Cluster(**faults)
        Runner.saved, Runner.seen = {}, []
        for module in (pack_placement, lost_devices):
            monkeypatch.setattr(module, "ray", cluster)
            monkeypatch.setattr(module, "time", cluster)
        monkeypatch.setattr(pack_placement, "PackRunner", Runner)
        monkeypatch.setattr(worker, "take_device", lambda resources: None)
        search, resources = (
            Search(trials=book.trials, trial_timeout=timeout),
            Resources(gpus_per_worker=cluster.with_gpus),
        )
        spec = SweepSpec(workload="recommender", search=search, resources=resources)
        Packs(spec, FOLDER, book, capacities or [3], slot_limit, lost).run()  # type: ignore[arg-type]
        return cluster

    return drive


def test_all_trials_run_as_many_at_once_as_there_is_room_for(drive: Callable[..., Cluster]) -> None:
    book = Book(8)
    cluster = drive(book, 3, 2)
    assert sorted(book.complete) == list(range(8))
    assert [len(seed_runs) for seed_runs in Runner.seen[:2]] == [3, 2]
    assert book.most == 5, "each process has its own capacity"
    assert cluster.started == len(cluster.dead) == 2, "every process was started once and ended"


def test_the_last_trial_of_a_process_is_charged_all_of_its_devices(drive: Callable[..., Cluster]) -> None:
    book = Book(4)
    drive(book, 3)
    assert book.parts[0] == [3, 3, 3]
    assert book.parts[-1] == [1]


def test_a_trial_that_kills_its_process_fails_alone(drive: Callable[..., Cluster]) -> None:
    book = Book(5)
    drive(book, fatal=[1])
    assert sorted(book.complete) == [0, 2, 3, 4]
    assert book.failed == {1: f"its process died {RETRIES + 1} times"}
    assert Runner.saved == {0: EPOCHS, 2: EPOCHS, 3: EPOCHS, 4: EPOCHS}, "a trial started over"
    assert book.released == {0, 1, 2}, "released while they wait for another process"


def test_a_pack_whose_node_is_taken_away_goes_on_elsewhere(
    drive: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This does not count as a death of the process, however often it happens."""
    times = 2 * RETRIES
    nodes = iter([*[True] * times, *[False] * 10])

    def this_node() -> Callable[[], bool]:
        goes, asked = next(nodes), iter(range(100))
        return lambda: goes and next(asked) > 0

    monkeypatch.setattr(pack_placement, "this_node", this_node)
    book = Book(3)
    cluster = drive(book)
    assert (sorted(book.complete), book.failed, book.released) == ([0, 1, 2], {}, {0, 1, 2})
    assert cluster.started == len(cluster.dead) > RETRIES, "a process was left on its node"


def test_a_trial_that_loses_its_processs_accelerator_fails_alone(
    drive: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Runner.step

    def losing(runner: Runner) -> Any:
        if 1 in runner.seed_runs:
            raise DeviceLost("the accelerator was lost: CUDA error: an illegal memory access")
        return step(runner)

    monkeypatch.setattr(Runner, "step", losing)
    book = Book(5)
    cluster = drive(book)
    assert sorted(book.complete) == [0, 2, 3, 4]
    assert list(book.failed) == [1]
    assert "the accelerator was lost: CUDA error" in book.failed[1]
    assert cluster.started == len(cluster.dead) > RETRIES, "a process went on without its accelerator"


@pytest.mark.parametrize(("gpus", "faulty"), [(1, {1}), (1, {1, 2}), (2, {1}), (4, {1}), (4, {1, 2, 3, 5})])
def test_sweep_goes_on_when_faulty_trials_lose_every_device(
    gpus: int, faulty: set[int], drive: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices are healthy, and the trials fail by an assertion in a kernel."""
    node = "ab" * 28
    get = Cluster.get

    def losing(cluster: Cluster, answer: Answer) -> Any:
        handle = answer.handle
        if handle.gpu and not isinstance(handle.actor, _Holder) and answer.seed_runs & faulty:
            raise DeviceLost(f"the accelerator was lost ({handle.gpu}): CUDA error: device-side assert triggered")
        return get(cluster, answer)

    monkeypatch.setattr(Cluster, "get", losing)
    lines, book = list[str](), Book(12)
    devices = LostDevices(Resources(gpus_per_worker=1), {node: {"CPU": 8.0, "GPU": float(gpus)}}, lines.append)
    limit = _on_working_devices(lambda wanted: wanted, devices, gpus, book)  # type: ignore[arg-type]
    names = [f"GPU {number} of node {node}" for number in range(gpus)]
    drive(book, *[1] * gpus, slot_limit=limit, lost=devices.report, gpus=names)
    assert book.failed.keys() == faulty
    assert set(book.complete) == set(range(12)) - faulty
    assert book.refusal is None
    devices.close()


def test_a_device_that_is_lost_twice_is_left_out_and_the_sweep_goes_on(drive: Callable[..., Cluster]) -> None:
    node = "ab" * 28
    bad, lines, book = f"GPU 1 of node {node}", list[str](), Book(9)
    devices = LostDevices(Resources(gpus_per_worker=1), {node: {"CPU": 8.0, "GPU": 3.0}}, lines.append)
    limit = _on_working_devices(lambda wanted: wanted, devices, 3, book)  # type: ignore[arg-type]
    gpus = [f"GPU {number} of node {node}" for number in range(3)]
    cluster = drive(book, 1, 1, 1, slot_limit=limit, lost=devices.report, gpus=gpus, bad=bad)
    assert lines == [f"{bad} was lost {LIMIT} times: it is left out for the rest of the sweep"]
    assert (sorted(book.complete), book.failed, book.refusal) == (list(range(9)), {}, None)
    assert cluster.trained_on[bad] == LIMIT
    assert len(devices._held) == 1
    devices.close()
    assert len(cluster.dead) == cluster.started, "a process is left"


def test_a_trial_that_hangs_fails_alone(drive: Callable[..., Cluster]) -> None:
    book = Book(5)
    drive(book, hanging=[1], timeout=30.0)
    assert sorted(book.complete) == [0, 2, 3, 4]
    assert book.failed == {1: "no report for 30 s"}


def test_stop_saves_all_running_trials_and_begins_no_further_trial(drive: Callable[..., Cluster]) -> None:
    book = Book(9, stop_after=4)
    drive(book, 3)
    assert book.given == 3
    assert not book.complete
    assert set(Runner.saved.values()) == {3}, "one more epoch, announced as the last"


def test_processes_that_never_start_raise_run_failed(drive: Callable[..., Cluster]) -> None:
    with pytest.raises(RunFailed, match=r"^s failed: The actor died unexpectedly .*\(log: s/log.txt\)$"):
        drive(Book(2), stillborn=True)


def test_error_of_a_whole_process_raises_run_failed_with_its_cause(drive: Callable[..., Cluster]) -> None:
    with pytest.raises(RunFailed, match=r"^s failed: RuntimeError: CUDA error: no device \(devices.py:3\) "):
        drive(Book(2), broken=RuntimeError("CUDA error: no device\nCompile with TORCH_USE_CUDA_DSA"))


def test_process_that_hangs_while_taking_its_device_fails_its_trial(drive: Callable[..., Cluster]) -> None:
    """The process has answered before it had trials, so the wait for its start is over."""
    book = Book(1)
    drive(book, hanging=[0], timeout=30.0)
    assert book.failed == {0: "no report for 30 s"}


# A share of the cluster


def test_processes_are_released_for_a_smaller_share_and_started_again(drive: Callable[..., Cluster]) -> None:
    book, asked = Book(24), list[int]()

    def slot_limit(wanted: int) -> int:
        """Another sweep uses the cluster for a while."""
        asked.append(wanted)
        return 1 if 3 <= len(book.complete) < 10 else wanted

    cluster = drive(book, 1, 1, 1, slot_limit=slot_limit)
    assert sorted(book.complete) == list(range(24))
    assert cluster.started == 3 + 2, "two were released and two started again"
    assert book.failed == {}
    assert asked[0] == 3
    assert asked[-1] <= 1, "near its end the sweep requests no more than it has trials"


def test_the_last_process_is_released_for_the_winner_of_another_sweep(drive: Callable[..., Cluster]) -> None:
    """The sweep continues when it may have a process again."""
    book = Book(6)
    waits = iter([0] * 9)
    cluster = drive(book, slot_limit=lambda wanted: next(waits, 1) if len(book.complete) == 3 else 1)
    assert sorted(book.complete) == list(range(6))
    assert cluster.started == len(cluster.dead) == 2
    assert next(waits, None) is None


def test_no_more_processes_than_the_share_are_started(drive: Callable[..., Cluster]) -> None:
    book = Book(4)
    assert drive(book, 2, 2, slot_limit=lambda wanted: 1).started == 1
    assert book.most == 2
    assert sorted(book.complete) == list(range(4))
