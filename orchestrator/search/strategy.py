"""Combine sampler, scheduler and plan: fill in defaults, and refuse combinations that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from orchestrator.config.plan import Plan
from orchestrator.config.spec import Resources, Sampler, Search
from orchestrator.errors import UserError
from orchestrator.search import spaces
from orchestrator.search.constraints import OF_MODEL, Constraint
from workloads.contract import Objective

POPULATION = 4
"""Members of the smallest population: a quarter of them is one."""


def choose_sampler(search: Search, objectives: tuple[Objective, ...], points: int | None) -> tuple[Sampler, str]:
    """The sampler of ``--sampler auto``, and why. ``points``: size of the grid, None if it exceeds the trials.

    TPE wherever nothing else is needed: in ``benchmarks/replay/samplers.py`` GP finds no more, and takes longer.
    """
    rules: tuple[tuple[bool, Sampler, str], ...] = (
        (search.scheduler == "pbt", "random", "the first population is drawn at random"),
        (points is not None and not search.warm_start, "grid", f"the space has {points} points"),
        (points is not None, "tpe", "warm start: a grid learns nothing from it"),
        (len(objectives) > 1, "tpe", f"{len(objectives)} objectives"),
        (bool(search.constraint), "tpe", "it learns constraints"),
        (True, "tpe", f"{search.trials} trials, more points than trials"),
    )
    return next((sampler, reason) for applies, sampler, reason in rules if applies)


def complete(
    search: Search,
    plan: Plan,
    resources: Resources,
    objectives: tuple[Objective, ...],
    survey: spaces.Survey,
    params: type[BaseModel],
    *,
    local: bool,
) -> tuple[Search, Plan]:
    """Complete search and plan. Raises UserError, with the reason, for a combination that cannot work."""
    given = search.model_fields_set
    searched = list(survey.distributions)
    if search.sampler == "cmaes" and len(searched) < 2:
        raise UserError("CMA-ES needs at least two searched parameters", got=", ".join(searched))
    constraints = [Constraint.parse(text) for text in search.constraint]
    if resources.workers > 1 and (of_model := [one.metric for one in constraints if one.metric in OF_MODEL]):
        raise UserError(f"{of_model[0]} of trials of several workers is not measured", fix="Leave the constraint out")
    if search.finalists:
        _check_finalists(search, objectives)
    elif "finalist_seeds" in given:
        raise UserError(
            "Seeds of finalists need finalists", got=f"--finalist-seeds {search.finalist_seeds}",
            fix="Add --finalists N, or leave out --finalist-seeds",
        )  # fmt: skip
    if search.sampler == "grid" and "published" in search.warm_start:
        raise UserError("A grid takes every point, in its own order (no --warm-start published)")
    if len(objectives) > 1:
        search = _several(search, objectives, given)
    if search.scheduler == "pbt":
        search, plan = _population(search, plan, resources, searched, params, given)
    if search.until_gain and (search.scheduler == "pbt" or len(objectives) > 1):
        what = "a population" if search.scheduler == "pbt" else "several objectives"
        raise UserError(f"The gain of further trials is not known for {what}", got=f"--until-gain {search.until_gain}")
    if search.ordered:
        _check_ordered(search, resources)
    apart = search.scheduler == "pbt" or search.ordered or resources.workers > 1
    if isinstance(search.pack, int) and search.pack > 1 and apart:
        raise UserError("PBT, ordered trials and those of several workers train apart", got=f"--pack {search.pack}")
    if search.trial_timeout is not None and local:
        raise UserError(
            "--trial-timeout kills the process of a trial, and --local has only its own",
            fix="Leave out one of the two, or set local=False in a notebook",
        )
    if plan.refit is None:
        plan = plan.model_copy(update={"refit": objectives[0].refit})
    return search, plan


def _check_ordered(search: Search, resources: Resources) -> None:
    if search.scheduler not in ("racing", "median"):
        raise UserError(
            "Trials cannot wait for earlier ones with this scheduler", got=f"--ordered --scheduler {search.scheduler}",
            fix="Use --scheduler racing or median",
        )  # fmt: skip
    if resources.workers > 1:
        raise UserError("Trials of several workers cannot wait at rungs", got=f"--workers {resources.workers}")
    if search.scheduler == "racing" and search.constraint:
        raise UserError(
            "With an order, racing would compare trials with some that violate a constraint",
            got=f"--ordered --constraint {search.constraint[0]!r}",
            fix="Leave out one of the two, or use --scheduler median",
        )


def _check_finalists(search: Search, objectives: tuple[Objective, ...]) -> None:
    reasons = {
        f"every trial has several seeds (--seeds {search.seeds})": search.seeds > 1,
        "a population has no trials to repeat (--scheduler pbt)": search.scheduler == "pbt",
        "they are selected by one objective": len(objectives) > 1,
    }
    for reason, refused in reasons.items():
        if refused:
            raise UserError(f"Finalists cannot be used here: {reason}", got=f"--finalists {search.finalists}")


def _several(search: Search, objectives: tuple[Objective, ...], given: set[str]) -> Search:
    names = ", ".join(objective.metric for objective in objectives)
    if search.sampler == "cmaes":
        raise UserError("CMA-ES knows one objective", got=names, fix="Use --sampler tpe or gp")
    if search.scheduler != "none":
        if "scheduler" in given:
            raise UserError(
                f"{search.scheduler} stops trials by one objective, and this sweep has several",
                got=names,
                fix="Use --scheduler none",
            )
        search = search.model_copy(update={"scheduler": "none"})
    return search


def _population(
    search: Search, plan: Plan, resources: Resources, searched: list[str], params: type[BaseModel], given: set[str]
) -> tuple[Search, Plan]:
    changing = changeable(params, searched)
    refusals: Mapping[str, bool] = {
        f"members take over each other's checkpoints, which trials of several workers (workers={resources.workers}) "
        "keep for themselves": resources.workers > 1,
        f"a population needs at least {POPULATION} trials, not {search.trials}": search.trials < POPULATION,
        "members meet at the same epochs, so none may stop early (patience=0)": plan.patience > 0,
        "a population selects by one metric (no --constraint)": bool(search.constraint),
        "the winner is a schedule of parameters, which a refit cannot repeat (refit=false)": bool(plan.refit),
        "a configuration changes on the way, so seeds cannot be repeated (--seeds 1)": search.seeds > 1,
        f"the first population is drawn at random (--sampler random), not by {search.sampler}": (
            "sampler" in given and search.sampler != "random"
        ),
        "it learns from nothing but itself (no --warm-start)": bool(search.warm_start),
        f"none of the searched parameters ({', '.join(searched)}) may change while a model trains": not changing,
        "a trial needs at least two epochs": plan.epochs < 2,
    }
    for reason, refused in refusals.items():
        if refused:
            raise UserError(f"PBT cannot be used here: {reason}")
    return search.model_copy(update={"sampler": "random"}), plan.model_copy(update={"refit": False})


def changeable(params: type[BaseModel], names: list[str]) -> list[str]:
    """The ``names`` whose parameters may change while a model trains (``mid_run`` in their schema)."""
    marked: list[str] = []
    for name in names:
        field = params.model_fields.get(name)  # a space may derive parameters from what it searches
        extra: Any = field.json_schema_extra if field else None
        if isinstance(extra, dict) and extra.get("mid_run"):
            marked.append(name)
    return marked
