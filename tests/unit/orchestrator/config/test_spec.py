"""Plan and spec are frozen, share no names, and have a fingerprint of the settings that change the results."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from orchestrator.config import workload_loader
from orchestrator.config.plan import PLAN_KEYS, Plan
from orchestrator.config.spec import ExperimentSpec, Resources, Search, SweepSpec
from orchestrator.runs.driver import flat_params
from workloads.catalog import catalog

SPEC = ExperimentSpec(workload="toy", params={"lr": 0.1, "dim": 4}, plan=Plan(epochs=9, refit=True), seed=3)
SWEEP = SweepSpec(workload="toy", fixed={"dim": 4}, plan=Plan(epochs=9, refit=True), seed=3)


def changed(spec: Any, **values: Any) -> Any:
    return type(spec).model_validate(spec.model_dump() | values)


# Names


@pytest.mark.parametrize("name", sorted(catalog()))
def test_no_parameter_has_the_name_of_a_setting(name: str) -> None:
    parameters = set(catalog()[name].load_params().model_fields)
    assert parameters
    for settings in (Plan.model_fields, Resources.model_fields, {"seed", "workload"}):
        assert not parameters & set(settings)


def test_settings_of_different_kinds_have_different_names() -> None:
    kinds = [set(Plan.model_fields), set(Resources.model_fields), set(Search.model_fields), {"seed"}]
    assert len(set.union(*kinds)) == sum(map(len, kinds))


def test_every_setting_is_in_the_flat_record() -> None:
    flat = flat_params(SPEC)
    assert set(flat) == {*SPEC.params, *PLAN_KEYS, *Resources.model_fields, "seed"}


@pytest.mark.parametrize("model", [Plan, Resources, Search])
def test_every_setting_is_described(model: Any) -> None:
    assert all(field.description for field in model.model_fields.values())


# Plan


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(epochs=7), [1, 2, 3, 4, 5, 6, 7]),
        (Plan(epochs=7, evaluate_every=3), [3, 6, 7]),
        (Plan(epochs=7, evaluate_every=100), [7]),
        (Plan(epochs=7, evaluate_every=4, decide_at=(1, 2)), [1, 2, 4, 7]),
    ],
)
def test_evaluated_epochs_follow_evaluate_every_and_decide_at(plan: Plan, expected: list[int]) -> None:
    assert [epoch for epoch in range(1, 8) if plan.evaluates(epoch)] == expected


def test_plan_keys_of_the_command_line_exclude_decide_at() -> None:
    assert set(PLAN_KEYS) == set(Plan.model_fields) - {"decide_at"}


@pytest.mark.parametrize(
    "values",
    [{"epochs": 0}, {"patience": -1}, {"accumulate": 0}, {"precision": "fp16"}, {"refit": "never"}, {"epoch": 1}],
)
def test_invalid_plan_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Plan(**values)


@pytest.mark.parametrize("spec", [SPEC, SWEEP, SPEC.plan, SPEC.resources, SWEEP.search], ids=lambda s: type(s).__name__)
def test_specs_are_frozen_and_refuse_unknown_keys(spec: Any) -> None:
    with pytest.raises(ValidationError):
        setattr(spec, next(iter(type(spec).model_fields)), None)
    with pytest.raises(ValidationError):
        changed(spec, surprise=1)
    assert changed(spec) == spec
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


# Fingerprints


@pytest.mark.parametrize(
    "values",
    [
        {"resources": {"workers": 4}},
        {"resources": {"gpus_per_worker": 1, "cpus_per_worker": 8}},
        {"plan": SPEC.plan.model_dump() | {"checkpoint_every": 7}},
        {"plan": SPEC.plan.model_dump() | {"log_every": 7}},
        {"params": {"dim": 4, "lr": 0.1}},
    ],
)
def test_placement_and_logging_do_not_change_the_fingerprint(values: dict[str, Any]) -> None:
    assert (changed(SPEC, **values) == SPEC) is ("params" in values), "a new order of parameters is not a change"
    assert changed(SPEC, **values).fingerprint() == SPEC.fingerprint()
    assert changed(SPEC, **values).identity == SPEC.identity


OTHER = {
    "epochs": 8, "patience": 1, "evaluate_every": 2, "steps_per_epoch": 5, "refit": False, "precision": "bf16",
    "accumulate": 2, "decide_at": [1], "objective": ["loss:min"], "deterministic": True,
    "init": "rec/3#0123456789abcdef", "abstention_part": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {"workload": "other"},
        {"seed": 4},
        {"origin": "toy-1@3#0123456789abcdef"},
        {"params": {"lr": 0.1, "dim": 5}},
        {"params": {"lr": 0.1}},
        *({"plan": SPEC.plan.model_dump() | {name: value}} for name, value in OTHER.items()),
    ],
)
def test_settings_that_change_the_results_change_the_fingerprint(values: dict[str, Any]) -> None:
    assert changed(SPEC, **values).fingerprint() != SPEC.fingerprint()


def test_fingerprint_cases_cover_every_plan_setting() -> None:
    assert set(OTHER) | {"checkpoint_every", "log_every"} == set(Plan.model_fields)


def test_fingerprint_is_the_digest_of_the_canonical_json() -> None:
    text = (
        '{"params": {"dim": 4, "lr": 0.1}, "plan": {"accumulate": 1, "decide_at": [], "epochs": 9, '
        '"evaluate_every": 1, "patience": 0, "precision": "fp32", "refit": true, '
        '"steps_per_epoch": null}, "seed": 3, "workload": "toy"}'
    )
    assert SPEC.fingerprint() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert SPEC.identity == {"workload": "toy", "fingerprint": SPEC.fingerprint()}


def test_members_of_a_population_share_one_checkpoint_identity() -> None:
    search = SWEEP.search.model_dump() | {"scheduler": "pbt", "trials": 4}
    population = changed(SWEEP, search=search)
    one, other = (population.trial(number, {"lr": number / 8}) for number in (1, 2))
    assert one.fingerprint() != other.fingerprint()
    assert one.identity == other.identity == {"workload": "toy", "fingerprint": population.fingerprint()}
    assert SWEEP.trial(1, {"lr": 0.1}).identity != SWEEP.trial(2, {"lr": 0.2}).identity


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ndcg", ("ndcg",)), ("ndcg:max, loss", ("ndcg:max", "loss")), (["a:min", "b"], ("a:min", "b")), ("", ("",))],
)
def test_objectives_are_parsed_from_text_or_a_list(text: str | list[str], expected: tuple[str, ...]) -> None:
    assert Plan.model_validate({"objective": text}).objective == expected


def test_the_command_that_repeats_a_run_names_its_objective() -> None:
    from orchestrator.config.parsing import read_overrides

    spec = changed(SPEC, plan={"epochs": 9, "objective": ["x:max", "error"]})
    words = shlex.split(spec.command())
    (word,) = (word for word in words if word.startswith("objective="))
    assert Plan.model_validate(read_overrides([word])).objective == ("x:max", "error")


def test_repeat_command_sets_null_only_where_the_default_is_not_null(monkeypatch: pytest.MonkeyPatch) -> None:
    class Params(BaseModel):
        warmup: int | None = 100
        decay: int | None = None
        clip: float | None

    monkeypatch.setattr(workload_loader, "params", lambda name: Params)
    spec = changed(SPEC, params={"warmup": None, "decay": None, "clip": None})
    words = shlex.split(spec.command())
    assert [word for word in words if "null" in word] == ["warmup=null", "clip=null"]
    assert not [word for word in words if word.startswith("decay")]


def test_sweep_fingerprint_depends_on_the_search_and_not_on_its_budget() -> None:
    search = SWEEP.search.model_dump()
    for same in ({"trials": 99}, {"concurrency": 3}, {"time_budget": 5.0}):
        assert changed(SWEEP, search=search | same).fingerprint() == SWEEP.fingerprint()
    for other in ({"space": "mf"}, {"sampler": "random"}, {"scheduler": "none"}, {"seeds": 2}):
        assert changed(SWEEP, search=search | other).fingerprint() != SWEEP.fingerprint()
    assert changed(SWEEP, fixed={"dim": 5}).fingerprint() != SWEEP.fingerprint()
    assert changed(SWEEP, resources={"gpus_per_worker": 0.5}).fingerprint() == SWEEP.fingerprint()


# Trials


def test_trial_seeds_are_distinct_and_derived_from_the_sweep_seed() -> None:
    seeds = [SWEEP.trial(number, {}).seed for number in range(5000)]
    assert len(set(seeds)) == 5000
    assert SWEEP.trial(17, {}).seed == seeds[17]
    assert SWEEP.trial(0, {}).seed == SWEEP.seed
    assert changed(SWEEP, seed=2**31 - 1).trial(4999, {}).seed < 2**31


def test_trial_has_the_workload_plan_and_resources_of_the_sweep() -> None:
    trial = SWEEP.trial(2, {"lr": 0.3})
    assert (trial.workload, trial.params, trial.plan, trial.resources) == (
        "toy",
        {"lr": 0.3},
        SWEEP.plan,
        SWEEP.resources,
    )


# Resources


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": 2, "gpus_per_worker": 0.5}, "workers of one group cannot share a GPU"),
        ({"gpus_per_worker": 1.5}, "a fraction must be below 1"),
        ({"gpus_per_worker": 2, "workers": 2, "max_gpus": 3}, "max_gpus=3 is less than the 4 GPUs of 2 worker"),
        ({"workers": 0}, "greater than or equal to 1"),
        ({"cpus_per_worker": 0}, "greater than 0"),
        ({"gpus_per_worker": -1}, "greater than or equal to 0"),
    ],
)
def test_invalid_resources_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Resources(**values)


@pytest.mark.parametrize(
    ("values", "devices"),
    [
        ({"workers": 2, "cpus_per_worker": 3}, 6),
        ({"workers": 2, "gpus_per_worker": 1, "cpus_per_worker": 8}, 2),
        ({"gpus_per_worker": 0.25}, 0.25),
    ],
)
def test_devices_are_gpus_where_there_are_any(values: dict[str, Any], devices: float) -> None:
    assert Resources(**values).devices == devices
