"""From a user's request to a complete spec: precedence of settings, defaults, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster import preflight
from orchestrator.config import workload_loader
from orchestrator.config.spec import Resources, SweepSpec
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import estimate, request
from tests.support.refusals import refused
from tests.support.toy import Params
from workloads import catalog


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """This machine has eight CPUs and no GPU, unless a test sets other numbers."""

    def have(cpus: float, gpus: float) -> None:
        monkeypatch.setattr(request, "this_machine", lambda: [{"CPU": cpus, "GPU": gpus}])

    have(8, 0)
    return have


def yaml(folder: Path, text: str) -> Path:
    (folder / "exp.yaml").write_text(text)
    return folder / "exp.yaml"


# One experiment


def test_request_yields_a_spec_with_defaults_filled_in(settings: Settings) -> None:
    spec = request.experiment("recommender", settings, overrides={"lr": "0.5", "epochs": "7"}, seed=3, local=True)
    assert (spec.workload, spec.seed, spec.plan.epochs) == ("recommender", 3, 7)
    assert spec.params["lr"] == 0.5
    assert spec.params["dataset"] == "synthetic"
    assert spec.plan.refit is True, "the setting of the workload's objective"
    assert spec.resources == Resources(cpus_per_worker=8)


def test_flags_win_over_words_and_words_over_the_file(settings: Settings, tmp_path: Path) -> None:
    file = yaml(
        tmp_path,
        "workload: recommender\nseed: 4\nparams: {lr: 0.1, dim: 8}\nplan: {epochs: 5, patience: 2}\n"
        "resources: {workers: 2, cpus_per_worker: 3}\n",
    )
    words = {"lr": "0.2", "plan.epochs": "6", "resources.cpus_per_worker": "2"}
    spec = request.experiment(None, settings, config=file, overrides=words, resources={"workers": 4})
    assert (spec.params["lr"], spec.params["dim"]) == (0.2, 8)
    assert (spec.plan.epochs, spec.plan.patience) == (6, 2)
    assert (spec.resources.workers, spec.resources.cpus_per_worker) == (4, 2)
    assert spec.seed == 4
    assert request.experiment(None, settings, config=file, seed=9).seed == 9
    assert request.experiment(None, settings, config=file, seed=0).seed == 0


def test_given_settings_take_precedence_over_a_preset(settings: Settings, tmp_path: Path) -> None:
    words = {"batch_size": "64", "patience": "1"}
    spec = request.experiment("bi_encoder", settings, preset="note", overrides=words)
    assert (spec.params["lowest_cosine"], spec.params["lr"], spec.params["batch_size"]) == (-1.0, 2e-5, 64)
    assert (spec.plan.epochs, spec.plan.patience) == (5, 1)
    file = yaml(tmp_path, "workload: bi_encoder\nparams: {lr: 0.5}\nplan: {epochs: 7}\n")
    spec = request.experiment(None, settings, preset="note", config=file)
    assert (spec.params["lowest_cosine"], spec.params["lr"], spec.plan.epochs) == (-1.0, 0.5, 7)


def test_a_spec_holds_a_presets_settings_and_not_its_name(settings: Settings) -> None:
    """A resume and a reproduction do not need the preset."""
    named = request.experiment("bi_encoder", settings, preset="note")
    typed = request.experiment("bi_encoder", settings, overrides=workload_loader.presets("bi_encoder")["note"].settings)
    assert named == typed


def test_settings_of_a_preset_are_fixed_in_a_sweep(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def space(trial):\n    return {'split_seed': trial.suggest_int('split_seed', 0, 3)}"
    )
    search = {"space": f"{tmp_path / 'mine.py'}:space"}
    spec = request.sweep("bi_encoder", settings, preset="note", overrides={"epochs": 4}, search=search)
    assert (spec.fixed["lowest_cosine"], spec.fixed["loss"], spec.plan.epochs) == (-1.0, "mse", 4)


def test_unknown_preset_is_refused_with_the_known_names(settings: Settings, toy_workload: str) -> None:
    def asked(workload: str, preset: str) -> Callable[[], Any]:
        return lambda: request.experiment(workload, settings, preset=preset)

    refused(asked("bi_encoder", "notes"), "Unknown preset of bi_encoder: got 'notes'; allowed: note.", "mean 'note'?")
    refused(asked(toy_workload, "note"), "Unknown preset of toy: got 'note'; allowed: none is known.")


@pytest.mark.parametrize("presets", [["a", "list"], {"note": {"lr": 0.1}}])
def test_presets_attribute_of_another_type_is_ignored(
    presets: Any, toy_workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Params, "presets", presets, raising=False)
    assert workload_loader.presets(toy_workload) == {}


def test_every_preset_yields_a_valid_experiment(settings: Settings) -> None:
    offered = [(workload, name) for workload in catalog.BUILT_IN for name in workload_loader.presets(workload)]
    assert {("bi_encoder", "note"), ("recommender", "dpl_code")} <= {*offered}
    for workload, name in offered:
        preset = workload_loader.presets(workload)[name]
        spec = request.experiment(workload, settings, preset=name)
        assert preset.source
        assert {**spec.plan.model_dump(), **spec.params}.items() >= preset.settings.items()


def test_a_refit_that_was_asked_for_stays(settings: Settings) -> None:
    for text, expected in (("false", False), ("only", "only"), ("true", True)):
        assert request.experiment("recommender", settings, overrides={"refit": text}).plan.refit == expected


@pytest.mark.parametrize(
    ("cpus", "gpus", "asked", "expected"),
    [
        (8, 0, {}, Resources(cpus_per_worker=8)),
        (8, 0, {"workers": 3}, Resources(workers=3, cpus_per_worker=2)),
        (2, 0, {"workers": 4}, Resources(workers=4, cpus_per_worker=1)),
        (8, 2, {}, Resources(gpus_per_worker=1, cpus_per_worker=8)),
        (8, 2, {"gpus_per_worker": 0}, Resources(cpus_per_worker=8)),
        (8, 2, {"gpus_per_worker": 0.5, "cpus_per_worker": 2}, Resources(gpus_per_worker=0.5, cpus_per_worker=2)),
    ],
)
def test_devices_default_to_what_the_machine_has(
    cpus: float, gpus: float, asked: dict[str, Any], expected: Resources, settings: Settings, machine: Any
) -> None:
    machine(cpus, gpus)
    spec = request.experiment("recommender", settings, overrides={"batch_size": 1200}, resources=asked)
    assert spec.resources == expected


def test_devices_of_this_machine_are_ignored_for_a_remote_cluster(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(8, 2)
    monkeypatch.setattr(preflight, "cluster_gpus", lambda address: 0.0)
    settings = resolve({"tracking": "none", "ray_address": "head:6379"})
    assert request.experiment("recommender", settings).resources == Resources()
    assert request.experiment("recommender", settings, local=True).resources.gpus_per_worker == 1


SGD = {"optimizer": "sgd"}


@pytest.mark.parametrize(
    ("gpus", "words", "asked", "expected", "said"),
    [
        (0, {}, {}, 0, None),
        (4, {}, {}, 1, "GPUs of a worker: 1 (decided on the cluster; --gpus-per-worker sets it)"),
        (4, {}, {"gpus_per_worker": 0}, 0, None),
        (4, {}, {"gpus_per_worker": 0.5}, 0.5, None),
        (4, SGD, {}, 0, "GPUs of a worker: 0 (these parameters train on CPUs only; --gpus-per-worker sets it)"),
    ],
)
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_gpus_are_decided_on_the_cluster(
    kind: str,
    gpus: float,
    words: dict[str, Any],
    asked: dict[str, Any],
    expected: float,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(preflight, "cluster_gpus", lambda address: gpus)
    (tmp_path / "mine.py").write_text("def lr(trial): return {'lr': trial.suggest_float('lr', 1e-3, 1e-2)}")
    search = {"search": {"space": f"{tmp_path}/mine.py:lr"}} if kind == "sweep" else {}
    settings = resolve({"tracking": "none", "ray_address": "head:6379"})
    lines: list[str] = []
    build = request.experiment if kind == "run" else request.sweep
    spec = build("recommender", settings, overrides=words, resources=asked, say=lines.append, **search)
    assert spec.resources.gpus_per_worker == expected
    assert lines == ([said] if said else [])


@pytest.mark.parametrize(
    ("words", "resources", "is_open"), [({}, {}, True), ({}, {"gpus_per_worker": 0}, False), (SGD, {}, False)]
)
def test_a_plan_leaves_gpus_open_only_where_a_cluster_decides(
    words: dict[str, Any],
    resources: dict[str, Any],
    is_open: bool,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    resources = {**resources, "cpus_per_worker": 1}
    spec = request.experiment("recommender", settings, overrides=words, resources=resources)
    for local in (False, True):
        estimate.show(spec, settings, local=local, probe=False, as_json=True)
        assert json.loads(capsys.readouterr().out)["gpus_open"] == (is_open and not local)


def test_unknown_gpus_of_a_cluster_default_to_zero_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "cluster_gpus", lambda address: None)
    settings = resolve({"tracking": "none", "ray_address": "auto"})
    lines: list[str] = []
    assert request.experiment("recommender", settings, say=lines.append).resources.gpus_per_worker == 0
    assert lines == ["GPUs of a worker: 0 (the cluster's are not known; --gpus-per-worker sets it)"]
    lines.clear()
    named = request.experiment("recommender", settings, resources={"gpus_per_worker": 2}, say=lines.append)
    assert (named.resources.gpus_per_worker, lines) == (2, [])


def test_cpu_only_parameters_take_no_gpu_of_this_machine(machine: Any, settings: Settings) -> None:
    machine(8, 2)
    assert request.experiment("recommender", settings, overrides=SGD).resources.gpus_per_worker == 0
    assert request.experiment("recommender", settings).resources.gpus_per_worker == 1


def test_more_gpus_than_allowed_are_refused_when_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "cluster_gpus", lambda address: 8.0)
    settings = resolve({"tracking": "none", "ray_address": "head:6379"})
    asked = {"workers": 4, "max_gpus": 2}
    refused(lambda: request.experiment("recommender", settings, resources=asked), "max_gpus=2 is less than the 4 GPUs")


def test_an_objective_that_validation_lacks_is_refused_only_where_something_is_selected(settings: Settings) -> None:
    words = {"objective": "probe_top1", "refit": "true"}
    refused(lambda: request.experiment("simclr", settings, overrides=words), "no probe_top1 without eval_probe=always")
    assert request.experiment("simclr", settings, overrides=words | {"refit": "only"}).plan.objective == ("probe_top1",)


@pytest.mark.parametrize("make", [request.experiment, request.sweep])
def test_a_limit_on_gpus_without_effect_is_reported(machine: Any, settings: Settings, make: Any) -> None:
    """It is no error: the same file or command may be planned on a machine without GPUs."""
    said: list[str] = []
    limit = {"max_gpus": 2}
    note = "max_gpus=2 has no effect: the workers hold no GPU (--gpus-per-worker requests them)"
    make("recommender", settings, resources=limit, say=said.append)
    assert said.pop() == note
    machine(8, 2)
    assert make("recommender", settings, resources=limit, say=said.append).resources.max_gpus == 2
    assert note not in said
    make("recommender", settings, resources={**limit, "gpus_per_worker": 0}, say=said.append)
    assert said.pop() == note


@pytest.mark.parametrize(
    ("workload", "asked", "words"),
    [
        (None, {}, ("No workload is given", "--config FILE")),
        ("recomender", {}, ("Unknown workload", "Did you mean 'recommender'?")),
        ("recommender", {"overrides": {"lrr": "1"}}, ("Unknown parameter: got 'lrr'", "Did you mean 'lr'?")),
        ("recommender", {"overrides": {"lr": "2"}}, ("Parameter lr is not valid: got '2'",)),
        ("recommender", {"overrides": {"epochs": "0"}}, ("Plan setting epochs is not valid: got '0'",)),
        ("recommender", {"overrides": {"plan.decide_at": "[1]"}}, ("Unknown parameter: got 'plan.decide_at'",)),
        ("recommender", {"overrides": {"layers": "2"}}, ("layers=2 has no effect with backbone=mf",)),
        ("recommender", {"overrides": {"dataset": "synthtic"}}, ("Unknown dataset", "'synthetic'")),
        ("recommender", {"overrides": {"dataset": "ml-100k"}}, ("is missing", "orchestrator data fetch ml-100k")),
        ("recommender", {"seed": -1}, ("The seed is not valid: got -1",)),
        ("recommender", {"seed": 2**31}, ("The seed is not valid", "2147483647")),
        ("recommender", {"resources": {"workers": 0}}, ("Resource workers is not valid: got 0",)),
        ("recommender", {"resources": {"workers": 2, "gpus_per_worker": 0.5}}, ("cannot share a GPU",)),
        ("recommender", {"resources": {"workers": 2}, "local": True}, ("--local runs in one process: got workers=2",)),
        ("recommender", {"overrides": {"resources.wrkers": "2"}}, ("Unknown resource: got 'wrkers'", "'workers'?")),
        ("recommender", {"overrides": {"search.trials": "2"}}, ("search.trials", "sweep")),
        (
            "recommender",
            {"overrides": {"batch_size": "1001"}, "resources": {"workers": 2}},
            ("do not divide it: got 1001", "Use batch_size=1000"),
        ),
        ("recommender", {"overrides": {"accumulate": "3"}}, ("accumulate=3", "Use batch_size=1023")),
        (
            "recommender",
            {"overrides": {"optimizer": "sgd", "log_every": "5"}},
            ("optimizer=sgd takes one triple at a time", "got log_every=5", "Leave it out"),
        ),
        (
            "recommender",
            {"overrides": {"loss": "denoise_truncated"}, "resources": {"workers": 2}},
            ("loss=denoise_truncated ranks the losses of a whole batch: got workers=2",),
        ),
        (
            "recommender",
            {"overrides": {"backbone": "ease", "accumulate": "auto"}},
            ("backbone=ease is fitted as a whole: got accumulate=auto",),
        ),
    ],
)
def test_invalid_experiment_is_refused(
    workload: str | None, asked: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    settings = resolve({"tracking": "none", "data": str(tmp_path)})
    refused(lambda: request.experiment(workload, settings, **asked), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params: {epochs: 2}\n", ("epochs is a key of plan, not of params: got exp.yaml, line 2. Move it there",)),
        ("search: {lr: 2}\n", ("lr is a key of params, not of search: got exp.yaml, line 2",)),
        ("params: {lr: 2}\n", ("Parameter lr (exp.yaml, line 2) is not valid: got 2",)),
        ("params:\n  dim: 4\n  lrr: 1\n", ("Unknown parameter (exp.yaml, line 4): got 'lrr'", "Did you mean 'lr'?")),
        ("plan:\n  epochs: many\n", ("Plan setting epochs (exp.yaml, line 3) is not valid: got 'many'",)),
        ("plan: {decide_at: [1]}\n", ("decide_at is set by the scheduler",)),
        ("resources: {workers: none}\n", ("Resource workers (exp.yaml, line 2) is not valid: got 'none'",)),
        ("seed: three\n", ("The seed (exp.yaml, line 2) is not valid: got 'three'",)),
        ("seed: true\n", ("The seed (exp.yaml, line 2) is not valid: got True",)),
    ],
)
def test_a_mistake_in_a_file_has_its_line(
    text: str, words: tuple[str, ...], settings: Settings, tmp_path: Path
) -> None:
    file = yaml(tmp_path, f"workload: recommender\n{text}")
    refused(lambda: request.experiment(None, settings, config=file), *words)


@pytest.mark.parametrize(
    ("overrides", "resources", "message"),
    [
        ({"lr": "0.1", "epochs": "-1"}, {}, "Plan setting epochs is not valid: got '-1'"),
        ({"params.lr": "7"}, {}, "Parameter lr is not valid: got '7'"),
        ({"lr": "0.1", "resources.workers": "none"}, {}, "Resource workers is not valid: got 'none'"),
        ({"lr": "0.1"}, {"workers": "none"}, "Resource workers is not valid: got 'none'"),
        ({"dim": "8"}, {}, "Parameter lr (exp.yaml, line 4) is not valid: got 3"),
    ],
)
def test_only_mistakes_of_the_file_are_reported_with_its_line(
    overrides: dict[str, Any], resources: dict[str, Any], message: str, settings: Settings, tmp_path: Path
) -> None:
    text = "workload: recommender\nparams:\n  dim: 4\n  lr: 3\nplan: {epochs: 5}\nresources: {workers: 1}\n"
    file = yaml(tmp_path, text)
    refused(lambda: request.experiment(None, settings, config=file, overrides=overrides, resources=resources), message)


# A sweep


def test_given_parameters_are_fixed_in_a_sweep(settings: Settings) -> None:
    words = {"backbone": "mf", "epochs": "9"}
    found = request.sweep("recommender", settings, overrides=words, search={"trials": 3, "sampler": None}, seed=2)
    assert found.fixed == {"backbone": "mf"}
    assert (found.plan.epochs, found.plan.refit, found.seed) == (9, True, 2)
    assert (found.search.trials, found.search.sampler, found.search.scheduler) == (3, "tpe", "asha")
    assert found.resources == Resources(cpus_per_worker=1), "one core for each trial"


def test_the_searchs_settings_come_from_file_words_and_flags(settings: Settings, tmp_path: Path) -> None:
    file = yaml(tmp_path, "workload: recommender\nsearch: {trials: 5, sampler: random, space: mf}\n")
    words = {"search.trials": "6", "search.scheduler": "none"}
    found = request.sweep(None, settings, config=file, overrides=words, search={"sampler": "gp"}).search
    assert (found.trials, found.sampler, found.space, found.scheduler) == (6, "gp", "mf", "none")


def test_space_in_a_file_is_recorded_by_its_absolute_path(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def lr(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)}\n")
    monkeypatch.chdir(tmp_path)
    found = request.sweep("recommender", settings, search={"space": "mine.py:lr"})
    assert found.search.space == f"{tmp_path}/mine.py:lr"


def test_fixed_parameter_that_fits_only_values_of_the_space_is_accepted(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def gcn(trial):\n    return {'backbone': 'lightgcn', 'lr': trial.suggest_float('lr', 0.1, 0.2)}\n"
    )
    found = request.sweep(
        "recommender", settings, overrides={"layers": "3"}, search={"space": f"{tmp_path}/mine.py:gcn"}
    )
    assert found.fixed == {"layers": 3}


STEPS = """
def steps(trial):
    return {"lr": trial.suggest_float("lr", 0.1, 0.3, step=0.1), "dim": trial.suggest_categorical("dim", [8, 16])}
"""


@pytest.mark.parametrize(("trials", "sampler"), [(4, "grid"), (3, "tpe"), (16, "grid")])
def test_an_automatic_sampler_is_resolved_in_the_spec(
    trials: int, sampler: str, settings: Settings, tmp_path: Path
) -> None:
    """A resume must not choose again, and the fingerprint is that of the chosen sampler."""
    (tmp_path / "mine.py").write_text(
        "def few(trial):\n    return {'batch_size': trial.suggest_int('batch_size', 1, 4)}"
    )
    said: list[str] = []
    asked = {"space": f"{tmp_path}/mine.py:few", "trials": trials}
    spec = request.sweep("recommender", settings, search={**asked, "sampler": "auto"}, local=True, say=said.append)
    assert spec.search.sampler == sampler
    assert spec.search.trials == min(trials, 4)
    assert said == [f"Sampler: {sampler} ({spec.sampler_reason}; --sampler sets it)"]
    assert SweepSpec.model_validate(spec.model_dump(mode="json")) == spec
    chosen = request.sweep("recommender", settings, search={**asked, "sampler": sampler}, local=True)
    assert (chosen.fingerprint(), chosen.sampler_reason) == (spec.fingerprint(), None)


@pytest.mark.parametrize(("trials", "expected"), [(None, 6), (4, 4), (99, 6)])
def test_a_grids_trials_are_its_points_or_fewer(
    trials: int | None, expected: int, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(STEPS)
    asked = {"space": f"{tmp_path}/mine.py:steps", "sampler": "grid", "trials": trials}
    assert request.sweep("recommender", settings, search=asked).search.trials == expected
    fixed = request.sweep("recommender", settings, search=asked, overrides={"dim": "8"})
    assert fixed.search.trials == min(expected, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "words"), [("raise ValueError('odd')", "ValueError: odd"), ("size = 'odd'", "'odd'")])
@pytest.mark.parametrize("sampler", ["grid", "auto"])
def test_grid_with_a_point_that_cannot_be_trained_is_refused(
    sampler: str, line: str, words: str, settings: Settings, tmp_path: Path
) -> None:
    """It is refused before the start, although none of the draws is such a point."""
    (tmp_path / "mine.py").write_text(
        "def rare(trial):\n    size = trial.suggest_int('batch_size', 1, 2000)\n"
        f"    if size == 1999:\n        {line}\n    return {{'batch_size': size}}\n"
    )
    search = {"space": f"{tmp_path}/mine.py:rare", "sampler": sampler, "trials": 2000}
    place = "The search space fails at a point of the grid, batch_size=1999: "
    refused(lambda: request.sweep("recommender", settings, search=search, local=True), place, words)


def test_several_objectives_are_searched_without_a_scheduler(settings: Settings) -> None:
    words = {"objective": "recall_at_20:max,ndcg_at_20"}
    found = request.sweep("recommender", settings, overrides=words)
    assert (found.plan.objective, found.search.scheduler) == (("recall_at_20:max", "ndcg_at_20"), "none")
    assert found.plan.refit is True, "the setting of the workload's own objective"


def test_a_population_is_random_and_not_refitted(settings: Settings) -> None:
    found = request.sweep("recommender", settings, search={"scheduler": "pbt", "trials": 4})
    assert (found.search.sampler, found.plan.refit) == ("random", False)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"search": {"sampler": "grid"}}, ("A grid needs steps, and lr has none",)),
        ({"search": {"scheduler": "pbt"}, "resources": {"workers": 2}}, ("PBT cannot be used here", "workers=2")),
        ({"search": {"trial_timeout": 5}, "local": True}, ("--trial-timeout", "--local")),
        ({"search": {"max_device_hours": 0}}, ("Search setting max_device_hours is not valid: got 0",)),
        ({"search": {"seeds": 0}}, ("Search setting seeds is not valid: got 0",)),
        ({"overrides": {"objective": "recall"}}, ("The objective recall is not declared",)),
        ({"overrides": {"objective": "recall_at_2"}}, ("no recall_at_2 with cutoffs=5,10,20",)),
        (
            {"overrides": {"objective": "loss:min,ndcg_at_20"}, "search": {"scheduler": "median"}},
            ("median stops trials by one objective", "got loss, ndcg_at_20"),
        ),
        ({"overrides": {"refit": "only"}}, ("refit=only is not possible",)),
        ({"overrides": {"lrr": "1"}}, ("Unknown parameter: got 'lrr'",)),
        ({"overrides": {"lr": "2"}}, ("Parameter lr is not valid",)),
        ({"overrides": {"layers": "2", "backbone": "mf"}}, ("layers=2 has no effect with backbone=mf",)),
        ({"overrides": {"layers": "2"}}, ("layers=2 has no effect with backbone=mf",)),
        ({"overrides": {"accumulate": "3"}}, ("accumulate=3", "do not divide it")),
        ({"overrides": {"loss": "denoise_truncated", "accumulate": "2"}}, ("got accumulate=2",)),
        ({"overrides": {"resources.workers": "2"}, "local": True}, ("--local runs in one process: got workers=2",)),
        ({"resources": {"workers": 3}, "overrides": {"batch_size": "1000"}}, ("3 worker(s)", "got 1000")),
        ({"search": {"trials": 0}}, ("Search setting trials is not valid: got 0",)),
        ({"search": {"sampler": "tep"}}, ("Search setting sampler is not valid: got 'tep'", "Did you mean 'tpe'?")),
        ({"search": {"space": "spce"}}, ("Unknown search space of recommender", "Did you mean 'space'?")),
        ({"search": {"space": "none.py:space"}}, ("search space's file does not exist", "none.py")),
        ({"search": {"time_budget": 0}}, ("Search setting time_budget is not valid: got 0",)),
        (
            {"search": {"space": "mf"}, "overrides": {"lr": "0.1", "weight_decay": "0", "dim": "8"}},
            ("Nothing is left to search",),
        ),
        (
            {"search": {"space": "mf", "sampler": "cmaes"}, "overrides": {"weight_decay": "0", "dim": "8"}},
            ("CMA-ES needs at least two searched parameters: got lr",),
        ),
    ],
)
def test_invalid_sweep_is_refused(asked: dict[str, Any], words: tuple[str, ...], settings: Settings) -> None:
    refused(lambda: request.sweep("recommender", settings, **asked), *words)


def test_a_conflict_with_a_drawn_value_names_the_spaces_that_fit(settings: Settings) -> None:
    refused(
        lambda: request.sweep("recommender", settings, overrides={"optimizer": "sgd"}),
        "has no effect with optimizer=sgd (drawn by the default search space)",
        "choose another with --space:",
        "sgd_bns",
    )


def test_path_object_is_accepted_as_a_dataset(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("user,item\n" + "".join(f"{user},{item}\n" for user in range(9) for item in range(5)))
    spec = request.experiment("recommender", settings, overrides={"dataset": file}, local=True)
    assert spec.params["dataset"] == str(file)
