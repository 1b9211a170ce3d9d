"""Run folders, records, spools and models of another user: their code is not run, and no file is sent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.console import Console
from orchestrator.errors import RunFailed, UserError
from orchestrator.registry import models as registry
from orchestrator.registry import prediction
from orchestrator.reproduce import repeat_run
from orchestrator.runs import driver, model_upload
from orchestrator.runs.session import adopt
from orchestrator.storage import run_lookup
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import request, sweep
from orchestrator.sweeps.sweep import ResumeOptions
from orchestrator.tracking.tracker import JOURNAL, Tracker
from tests.support import finished
from tests.support.tracked import OWNER, query
from tests.unit.security.strangers import Bomb, source

pytestmark = pytest.mark.usefixtures("toy_workload", "no_page")

SPACE = "def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.01, 0.2)}"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def theirs(settings: Settings, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep of another user, copied with its folder, which contains the file of its search space."""
    home = tmp_path / "theirs"
    (tmp_path / "space.py").write_text(SPACE)
    with monkeypatch.context() as patch:
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        there = resolve({"tracking": "none"})
        spec = request.sweep(
            "toy", there, overrides={"epochs": 2}, local=True,
            search={"space": f"{tmp_path / 'space.py'}:space", "scheduler": "none", "trials": 1},
        )  # fmt: skip
        sweep.sweep(spec, there, driver.Options(local=True, name="theirs"), Console())
    folder = settings.storage / "theirs"
    shutil.copytree(home / "storage" / "theirs", folder)
    (folder / "attack.py").write_text(source(canary, SPACE))
    for name in ("record.json", "sweep.json"):
        text = (folder / name).read_text().replace(str(tmp_path / "space.py"), str(folder / "attack.py"))
        (folder / name).write_text(text)
    (folder / "space.py").write_text(source(canary, SPACE))
    return folder


# Search spaces named in a record


def test_a_resume_does_not_run_the_search_space_of_a_record(theirs: Path, settings: Settings, canary: Path) -> None:
    with pytest.raises(UserError, match=r"would run code that was never named here.*--space"):
        sweep.resume(run_lookup.find(settings.storage, "theirs"), settings, Console(), ResumeOptions(more_trials=1))
    assert not canary.exists()


def test_reproduction_does_not_run_the_search_space_of_a_record(theirs: Path, settings: Settings, canary: Path) -> None:
    def repeat(**trusted: str | None) -> Any:
        return repeat_run.run(
            settings, "theirs", check=True, script=False, tolerance=0, console=Console(json=True), trusted=trusted
        )

    with pytest.raises(UserError, match="would run code that was never named here"):
        repeat()
    assert not canary.exists()
    repeat(space=f"{theirs.parents[2] / 'space.py'}:space")


def test_search_space_named_by_the_user_is_run_and_trusted_later(
    theirs: Path, settings: Settings, canary: Path
) -> None:
    folder = run_lookup.find(settings.storage, "theirs")
    again = ResumeOptions(more_trials=1, space=f"{theirs / 'attack.py'}:space")
    assert sweep.resume(folder, settings, Console(), again).status == "finished"
    assert canary.exists()
    sweep.resume(run_lookup.find(settings.storage, "theirs"), settings, Console(), ResumeOptions(more_trials=1))


# Spool, and deliveries named in a record


def test_spool_uploads_only_files_of_its_own_folder(
    open_tracker: Callable[..., Tracker], database: Path, tmp_path: Path
) -> None:
    secret, own = tmp_path.parent / f"{tmp_path.name}-secret", tmp_path / "own.txt"
    secret.write_text("hunter2")
    own.write_text("own")
    (tmp_path / "link.txt").symlink_to(secret)
    start = {"op": "start", "key": OWNER, "name": "x", "params": {}, "tags": {}, "parent": None, "time": 0}
    paths = [str(path) for path in (secret, own, tmp_path / "link.txt", tmp_path / ".." / secret.name)]
    lines = [start, {"op": "files", "key": OWNER, "paths": paths}]
    (tmp_path / JOURNAL).write_text("".join(json.dumps({"format": 1, **line}) + "\n" for line in lines))
    told = open_tracker(resuming=True).close()
    assert told is not None
    assert "lies outside the run's folder" in told
    ((place,),) = query(database, "select artifact_uri from runs")
    assert [file.name for file in Path(place).iterdir()] == ["own.txt"]
    secret.unlink()


@pytest.fixture
def outcome(theirs: Path) -> Path:
    """The winner of the other user's sweep, with its model."""
    return theirs / "winner"


def test_a_model_in_a_folder_is_logged_only_with_code_that_is_installed(outcome: Path, canary: Path) -> None:
    model_upload._check_files(outcome, "recommender")
    (outcome / "model" / "predictor.py").write_text(source(canary))
    with pytest.raises(model_upload.UntrustedModel, match="not the code of a workload that is installed here"):
        model_upload._check_files(outcome, "recommender")
    assert not canary.exists()


@pytest.mark.parametrize("name", ["encoders/served_text.py", "helper.pyc", "encoders/served_text.so"])
def test_model_with_an_additional_code_file_is_refused(outcome: Path, canary: Path, name: str) -> None:
    file = outcome / "model" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(source(canary))
    with pytest.raises(model_upload.UntrustedModel, match="not the code of a workload that is installed here"):
        model_upload._check_files(outcome, "recommender")
    file.unlink()
    model_upload._check_files(outcome, "recommender")


def test_bytecode_in_a_model_folder_is_removed(outcome: Path) -> None:
    bytecode = outcome / "model" / "__pycache__" / "predictor.cpython-311.pyc"
    bytecode.parent.mkdir()
    bytecode.write_bytes(b"")
    model_upload._check_files(outcome, "recommender")
    assert not bytecode.exists()


@pytest.mark.parametrize("name", ["model/weights.safetensors", "tables/x.parquet", "outcome.json"])
def test_symbolic_link_in_an_outcome_folder_is_refused(outcome: Path, name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    (outcome / name).parent.mkdir(exist_ok=True)
    (outcome / name).unlink(missing_ok=True)
    (outcome / name).symlink_to(tmp_path / "secret")
    with pytest.raises(model_upload.UntrustedModel, match="is a link"):
        model_upload._check_files(outcome, "recommender")


@pytest.mark.parametrize("place", ["../../theirs", "/etc"])
def test_outcome_path_outside_the_run_folder_is_refused(place: str, theirs: Path, settings: Settings) -> None:
    folder = run_lookup.find(settings.storage, "theirs")
    with pytest.raises(UserError, match="is outside its folder"):
        model_upload._complete(settings, folder, "run", {"outcome": place, "register": None})


# Logins


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"])
def test_a_login_is_not_sent_to_an_address_of_a_record(
    variable: str, toy_workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, attack = "https://mlflow.example", "http://attacker.example:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ours)
    folder = finished.run(resolve().storage, "theirs", 0.5)
    folder.update(tracking=attack)
    assert adopt(resolve(), folder).tracking == attack  # without a login, no credential could be sent
    monkeypatch.setenv(variable, "hunter2")
    with pytest.raises(UserError, match=f"--tracking {attack}"):
        adopt(resolve(), folder)
    assert adopt(resolve({"tracking": ours}), folder).tracking == ours
    folder.update(tracking=ours)
    assert adopt(resolve(), folder).tracking == ours


# Models


def test_a_model_that_is_a_pickle_is_not_loaded(
    database: Path, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow.pyfunc.model import PythonModel

    class Plain(PythonModel):  # type: ignore[misc]
        def predict(self, context: Any, model_input: pd.DataFrame) -> pd.DataFrame:
            return model_input

    mlflow.pyfunc.save_model(str(tmp_path / "model"), python_model=Plain(), pip_requirements=[])
    (file,) = (tmp_path / "model").glob("*.pkl")
    import cloudpickle

    file.write_bytes(cloudpickle.dumps(Bomb(canary)))
    pd.DataFrame({"x": [1]}).to_csv(tmp_path / "x.csv", index=False)
    settings = resolve()
    client = registry.client(settings)
    client.create_registered_model("theirs")
    client.create_model_version("theirs", str(tmp_path / "model"))
    with pytest.raises(UserError, match=r"cannot be loaded.*pickle is disallowed"):
        prediction.predict(settings, "theirs/1", str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), {})
    assert not canary.exists()
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")  # MLflow's variable that allows pickles
    with pytest.raises((UserError, RunFailed)):
        prediction.predict(settings, "theirs/1", str(tmp_path / "x.csv"), str(tmp_path / "out.csv"), {})
    assert canary.exists()
