"""Warm start: which earlier trials are taken, and that they do not count as trials of the new sweep."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from orchestrator.cluster import preflight
from orchestrator.config.spec import SweepSpec
from orchestrator.errors import UserError
from orchestrator.search import spaces, warm_start
from orchestrator.search.constraints import Constraint
from orchestrator.search.study import Study
from orchestrator.storage import records, run_lookup
from orchestrator.storage.settings import Settings
from tests.support.searching import ERROR, at_rung, attributes, begin, complete, rows, states, study, sweep
from workloads.contract import Objective

WIDE = {
    "kind": CategoricalDistribution(["a", "b"]), "lr": FloatDistribution(0.0, 1.0), "dim": IntDistribution(1, 64),
}  # fmt: skip
X = Objective("x", "max")


def earlier(folder: Path, **asked: Any) -> Study:
    """A study with two complete trials, one pruned, one failed and one running."""
    found = study(folder, **{"trials": 5, "decide_at": (3,)} | asked)
    for _ in range(5):
        begin(found)
    for number, value in ((0, 0.5), (1, 0.3)):
        assert at_rung(found, number, 3, value) == "go on"
        complete(found, number, value / 2, x=value)
    assert at_rung(found, 2, 3, 0.9) == "pruned"
    found.fail(3, "killed")
    return found


def lesson(trial: FrozenTrial, distributions: Any = None, objectives: Any = (ERROR,)) -> FrozenTrial | None:
    return warm_start.fitting_trial("old", trial, objectives, WIDE if distributions is None else distributions)


def test_complete_and_pruned_trials_are_taken_with_their_state(tmp_path: Path) -> None:
    trials = earlier(tmp_path).trials
    found = [lesson(trial) for trial in trials]
    assert [one.state.name if one else None for one in found] == ["COMPLETE", "COMPLETE", "PRUNED", None, None]
    taken = [one for one in found if one]
    assert [one.values for one in taken[:2]] == [[0.25], [0.15]]
    assert [one.user_attrs for one in taken] == [{"warm_from": f"old/{number}"} for number in range(3)]
    assert [one.params for one in taken] == [trial.params for trial in trials[:3]]


@pytest.mark.slow
def test_earlier_trials_get_constraint_values_or_are_left_out(tmp_path: Path) -> None:
    """The earlier sweep had no constraints. GP refuses trials of which only some have constraints."""
    trials = earlier(tmp_path / "old").trials
    constraints = [Constraint.parse("x<=0.4")]
    found = [warm_start.fitting_trial("old", trial, (ERROR,), WIDE, constraints) for trial in trials]
    assert [one and one.constraints for one in found] == [
        {"x<=0.4": 0.5 - 0.4},
        {"x<=0.4": 0.3 - 0.4},
        None,
        None,
        None,
    ]
    running = study(tmp_path / "new", sampler="gp", trials=12, constraint=("x<=0.4",))
    running.add_earlier([one for one in found if one])
    while trial := running.next():
        complete(running, trial.seed_run, trial.params["lr"], x=trial.params["lr"])
    assert states(running) == ["COMPLETE"] * 12


def test_rung_values_of_complete_earlier_trials_are_dropped(tmp_path: Path) -> None:
    found = [lesson(trial) for trial in earlier(tmp_path).trials[:3]]
    assert [one.intermediate_values for one in found if one] == [{}, {}, {3: 0.9}], "TPE ranks pruned trials by it"
    assert all(one is None or one.system_attrs == {} for one in found), "ASHA's rungs must not be taken"


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({"lr": FloatDistribution(0.0, 0.5)}, "lr"),
        ({"dim": IntDistribution(1, 64, step=7)}, "dim"),
        ({"kind": CategoricalDistribution(["b", "c"])}, "kind"),
        ({"kind": IntDistribution(0, 1)}, "none"),
        ({"lr": CategoricalDistribution([0.1, 0.2])}, "none"),
        ({"lr": None}, "none"),
    ],
)
def test_earlier_trial_outside_the_space_is_left_out(change: dict[str, Any], taken: str, tmp_path: Path) -> None:
    space = {name: d for name, d in (WIDE | change).items() if d is not None}
    trials = earlier(tmp_path).trials[:3]
    inside = {
        "lr": lambda p: p["lr"] <= 0.5, "dim": lambda p: (p["dim"] - 1) % 7 == 0, "kind": lambda p: p["kind"] == "b",
        "none": lambda p: False,
    }[taken]  # fmt: skip
    assert [lesson(trial, space) is not None for trial in trials] == [inside(trial.params) for trial in trials]


def test_trials_of_every_branch_of_a_conditional_space_are_taken(toy_workload: str, settings: Settings) -> None:
    """The ranges of the space may differ by branch, and a sample of the space may lack a rare branch."""

    def space(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        low, high = (0.0, 0.5) if kind == "a" else (0.5, 1.0)
        more = {"dim": trial.suggest_int("dim", 1, 64)} if kind == "b" else {}
        return {"kind": kind, "lr": trial.suggest_float("lr", low, high), **more}

    asked = {"sweep": sweep(trials=8).model_dump(mode="json"), "options": {}}
    folder = records.create(settings.storage, "sweep", "toy", asked, "orchestrator sweep", name="one").path
    old = study(folder, trials=8, space=space)
    for number in range(8):
        begin(old)
        complete(old, number, 0.1 * number)
    at = partial(spaces.distributions_at, space, {})
    found, lines = warm_start.earlier_trials(sweep(warm_start=("one",)), settings, [ERROR], at)
    assert [trial.distributions for trial in found] == [trial.distributions for trial in old.trials]
    assert {trial.params["kind"] for trial in found} == {"a", "b"}
    assert lines == ["Learnt from 8 of 8 trials of one"]


def test_parameter_fixed_before_and_searched_now_keeps_its_value(tmp_path: Path) -> None:
    trial = earlier(tmp_path).trials[0]
    trial.user_attrs["params"] = trial.params | {"momentum": 0.7, "batch_size": 8}
    found = lesson(trial, WIDE | {"momentum": FloatDistribution(0.0, 0.9)})
    assert found is not None
    assert found.params == trial.params | {"momentum": 0.7}
    assert lesson(trial, WIDE | {"momentum": FloatDistribution(0.0, 0.5)}) is None


def test_trial_without_the_objective_of_the_new_sweep_is_left_out(tmp_path: Path) -> None:
    trials = earlier(tmp_path).trials
    assert [lesson(trial, objectives=(Objective("recall", "max"),)) for trial in trials] == [None] * 5
    of_x = [lesson(trial, objectives=(X,)) for trial in trials]
    assert [one.values if one else None for one in of_x] == [[0.5], [0.3], None, None, None]


def test_only_complete_trials_are_taken_with_several_objectives(tmp_path: Path) -> None:
    found = [lesson(trial, objectives=(ERROR, X)) for trial in earlier(tmp_path).trials]
    assert [one.values if one else None for one in found] == [[0.25, 0.5], [0.15, 0.3], None, None, None]


def test_trial_with_a_pbt_lineage_is_left_out(tmp_path: Path) -> None:
    trial = earlier(tmp_path).trials[0]
    trial.user_attrs["lineage"] = [{"epoch": 2, "from": 1, "params": {}}]
    assert lesson(trial) is None


# In the new sweep


def taught(folder: Path, old: Path, **asked: Any) -> Study:
    found = study(folder, **{"trials": 3} | asked)
    found.add_earlier([one for trial in earlier(old).trials if (one := lesson(trial))])
    return found


def test_earlier_trials_do_not_count_as_trials_of_the_new_sweep(tmp_path: Path) -> None:
    running = taught(tmp_path / "new", tmp_path / "old")
    assert (running.trials, running.best()) == ([], None)
    numbers = [begin(running).number for _ in range(3)]
    assert numbers == [3, 4, 5]
    assert running.next() is None
    complete(running, 4, 9.0)
    best = running.best()
    assert best is not None
    assert best.number == 4, "although it is worse than the earlier trials"
    assert states(running) == ["RUNNING", "COMPLETE", "RUNNING"]


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
def test_earlier_trials_do_not_cause_a_scheduler_to_stop_a_trial(scheduler: Any, tmp_path: Path) -> None:
    old = study(tmp_path / "old", trials=9, decide_at=(3, 9))
    for number, value in enumerate((0.02, 0.03, *(0.01 - 0.001 * n for n in range(7)))):
        begin(old)
        at_rung(old, number, 3, value)
        complete(old, number, value) if number in old.running() else None
    assert states(old) == ["COMPLETE", "PRUNED"] + ["COMPLETE"] * 7
    asked: dict[str, Any] = {"trials": 3, "decide_at": (3, 9), "scheduler": scheduler}
    study(tmp_path / "new", **asked).add_earlier([one for trial in old.trials if (one := lesson(trial))])
    running = study(tmp_path / "new", **asked)  # a restart, which reads the values at rungs from the journal
    assert [at_rung(running, begin(running).number, 3, value) for value in (0.6, 0.5, 0.4)] == ["go on"] * 3


def test_tpe_with_earlier_trials_suggests_values_nearer_to_the_optimum(tmp_path: Path) -> None:
    """The optimum is near lr = 0.8. With such trials known, the first new ones are closer to it than without."""
    old = study(tmp_path / "old", trials=40)
    for number in range(40):
        complete(old, number, abs(begin(old).params["lr"] - 0.8))
    lessons = [one for trial in old.trials if (one := lesson(trial))]

    def first(folder: Path, known: list[FrozenTrial]) -> float:
        running = study(folder, trials=8, sampler="tpe")
        running.add_earlier(known)
        distances = []
        for _ in range(8):
            trial = begin(running)
            distances.append(abs(trial.params["lr"] - 0.8))
            complete(running, trial.seed_run, distances[-1])
        return sum(distances) / 8

    assert first(tmp_path / "warm", lessons) < 0.6 * first(tmp_path / "cold", [])


def test_earlier_trials_are_added_once_after_a_driver_restart(tmp_path: Path) -> None:
    lessons = [one for trial in earlier(tmp_path / "old").trials if (one := lesson(trial))]
    first = study(tmp_path / "new")
    first.add_earlier(lessons[:2])
    second = study(tmp_path / "new")
    second.add_earlier(lessons)
    second.add_earlier(lessons)
    known = [trial.user_attrs["warm_from"] for trial in second.optuna_study.get_trials()]
    assert known == ["old/0", "old/1", "old/2"]


# Sweeps that are taken


def kept(settings: Settings, name: str, workload: str = "toy", **fixed: Any) -> SweepSpec:
    """Store an earlier sweep and return its spec."""
    spec = sweep(trials=5, decide_at=(3,)).model_copy(update={"workload": workload, "fixed": fixed})
    asked = {"sweep": spec.model_dump(mode="json"), "options": {}}
    earlier(records.create(settings.storage, "sweep", workload, asked, "orchestrator sweep", name).path)
    return spec


def lessons(settings: Settings, *sources: str, **fixed: Any) -> tuple[list[FrozenTrial], list[str]]:
    spec = sweep(warm_start=sources).model_copy(update={"fixed": fixed})
    return warm_start.earlier_trials(spec, settings, [ERROR], lambda params: WIDE)


def test_trials_of_several_sweeps_are_taken(toy_workload: str, settings: Settings) -> None:
    kept(settings, "one"), kept(settings, "two")
    found, lines = lessons(settings, "one", "two")
    assert [trial.user_attrs["warm_from"] for trial in found] == [f"{n}/{k}" for n in ("one", "two") for k in range(3)]
    assert lines == ["Learnt from 3 of 5 trials of one", "Learnt from 3 of 5 trials of two"]


@pytest.mark.parametrize(("metric", "direction", "pruned"), [("error", "min", 1), ("x", "max", 0), ("error", "max", 0)])
def test_pruned_trials_of_another_objective_are_left_out(
    metric: str, direction: Any, pruned: int, toy_workload: str, settings: Settings
) -> None:
    """They are ranked by values at rungs, which are of the earlier sweep's objective."""
    kept(settings, "one")
    run_lookup.find(settings.storage, "one", "sweep").update(objectives=[[metric, direction]])
    found, lines = lessons(settings, "one")
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 2 + ["PRUNED"] * pruned
    assert lines == [f"Learnt from {2 + pruned} of 5 trials of one"]


def test_only_own_trials_of_a_warm_started_sweep_are_taken(toy_workload: str, settings: Settings) -> None:
    kept(settings, "one"), kept(settings, "two")
    found, _ = lessons(settings, "one")
    study(settings.storage / "two", trials=5, decide_at=(3,)).add_earlier(found)
    assert len(lessons(settings, "two")[0]) == 3


@pytest.mark.parametrize(
    ("kept_as", "source", "words"),
    [
        ({"workload": "recommender"}, "one", "one cannot be learnt from: got a sweep of recommender; allowed: toy"),
        ({}, "oen", "Unknown sweep: got 'oen'.*Did you mean one?"),
    ],
)
def test_sweep_of_another_workload_or_unknown_name_is_refused(
    kept_as: dict[str, Any], source: str, words: str, toy_workload: str, settings: Settings
) -> None:
    kept(settings, "one", **kept_as)
    with pytest.raises(UserError, match=words):
        lessons(settings, source)


def test_sweep_on_a_dataset_with_another_fingerprint_is_refused(
    toy_workload: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "fingerprint", lambda workload, params, root: f"digest-{params['batch_size']}")
    kept(settings, "one", batch_size=4)
    assert lessons(settings, "one", batch_size=4)[0]
    with pytest.raises(UserError, match="one cannot be learnt from: it searched on other data: got digest-4"):
        lessons(settings, "one")


def test_sweep_that_selected_on_held_out_queries_is_refused(toy_workload: str, settings: Settings) -> None:
    kept(settings, "one")
    spec = sweep(warm_start=("one",))
    spec = spec.model_copy(update={"plan": spec.plan.model_copy(update={"abstention_part": 0.2})})
    with pytest.raises(UserError, match=r"on other data: got abstention_part=0.0; allowed: abstention_part=0.2"):
        warm_start.earlier_trials(spec, settings, [ERROR], lambda params: WIDE)


def test_sweep_evaluated_on_another_split_is_refused(
    toy_workload: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        warm_start, "defaults", lambda spec: {"split": spec.fixed.get("batch_size"), "dataset": id(spec)}
    )
    kept(settings, "one", batch_size=4)
    assert lessons(settings, "one", batch_size=4)[0], "the same data under another name"
    with pytest.raises(UserError, match="it evaluated on other data: got split=4; allowed: split=8"):
        lessons(settings, "one", batch_size=8)


def test_sweep_without_a_trial_with_the_objective_is_refused(toy_workload: str, settings: Settings) -> None:
    kept(settings, "one")
    recall = [Objective("recall", "max")]
    with pytest.raises(UserError, match="one has no trial that lies in this search space and has this objective"):
        warm_start.earlier_trials(sweep(warm_start=("one",)), settings, recall, lambda params: WIDE)


def test_seconds_and_size_of_several_seeds_are_their_means(tmp_path: Path) -> None:
    old = study(tmp_path, seeds=2, trials=1)
    begin(old)
    for seed_run, seconds, size in ((0, 4.0, 600), (1, 8.0, 400)):
        about = attributes(0.5, old.spec.plan.epochs, 1) | {"train_seconds": seconds, "parameters": size}
        old.report(seed_run, rows((old.spec.plan.epochs, 0.5)), 0.5, True, about)
        old.next()
    constraints = [Constraint.parse(text) for text in ("train_seconds<=10", "parameters<=1000")]
    (trial,) = old.trials
    taken = warm_start.fitting_trial("old", trial, (ERROR,), WIDE, constraints)
    assert taken is not None
    assert taken.constraints == {"train_seconds<=10": 6.0 - 10, "parameters<=1000": 500.0 - 1000}
