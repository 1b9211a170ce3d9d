"""Passwords in addresses and tokens in errors do not appear in messages, logs, records or tags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import app
from orchestrator.cli.exit_codes import guarded
from orchestrator.console import Console
from orchestrator.errors import UNAVAILABLE, USAGE, RunFailed, UserError, mask, one_line
from orchestrator.jobs import submission
from orchestrator.provenance.scrub import scrub
from orchestrator.runs.session import Session
from orchestrator.storage import records
from orchestrator.storage.settings import resolve

SECRET = "hunter2"
ADDRESSES = (
    f"http://me:{SECRET}@host:5000/x", f"postgresql://me:{SECRET}@db/x", f"postgresql+psycopg2://me:a/{SECRET}@db:1/x",
    f"postgresql://me:a@{SECRET}@db/x", f"mysql://:{SECRET}@db", f"https://{SECRET}@host",
    f"https://b.s3.amazonaws.com/m?X-Amz-Expires=60&X-Amz-Signature={SECRET}", f"s3://b?X-Amz-Security-Token={SECRET}&a=1",
    f"https://a.blob.core.windows.net/c/m?sv=2024&sig={SECRET}", f"https://host/x?access_token={SECRET}",
    f"https://host/x?api_key={SECRET}", f"https://host/x?a=1&key={SECRET}", f"https://host/x?Access-Key={SECRET}",
)  # fmt: skip
HARMLESS = (
    "http://localhost:5000/#/models/rec@champion", "ssh://git@github.com/a/b", "models:/rec@champion",
    "sqlite:////home/me@work/mlflow.db", "https://host/x?design=1&signal=2&token_type=a&monkey=1",
    "see https://registry.example:443/@scope/x and me@host",
)  # fmt: skip

OWN_WORKLOAD = """
from dataclasses import dataclass

@dataclass
class Params:
    hf_token: str = ""
    password: str = ""
    login: dict[str, str] | None = None
    pad_token: str = ""
    token: str = ""
    credentials: str = ""
    max_tokens: int = 1

def train(params: Params, ctx):
    for epoch in ctx.epochs:
        yield {"validation/loss": 1.0}
"""


def call(words: list[str]) -> int:
    return app.run(words)


@pytest.mark.parametrize("address", ADDRESSES)
def test_passwords_of_addresses_are_masked_in_messages_and_logs(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[Exception] = [
        UserError(f"Not at {address}", got=address, allowed=[address], fix=f"Try {address}"),
        RunFailed("run", f"OSError: {address}"),
    ]
    said = [str(error) for error in errors] + [
        one_line(OSError(address)),
        mask(address),
        scrub(f"--tracking={address}"),
    ]
    console = Console()
    console.log_to(tmp_path / "log.txt")
    console.say(f"Tracked at {address}")

    def fault() -> None:
        raise RuntimeError(f"fault at {address}")

    assert guarded(fault) == 1
    out, err = capsys.readouterr()
    for text in (*said, (tmp_path / "log.txt").read_text(), out, err):
        assert SECRET not in text
        assert "***" in text


@pytest.mark.parametrize("text", HARMLESS)
def test_texts_without_a_login_are_not_masked(text: str) -> None:
    assert mask(text) == scrub(text) == text


def test_traceback_in_a_log_contains_no_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve({"tracking": "none"})
    folder = records.create(settings.storage, "run", "toy", {}, "orchestrator run toy")

    def work() -> None:
        with Session(folder, settings, Console(), resuming=False, params={}, tags={}):
            raise OSError(f"no answer from {ADDRESSES[2]}")

    with pytest.raises(OSError, match="no answer"):
        work()
    log = folder.log.read_text()
    assert "Traceback" in log
    for file in folder.path.rglob("*"):
        assert not file.is_file() or SECRET not in file.read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "recommender", "--tracking", f"postgresql://me:a/{SECRET}@db/x"], USAGE),
        (["promotions", "rec", "--tracking", f"http://me:{SECRET}@127.0.0.1:9"], USAGE),
        (["submit", "--", "run", "recommender", "--tracking", f"postgresql://me:a/{SECRET}@db/x"], USAGE),
    ],
)
def test_a_password_on_the_command_line_is_refused(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(words) == code
    said = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI" in said
    assert SECRET not in said


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_password_in_a_parameter_is_refused(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    """Records and MLflow store parameters unmasked, since a resume or repetition needs them."""
    config = tmp_path / "experiment.yaml"
    config.write_text(f"workload: recommender\nparams: {{dataset: '{ADDRESSES[1]}'}}\n")
    for words in ([verb, "recommender", f"dataset={ADDRESSES[2]}"], [verb, "--config", str(config)]):
        assert call([*words, "--tracking", "none"]) == USAGE
        said = capsys.readouterr().err
        assert "The parameter dataset holds a password" in said
        assert SECRET not in said
    assert not home.exists()


@pytest.mark.parametrize(
    "setting", ["hf_token=hf_Ab1Cd2Ef3Gh4Ij5Kl6", "password=hunter", 'login={"api_key": "a1b2c3d4e5"}']
)
def test_secret_in_a_parameter_of_your_own_workload_is_refused(
    setting: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_WORKLOAD)
    for harmless in ("pad_token=<pad>", "max_tokens=512", "token=first", "credentials=/run/hub"):
        assert call(["plan", "run", f"{file}:train", harmless]) == 0
    capsys.readouterr()
    assert call(["run", f"{file}:train", setting, "--tracking", "none", "--local"]) == USAGE
    assert f"The parameter {setting.partition('=')[0]} holds a password" in capsys.readouterr().err
    assert not list(home.glob("storage/*/record.json"))


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_secret_among_the_defaults_of_your_own_workload_is_refused(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    """Records and MLflow hold the defaults, too."""
    file = tmp_path / "mine.py"
    space = "def space(trial):\n    return {'max_tokens': trial.suggest_int('max_tokens', 1, 9)}\n"
    file.write_text(OWN_WORKLOAD.replace('password: str = ""', f'password: str = "{SECRET}"') + space)
    words = [verb, f"{file}:train", "epochs=1", "--tracking", "none", "--local"]
    assert call([*words, *(["--space", f"{file}:space"] if verb == "sweep" else [])]) == USAGE
    said = capsys.readouterr().err
    assert "The parameter password holds a password" in said
    assert SECRET not in said
    assert not list(home.glob("storage/*/record.json"))


def test_error_of_an_artifact_store_is_one_line_without_a_login(tmp_path: Path) -> None:
    from orchestrator.tracking.client import Client, Refused

    class Store:
        def log_artifact(self, *_: str) -> None:
            raise RuntimeError(f"Forbidden for url: {ADDRESSES[6]}\nat {ADDRESSES[0]}")

    client = object.__new__(Client)
    client._client, client._refusal, client._outage = Store(), KeyError, ConnectionError
    file = tmp_path / "spec.json"
    file.touch()
    with pytest.raises(Refused) as caught:
        client.files("run", [str(file)])
    assert str(caught.value) == (
        "spec.json is not on the run: RuntimeError: Forbidden for url: "
        "https://b.s3.amazonaws.com/m?X-Amz-Expires=60&X-Amz-Signature=***"
    )


@pytest.mark.parametrize(
    ("address", "code"),
    [(f"http://me:a/{SECRET}@127.0.0.1:9", USAGE), (f"http://me:{SECRET}@127.0.0.1:9", UNAVAILABLE)],
)
def test_password_of_the_environment_is_not_in_the_error_message(
    address: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")  # so that monkeypatch undoes what the command sets
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert call(["promotions", "rec"]) == code
    assert SECRET not in capsys.readouterr().err
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == ("" if code == USAGE else SECRET)


def test_the_record_of_a_run_has_no_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.provenance import record

    argv: list[Any] = ["orchestrator", "run", "toy", "--tracking", ADDRESSES[2], "--token", SECRET]
    monkeypatch.setattr("sys.argv", argv)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESSES[3])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", f"https://hooks.example/{SECRET}")
    home.mkdir()
    for file in record.write(home, {"experiment": {"params": {}}}, ()):
        assert SECRET not in file.read_text()
    assert SECRET not in str(record.tags(()))


def test_environment_of_a_submitted_job_contains_no_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray puts a job's environment on the command lines of its own processes."""
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", f"https://hooks.example/{SECRET}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    sent = submission._environment(resolve())
    assert sent["MLFLOW_TRACKING_URI"] == "https://mlflow.example"
    assert SECRET not in str(sent)
    for address in ADDRESSES[1:4]:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(UserError, match="holds a password"):
            submission._environment(resolve())
