"""Real models and their gates: trained, registered, checked in a clean process, promoted and restored."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import REFUSED
from orchestrator.promotion import isolated_check
from orchestrator.promotion.alias_lock import Refusal
from orchestrator.promotion.aliases import Request, promote
from orchestrator.registry import models as registry
from orchestrator.storage.settings import Settings, resolve
from tests.support.commands import typed
from tests.support.stores import copy_store

GATES = """
rec:
  champion:
    better: true
    guard: {recall_at_20: 0.01}
    latency_ms: 1000
    size_mb: 10
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, initialised_store: Path) -> Path:
    """A home with two versions of ``rec``: the first is hardly trained, the second well."""
    home = tmp_path_factory.mktemp("trained")
    copy_store(initialised_store, home)
    for words in (("epochs=1",), ("epochs=15", "lr=0.02")):
        done = typed(home, "run", "recommender", *words, "--local", "--register", "rec")
        assert done.returncode == 0, done.stderr
    (home / "gates.yaml").write_text(GATES)
    return home


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean process predicts only a few times; the mean time of its calls is not tested."""
    monkeypatch.setattr(isolated_check, "CALLS", 3)


@pytest.fixture
def settings(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(trained))
    return resolve()


@pytest.fixture
def client(settings: Settings) -> Any:
    return registry.client(settings)


def model_files(client: Any, version: str) -> Path:
    """The folder in which the embedded store keeps a version's files."""
    return Path(client.get_model_version_download_uri("rec", version))


@pytest.fixture
def spare(client: Any) -> Iterator[Path]:
    """The files of version 1, for a test to damage; they are restored afterwards."""
    files = model_files(client, "1")
    kept = files.with_name("kept")
    shutil.copytree(files, kept)
    yield files
    shutil.rmtree(files, ignore_errors=True)
    kept.rename(files)


def test_the_better_model_passes_and_the_worse_one_is_refused(
    settings: Settings, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: dict[str, isolated_check.Tried] = {}
    try_out = isolated_check.try_out

    def once(client: Any, model: str, version: Any) -> isolated_check.Tried:
        """Check each version in one clean process instead of one per promotion."""
        if version.version not in tried:
            tried[version.version] = try_out(client, model, version)
        return tried[version.version]

    monkeypatch.setattr(isolated_check, "try_out", once)
    first = promote(settings, Request("rec", "champion", "1"))
    gates = {gate["gate"]: gate["verdict"] for gate in first.gates}
    assert gates["better: ndcg_at_20"] == gates["signature"] == "first"

    second = promote(settings, Request("rec", "champion"))
    assert {gate["gate"]: gate["verdict"] for gate in second.gates} == dict.fromkeys(gates, "pass")
    better = next(gate for gate in second.gates if gate["gate"] == "better: ndcg_at_20")
    for version, found in (("1", better["before"]), ("2", better["after"])):
        run = client.get_model_version("rec", version).run_id
        history = client.get_metric_history(run, "validation/ndcg_at_20")
        assert found == pytest.approx(
            max(value.value for value in history), rel=1e-5
        )  # the value of the selected epoch

    with pytest.raises(Refusal, match=r"refused by better: ndcg_at_20, not worse: recall_at_20\. Nothing was changed"):
        promote(settings, Request("rec", "champion", "1"))
    assert registry.alias_version(client, "rec", "champion") == "2"


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (".", "its files are gone"),
        ("MLmodel", "its files are gone"),
        ("artifacts/model/weights.safetensors", "it does not load and predict: FileNotFoundError"),
        ("serving.py", "it does not load and predict"),
    ],
)
def test_try_out_of_a_version_with_missing_files_reports_an_error(
    lost: str, words: str, client: Any, spare: Path
) -> None:
    target = spare / lost
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    tried = isolated_check.try_out(client, "rec", registry.version(client, "rec", "1"))
    assert tried.measured is None
    assert words in str(tried.error)
    assert "\n" not in str(tried.error)


def test_promote_refuses_a_version_whose_files_are_missing(trained: Path, client: Any, spare: Path) -> None:
    shutil.rmtree(spare)
    done = typed(trained, "promote", "rec", "--to", "staging", "--version", "1", "--force", "--reason", "no other")
    assert done.returncode == REFUSED
    assert "rec@staging does not move to version 1, refused by loads and predicts: its files are gone" in done.stderr
    assert (done.stderr.count("\n"), "Traceback" in done.stderr) == (1, False)
    assert registry.alias_version(client, "rec", "staging") is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import orchestrator.errors", "ModuleNotFoundError"),  # present only in this project's environment
        ("import mlflow.nowhere", "ModuleNotFoundError"),  # a missing module of an installed package
    ],
)
def test_try_out_reports_modules_missing_in_the_clean_process(code: str, words: str, client: Any, spare: Path) -> None:
    predictor = spare / "artifacts" / "model" / "predictor.py"
    predictor.write_text(predictor.read_text().replace("import numpy as np", f"import numpy as np\n{code}", 1))
    tried = isolated_check.try_out(client, "rec", registry.version(client, "rec", "1"))
    assert tried.measured is None
    assert words in str(tried.error)


def test_the_clean_process_sees_no_address_and_no_secret(
    client: Any, spare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    predictor = spare / "artifacts" / "model" / "predictor.py"
    look = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write('\\n'.join(os.environ) + os.getcwd())"
    predictor.write_text(predictor.read_text().replace("import numpy as np", f"import numpy as np\n{look}", 1))
    tried = isolated_check.try_out(client, "rec", registry.version(client, "rec", "1"))
    assert tried.measured is not None
    assert tried.measured.milliseconds > 0
    size = sum(file.stat().st_size for file in spare.rglob("*") if file.is_file()) / 1e6
    assert tried.measured.megabytes == pytest.approx(size, abs=1e-3)  # MLflow adds a note to downloads
    seen = (tmp_path / "seen").read_text()
    for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "MLFLOW_TRACKING_URI", "ORCHESTRATOR_HOME", str(Path.cwd())):
        assert name not in seen
