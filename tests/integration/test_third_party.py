"""A third-party workload from its package to the registry, and errors of its package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from orchestrator.reproduce import catalog as published_catalog
from tests.support.commands import Store, typed
from tests.support.projects import EXAMPLE, installed
from workloads import catalog

Typed = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, for a test to damage."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "linreg"))


@pytest.fixture
def told(database: Path, home: Path, project: Path, tmp_path: Path) -> Typed:
    """Runs a command, each time with the copy installed in its current state."""

    def run(*words: str) -> CompletedProcess[str]:
        with ExitStack() as stack:
            if project.exists():
                stack.enter_context(installed(project, tmp_path / "metadata"))
            return typed(home, *words)

    return run


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_example_runs_searches_its_own_space_and_predicts(told: Typed, home: Path, tmp_path: Path) -> None:
    listed = told("workloads", "--json")
    summary = "Linear regression on three planted slopes."
    assert {"name": "linreg", "summary": summary, "broken": None} in json.loads(listed.stdout)
    run = told("run", "linreg", "epochs=20", "--local", "--register", "slopes", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["metrics"]["test/mse"] < 0.02
    sweep = told("sweep", "linreg", "--trials", "2", "epochs=2", "--local", "--json")
    assert sweep.returncode == 0, sweep.stderr
    assert set(json.loads(sweep.stdout)["best_params"]) == {"lr"}
    (tmp_path / "x.csv").write_text("x1,x2,x3\n1,1,2\n")
    answer = told("predict", "slopes/1", "--input", str(tmp_path / "x.csv"))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1])["y"] == pytest.approx(2 - 1 + 1, abs=0.1)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("__init__.py", '"""Linear', 'import no\n"""Linear', "cannot be loaded: ModuleNotFoundError: No module named"),
        ("params.py", "import BaseModel", "import BaseModle", "cannot be loaded: ImportError: cannot import name"),
        ("params.py", "    lr:", "    epochs: int = 3\n    lr:", "settings of the engine have the names of its"),
        ("workload.py", "def evaluate(", "def evalaute(", "linreg.workload:LinReg does not meet the contract: got no"),
        ("workload.py", "import torch", "import trch", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("predictor.py", "class Predictor", "class Server", "has no class Predictor"),
        ("predictor.py", "import numpy", "import nowhere", "imports nowhere, not installed here"),
        ("predictor.py", "def predict(", "def predict[", "predictor.py, line 15, is not valid Python"),
        ("workload.py", 'return {"loss"', 'loss = {"loss"', "linreg.workload.LinReg.train_epoch has returned no res"),
    ],
)  # fmt: skip
def test_broken_workload_package_is_refused_with_the_cause(
    file: str, old: str, new: str, expected: str, told: Typed, project: Path, home: Path
) -> None:
    edit(project / "linreg" / file, old, new)
    run = told("run", "linreg", "--local", "epochs=7")
    assert run.returncode == 2, run.stderr
    assert expected in run.stderr
    assert "a bug of orchestrator" not in run.stderr
    if "train_epoch" not in expected:
        assert not (home / "storage").exists() or not list((home / "storage").iterdir()), "the run was started"
    assert told("workloads", "recommender").returncode == 0


def test_package_that_cannot_be_loaded_is_listed_with_its_error(told: Typed, project: Path) -> None:
    (project / "linreg" / "__init__.py").write_text("import nowhere")
    listed = told("workloads")
    assert listed.returncode == 0
    assert "No module named 'nowhere' (in linreg 1.0)" in " ".join(listed.stdout.split())


def test_missing_predictor_is_refused_before_the_first_epoch(told: Typed, project: Path) -> None:
    (project / "linreg" / "predictor.py").unlink()
    run = told("run", "linreg", "--local", "epochs=2")
    assert run.returncode == 2
    assert "predictor.py cannot be read (No such file or directory)" in run.stderr
    assert "storage" not in run.stderr


def test_unknown_table_error_reports_tables_that_cannot_be_loaded(told: Typed, project: Path) -> None:
    edit(project / "linreg" / "__init__.py", "spaces=", 'published="linreg.nowhere:PUBLISHED", spaces=')
    published_catalog.all_published.cache_clear()
    unknown = told("reproduce", "thesis-3.20")
    published_catalog.all_published.cache_clear()
    assert unknown.returncode == 2
    assert "Did you mean 'thesis-3.2'?" in unknown.stderr
    assert "those of linreg cannot be loaded: No module named 'linreg.nowhere'" in unknown.stderr


def test_registration_of_code_that_is_not_installed_fails_the_run(told: Typed, project: Path) -> None:
    """The predictor is not in the folder of the workload's module, so its origin is unknown."""
    shutil.copyfile(project / "linreg" / "predictor.py", project / "elsewhere.py")
    edit(project / "elsewhere.py", "class", "# Not the installed one.\nclass")
    edit(
        project / "linreg" / "workload.py",
        'Path(__file__).with_name("predictor.py")',
        f"Path({str(project / 'elsewhere.py')!r})",
    )
    run = told("run", "linreg", "epochs=1", "--local", "--register", "slopes")
    assert run.returncode == 2, run.stderr
    assert "not the code of a workload that is installed here" in run.stderr


def test_package_cannot_take_the_name_of_a_built_in_workload(told: Typed, project: Path) -> None:
    edit(project / "pyproject.toml", "linreg = ", "recommender = ")
    listed = json.loads(told("workloads", "--json").stdout)
    summary = catalog.BUILT_IN["recommender"].summary
    assert {"name": "recommender", "summary": summary, "broken": None} in listed
    assert {
        "name": "recommender",
        "summary": None,
        "broken": "cannot be loaded: linreg 1.0 offers it, and the name is one of ours",
    } in listed


def test_resume_registers_the_model_after_its_predictor_is_repaired(told: Typed, project: Path, home: Path) -> None:
    predictor = project / "linreg" / "predictor.py"
    edit(predictor, 'config["columns"]', 'config["colums"]')
    run = told("run", "linreg", "epochs=2", "--local", "--register", "slopes", "--name", "first")
    assert run.returncode == 1, run.stderr
    assert "its predictor fails on its own example: KeyError: 'colums'" in run.stderr
    assert "orchestrator run --resume first" in run.stderr
    edit(predictor, 'config["colums"]', 'config["columns"]')
    resumed = told("run", "--resume", "first")
    assert resumed.returncode == 0, resumed.stderr
    assert Store(home).query("select name, version from model_versions") == [("slopes", 1)]


def test_resume_without_the_workload_package_is_refused(told: Typed, project: Path) -> None:
    edit(project / "linreg" / "predictor.py", 'config["columns"]', 'config["colums"]')
    assert told("run", "linreg", "epochs=2", "--local", "--name", "first").returncode == 1
    shutil.rmtree(project)
    resumed = told("run", "--resume", "first")
    assert resumed.returncode == 2
    assert "Unknown workload: got 'linreg'" in resumed.stderr
