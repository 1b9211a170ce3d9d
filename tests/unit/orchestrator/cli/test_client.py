"""The client: an installation without PyTorch, pandas and the like. ``make test-deploy`` installs a real one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.cli import exit_codes
from orchestrator.errors import TRAINING_MODULES
from orchestrator.promotion import isolated_check, load_probe
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[4]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LACKS = {*TRAINING_MODULES, "flask"}  # flask comes with MLflow's server
END = "=== "
WITHOUT = f"""
import importlib.util, json, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LACKS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {LACKS} else found(name, package)
from orchestrator.cli.app import main
code = 0
for verb in json.loads(sys.argv[1]):
    sys.argv = ["orchestrator", *verb]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    for stream in (sys.stdout, sys.stderr):
        print(f"{END}{{code}}", file=stream, flush=True)
"""


CLIENT = "which is not installed here: this is the client."
ON_THE_CLUSTER = "Run it on the cluster (orchestrator submit -- ...) or install"
INSTALL = "Install ray-experiment-orchestrator[train]."


VERBS: list[tuple[list[str], int, str]] = [
    (["ls"], 0, ""),
    (["workloads", "recommender"], 0, "Set them with key=value"),
    (["status", "latest"], 2, "error: There is no run"),
    (["jobs", "--address", "http://127.0.0.1:9"], 3, "error: No Ray dashboard answers"),
    (["submit", "--address", "http://127.0.0.1:9", "--", "doctor"], 3, "error: No Ray dashboard answers"),
    (["promote", "mf", "--to", "champion"], 2, "error: There is no registered model yet"),
    (["run", "recommender", "epochs=1", "--local"], 3, f"This command needs torch, {CLIENT} {ON_THE_CLUSTER}"),
    (["ui"], 3, f"error: The UI needs MLflow's server, {CLIENT} {INSTALL}"),
]
"""Command lines, each with its exit code and a part of its message."""


def test_training_modules_match_the_packages_of_the_train_extra() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(each).name) for each in requirements}

    packages = {module: set(map(canonicalize_name, found)) for module, found in packages_distributions().items()}
    extras = {name: names(needs) for name, needs in PROJECT["optional-dependencies"].items()}
    assert extras["s3"] == {"boto3"} < extras["train"], "only a driver needs conditional writes"
    extra = extras["train"] - {"ray", "mlflow", "boto3"}
    assert {package for module in TRAINING_MODULES for package in packages[module]} == extra
    assert not extra & names(PROJECT["dependencies"])


def test_requirements_of_pinned_packages_are_pinned() -> None:
    """Packages in a version other than the pinned one, such as the lowest, are skipped: their needs may differ."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pins = {canonicalize_name(name): pinned for name, _, pinned in (line.partition("==") for line in lines)}
    ours = [Requirement(each) for each in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"])]
    extras = {need.name: {"", *need.extras} for need in ours}
    installed = {name: each for each in distributions() if (name := canonicalize_name(each.name)) in pins}
    needed = {
        canonicalize_name(need.name)
        for name, each in installed.items()
        if each.version == pins[name]
        for need in map(Requirement, each.requires or ())
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras.get(name, {""}))
    }
    assert needed - {"setuptools"} <= pins.keys(), "setuptools is part of each environment"


@pytest.mark.slow
@pytest.mark.usefixtures("database")  # the creation of a store takes seconds
def test_client_verbs_work_or_name_the_missing_package() -> None:
    """The commands run one after the other in one process, because imports take most of a command's time."""
    command = [sys.executable, "-c", WITHOUT, json.dumps([words for words, _, _ in VERBS])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG_SECONDS, check=True)
    parts = [re.split(rf"^{END}(\d+)\n", stream, flags=re.MULTILINE) for stream in (done.stdout, done.stderr)]
    answers = [(int(code), out + err) for out, code, err in zip(parts[0][::2], parts[0][1::2], parts[1][::2])]
    assert len(answers) == len(VERBS), done.stderr
    for (words, code, says), (ended, said) in zip(VERBS, answers):
        assert ended == code, (words, said)
        assert says in said, words
        assert "a bug of orchestrator" not in said


def test_missing_module_is_found_in_the_cause_of_an_error() -> None:
    wrapped = RuntimeError("Failed to import the model's code")
    wrapped.__cause__ = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert load_probe.missing_module(wrapped) == "torch"
    assert load_probe.missing_module(RuntimeError("other")) is None


@pytest.mark.parametrize(
    ("verb", "says"), [("report", INSTALL), ("sweep", ON_THE_CLUSTER), ("promote", ON_THE_CLUSTER)]
)
def test_missing_package_error_suggests_submit_for_submittable_verbs(
    verb: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.pyplot")

    monkeypatch.setattr(sys, "argv", ["orchestrator", verb, "latest"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert exit_codes.guarded(fails) == 3
    assert f"error: This command needs matplotlib, {CLIENT} {says}" in capsys.readouterr().err


def test_load_check_raises_user_error_if_the_client_lacks_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the client lacks the module, the model is not judged unusable, because the check did not run."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import json, sys\nopen(sys.argv[2], 'w').write(json.dumps({'error': 'No module', 'missing': 'torch.nn'}))"
    )
    monkeypatch.setattr(isolated_check, "PROBE", probe)
    with pytest.raises(isolated_check.Unusable):  # torch is installed here, so the model is at fault
        isolated_check.measure(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = "The check that the model loads and predicts needs torch, which is not installed here"
    with pytest.raises(isolated_check.UserError, match=re.escape(words)):
        isolated_check.measure(tmp_path)
