"""The trial manager of a sweep: it starts trials and handles each of their reports, local or from a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import show
from orchestrator.engine.loop import Row
from orchestrator.errors import UNAVAILABLE, UserError
from orchestrator.runs import reports, worker
from orchestrator.runs.driver_status import DriverStatus
from orchestrator.runs.live_view import RunningTrial, settings_text, sweep_view
from orchestrator.runs.session import Session
from orchestrator.search import unit_values
from orchestrator.search.constraints import OF_MODEL, Constraint, unknown_metric
from orchestrator.search.curves import Curves
from orchestrator.search.pbt import MEMBER_CHECKPOINTS_KEPT, Population
from orchestrator.search.progress import search_progress
from orchestrator.search.study import STOPPED, DrawFailed, Study, Trial, TrialDecision
from orchestrator.search.trial_params import TrialParams
from orchestrator.storage.usage_log import UsageLog
from orchestrator.sweeps import steering
from orchestrator.sweeps.budget import Budget
from orchestrator.sweeps.driver_load import DriverLoad
from orchestrator.sweeps.failure_limit import FailureLimit
from orchestrator.sweeps.trial_runs import TrialRuns

if TYPE_CHECKING:
    from rich.console import Group

REQUEST_SECONDS = 1.0
"""Interval at which the driver looks for requests to add or stop trials."""

WAIT_SECONDS = 30.0
"""Time without any process after which the sweep says that it waits: a process takes seconds to start."""

SHOWN = 3
"""Number of running trials in a line of progress."""


class TrialManager:
    """Starts trials and passes their reports to the study, the tracker, the usage log and the console.

    A running trial is identified by its seed run (see :class:`orchestrator.search.study.Trial`).
    """

    def __init__(self, study: Study, session: Session, spec: SweepSpec, params: TrialParams) -> None:
        self._study = study
        self._session = session
        self._spec = spec
        self._params = params
        self._deadline = time.monotonic() + (spec.search.time_budget or float("inf"))
        self._done = sum(trial.state.is_finished() for trial in study.trials)
        self._trouble: str | None = None
        self._at_work = False
        self.runs = TrialRuns(study, session, spec)
        self._running: dict[int, RunningTrial] = {}
        """Seed runs that have begun. On Ray Tune they may wait for their processes."""
        self._held: dict[int, int] = {}
        """Those of them that hold devices, and how many trials share these."""
        self._released = time.monotonic()  # when one released them last
        self._most = 1
        """Most seed runs that ever held devices at once."""
        self._curves = Curves(session.folder.path)
        self.refusal: UserError | None = None
        """The error of a trial that every other trial would raise too. It stops the sweep."""
        self.usage_log = UsageLog(session.folder.path)
        self.budget = Budget(spec, session.folder)
        seeds = spec.search.seeds
        ended = (trial.number for trial in study.trials if trial.state.name == "COMPLETE")
        self.budget.complete = {number * seeds + seed for number in ended for seed in range(seeds)}
        self.failures = FailureLimit(spec.search.max_failures)
        self.load = DriverLoad()
        self._said: set[str] = set()
        """Sentences that are printed once."""
        self._requests: set[str] = set()
        self._next_requests = 0.0
        self._constraints = [Constraint.parse(text) for text in spec.search.constraint]
        self._measure = sorted({one.metric for one in self._constraints} & {*OF_MODEL})

    def share(self, trials: float) -> None:
        """Expect of each trial the cost of its part of the devices: on average ``trials`` share those of one."""
        self.budget.devices = self._spec.resources.part(trials).devices

    def next(self, *, hold: bool = True) -> dict[str, Any] | None:
        """Configuration of the next trial for the process that runs it, or None when none can start now.

        After None, :attr:`exhausted` says whether one may start after a running trial has ended. Without ``hold`` the
        process has no devices yet: call :meth:`hold` when it has.
        """
        with self.load.serving():
            config = self._next()
            if config and hold:
                self.hold(config["number"])
            return config

    def hold(self, seed_run: int, of: int = 1) -> None:
        """Charge a trial its part of the devices from now on, which ``of`` trials share. Not if it has ended."""
        trial, before = self._running.get(seed_run), self._held.get(seed_run)
        if trial is None or before == of:
            return
        self._held[seed_run] = of
        part = self._spec.resources.part(of)
        self.usage_log.start(trial.name, part)
        self.budget.start(seed_run, part.devices)
        if before is None:
            trial.since = time.monotonic()
            self._session.console.event(f"{trial.name} {'continues' if trial.epoch else 'started'}  {trial.params}")

    def release(self, seed_run: int) -> None:
        """Charge a trial's devices no longer: it has lost its process, and waits for another until :meth:`hold`."""
        self._held.pop(seed_run, None)
        self._released = time.monotonic()
        self.usage_log.stop(self.runs.name(seed_run))
        self.budget.stop(seed_run)

    def note_wait(self) -> None:
        """Say once that the sweep waits, if no trial has had a process for some time."""
        if not self._held and time.monotonic() - self._released > WAIT_SECONDS:
            self._say_once("Waiting for processes: the cluster may be busy with something else")

    def _next(self) -> dict[str, Any] | None:
        if self.stopping():
            return None
        self._heed_requests()
        begun = self._begun_trial()
        if begun is None:
            return None
        trial, spec = begun
        self._open(trial, spec)
        population = isinstance(self._study, Population)
        return {
            "number": trial.seed_run,
            "spec": spec.model_dump(mode="json"),
            "folder": str(self._study.home(trial.seed_run)),
            "data": str(self._session.settings.data),
            "stop_file": str(self._session.folder.stop_file),
            "timeouts": list(self._session.settings.timeouts),
            "keep": MEMBER_CHECKPOINTS_KEPT if population else worker.CHECKPOINTS_KEPT,
            "save_at_rungs": population or self._spec.search.ordered,
            "units_at_rungs": self._spec.search.scheduler == "racing",
            "measure": self._measure,
            "pace": self.load.pace(self._spec.search.trial_timeout),
        }

    def _begun_trial(self) -> tuple[Trial, ExperimentSpec] | None:
        """The next trial. One whose parameters cannot be drawn or are not valid fails, and the next follows."""
        while not self.stopping():
            try:
                trial = self._study.next(**self._room())
            except DrawFailed as error:
                self._fail(error.seed_run, str(error))
                continue
            if trial is None:
                return None
            try:
                return trial, self.experiment(trial.origin, trial.params, trial.seed)
            except UserError as error:
                self._fail(trial.seed_run, str(error))
        return None

    def ask_ahead(self) -> None:
        """Compute the next trial's parameters before a device is free. Call it while no report waits."""
        if not self.stopping() and self._room()["fresh"]:
            with self.load.serving():
                self._study.ask_ahead()

    @property
    def live(self) -> int:
        """Number of trials that hold devices or wait for them."""
        return len(self._running)

    def current_status(self) -> DriverStatus:
        """Status of the sweep. Thread-safe: Optuna's storage supports concurrent reads."""
        study = self._study
        best = study.best()
        shown = search_progress(study.trials, study.target, study.objective, best)
        return DriverStatus(
            **shown,
            best_params=best and self._spec.searched(best.user_attrs.get("params", best.params)),
            done=self._done,
            device_seconds=self.usage_log.seconds(),
            trouble=self._trouble,
            driver_utilisation=self.load.utilisation(),
            expected_gain=str(study.gain) if study.gain else None,
        )

    def _room(self) -> dict[str, bool]:
        """Whether the budgets allow a new trial, which leaves enough for the finalists, and a finalist's repeat."""
        fresh = self.budget.allows_another(self._spec.search.repeats, self._running) and self._finalists_in_time()
        return {"fresh": fresh, "final": self.budget.allows_another(begun=self._running, repeat=True)}

    def _finalists_in_time(self) -> bool:
        """Whether the finalists can be repeated within the time budget after another trial."""
        repeats = self._spec.search.repeats
        return not repeats or time.monotonic() + self.budget.seconds(repeats, self._most) <= self._deadline

    @property
    def exhausted(self) -> bool:
        """Whether no further trial will start."""
        if self.stopping():
            return True
        # A running trial may end early and leave enough of the budget for another one.
        room = self._room()
        return self._study.exhausted(**{name: bool(self._running) or allowed for name, allowed in room.items()})

    def experiment(self, origin: int, params: Mapping[str, Any], seed: int = 0) -> ExperimentSpec:
        return self._spec.trial(origin, self._params.complete(params), seed)

    def result(self, seed_run: int, payload: Mapping[str, Any]) -> bool:
        """Handle one report of a trial. Returns True when the trial must stop."""
        with self.load.serving(reports=1):
            return self._result(seed_run, payload)

    def _result(self, seed_run: int, payload: Mapping[str, Any]) -> bool:
        if seed_run not in self._study.running():
            self._drop(seed_run)
            return True
        self.usage_log.beat()
        self._warn()
        self._heed_requests()
        rows = list(reports.rows_from_json(payload.get("rows", [])))
        if isinstance(self._study, Population):
            rows = self._study.own_rows(seed_run, rows)
        number, seed = self._study.trial_of(seed_run)
        self._curves.add(number, rows, seed)
        self._session.publisher.trained(sum(row.epoch > 0 for row in rows))
        self._show(seed_run, rows, payload.get("best_value"))
        self.runs.log(seed_run, rows)
        self.runs.note_micro_batches(seed_run, payload.get("accumulate"))
        if cause := payload.get("error"):
            if payload["refused"]:
                self.refusal = UserError(cause, code=payload["refused"])
            if payload["refused"] == UNAVAILABLE:  # not the trial's fault: --resume continues it
                self._drop(seed_run)
            else:
                self._fail(seed_run, cause)
            return True
        if refusal := next((e for row in rows if (e := unknown_metric(self._constraints, row.metrics))), None):
            self.refusal = refusal
            self._fail(seed_run, str(refusal))
            return True
        if payload["ended"]:
            if payload.get("units"):
                unit_values.write(self._session.folder.path, number, seed, payload["units"])
        elif self._spec.search.scheduler == "racing" and payload["epoch"] in self._spec.plan.decide_at:
            self._study.observe(seed_run, payload["epoch"], payload.get("units"))
        names = ("epoch", "best_epoch", "best_value", "best_metrics", "train_seconds")
        attributes = {name: payload[name] for name in names} | payload.get("measured", {})
        if "accumulate" in payload:
            attributes["accumulate"] = payload["accumulate"]
        verdict = self._study.report(seed_run, rows, payload["best_value"], bool(payload["ended"]), attributes)
        metric = self._study.objective.metric
        if self._study.unpaired:
            self._say_once(f"Racing stops no trial that has no values of {metric} by unit to be compared")
        if self._study.lacks_noise:
            why = f"validation has no values of {metric} by unit, and no trial has several seeds"
            self._say_once(f"--until-gain cannot end the search, because the noise is unknown: {why}")
        if verdict == "go on":
            return False
        if verdict == "paused":
            self._stop_clock(seed_run)
            return True
        detail = f"{metric} {show(payload['best_value'])}"
        if violations := self._study.violations(seed_run):
            detail += f", violates {', '.join(violations)}"
        self._ended(seed_run, verdict, self._study.cause(seed_run) if verdict == "failed" else detail)
        return True

    def _show(self, seed_run: int, rows: Sequence[Row], best: float | None) -> None:
        """Update what the live view shows of a running trial. Without a terminal print the running trials at times."""
        trial = self._running.get(seed_run)
        if trial is None or not rows:
            return
        trial.epoch = rows[-1].epoch
        trial.best = best
        trial.value = rows[-1].metrics.get(f"validation/{self._study.objective.metric}", trial.value)
        self._session.print_progress(self._done, self._study.target, "trial", self._running_text)

    def _running_text(self) -> str:
        shown = ", ".join(map(str, list(self._running.values())[:SHOWN]))
        return f"{len(self._running)} running: {shown}{', ...' if len(self._running) > SHOWN else ''}"

    def view(self) -> Group:
        """Live view of the sweep. Called in another thread."""
        metric = self._study.objective.metric
        status = replace(self._session.publisher.last, done=self._done, target=self._study.target)
        return sweep_view(status, list(self._running.values()), metric, self._session.started, self._spec.search.seeds)

    def died(self, seed_run: int, cause: str) -> None:
        """Fail a trial whose process was lost too often, or was killed because it sent no report."""
        if seed_run in self._study.running():
            self._fail(seed_run, cause)
        else:
            self._drop(seed_run)

    def stopping(self) -> bool:
        stopped = self.refusal is not None or self.failures.is_reached() or self._session.interrupts.stop_requested()
        return stopped or self.time_is_up() or self.budget.is_spent()

    def ends_epochs(self) -> bool:
        """Whether the sweep was asked to stop, so that running trials end their epoch and save."""
        interrupts = self._session.interrupts
        return interrupts.stop_requested() and interrupts.saves

    def time_is_up(self) -> bool:
        return time.monotonic() >= self._deadline

    def close(self) -> None:
        """Close trials that did not end: they fail when a budget is spent, else ``--resume`` continues them."""
        spent = "the time budget was spent" if self.time_is_up() else None
        spent = "the device-hour budget was spent" if self.budget.is_spent() else spent
        if spent and (self._study.unfinished() or not self._study.exhausted()):
            self._session.console.say(f"Stopped: {spent}")
        elif self._study.is_ended_by_sampler:
            self._session.console.say("Stopped: the sampler has no further point")
        elif self._study.is_ended_by_gain:
            self._session.console.say(f"Stopped: {self._study.gain or 'further trials gain no more than noise'}")
        elif not self._study.exhausted() and not self.budget.allows_another():
            self._session.console.say("Stopped: the device-hour budget takes no further trial")
        elif not self._study.exhausted() and not self._finalists_in_time():
            self._session.console.say("Stopped: the time budget takes no further trial")
        if self.exhausted and not self.stopping():  # otherwise a resume starts it
            self._study.discard_ahead()
        if isinstance(self._study, Population) and self._study.best() is None:
            spent = None  # no member ends before the last meeting: a resume, with a time budget of its own, goes on
        for seed_run in sorted({*self._study.unfinished(), *self.runs.open}):
            if spent and seed_run in self._study.unfinished():  # this cuts its other seeds too
                self._study.discard(seed_run, spent)
            self.runs.kill_orphan(seed_run)
            self._drop(seed_run)
        self.usage_log.close()

    def _open(self, trial: Trial, spec: ExperimentSpec) -> None:
        if not self._at_work:
            self._session.console.begin("trial", self._done)
            self._at_work = True
        name = self.runs.name(trial.seed_run)
        params = settings_text(self._spec.searched(trial.params))
        self._running[trial.seed_run] = RunningTrial(name, params, spec.plan.epochs, since=time.monotonic())
        self._most = max(self._most, len(self._running))
        members = self._study if isinstance(self._study, Population) else None
        first = spec
        if members:
            first = self.experiment(trial.origin, members.first_params(trial.number), trial.seed)
        self.runs.start(trial, first, spec, params)
        if members:
            self.runs.log_member(trial, members)

    def _fail(self, seed_run: int, cause: str) -> None:
        self._ended(seed_run, self._study.fail(seed_run, cause), cause)

    def _ended(self, seed_run: int, verdict: TrialDecision, detail: str) -> None:
        running = self._running.get(seed_run)
        self._stop_clock(seed_run)
        self.runs.end(seed_run, verdict, detail, self.budget.device_seconds_of(seed_run))
        self._done = sum(trial.state.is_finished() for trial in self._study.trials)
        if verdict == "complete":
            self.budget.complete.add(seed_run)
        failed = verdict == "failed" and not detail.startswith(STOPPED)
        number = self._study.trial_of(seed_run)[0]
        first = self.failures.count(number, detail if failed else None)
        if verdict == "failed":
            self._trouble = f"{self.runs.name(seed_run)}: {detail}"
        params = f"  {running.params}" if running else ""
        shown = detail if first == number else f"same cause as trial {first}"
        self._session.console.say(f"{self.runs.name(seed_run)} {verdict:<8} {shown}{params}")
        self._session.print_progress(self._done, self._study.target, "trial")

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._session.console.say(sentence)

    def _heed_requests(self) -> None:
        """Apply new requests to add or stop trials, at most once in :data:`REQUEST_SECONDS`."""
        if isinstance(self._study, Population) or time.monotonic() < self._next_requests:
            return
        self._next_requests = time.monotonic() + REQUEST_SECONDS
        for name, values in steering.unapplied(self._study, self._session.folder, self._requests):
            self._session.console.say(steering.apply(self._study, name, values))

    def _warn(self) -> None:
        if self.budget.warns():
            message = f"80% of {self._spec.search.max_device_hours:g} device hours are spent"
            self._session.console.say(message)
            self._session.notify("budget", message)

    def _drop(self, seed_run: int) -> None:
        """Drop a seed run without a result: the sweep was stopped, or another seed of its trial failed."""
        self.runs.kill(seed_run)
        self._stop_clock(seed_run)

    def _stop_clock(self, seed_run: int) -> None:
        self._running.pop(seed_run, None)
        self.release(seed_run)
