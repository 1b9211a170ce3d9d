"""Search spaces: found by name or file, held fixed in part, and refused before a trial runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from pydantic import model_validator

from orchestrator.config import user_code
from orchestrator.errors import UserError
from orchestrator.search import spaces
from tests.support.refusals import refused
from tests.support.toy import Params
from workloads.catalog import catalog
from workloads.recommender.backbones import BACKBONES
from workloads.recommender.losses import LOSSES
from workloads.recommender.params import Params as RecommenderParams


def space(trial: Any) -> dict[str, Any]:
    momentum = trial.suggest_categorical("momentum", [0.0, 0.5])
    params = {"momentum": momentum, "lr": trial.suggest_float("lr", 1e-3, 0.5, log=True)}
    if momentum:
        params["start"] = trial.suggest_float("start", 1, 4)
    return params


def ask(fixed: dict[str, Any], space: spaces.Space = space) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of a new trial, and the dimensions of the search."""
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
    return spaces.suggest(space, trial, fixed), dict(trial.params)


# Presets


@pytest.mark.parametrize("workload", sorted(catalog()))
def test_every_preset_of_every_workload_gives_valid_parameters(workload: str) -> None:
    presets = spaces.presets(workload)
    assert "space" in presets
    assert all(preset.__doc__ for preset in presets.values()), "a preset needs a docstring"
    for name in presets:
        assert spaces.probe(spaces.load(workload, name), {}, catalog()[workload].load_params(), seed=0)


@pytest.mark.parametrize(("dataset", "low", "high"), [("ml-100k", 3e-6, 1e-4), ("ml-1m", 3e-6 / 6.4, 1e-4 / 6.4)])
def test_the_published_weight_decay_falls_with_the_number_of_users(dataset: str, low: float, high: float) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
    published = spaces.load("recommender", "search_spaces.recommender_published:around")
    spaces.suggest(published, trial, {"dataset": dataset})
    decay = trial.distributions["weight_decay"]
    assert (decay.low, decay.high) == pytest.approx((low, high))


def test_space_everything_draws_all_but_the_listed_parameters() -> None:
    params = catalog()["recommender"].load_params()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    asked: dict[str, set[Any]] = {}
    for _ in range(400):
        found = spaces.suggest(spaces.load("recommender", "everything"), study.ask(), {"dataset": "ml-100k"})
        for name, value in params(**found).model_dump().items():
            asked.setdefault(name, set()).update([value] if name in found else [])
    assert set(asked["backbone"]) == {name for name, row in BACKBONES.items() if row.learnt}
    for name, row in BACKBONES.items():
        if not row.learnt and row.params:
            drawn = spaces.suggest(spaces.load("recommender", name), study.ask(), {})
            assert drawn.keys() == {"backbone", *row.params} - {"ials_confidence"}  # ials_confidence needs ratings
            for parameter, value in drawn.items():
                asked[parameter].add(value)
    never = {name for name, values in asked.items() if not values}
    expected = {
        "cutoffs",
        "dataset_min_rating",
        "dataset_noise",
        "eval_users",
        "ials_confidence",
        "split",
        "split_seed",
        "optimizer",
        "threads",
        "quality",
        "truth",
        "logq",
        "prior_file",
    }
    assert never <= expected, (
        f"The space everything draws no {', '.join(sorted(never - expected))}: add its range to the loss in _LOSSES or "
        "to the sampler in _SAMPLERS of search_spaces/recommender.py, or list it here as not searched"
    )
    assert never == expected, f"{', '.join(sorted(expected - never))} is drawn: remove it from this list"
    assert {1, 15} <= asked["candidates"]
    assert {"warm", "occupation", "sampled", "auc_literal", "mid"} <= set().union(*asked.values())
    ranges = spaces.probe(spaces.load("recommender", "everything"), {"loss": "dcl"}, params, seed=0).text()
    assert ranges["bns_prior"] == "one of popularity, users, uninformative"  # only MovieLens has occupations
    assert ranges["positives"] == "int 0 to 10"


def test_space_everything_accepts_a_fixed_loss_that_it_does_not_draw() -> None:
    params = catalog()["recommender"].load_params()
    survey = spaces.probe(spaces.load("recommender", "everything"), {"loss": "supervised"}, params, seed=0)
    assert "negatives" in survey.distributions


def test_space_everything_accepts_a_fixed_loss_without_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "mine", LOSSES["bpr"])
    survey = spaces.probe(spaces.load("recommender", "everything"), {"loss": "mine"}, RecommenderParams, seed=0)
    assert {"lr", "sampler"} <= set(survey.distributions)


@pytest.mark.parametrize("preset", ["infonce", "decoupled", "dcl", "hcl", "bcl", "everything"])
def test_negatives_are_searched_only_with_a_sampler_that_draws_them(preset: str) -> None:
    space, params = spaces.load("recommender", preset), catalog()["recommender"].load_params()
    fixed = {"sampler": "in_batch"} | ({"loss": "bcl"} if preset == "everything" else {})
    assert "negatives" not in spaces.probe(space, fixed, params, seed=0).distributions
    assert "negatives" in spaces.probe(space, {**fixed, "sampler": "dns"}, params, seed=0).distributions


def test_fixed_hard_margin_removes_hard_from_the_search_space() -> None:
    space, params = spaces.load("text_ranker", "space"), catalog()["text_ranker"].load_params()
    assert "hard" in spaces.probe(space, {}, params, seed=0).distributions
    assert "hard" not in spaces.probe(space, {"hard_margin": 0.5}, params, seed=0).distributions


def test_unknown_search_space_is_refused_with_the_nearest_name() -> None:
    refused(lambda: spaces.load("recommender", "spce"), "Unknown search space of recommender", "Did you mean 'space'?")


@pytest.mark.parametrize("workload", sorted(catalog()))
def test_every_preset_has_a_summary(workload: str) -> None:
    summaries = spaces.summaries(workload)
    assert list(summaries) == list(spaces.presets(workload))
    assert all(line.endswith(".") for line in summaries.values())


def test_the_spaces_of_a_users_file_have_summaries(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Params:\n    lr: float = 0.1\n"
        'def train(params: Params, ctx):\n    yield {}\ndef lr_space(trial):\n    """Rates.\n\n    More."""\n'
    )
    user_code.allow(f"{file}:train")
    assert spaces.summaries(f"{file}:train") == {"lr_space": "Rates."}
    file.write_text(file.read_text().partition("def lr_space")[0])
    assert spaces.summaries(f"{file}:train") == {}


def test_space_file_without_a_function_name_is_refused() -> None:
    refused(lambda: spaces.load("recommender", "sp.py"), "search space is named by its file alone", "Write sp.py:NAME")


def test_preset_of_a_workload_without_presets_is_refused(toy_workload: str) -> None:
    refused(
        lambda: spaces.load(toy_workload, "space"), "toy has no search space of its own", "--space file.py:function"
    )


# Files


def test_space_is_loaded_from_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def _hidden(trial): ...\n\ndef mine(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)}\n"
    )
    found = spaces.load("toy", f"{tmp_path}/mine.py:mine")
    assert 0.1 <= ask({}, found)[0]["lr"] <= 0.2
    words = ("Unknown function in", "got 'mien'; allowed: mine.", "Did you mean 'mine'?")
    refused(lambda: spaces.load("toy", f"{tmp_path}/mine.py:mien"), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def space(trial):\n    return {'lr': 1\n", ("SyntaxError", "line 2")),
        ("import math\n\nLOW = 1 / 0\n", ("line 3 cannot be imported: ZeroDivisionError",)),
        ("import nothing_of_that_name\n", ("line 1 cannot be imported: ModuleNotFoundError", "nothing_of_that_name")),
        (
            "import math\n\ndef half():\n    return math.sqrt(-1)\n\nA = half()\n",
            ("line 6 cannot be imported: ValueError",),
        ),
    ],
)
def test_error_names_the_line_of_a_broken_space_file(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    refused(lambda: spaces.load("toy", f"{tmp_path}/mine.py:space"), f"{tmp_path}/mine.py", *words)


def test_a_file_is_read_again_whatever_its_time_and_length(tmp_path: Path) -> None:
    file = tmp_path / "space.py"
    for value in (2, 3):
        file.write_text(f"def mine(trial):\n    return {{'lr': 0.{value}}}\n")
        os.utime(file, (1e9, 1e9))
        assert spaces.load("toy", f"{file}:mine")(None) == {"lr": value / 10}
    assert not (tmp_path / "__pycache__").exists()


def test_missing_space_file_is_refused(tmp_path: Path) -> None:
    refused(lambda: spaces.load("toy", f"{tmp_path}/none.py:space"), "file does not exist", f"{tmp_path}/none.py")


# Fixed parameters


def test_fixed_parameter_is_not_a_dimension_of_the_search() -> None:
    params, dimensions = ask({"lr": 0.25, "momentum": 0.5})
    assert (params["lr"], params["momentum"]) == (0.25, 0.5)
    assert set(dimensions) == {"start"}


def test_fixed_parameter_selects_the_branch_of_the_space() -> None:
    params, dimensions = ask({"momentum": 0.0})
    assert "start" not in params
    assert set(dimensions) == {"lr"}


def test_fixed_parameter_absent_from_the_space_is_added() -> None:
    assert ask({"slow": 0.0, "lr": 0.3})[0]["slow"] == 0.0


def test_space_function_can_use_other_attributes_of_the_optuna_trial() -> None:
    seen: list[int] = []

    def numbered(trial: Any) -> dict[str, Any]:
        seen.append(trial.number)
        trial.set_user_attr("note", "mine")
        return {}

    assert ask({"lr": 0.3}, numbered)[0] == {"lr": 0.3}
    assert seen == [0]


# Probes


def test_probe_finds_all_searched_parameters_with_conditional_ones() -> None:
    survey = spaces.probe(space, {}, Params, seed=0)
    assert set(survey.distributions) == {"momentum", "lr", "start"}
    assert survey.conditional
    assert list(spaces.probe(space, {"lr": 0.1}, Params, seed=0).distributions) == ["momentum", "start"]
    assert not spaces.probe(space, {"momentum": 0.0, "lr": 0.1}, Params, seed=0).distributions


def branches(trial: Any) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    if kind == "a":
        return {"kind": kind, "lr": trial.suggest_float("lr", 0.0, 0.1)}
    return {"kind": kind, "lr": trial.suggest_float("lr", 0.1, 1.0), "tau": trial.suggest_int("tau", 1, 9)}


def test_the_distributions_of_a_trial_are_those_of_its_branch() -> None:
    at = spaces.distributions_at(branches, {}, {"kind": "b", "lr": 0.5, "batch_size": 8})
    assert list(at) == ["kind", "lr", "tau"], "parameters that are not given are drawn"
    assert (at["lr"].low, at["lr"].high) == (0.1, 1.0)
    assert list(spaces.distributions_at(branches, {"kind": "a"}, {"lr": 0.05})) == ["lr"]
    assert spaces.distributions_at(branches, {}, {"kind": "c"}) == {}


def broken(trial: Any) -> dict[str, Any]:
    raise KeyError("depth")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (lambda trial: {"lrr": 0.1}, ("Unknown parameter from the search space: got 'lrr'", "Did you mean 'lr'?")),
        (
            lambda trial: {"lr": trial.suggest_float("lr", 0.5, 3)},
            ("from the search space lr is not valid", "less than 1"),
        ),
        (lambda trial: {"lr": "fast"}, ("from the search space lr is not valid: got 'fast'",)),
        (lambda trial: None, ("must return the parameters: got NoneType; allowed: a dict",)),
        (lambda trial: [("lr", 0.1)], ("must return the parameters: got list",)),
        (lambda trial: {"lr": trial.suggest_flaot("lr", 0, 1)}, ("The search space failed: AttributeError",)),
        (lambda trial: {"lr": trial.suggest_float("lr", 1, 0)}, ("The search space failed: ValueError",)),
        (broken, ("The search space failed: KeyError: 'depth'", "called with an Optuna trial")),
    ],
)
def test_space_with_invalid_output_or_an_error_is_refused(space: spaces.Space, words: tuple[str, ...]) -> None:
    refused(lambda: spaces.probe(space, {}, Params, seed=0), *words)


def test_the_line_of_an_error_is_the_one_in_the_file_of_the_space() -> None:
    def helper(trial: Any) -> float:
        return float(trial.suggest_float("lr", 1, 0))  # Optuna raises

    line = helper.__code__.co_firstlineno + 1
    refused(lambda: spaces.probe(lambda trial: {"lr": helper(trial)}, {}, Params, seed=0), f" (test_spaces.py:{line})")


def test_probe_passes_complete_parameters_of_every_draw_to_the_callback() -> None:
    seen: list[Any] = []
    spaces.probe(space, {"slow": 0.0}, Params, 0, seen.append)
    assert len(seen) == spaces.PROBES
    assert all(set(complete) == set(Params().model_dump()) for complete in seen)
    assert {complete["momentum"] for complete in seen} == {0.0, 0.5}


def test_rarely_drawn_invalid_value_is_found_by_the_probe() -> None:
    def rarely(trial: Any) -> dict[str, Any]:
        return {"lr": 2.0 if trial.suggest_float("u", 0, 1) > 0.8 else 0.1}

    refused(lambda: spaces.probe(rarely, {}, Params, seed=0), "lr is not valid: got 2.0")


@pytest.mark.parametrize(
    ("choices", "got"),
    [([(1, 2), (3, 4)], "got (1, 2), (3, 4)"), (np.array([8, 16]), "got np.int64(8), np.int64(16)")],
)
@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_choices_that_the_journal_would_change_are_refused_by_the_probe(choices: Any, got: str) -> None:
    def of_choices(trial: Any) -> dict[str, Any]:
        return {"batch_size": 8 if trial.suggest_categorical("size", choices) is choices[0] else 16}

    words = ("The choices of size in the search space cannot be recorded", got, "text, and lists of them")
    refused(lambda: spaces.probe(of_choices, {}, Params, seed=0), *words)


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_lists_are_choices() -> None:
    def of_lists(trial: Any) -> dict[str, Any]:
        return {"batch_size": trial.suggest_categorical("size", [[8, 1], [16, 1]])[0]}

    assert len(spaces.probe(of_lists, {}, Params, seed=0).distributions["size"]) == 1


def test_numpy_value_from_the_space_is_refused_by_the_probe() -> None:
    words = ("Parameter batch_size from the search space is not a plain value", "got int64")
    refused(lambda: spaces.probe(lambda trial: {"batch_size": np.int64(4)}, {}, Params, seed=0), *words)


@pytest.mark.parametrize(
    ("workload", "fixed", "message"),
    [
        (
            "recommender",
            {"backbone": "ease"},
            "Set backbone=mf or backbone=lightgcn, or choose another with --space: ease.",
        ),
        ("vera", {"method": "edl"}, "Set method=vera, or choose another with --space: evidential."),
        ("simclr", {"method": "byol"}, "or choose another with --space: byol, published."),
    ],
)
def test_error_of_a_conflicting_drawn_value_names_fitting_spaces(
    workload: str, fixed: dict[str, Any], message: str
) -> None:
    params, default = catalog()[workload].load_params(), spaces.load(workload, "space")
    with pytest.raises(UserError) as caught:
        spaces.probe(default, fixed, params, seed=0, named=(workload, "space"))
    assert str(caught.value).endswith(message)
    assert "(drawn by the default search space)" in str(caught.value)
    assert "Drop" not in str(caught.value)


def test_error_of_conflicting_fixed_values_names_the_fixed_values() -> None:
    params, default = catalog()["recommender"].load_params(), spaces.load("recommender", "space")
    fixed = {"backbone": "ease", "batch_size": 4}
    with pytest.raises(UserError, match=r"^batch_size=4 has no effect with backbone=ease\. Drop batch_size, or set"):
        spaces.probe(default, fixed, params, seed=0, named=("recommender", "space"))


def test_a_conflict_without_a_fitting_preset_asks_for_a_space(toy_workload: str) -> None:
    class Strict(Params):
        @model_validator(mode="after")
        def _slow_start(self) -> Strict:
            if self.slow and "lr" in self.model_fields_set:
                raise ValueError("lr has no effect with slow. Drop lr")
            return self

    with pytest.raises(UserError) as caught:
        spaces.probe(space, {"slow": 1.0}, Strict, seed=0, named=(toy_workload, "mine.py:space"))
    assert str(caught.value) == (
        "lr has no effect with slow (drawn by the search space mine.py:space). Give one with --space file.py:function."
    )
