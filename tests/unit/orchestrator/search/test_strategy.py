"""Sampler, scheduler and plan: combinations that do not work are refused, and open settings are filled in."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.config.plan import Plan
from orchestrator.config.spec import Resources, Search
from orchestrator.search import strategy
from orchestrator.search.spaces import Survey
from tests.support import refusals
from tests.support.toy import Params
from workloads.contract import Objective

ERROR, X = Objective("error", "min", refit=True), Objective("x", "max")
LR = {"lr": [FloatDistribution(0.01, 0.2)]}
KIND = {"kind": [CategoricalDistribution(["a", "b"])]}
MOMENTUM = {"momentum": [FloatDistribution(0.0, 0.9)]}


def settle(
    search: dict[str, Any],
    plan: dict[str, Any] | None = None,
    *,
    objectives: tuple[Objective, ...] = (ERROR,),
    searched: dict[str, Any] = LR | MOMENTUM,
    local: bool = False,
    **resources: Any,
) -> tuple[Search, Plan]:
    return strategy.complete(
        Search(**search), Plan(**plan or {}), Resources(**resources), objectives, Survey(searched, False), Params,
        local=local,
    )  # fmt: skip


def refused(*words: str, **asked: Any) -> None:
    refusals.refused(lambda: settle(**asked), *words)


# Defaults


def test_refit_defaults_to_the_setting_of_the_objective() -> None:
    assert settle({})[1].refit is True
    assert settle({}, objectives=(X,))[1].refit is False
    assert settle({}, {"refit": False})[1].refit is False


def test_given_scheduler_sampler_and_trials_are_kept() -> None:
    for scheduler in ("asha", "hyperband", "median", "racing", "none"):
        for sampler in ("tpe", "gp", "cmaes", "random"):
            found, _ = settle({"scheduler": scheduler, "sampler": sampler, "trials": 3})
            assert (found.scheduler, found.sampler, found.trials) == (scheduler, sampler, 3)


def test_malformed_or_unsupported_constraints_are_refused() -> None:
    refused("constraint is not valid", "METRIC<=NUMBER", search={"constraint": ("size<10",)})
    refused("several workers", search={"constraint": ("parameters<=10",)}, workers=2)
    assert settle({"constraint": ("size<=10",)}, workers=2)[0].constraint == ("size<=10",)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"search": {"finalists": 2, "seeds": 3}}, "every trial has several seeds (--seeds 3)"),
        ({"search": {"finalists": 2, "scheduler": "pbt", "trials": 8}}, "a population has no trials to repeat"),
        ({"search": {"finalists": 2}, "objectives": (ERROR, X)}, "they are selected by one objective"),
    ],
)
def test_finalists_are_refused_with_seeds_pbt_or_several_objectives(asked: dict[str, Any], reason: str) -> None:
    refused("Finalists cannot be used here", reason, **asked)


# PBT

PBT: dict[str, Any] = {"scheduler": "pbt", "trials": 4}


def test_a_population_is_drawn_at_random_and_not_refitted() -> None:
    search, plan = settle(PBT)
    assert (search.sampler, plan.refit) == ("random", False)
    assert settle(PBT | {"sampler": "random"}, {"refit": False})[0].sampler == "random"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"workers": 2}, "which trials of several workers (workers=2) keep for themselves"),
        ({"search": PBT | {"constraint": ("size<=10",)}}, "a population selects by one metric"),
        ({"search": PBT | {"trials": 3}}, "a population needs at least 4 trials, not 3"),
        ({"plan": {"patience": 2}}, "none may stop early (patience=0)"),
        ({"plan": {"refit": True}}, "which a refit cannot repeat (refit=false)"),
        ({"search": PBT | {"seeds": 2}}, "seeds cannot be repeated (--seeds 1)"),
        ({"search": PBT | {"sampler": "tpe"}}, "drawn at random (--sampler random), not by tpe"),
        ({"search": PBT | {"warm_start": ("toy-1",)}}, "(no --warm-start)"),
        ({"searched": MOMENTUM}, "none of the searched parameters (momentum) may change while a model trains"),
        ({"searched": {"log2_dim": [IntDistribution(1, 6)]}}, "none of the searched parameters (log2_dim) may change"),
        ({"plan": {"epochs": 1}}, "a trial needs at least two epochs"),
    ],
)
def test_pbt_is_refused_with_incompatible_settings(asked: dict[str, Any], reason: str) -> None:
    refused("PBT cannot be used here: ", reason, **{"search": PBT} | asked)


def test_changeable_parameters_are_those_the_workload_marks() -> None:
    assert strategy.changeable(Params, ["momentum", "lr", "log2_dim"]) == ["lr"]


# Several objectives


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median", "racing", "pbt"])
def test_schedulers_are_refused_with_several_objectives(scheduler: str) -> None:
    asked = {"scheduler": scheduler, "trials": 4}
    refused(
        f"{scheduler} stops trials by one objective", "got error, x", "--scheduler none",
        search=asked, objectives=(ERROR, X),
    )  # fmt: skip


def test_scheduler_none_is_the_default_with_several_objectives() -> None:
    assert settle({}, objectives=(ERROR, X))[0].scheduler == "none"
    assert settle({"scheduler": "none", "sampler": "gp"}, objectives=(ERROR, X))[0].sampler == "gp"


def test_until_gain_is_refused_with_several_objectives_or_a_population() -> None:
    refused(
        "gain of further trials is not known for several objectives", search={"until_gain": 3}, objectives=(ERROR, X)
    )
    refused("gain of further trials is not known for a population", search={"until_gain": 3, "scheduler": "pbt"})


def test_cma_es_is_refused_with_two_objectives_or_one_parameter() -> None:
    refused("CMA-ES knows one objective: got error, x", search={"sampler": "cmaes"}, objectives=(ERROR, X))
    refused("CMA-ES needs at least two searched parameters: got lr", search={"sampler": "cmaes"}, searched=LR)


def test_finalist_seeds_without_finalists_are_refused() -> None:
    refused("--finalist-seeds 5", "Add --finalists N", search={"finalist_seeds": 5})
    refused("--finalist-seeds 3", search={"finalist_seeds": 3})
    assert settle({"finalists": 2, "finalist_seeds": 5})[0].finalist_seeds == 5


# Timeouts


def test_trial_timeout_is_refused_in_local_mode() -> None:
    refused("--trial-timeout", "--local", search={"trial_timeout": 5.0}, local=True)
    assert settle({"trial_timeout": 5.0})[0].trial_timeout == 5.0


# --sampler auto


@pytest.mark.parametrize(
    ("search", "objectives", "points", "sampler", "reason"),
    [
        ({"trials": 20}, (ERROR,), 20, "grid", "the space has 20 points"),
        ({"trials": 20, "scheduler": "pbt"}, (ERROR,), 20, "random", "the first population is drawn at random"),
        ({"warm_start": ("published",)}, (ERROR,), 20, "tpe", "warm start: a grid learns nothing from it"),
        ({"trials": 5, "warm_start": ("old",)}, (ERROR,), None, "tpe", "5 trials, more points than trials"),
        ({"trials": 5}, (ERROR, X), None, "tpe", "2 objectives"),
        ({"trials": 5, "constraint": ("x<=1",)}, (ERROR,), None, "tpe", "it learns constraints"),
        ({"trials": 5}, (ERROR,), None, "tpe", "5 trials, more points than trials"),
    ],
)
def test_the_sampler_is_chosen_by_the_space_and_the_budget(
    search: dict[str, Any], objectives: tuple[Objective, ...], points: int | None, sampler: str, reason: str
) -> None:
    assert strategy.choose_sampler(Search(**search), objectives, points) == (sampler, reason)
