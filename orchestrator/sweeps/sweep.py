"""A sweep: Optuna suggests trials, Ray Tune or this process runs them, and the winner is tested once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.cluster import preflight
from orchestrator.cluster.connection import Node, check_fit, cluster, nodes_by_id
from orchestrator.config import objectives, user_code, workload_loader
from orchestrator.config.spec import SweepSpec, parse
from orchestrator.console import Console
from orchestrator.errors import UNAVAILABLE, Interrupted, RunFailed, UserError, plural
from orchestrator.runs import description, reports, worker
from orchestrator.runs.driver import Options, create, finish, in_process, prepare
from orchestrator.runs.progress_reporter import ProgressReporter
from orchestrator.runs.session import Result, Session, adopt
from orchestrator.search import grid, recorded, schedulers, spaces, strategy, trusted_spaces, user_search, warm_start
from orchestrator.search.constraints import LEARNT_BY
from orchestrator.search.journal import JOURNAL
from orchestrator.search.pbt import Population
from orchestrator.search.progress import target
from orchestrator.search.samplers import drawn_at_random
from orchestrator.search.study import Study
from orchestrator.search.trial_params import TrialParams, to_record
from orchestrator.search.warm_start import PUBLISHED
from orchestrator.search.winners import WINNER
from orchestrator.storage import run_lookup
from orchestrator.storage.records import SETTLED, RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import pack_plan
from orchestrator.sweeps.trial_manager import TrialManager
from orchestrator.sweeps.winner import Winner, finalize, select_winner
from workloads import memory

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from orchestrator.cluster.fair_share import SlotLimit
    from orchestrator.cluster.lost_devices import LostDevices


@dataclass(frozen=True)
class ResumeOptions:
    """Options of ``--resume``.

    ``resources`` replace recorded ones. ``space``, ``sampler`` and ``scheduler`` are code that the user trusts, whose
    file may have moved.
    """

    more_trials: int = 0
    retry_failed: bool = False
    resources: Mapping[str, Any] = field(default_factory=dict)
    space: str | None = None
    sampler: str | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.more_trials < 0:
            raise UserError("--more-trials is not valid", got=self.more_trials, allowed="greater than or equal to 0")


def sweep(spec: SweepSpec, settings: Settings, options: Options, console: Console) -> Result:
    """Run a sweep to its end. Raises UserError, RunFailed (all trials failed) or Interrupted."""
    for code in user_search.named(spec.search):
        trusted_spaces.trust(code, settings.home)
    preflight.services(
        settings, spec.resources, ray=not options.local, workload=spec.workload, register=options.register
    )
    if spec.search.warm_start:
        # Resolved to ids now: `latest` changes when this sweep gets its folder.
        sources = tuple(
            source if source == PUBLISHED else run_lookup.find(settings.storage, source, "sweep").id
            for source in spec.search.warm_start
        )
        spec = spec.model_copy(update={"search": spec.search.model_copy(update={"warm_start": sources})})
        _earlier_trials(spec, settings)
    folder = create(spec, settings, options, contract=search_identity(spec) | to_record(_survey(spec)))
    with folder.guarded():
        return _drive(folder, spec, settings, options, console, ResumeOptions(), resuming=False)


def resume(folder: RunFolder, settings: Settings, console: Console, again: ResumeOptions) -> Result:
    """Continue a sweep with the same trials, study and MLflow runs.

    Raises UserError when its search space or objective has changed, when it has finished and ``again`` adds nothing,
    and when another process drives it.
    """
    folder = folder.fetch()
    spec = parse(SweepSpec, folder.record["spec"]["sweep"], folder.id)
    options = Options.recorded(folder)
    trusted_spaces.check(spec.workload, settings.home, folder.id, "workload")
    settings = adopt(settings, folder)
    if folder.status() in SETTLED and not again.more_trials and not again.retry_failed:
        raise UserError(
            f"{folder.id} has already finished", fix="Add --more-trials N or --retry-failed, or start a new sweep"
        )
    if spec.search.scheduler == "pbt" and (again.more_trials or again.retry_failed):
        raise UserError("A population cannot take more members", fix="Start a new sweep")
    if not (folder.path / JOURNAL).exists() and (folder.path / "trials").exists():  # otherwise no trial has started
        raise UserError(f"{folder.id} has lost its journal, {JOURNAL}", fix="Restore it, or start a new sweep")
    code = {"space": again.space, "sampler": again.sampler, "scheduler": again.scheduler}
    search = trusted_spaces.choose(spec.search, code, settings.home, folder.id)
    spec = spec.model_copy(update={"search": search})
    _check_unchanged(folder, spec)
    spec = _with_more(spec, again.more_trials)
    recorded_spec = spec.model_dump(mode="json")  # with the recorded resources
    resources = preflight.resumed_resources(
        folder.record, spec.resources, again.resources, settings, console.say, local=options.local
    )
    preflight.services(settings, resources, ray=not options.local, workload=spec.workload, register=options.register)
    spec = spec.model_copy(update={"resources": resources})
    if folder.status() in SETTLED:  # what is refused later ends as failed, without the earlier result
        _check_start(spec, settings, options)
    folder.acquire()
    folder.update(spec={**folder.record["spec"], "sweep": recorded_spec})
    console.say(f"Resuming {folder.id}: {_ended_trials(folder, spec.search.trials)} trials have ended")
    with folder.guarded():
        return _drive(folder, spec, settings, options, console, again, resuming=True)


def _check_start(spec: SweepSpec, settings: Settings, options: Options) -> None:
    """Check what is otherwise checked once the sweep is held: its dataset, and the cluster. Raises UserError."""
    elsewhere = bool(settings.ray_address) and not options.local
    preflight.dataset(spec.workload, warm_start.defaults(spec), settings.data, elsewhere=elsewhere)
    if elsewhere:
        with cluster(settings.ray_address) as nodes:
            _check_cluster(spec, settings, nodes)


def search_identity(spec: SweepSpec) -> dict[str, Any]:
    """What must be the same for the trials of a sweep to be compared: the search space and the objectives."""
    return {
        "space": _survey(spec).text(),
        "objectives": [f"{o.metric}:{o.direction}" for o in objectives.of_plan(spec.workload, spec.plan)],
    }


def _check_unchanged(folder: RunFolder, spec: SweepSpec) -> None:
    now = search_identity(spec)
    then = folder.record["spec"].get("contract", now)  # old sweeps have none
    changes = []
    for name in sorted({**then["space"], **now["space"]}):
        before, after = (each["space"].get(name) or "not searched" for each in (then, now))
        if before != after:
            changes.append(f"{name}: {before} -> {after}")
    if then["objectives"] != now["objectives"]:
        changes.append(f"objective: {', '.join(then['objectives'])} -> {', '.join(now['objectives'])}")
    if changes:
        own = user_code.is_named(spec.search.space)
        restore = f"Restore it ({spec.search.space})" if own else "Continue it with the version that began it"
        raise UserError(
            f"{folder.id} cannot be resumed: its search space or objective has changed",
            got="; ".join(changes),
            fix=f"{restore}, or start a new sweep with --warm-start {folder.id}",
        )


def _ended_trials(folder: RunFolder, requested: int) -> str:
    """``7 of 16``, additional trials included."""
    trials: list[FrozenTrial] = []
    with suppress(UserError):  # no trial has started
        trials = recorded.trials(folder, summary=True)
    return f"{sum(trial.state.is_finished() for trial in trials)} of {target(requested, trials)}"


def _with_more(spec: SweepSpec, more: int) -> SweepSpec:
    trials = spec.search.trials + more
    if spec.search.sampler == "grid" and more:
        size = len(grid.points(spaces.load(spec.workload, spec.search.space), spec.fixed))
        if trials > size:
            raise UserError("The grid has no more points", got=f"{trials} trials", allowed=f"at most {size}")
    return spec.model_copy(update={"search": spec.search.model_copy(update={"trials": trials})})


def _survey(spec: SweepSpec) -> spaces.Survey:
    params = workload_loader.params(spec.workload)
    return spaces.probe(spaces.load(spec.workload, spec.search.space), spec.fixed, params, spec.seed)


def _earlier_trials(spec: SweepSpec, settings: Settings) -> tuple[list[FrozenTrial], list[str]]:
    space = spaces.load(spec.workload, spec.search.space)
    at = partial(spaces.distributions_at, space, spec.fixed)
    return warm_start.earlier_trials(spec, settings, objectives.of_plan(spec.workload, spec.plan), at)


def _drive(
    folder: RunFolder,
    spec: SweepSpec,
    settings: Settings,
    options: Options,
    console: Console,
    again: ResumeOptions,
    resuming: bool,
) -> Result:
    decide_at = schedulers.rungs(spec.plan.epochs, spec.search.scheduler)
    spec = spec.model_copy(update={"plan": spec.plan.model_copy(update={"decide_at": decide_at})})
    defaults = warm_start.defaults(spec)
    headline = (
        f"Sweep {folder.id}: {spec.search.trials} trials of {spec.workload}, "
        f"{spec.search.sampler}, {spec.search.scheduler}"
        + (f", {spec.search.seeds} seeds each" if spec.search.seeds > 1 else "")
    )
    sampler = spec.search.sampler
    survey = _survey(spec)
    notes = [drawn_at_random(sampler, survey)]
    if spec.search.constraint and not (user_code.is_named(sampler) or sampler in LEARNT_BY):
        notes.append(f"The sampler {sampler} does not learn constraints; {' and '.join(LEARNT_BY)} do")
    note = ". ".join(filter(None, notes))
    tags = prepare(folder, spec, defaults, settings, options, console.say, headline, note)
    if spec.sampler_reason:
        tags["orchestrator.sampler_reason"] = spec.sampler_reason
    params = {
        **spec.fixed,
        **{f"search.{name}": value for name, value in spec.search.model_dump(mode="json", exclude={"trials"}).items()},
        **spec.plan.model_dump(mode="json"),
        "seed": spec.seed,
    }
    name = description.name(folder.id, spec.workload, description.sweep_settings(spec))
    contract = folder.record["spec"].get("contract", {})
    summary = description.sweep_summary(spec, contract.get("space", {}))
    trial_params = TrialParams.of(spec.workload, contract, survey)
    if resuming and (sentence := trial_params.sentence(folder.id)):
        console.say(sentence)
    with Session(
        folder, settings, console, resuming=resuming, params=params, tags=tags, name=name, summary=summary
    ) as session:
        session.trained_on(folder.id, defaults)
        if session.tracker:  # a tag: --more-trials changes it, and MLflow's parameters cannot change
            session.tracker.tag(folder.id, {"search.trials": str(spec.search.trials)})
        study = _study(spec, folder, session, again, survey)
        if options.local and session.tracker:
            session.tracker.await_connection()
        manager = TrialManager(study, session, spec, trial_params)
        session.publisher.set_source(manager.current_status)
        console.view(manager.view)
        run_trials = _in_process if options.local else _on_ray
        winner = run_trials(spec, session, study, manager)
        if winner is None:
            raise Interrupted(folder.resume_command)
        result = finish(session, winner.spec, options.register, folder.path / WINNER, winner.before, winner.selected)
        return finalize(result, session, spec, study, manager, options, winner.spec)


def _study(spec: SweepSpec, folder: RunFolder, session: Session, again: ResumeOptions, survey: spaces.Survey) -> Study:
    """The sweep's study, with the trials of ``--warm-start`` and ``--retry-failed`` added."""
    space = spaces.load(spec.workload, spec.search.space)
    common = (folder.path, spec, objectives.of_plan(spec.workload, spec.plan), space, survey.conditional)
    if spec.search.scheduler == "pbt":
        changing = strategy.changeable(workload_loader.params(spec.workload), list(survey.distributions))
        return Population(*common, changeable=changing)
    study = Study(*common)
    begun = any(trial.state.name != "WAITING" for trial in study.trials)
    if spec.search.warm_start and not begun:  # a driver that died before may have added some
        learnt, lines = _earlier_trials(spec, session.settings)
        study.add_earlier(learnt)
        for line in lines:
            session.console.say(line)
        if PUBLISHED in spec.search.warm_start:
            session.console.say(warm_start.enqueue_published(spec, study))
    if again.retry_failed:
        count = study.retry_failed()
        session.console.say(f"{plural(count, 'failed trial')} will be tried again")
    return study


def _in_process(spec: SweepSpec, session: Session, study: Study, manager: TrialManager) -> Winner | None:
    """Run the trials and the winner in this process. Returns that of :func:`_train_winner`, as :func:`_on_ray` does."""
    with worker.own_device(spec.resources, session.console.say) as device:
        (size,) = pack_plan.capacities(spec, fitting=1)
        manager.share(size)
        try:
            pack_plan.run_together(manager, pack_plan.PackRunner(device, stop=manager.stopping), size)
        except reports.DeviceLost as error:
            cause = f"{error}. Continue in a new process: {session.folder.resume_command}"
            raise RunFailed(session.folder.id, cause, str(session.folder.log)) from error
        finally:
            manager.close()
        memory.release(device)
        with manager.usage_log.holding("winner", spec.resources):
            return _train_winner(spec, session, study, manager, partial(in_process, device=device))


def _on_ray(spec: SweepSpec, session: Session, study: Study, manager: TrialManager) -> Winner | None:
    from orchestrator.cluster.fair_share import sharing
    from orchestrator.cluster.lost_devices import LostDevices
    from orchestrator.cluster.preemption import stop_with_node

    folder = session.folder
    settings = session.settings
    with (
        cluster(settings.ray_address) as nodes,
        session.on_cluster(),
        stop_with_node(session.interrupts, folder.resume_command),
    ):
        from orchestrator.sweeps import pack as pack_placement  # they load Ray Tune, which takes a second
        from orchestrator.sweeps import tune as placement

        capacities = pack_plan.capacities(spec, _check_cluster(spec, settings, nodes))
        session.console.say(_at_once(spec, capacities, nodes))
        manager.share(sum(capacities) / len(capacities))
        manager.load.trains_elsewhere(sum(capacities))
        with (
            sharing(folder.id, settings, spec.resources, len(capacities), session.console.say) as share,
            closing(LostDevices(spec.resources, nodes_by_id(), session.console.say)) as devices,
        ):
            slot_limit = _on_working_devices(share.limit, devices, len(capacities), manager)
            try:
                if max(capacities) > 1:
                    pack_placement.Packs(spec, folder, manager, capacities, slot_limit, devices.report).run()
                else:
                    placement.run_trials(spec, folder, manager, len(capacities), slot_limit, devices.report)
            finally:
                manager.close()
            holding = partial(manager.usage_log.holding, "winner")
            train = partial(placement.run_winner, devices=devices, share=share, holding=holding)
            return _train_winner(spec, session, study, manager, train)


def _train_winner(
    spec: SweepSpec,
    session: Session,
    study: Study,
    manager: TrialManager,
    train: Callable[..., bool],
) -> Winner | None:
    """Select the winner and refit or test it with ``train``. Returns None when it was stopped."""
    winner = select_winner(session, spec, study, manager)
    progress = ProgressReporter(session, winner.spec, winner.before, winner.selected)
    progress.selection(winner.rows)
    session.console.view(progress.view)
    home = session.folder.path / WINNER
    complete = train(winner.spec, home, session, progress.rows, resume=winner.checkpoint, selected=winner.selected)
    return winner if complete else None


def _on_working_devices(share: SlotLimit, devices: LostDevices, slots: int, manager: TrialManager) -> SlotLimit:
    """Reduce ``share`` by the lost devices. When none is left, the sweep stops."""

    def slot_limit(wanted: int) -> int:
        devices.poll()
        room = devices.room(slots)
        if not room:
            manager.refusal = UserError(
                "Every accelerator of the sweep was lost", fix="Check the nodes, then --resume it", code=UNAVAILABLE
            )
        return share(max(1, min(wanted, room)))

    return slot_limit


def _at_once(spec: SweepSpec, capacities: Sequence[int], nodes: Sequence[Node]) -> str:
    """A sentence on how many trials run at once, and why not more. A node without CPUs trains nothing."""
    count = sum(capacities)
    training = sum(node["CPU"] > 0 for node in nodes)
    processes = len(capacities)
    requested = spec.search.concurrency
    together = f" in {processes} process{'es' * (processes > 1)}" if count > processes else ""
    fewer = requested is not None and count < min(requested, spec.search.trials * spec.search.seeds)
    why = f" (not {requested}: no more fit)" if fewer else ""
    why = f" (at most {spec.resources.max_gpus} GPUs)" if processes == spec.resources.max_trials else why
    return f"{plural(count, 'trial')} at once{together} on {plural(training, 'node')}{why}"


def _check_cluster(spec: SweepSpec, settings: Settings, nodes: Sequence[Node]) -> int:
    """Check the connected cluster's size and storage. Returns the number of trials that fit. Raises UserError."""
    from orchestrator.cluster.shared_storage import check_search, check_storage

    fitting = check_fit(nodes, spec.resources)
    check_storage(settings.storage, settings.start_timeout)
    check_search(spec.search, settings.remote, len(nodes))
    return fitting
