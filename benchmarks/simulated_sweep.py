"""A sweep without trials: the real manager, study and journals of a driver, and an executor that posts reports."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import HERE
from posting import PostedTrial

from orchestrator.config.plan import Plan
from orchestrator.config.spec import Search, SweepSpec
from orchestrator.runs.report_pace import ReportPace
from orchestrator.search import schedulers, spaces
from orchestrator.search.study import Study
from orchestrator.search.trial_params import TrialParams
from orchestrator.storage import records, settings
from orchestrator.storage.records import RunFolder
from orchestrator.sweeps.driver_load import DriverLoad
from orchestrator.sweeps.trial_manager import TrialManager
from orchestrator.tracking.journal import Journal
from workloads.contract import Objective

IDLE = HERE / "idle"
PATHS = [str(IDLE), str(HERE.parent), str(HERE)]
sys.path[:0] = PATHS  # as an installed workload; Ray's workers by the environment
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

SCORE = Objective("score", "max", refit=True)
SPACE = f"{IDLE / 'idle.py'}:nine"
EPOCHS = 27


class JournalTracker:
    """A tracker that writes the real journal and sends nothing."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / "tracking.jsonl")

    def start(self, key: str, name: str, **about: Any) -> None:
        self._journal.put(op="start", key=key, name=name, **about)

    def log(self, key: str, rows: Any) -> None:
        self._journal.put(op="log", key=key, rows=[[row.epoch, round(row.time * 1000), row.metrics] for row in rows])

    def tag(self, key: str, tags: dict[str, str]) -> None:
        self._journal.put(op="tag", key=key, tags=tags)

    def end(self, key: str, status: str) -> None:
        self._journal.put(op="end", key=key, status=status)

    def opened(self, key: str) -> None:
        return None


@dataclass
class Driver:
    """The parts of a driver that a report passes."""

    folder: RunFolder
    spec: SweepSpec
    study: Study
    manager: TrialManager


def spec(trials: int, sampler: str = "tpe", epochs: int = EPOCHS) -> SweepSpec:
    """The sweep of nine parameters that every measurement uses."""
    plan = Plan(epochs=epochs, refit=True, decide_at=schedulers.rungs(epochs, "asha"))
    search = Search(trials=trials, sampler=sampler, scheduler="asha", space=SPACE)  # type: ignore[arg-type]
    return SweepSpec(workload="idle", plan=plan, seed=1, search=search)


def new_folder(storage: Path, asked: SweepSpec, name: str = "sweep") -> RunFolder:
    """The folder of a sweep that has just begun, as its command makes it."""
    options = {"local": False, "register": None, "name": name}
    recorded = {"sweep": asked.model_dump(mode="json"), "options": options}
    folder = records.create(storage, "sweep", "idle", recorded, "orchestrator sweep idle", name)
    folder.update(objectives=[[SCORE.metric, SCORE.direction]])
    return folder


def driver(folder: RunFolder, asked: SweepSpec) -> Driver:
    """The manager of a sweep, over the study that is in its folder."""
    space = spaces.load("idle", asked.search.space)
    study = Study(folder.path, asked, [SCORE], space, False)
    session = SimpleNamespace(
        folder=folder,
        tracker=JournalTracker(folder.path),
        settings=settings.resolve(),
        interrupts=SimpleNamespace(stop_requested=lambda: False),
        console=SimpleNamespace(say=lambda *a: None, begin=lambda *a: None, event=lambda *a: None),
        print_progress=lambda *a: None,
        notify=lambda *a, **k: None,
        trained_on=lambda *a: None,
        publisher=SimpleNamespace(trained=lambda epochs: None),
    )
    params = TrialParams(asked.workload, {}, None)
    return Driver(folder, asked, study, TrialManager(study, session, asked, params))  # type: ignore[arg-type]


@contextmanager
def without_fsync() -> Iterator[None]:
    """Disable fsync in the block, for preparations that are not measured."""
    usual, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = usual


def filled(storage: Path, trials: int, more: int, name: str) -> RunFolder:
    """The folder of a sweep of which ``trials`` trials have run to an end and ``more`` have not begun."""
    asked = spec(trials + more)
    folder = new_folder(storage, asked, name)
    at_random = spec(trials, "random")
    with without_fsync():
        made = driver(folder, at_random)
        while (config := made.manager.next()) is not None:
            trial, stopped = PostedTrial(config), False
            while not stopped:
                trial.train()
                stopped = (trial.ended or trial.at_rung) and made.manager.result(trial.seed_run, trial.payload())
        made.manager.close()
    return folder


@dataclass
class _Running:
    """A trial in its process."""

    posted: PostedTrial
    pace: ReportPace
    begun: float


@dataclass
class Executor:
    """Posts the reports of simulated trials to a driver, at times of a clock of its own.

    The driver serves one report after the other, each for as long as it takes the CPU, and ``overhead`` seconds of what
    hands it over; a trial trains on when its report has been served. ``rationed``: with the pace that the driver asks
    for and the process keeps, else a report a second.
    """

    driver: Driver
    at_once: int
    overhead: float
    rationed: bool = True
    latency: float = 0.0
    """Seconds on the way to the driver and back, which keep it from nothing."""
    epoch_seconds: float = 1.0
    every_epoch: bool = False
    """Whether each epoch is reported by itself, as the processes of :mod:`posting` do."""
    now: float = 0.0
    busy: float = 0.0
    trained: float = 0.0
    """Seconds of all trials, from their beginnings to their ends."""
    waited: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("interval", "rung", "end", "begin"), 0.0))
    """Of these, seconds that passed without training: at the interval, at rungs, at the end, before a next trial."""

    def run(self) -> None:
        """Run the sweep to its end."""
        load = self.driver.manager.load = DriverLoad(lambda: self.now, lambda: self.busy)
        load.trains_elsewhere(self.at_once)
        self._order = 0
        self._due: list[tuple[float, int, _Running]] = []
        for _ in range(self.at_once):
            self._begin(0.0)
        while self._due:
            posted_at, _, running = heapq.heappop(self._due)
            self._take(posted_at, running)

    def _take(self, posted_at: float, running: _Running) -> None:
        trial = running.posted
        kind = "end" if trial.ended else "rung" if trial.at_rung else "interval"
        if kind == "interval":
            self._at(posted_at, running.pace.sent)
        stopped = self._serve(
            posted_at, lambda: self.driver.manager.result(trial.seed_run, trial.payload()), self.overhead
        )
        self.waited[kind] += self.now - posted_at + self.latency
        if stopped:
            self.trained += self.now - running.begun
            self._begin(self.now)
        else:
            self._at(self.now + self.latency, running.pace.answered)
            self._train(running, self.now + self.latency)

    def _begin(self, since: float) -> None:
        config = self._serve(since, self.driver.manager.next, 0.0)
        if config is not None:
            self.waited["begin"] += self.now - since
            self._train(_Running(PostedTrial(config), ReportPace(config["pace"], lambda: self.now), self.now), self.now)

    def _serve(self, since: float, work: Any, overhead: float) -> Any:
        """What ``work`` returns; the clock is where it was done, after what was asked for before."""
        self.now = max(self.now, since)
        used = time.process_time()
        found = work()
        took = time.process_time() - used + overhead
        self.now += took
        self.busy += took
        return found

    def _at(self, moment: float, call: Any) -> None:
        now, self.now = self.now, moment
        call()
        self.now = now

    def _train(self, running: _Running, since: float) -> None:
        """Train until a report is due, which is posted then."""
        moment = since
        interval = running.pace.seconds() if self.rationed else 1.0
        while True:
            running.posted.train()
            moment += self.epoch_seconds
            if self.every_epoch or running.posted.ended or running.posted.at_rung or moment - since >= interval:
                break
        self._order += 1
        heapq.heappush(self._due, (moment, self._order, running))

    def share(self, *kinds: str) -> float:
        """Of the trials' time, in percent, what they waited."""
        return 100 * sum(self.waited[kind] for kind in kinds) / self.trained
