"""Workloads of a user's file: runs, sweeps, resumes, repetitions, the registry, consent, and bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import api
from orchestrator.config import user_code, workload_loader
from orchestrator.errors import FAILED, RunFailed, UserError
from orchestrator.registry import models as registry
from orchestrator.registry import versions
from orchestrator.runs import model_upload
from orchestrator.search.trusted_spaces import trust
from orchestrator.storage import records
from orchestrator.storage.settings import resolve
from tests.support.commands import typed
from tests.support.readme_tree import ROOT
from tests.support.refusals import refused
from workloads.adapters import hugging_face
from workloads.predictor_sources import copy_sources

EXAMPLE = (ROOT / "examples/functions/linreg.py").read_text()
SPACE = "\n\ndef space(trial):\n    return {'lr': trial.suggest_float('lr', 0.05, 0.2)}\n"


@pytest.fixture
def mine(tmp_path: Path, no_page: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_code, "_named", set())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(EXAMPLE + SPACE)
    return tmp_path / "mine.py"


def forget(home: Path) -> None:
    """Restore the state of another process, whose user has named no code."""
    user_code._named.clear()
    for mark in (home / user_code.MARKS).iterdir():
        mark.unlink()


def run(workload: str | None, **asked: Any) -> Any:
    return api.run(workload, **{"local": True, "tracking": "none", "epochs": 4, **asked})


def test_a_package_that_is_missing_is_named_with_its_extra(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(user_code.EXTRAS, "nowhere", "lightning")
    mine.write_text("import nowhere.parts\n")
    refused(lambda: run(f"{mine}:train"), "No module named 'nowhere'", "Install ray-experiment-orchestrator[lightning]")
    mine.write_text("import nowhere_either\n")
    with pytest.raises(UserError) as caught:
        run(f"{mine}:train")
    assert "Install" not in str(caught.value)
    monkeypatch.setattr(hugging_face, "find_spec", lambda name: None)
    mine.write_text("def trainer(params, ctx) -> 'Trainer':\n    pass\n")
    refused(
        lambda: run(f"{mine}:trainer"), "a Trainer needs accelerate", "Install ray-experiment-orchestrator[trainer]"
    )


@pytest.mark.slow
def test_a_function_with_a_predictor_is_registered_and_predicts(mine: Path) -> None:
    trained = run(f"{mine}:train", tracking=None, register="slopes", lr=0.1, epochs=40)
    assert trained.id.startswith("mine-train-")
    assert trained.metrics["test/mse"] < trained.history()["validation/mse"].iloc[0]
    settings = resolve()
    predicted = registry.load(settings, versions.resolve(settings, "slopes/1")).predict(
        pd.DataFrame({"x1": [1.0, 0.0], "x2": [0.0, 1.0], "x3": [0.0, 0.0]})
    )
    assert predicted["y"].iloc[0] - predicted["y"].iloc[1] == pytest.approx(3, abs=0.5)
    units = pd.read_parquet(trained.folder / "test_units.parquet")
    assert units["mse"].mean() == pytest.approx(trained.metrics["test/mse"])
    again = run(f"{mine}:train", tracking=None, init="slopes/1", lr=0.1)
    assert again.history()["validation/mse"].iloc[0] == pytest.approx(trained.metrics["validation/mse"])

    mine.write_text(EXAMPLE.partition("class Predictor")[0])
    refused(
        lambda: run(f"{mine}:train", tracking=None, register="slopes"),
        "A model of this workload cannot be registered: it has no class Predictor", "leave out --register",
    )  # fmt: skip
    unserved = run(f"{mine}:train", tracking=None)
    assert (unserved.folder / "model" / "weights.safetensors").exists()
    assert unserved.metrics["test/mse"] > 0


@pytest.fixture
def package(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a function whose predictor imports ``helper``, and a class with a predictor in another file."""
    folder = mine.parent / "slopes"
    folder.mkdir()
    for file in (ROOT / "examples/linreg/linreg").glob("*.py"):
        (folder / file.name).write_text(file.read_text().replace("linreg", "slopes") + "\nOWN = True\n")
    helper = "    def predict(self, inputs):\n        return answer(inputs, self.weights)\n"
    body, _, answer = EXAMPLE.partition("    def predict(self, inputs):\n")
    (folder / "train.py").write_text(f"from .helper import answer\n{body}{helper}")
    (folder / "helper.py").write_text(
        f"import pandas as pd\n\n\ndef answer(inputs, weights):\n{answer.replace('self.weights', 'weights')}"
    )
    monkeypatch.syspath_prepend(mine.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "slopes"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slopes.train:train", "slopes.workload:LinReg"])
def test_models_of_several_files_are_registered(package: Path, name: str) -> None:
    run(name, tracking=None, register="slopes", lr=0.1)
    settings = resolve()
    rows = pd.DataFrame({"x1": [1.0, 0.0], "x2": [0.0, 1.0], "x3": [0.0, 0.0]})
    assert len(registry.load(settings, versions.resolve(settings, "slopes/1")).predict(rows)) == 2


def test_code_of_models_is_trusted_in_a_package_that_was_named(package: Path, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    user_code.ask_at(home)
    for name in ("slopes.train:train", "slopes.workload:LinReg", f"{package / 'workload.py'}:LinReg"):
        copy_sources(package / "predictor.py", folder / "model")
        with pytest.raises(model_upload.UntrustedModel):
            model_upload._check_files(folder, name)
        trust(name, home)
        if user_code.is_file(name):
            with pytest.raises(model_upload.UntrustedModel, match="put it into a package and name that"):
                model_upload._check_files(folder, name)
            continue
        model_upload._check_files(folder, name)
        for file in ("model/predictor.py", "changed.py"):
            (folder / file).write_text("changed = True\n")
        with pytest.raises(model_upload.UntrustedModel):
            model_upload._check_files(folder, name)
        model_upload._renew(folder, name)
        own = (
            package / "train.py" if "train" in name else folder / "changed.py"
        )  # only the class knows the predictor's file
        assert (folder / "model" / "predictor.py").read_text() == own.read_text()
        forget(home)


@pytest.mark.slow
def test_a_sweep_of_a_function_resumes_and_needs_consent(
    mine: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"local": True, "tracking": "none", "epochs": 4}
    found = api.sweep(f"{mine}:train", trials=2, scheduler="none", name="mine", **given)
    assert found.trials()["state"].tolist() == ["complete"] * 2
    assert (found.folder / "workload.py").read_text() == mine.read_text()
    forget(home)
    whose = "The workload of mine is a file, and running it would run code that was never named here"
    refused(lambda: api.sweep(resume="mine", more_trials=1, tracking="none"), whose, "orchestrator workloads")
    assert "The workload of mine is a file" in typed(home, "reproduce", "run", "mine").stderr
    assert "lr" in typed(home, "workloads", f"{mine}:train").stdout
    assert len(api.sweep(resume="mine", more_trials=1, tracking="none").trials()) == 3
    assert "has changed" not in capsys.readouterr().out
    mine.write_text(f"{mine.read_text()}\nNEW = 1\n")
    api.sweep(resume="mine", more_trials=1, tracking="none")
    assert f"{mine} has changed since the sweep began" in capsys.readouterr().out


def test_workload_file_named_only_by_a_record_is_not_run(mine: Path, home: Path, tmp_path: Path) -> None:
    trained = run(f"{mine}:train", name="theirs")
    canary = tmp_path / "canary"
    (tmp_path / "attack.py").write_text(f"open({str(canary)!r}, 'w')\n{EXAMPLE}")
    attack = f"{tmp_path}/attack.py:train"
    folder = records.open_folder(trained.folder)
    spec = json.loads(json.dumps(folder.record["spec"]).replace(f"{mine}:train", attack))
    folder.update(spec=spec, workload=attack, status="interrupted")
    never = "running it would run code that was never named here"
    refused(lambda: api.run(resume="theirs", tracking="none"), "The workload of theirs is a file", never)
    refused(lambda: api.run(origin="theirs", epochs=9, tracking="none"), "The workload of theirs is a file", never)
    refused(lambda: workload_loader.code(attack), never)
    for words in (("reproduce", "run", "theirs"), ("report", "theirs"), ("ls",)):
        typed(home, *words)
    assert not canary.exists()


@pytest.mark.slow
def test_run_of_a_function_is_continued_and_reproduced_with_equal_metrics(
    mine: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(f"{mine}:train", epochs=6, seed=3)
    run(f"{mine}:train", seed=3, name="first")
    assert run(None, origin="first", epochs=6).metrics == whole.metrics
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")
    repeated = typed(home, "reproduce", "run", "first", "--json")
    assert json.loads(repeated.stdout.splitlines()[-1])["verdict"] == "equal"
    mine.write_text(mine.read_text() + "\n")
    assert "workload: recorded as" in typed(home, "reproduce", "run", "first", "--check").stdout


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"lrr": 1}, ("lrr", "Did you mean 'lr'?")),
        ({"workers": 2, "local": False}, ("a function trains in one process", "workers=2", "Leave it out")),
        ({"accumulate": 2}, ("a function splits its batches itself", "accumulate=2")),
        ({"steps_per_epoch": 3}, ("a function yields once an epoch", "steps_per_epoch=3")),
    ],
)
def test_settings_that_a_function_does_not_support_are_refused(
    mine: Path, asked: dict[str, Any], words: tuple[str, ...]
) -> None:
    refused(lambda: run(f"{mine}:train", **asked), *words)


@pytest.mark.parametrize(
    ("named", "text", "words"),
    [
        ("absent.py:train", None, ("The workload's file does not exist", "absent.py")),
        ("no.such:train", None, ("The workload's module is not installed", "no.such:train")),
        ("mine.py:trian", None, ("Unknown workload in", "got 'trian'", "Did you mean 'train'?")),
        ("mine.py:train", "x = 1 +", ("mine.py", "cannot be imported: SyntaxError")),
        ("mine.py:train", "train = 3", ("The workload cannot be used: train is no workload, but int", "mine.py:train")),
        ("mine.py:train", "x = 1\nraise SystemExit(2)", ("line 2 cannot be imported: SystemExit: 2", "__main__")),
        ("mine.py:train", "import nosuchpackage", ("line 1 cannot be imported", "nosuchpackage")),
    ],
)
def test_workload_that_cannot_be_loaded_is_refused(
    mine: Path, named: str, text: str | None, words: tuple[str, ...]
) -> None:
    if text is not None:
        mine.write_text(text)
    refused(lambda: run(named if "." in named.partition(":")[0][:3] else str(mine.parent / named)), *words)


def test_file_without_a_name_and_unnamed_object_are_refused(mine: Path) -> None:
    refused(lambda: run("mine.py"), "The workload is named by its file alone", "Write mine.py:NAME")
    refused(lambda: run(object), "not given by its name", "got <class 'object'>", "mine.py:Mine")  # type: ignore[arg-type]


def test_import_error_of_a_local_module_suggests_pythonpath(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = mine.parent
    (project / "digits").mkdir()
    (project / "digits" / "model.py").write_text("")
    (project / "digits" / "train.py").write_text("from digits.model import Net\n")
    advice = f"Install your package (pip install -e .), or put {project} on PYTHONPATH"
    absent = "digits/train.py, line 1 cannot be imported: ModuleNotFoundError: No module named 'digits'"
    refused(lambda: run("digits/train.py:train"), absent, advice)
    monkeypatch.chdir(project / "digits")
    refused(lambda: run("train.py:train"), absent, advice)
    (project / "digits" / "train.py").write_text("from model import Net\n")
    refused(lambda: run("train.py:train"), "No module named 'model'", f"put {project / 'digits'} on PYTHONPATH")
    monkeypatch.chdir(project)
    refused(lambda: run("digits.train:train"), "The workload's module is not installed", advice)
    with pytest.raises(UserError) as caught:  # the package is found and has no such module
        run("orchestrator.train:train")
    assert "PYTHONPATH" not in str(caught.value)
    mine.write_text("from .model import Net\n")
    refused(
        lambda: run("mine.py:train"), "no known parent package", "name PACKAGE.MODULE:NAME, of an installed package"
    )


CLASS = """
from pydantic import BaseModel
from workloads.contract import Evaluation, Objective

class Mine:
    class Params(BaseModel):
        pass
    objective = Objective("loss", "min")
    def __init__(self, params, runtime): ...
    def train_epoch(self, epoch): return {"loss": 1.0}
    def evaluate(self, split): return Evaluation({"loss": 1.0})
    def state_dict(self): return {}
    def load_state_dict(self, state): ...
    def servable(self): ...
"""


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('Objective("loss", "min")', '"loss"', ("does not meet the contract: got the objective 'loss'",)),
        ('"min"', '"minimize"', ("direction of the objective loss is 'minimize'; allowed: max or min",)),
        ("    def evaluate", "    directions = {'f1': 'up'}\n    def evaluate", ("the direction 'up' of f1",)),
        (
            "    def evaluate",
            "    limits = {'acumulate': 'x'}\n    def evaluate",
            ("the limit 'acumulate', which is none of",),
        ),
        ("class Params(BaseModel)", "class Params", ("its Params is no pydantic model",)),
        ("params, runtime", "params", ("the arguments (params)",)),
        ("def servable", "def sevrable", ("the class Mine has no servable",)),
    ],
)
def test_class_that_violates_the_contract_is_refused(
    mine: Path, right: str, wrong: str, words: tuple[str, ...]
) -> None:
    assert right in CLASS
    mine.write_text(CLASS.replace(right, wrong))
    refused(lambda: run(f"{mine}:Mine"), *words)


def test_a_servable_that_is_none_is_refused(mine: Path) -> None:
    mine.write_text(CLASS)
    words = ("Mine.servable has returned no Servable: got None", "contract.Servable")
    refused(lambda: run(f"{mine}:Mine"), *words, code=FAILED)


def test_a_function_without_metrics_of_validation_is_refused(mine: Path) -> None:
    mine.write_text("def train(params, ctx):\n    for _ in ctx.epochs:\n        yield {'loss': 1.0}\n")
    refused(lambda: run(f"{mine}:train"), "No metric of validation", "use @ctx.evaluate", "begin with validation/")


def test_function_that_ends_before_the_last_epoch_fails_its_run(mine: Path) -> None:
    mine.write_text("def train(params, ctx):\n    yield {'loss': 1.0, 'validation/loss': 2.0}\n")
    with pytest.raises(RunFailed, match="has ended before epoch 2; it yields once for each"):
        run(f"{mine}:train")


def test_workload_labels_are_shortened_to_file_and_name() -> None:
    assert user_code.label("/home/me/nets.py:train") == "nets-train"
    assert user_code.label("package.nets:train") == "nets-train"
    assert user_code.label("recommender") == "recommender"
