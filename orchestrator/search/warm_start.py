"""Warm start: use the trials of earlier sweeps in a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from orchestrator.cluster import preflight
from orchestrator.config.spec import SweepSpec, evaluation_data, parse
from orchestrator.errors import UserError
from orchestrator.search import points, recorded
from orchestrator.search.constraints import OF_MODEL, SECONDS, Constraint, violations
from orchestrator.search.journal import open_study
from orchestrator.search.ranking import seed_results
from orchestrator.search.study import Study
from orchestrator.storage import run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from workloads.contract import Objective

PUBLISHED = "published"
"""What ``--warm-start`` takes in addition to sweeps: the workload's presets, published tables and defaults."""


def earlier_trials(
    spec: SweepSpec,
    settings: Settings,
    objectives: Sequence[Objective],
    distributions: Callable[[Mapping[str, Any]], Mapping[str, BaseDistribution]],
) -> tuple[list[FrozenTrial], list[str]]:
    """Trials of the sweeps of ``--warm-start`` that fit this search, and a line about each sweep.

    ``distributions`` are those of this search for a trial with the given parameters.
    Raises UserError for a sweep of another workload or dataset, and for one without such trials.
    """
    usable: list[FrozenTrial] = []
    lines = []
    first = objectives[0].metric, objectives[0].direction
    constraints = [Constraint.parse(text) for text in spec.search.constraint]
    for reference in spec.search.warm_start:
        if reference == PUBLISHED:
            continue
        source = run_lookup.find(settings.storage, reference, "sweep")
        _check(source, spec, settings)
        trials = recorded.own(open_study(source.path))
        theirs = recorded.objectives(source)[0]
        # Pruned trials are ranked by their values at epochs, which are of the source's first objective.
        by_other = (theirs.metric, theirs.direction) != first
        ranked = [trial for trial in trials if not (by_other and trial.state == TrialState.PRUNED)]
        here = {trial.number: distributions(trial.user_attrs.get("params", {}) | trial.params) for trial in ranked}
        fitting = [trial for trial in ranked if fitting_trial(source.id, trial, objectives, here[trial.number])]
        each = (fitting_trial(source.id, trial, objectives, here[trial.number], constraints) for trial in fitting)
        learnt = [one for one in each if one]
        if not learnt:
            raise UserError(
                f"{source.id} has no trial that lies in this search space and has this objective"
                + (f" and what {' and '.join(map(str, constraints))} is about" if fitting else ""),
                fix="Leave out --warm-start",
            )
        usable += learnt
        lacking = len(fitting) - len(learnt)
        why = f"; {lacking} lack the metric of a constraint" if lacking else ""
        lines.append(f"Learnt from {len(learnt)} of {len(trials)} trials of {source.id}{why}")
    return usable, lines


def enqueue_published(spec: SweepSpec, study: Study) -> str:
    """Make the published settings the first trials of ``study``, each once. Returns a line that names them."""
    every = points.published(spec)
    chosen = list(every.items())[: spec.search.trials]
    present = {trial.user_attrs.get("published") for trial in study.trials}
    for name, point in chosen:
        if name not in present:
            study.optuna_study.enqueue_trial(point, user_attrs={"published": name})
    if not chosen:
        return f"No published setting of {spec.workload} lies in this search space"
    line = f"The first trials are published settings: {', '.join(name for name, _ in chosen)}"
    if len(chosen) < spec.search.trials:
        return line
    return f"{line}. They are all of the {spec.search.trials} trials ({len(every)} settings): nothing else is searched"


def fitting_trial(
    source: str,
    trial: FrozenTrial,
    objectives: Sequence[Objective],
    distributions: Mapping[str, BaseDistribution],
    constraints: Sequence[Constraint] = (),
) -> FrozenTrial | None:
    """``trial`` of the sweep ``source`` as a trial of another search, or None if it does not fit.

    It does not fit either if it lacks the metric of one of the search's ``constraints``.

    A parameter that was fixed then and is searched now gets its fixed value. A trial of PBT has a schedule of values
    and does not fit. Only pruned trials keep intermediate values, by which the sampler ranks them: schedulers compare
    only a sweep's own trials.
    """
    metrics = trial.user_attrs.get("best_metrics") or {}
    names = [f"validation/{objective.metric}" for objective in objectives]
    pruned = trial.state == TrialState.PRUNED and len(names) == 1
    ended = (pruned or trial.state == TrialState.COMPLETE) and "lineage" not in trial.user_attrs
    if not ended or any(name not in metrics for name in names):
        return None
    try:
        runs = seed_results(trial) or [trial.user_attrs]
        measured = {name: fmean(run[name] for run in runs) for name in (*OF_MODEL, SECONDS) if name in runs[0]}
        by_constraint = violations(constraints, {"best_metrics": metrics, **measured})
    except UserError:
        return None
    had = trial.user_attrs.get("params", {})
    params = {name: had[name] for name in distributions if name in had} | trial.params
    if not all(
        name in distributions and points.is_within(value, distributions[name]) for name, value in params.items()
    ):
        return None
    return optuna.trial.create_trial(
        state=trial.state,
        values=None if pruned else [metrics[name] for name in names],
        params=params,
        distributions={name: distributions[name] for name in params},
        intermediate_values=trial.intermediate_values if pruned else {},
        user_attrs={"warm_from": f"{source}/{trial.number}"},
        constraints=by_constraint,
    )


def _check(source: RunFolder, spec: SweepSpec, settings: Settings) -> None:
    earlier = parse(SweepSpec, source.record["spec"]["sweep"], source.id)
    if earlier.workload != spec.workload:
        raise UserError(
            f"{source.id} cannot be learnt from", got=f"a sweep of {earlier.workload}", allowed=spec.workload
        )
    then, now = (preflight.fingerprint(each.workload, defaults(each), settings.data) for each in (earlier, spec))
    if then != now:
        raise UserError(f"{source.id} cannot be learnt from: it searched on other data", got=then, allowed=now)
    before, after = (
        {**evaluation_data(defaults(each)), "abstention_part": each.plan.abstention_part} for each in (earlier, spec)
    )
    names = (before.keys() | after.keys()) - {"dataset"}  # whose bytes are the same
    if differing := sorted(name for name in names if before.get(name) != after.get(name)):
        got, allowed = (", ".join(f"{name}={one.get(name)}" for name in differing) for one in (before, after))
        raise UserError(f"{source.id} cannot be learnt from: it evaluated on other data", got=got, allowed=allowed)


def defaults(spec: SweepSpec) -> dict[str, Any]:
    """Default parameters of the sweep's workload, with the fixed ones replaced."""
    return {**preflight.parameters(spec.workload, {}), **spec.fixed}
