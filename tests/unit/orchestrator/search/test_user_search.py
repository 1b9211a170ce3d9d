"""Samplers and schedulers of users: their decisions, consent to run them, and invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from orchestrator.config import user_code
from orchestrator.config.spec import SweepSpec
from orchestrator.console import Console
from orchestrator.reproduce import repeat_run
from orchestrator.search import trusted_spaces
from orchestrator.storage import records
from orchestrator.storage.settings import resolve
from tests.support.refusals import refused

MINE = """
import numpy as np
import optuna

class Steps(optuna.samplers.BaseSampler):
    '''The next tenth of each range: it learns from the trials that the study has.'''

    def __init__(self, seed):
        self.seed = seed

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        assert isinstance(self.seed, int)
        return distribution.low + (distribution.high - distribution.low) * len(study.get_trials(deepcopy=False)) / 10

class OddOnes(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        assert trial.intermediate_values
        return trial.number % 2 == 1

class Broken(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return 1 / 0

class Unbuilt(optuna.samplers.RandomSampler):
    def __init__(self, path):
        pass

class Failing(Steps):
    def sample_independent(self, *of):
        raise KeyError("lr")

def space(trial):
    return {"lr": trial.suggest_float("lr", 0.01, 0.11)}

helper = 3
"""


@pytest.fixture
def mine(toy_workload: str, tmp_path: Path, no_page: None) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def sweep(mine: Path, **asked: Any) -> Any:
    given = {"trials": 4, "epochs": 10, "space": f"{mine}:space", "scheduler": "none", "tracking": "none", **asked}
    return api.sweep("toy", **given)


def test_a_sampler_and_a_pruner_of_the_user_decide(mine: Path) -> None:
    found = sweep(mine, sampler=f"{mine}:Steps", scheduler=f"{mine}:OddOnes")
    trials = found.trials().sort_values("trial")
    assert trials["params.lr"].tolist() == pytest.approx([0.02, 0.03, 0.04, 0.05])
    assert trials["state"].tolist() == ["complete", "pruned"] * 2
    assert trials["epochs"].tolist() == [10, 1, 10, 1]
    kept = records.open_folder(found.folder).record["spec"]["sweep"]["search"]
    assert (kept["sampler"], kept["scheduler"]) == (f"{mine}:Steps", f"{mine}:OddOnes")
    assert (found.folder / "sampler.py").read_text() == (found.folder / "scheduler.py").read_text() == MINE


def test_resume_uses_the_same_user_sampler_and_requires_consent(mine: Path, home: Path, tmp_path: Path) -> None:
    sweep(mine, sampler=f"{mine}:Steps", name="mine", trials=2)
    more = api.sweep(resume="mine", more_trials=2, tracking="none")
    assert sorted(more.trials()["params.lr"]) == pytest.approx([0.02, 0.03, 0.04, 0.05])
    for mark in (home / user_code.MARKS).iterdir():
        mark.unlink()
    trusted_spaces.trust(f"{mine}:space", home)  # one consent for the file
    api.sweep(resume="mine", more_trials=1, tracking="none")
    (tmp_path / "moved.py").write_text(MINE + "\n")
    mine.unlink()
    refused(lambda: api.sweep(resume="mine", more_trials=1, tracking="none"), "The search space's file does not exist")
    moved = {"space": f"{tmp_path}/moved.py:space", "sampler": f"{tmp_path}/moved.py:Steps"}
    refused(
        lambda: api.sweep(resume="mine", more_trials=1, tracking="none", **{**moved, "sampler": "moved.py:Other"}),
        "mine has another sampler: got moved.py:Other",
    )  # fmt: skip
    assert len(api.sweep(resume="mine", more_trials=1, tracking="none", **moved).trials()) == 6


def test_code_named_only_in_a_record_is_not_run(mine: Path, home: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    found = sweep(mine, name="theirs", trials=1)
    folder = records.open_folder(found.folder)
    (tmp_path / "attack.py").write_text(f"open({str(canary)!r}, 'w')\n{MINE}")
    spec = SweepSpec.model_validate(folder.record["spec"]["sweep"])
    for kind, code, what in (
        ("sampler", f"{tmp_path}/attack.py:Steps", "a file"),
        ("scheduler", f"{tmp_path}/attack.py:OddOnes", "a file"),
        ("sampler", "optuna.samplers:RandomSampler", "a module"),
        ("scheduler", "builtins:object", "a module"),
    ):
        theirs = spec.model_copy(update={"search": spec.search.model_copy(update={kind: code})})
        folder.update(spec={**folder.record["spec"], "sweep": theirs.model_dump(mode="json")})
        refused(
            lambda: api.sweep(resume="theirs", more_trials=1, tracking="none"),
            f"The {kind} of theirs is {what}, and running it would run code that was never named here", f"--{kind}",
        )  # fmt: skip
    assert not canary.exists()


def test_sweep_with_a_user_sampler_is_repeated_only_if_it_is_named(mine: Path, tmp_path: Path) -> None:
    folder = records.open_folder(sweep(mine, name="theirs", sampler=f"{mine}:Steps", trials=1).folder)
    (tmp_path / "theirs.py").write_text(f"{MINE}# of another user\n")
    named = f"{tmp_path}/theirs.py:Steps"
    spec = SweepSpec.model_validate(folder.record["spec"]["sweep"])
    theirs = spec.model_copy(update={"search": spec.search.model_copy(update={"sampler": named})})
    folder.update(spec={**folder.record["spec"], "sweep": theirs.model_dump(mode="json")})
    settings = resolve({"tracking": "none"})
    asked: dict[str, Any] = {"check": True, "script": False, "tolerance": 0, "console": Console(json=True)}
    refused(lambda: repeat_run.run(settings, "theirs", trusted={}, **asked), "The sampler of theirs", "--sampler")
    missing = f"{tmp_path}/missing.py:Steps"
    refused(
        lambda: repeat_run.run(settings, "theirs", trusted={"sampler": missing}, **asked),
        "The sampler's file does not exist", "missing.py",
    )  # fmt: skip
    api.run("toy", name="alone", epochs=2, tracking="none")
    refused(lambda: repeat_run.run(settings, "alone", trusted={"sampler": named}, **asked), "is a run", "--sampler")
    report, _ = repeat_run.run(settings, "theirs", trusted={"sampler": named}, **asked)
    assert report["kind"] == "sweep"


def test_an_installed_class_needs_no_file(mine: Path) -> None:
    found = sweep(mine, sampler="optuna.samplers:RandomSampler", scheduler="optuna.pruners:NopPruner", trials=2)
    assert found.trials()["state"].tolist() == ["complete"] * 2
    assert len(api.sweep(resume=found.id, more_trials=1, tracking="none").trials()) == 3, "a named class is trusted"


def test_a_sampler_without_further_points_ends_the_search(mine: Path) -> None:
    """Optuna's own ``stop()`` works only within its own loop."""
    mine.write_text(f"{MINE}\ndef two(trial):\n    return {{'lr': trial.suggest_categorical('lr', [0.1, 0.2])}}\n")
    found = sweep(mine, sampler="optuna.samplers:BruteForceSampler", space=f"{mine}:two", trials=6)
    assert sorted(found.trials()["params.lr"]) == [0.1, 0.2]
    assert found.status == "finished"
    assert len(api.sweep(resume=found.id, more_trials=1, tracking="none").trials()) == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sampler": "tpee"}, ("'tpee'", "'tpe'", "module:Class or file.py:Class", "Did you mean 'tpe'?")),
        ({"sampler": "MINE:Step"}, ("Unknown sampler in", "got 'Step'", "Did you mean 'Steps'?")),
        ({"sampler": "MINE:OddOnes"}, ("The sampler is not an Optuna BaseSampler", "Failing, Steps, Unbuilt")),
        ({"sampler": "MINE:helper"}, ("The sampler is not an Optuna BaseSampler",)),
        ({"sampler": "MINE:Unbuilt"}, ("The sampler", "failed: TypeError", "path")),
        ({"sampler": "absent.py:Steps"}, ("The sampler's file does not exist", "absent.py")),
        ({"sampler": "no.such.module:Steps"}, ("The module of the sampler cannot be imported: ModuleNotFoundError",)),
        ({"scheduler": "MINE:Steps"}, ("The scheduler is not an Optuna BasePruner", "Broken, OddOnes")),
        ({"scheduler": "MINE:Broken"}, ("The scheduler", "failed: ZeroDivisionError")),
        ({"sampler": "MINE:Failing"}, ("The sampler", "failed: KeyError: 'lr'")),
    ],
)
def test_invalid_sampler_or_scheduler_is_refused(mine: Path, asked: dict[str, str], words: tuple[str, ...]) -> None:
    named = {name: value.replace("MINE", str(mine)) for name, value in asked.items()}
    refused(lambda: sweep(mine, **named), *words)


def test_sources_are_found_without_running_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apackage").mkdir()
    (tmp_path / "apackage" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "apackage" / "inner.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert user_code.source("apackage.inner:Name") == tmp_path / "apackage" / "inner.py"
    assert user_code.source("apackage:Name") == tmp_path / "apackage" / "__init__.py"
    assert user_code.source("apackage.absent:Name") is None
    assert user_code.source("builtins:object") is None
    assert user_code.source(f"{tmp_path}/apackage/inner.py:Name") == tmp_path / "apackage" / "inner.py"
