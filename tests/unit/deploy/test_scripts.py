"""Scripts of the deployments: durable retries, health checks, buckets, and the MLflow account of training nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from moto import mock_aws

from orchestrator.errors import DONE, USAGE, UserError
from orchestrator.jobs import durable
from orchestrator.search import trusted_spaces
from tests.support.waiting import HANG_SECONDS
from tests.support.web import QuietHandler, serving
from tests.unit.deploy.manifests import DEPLOY, ROOT

SCRIPTS = DEPLOY / "docker"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deployed_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Commands:
    """A stand-in for `orchestrator` that records its arguments; `status` and other commands answer as configured."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._environment = folder, {**os.environ, "PYTHONPATH": str(ROOT)}
        self._environment["PATH"] = f"{folder}:{os.environ['PATH']}"
        self._environment["RAY_JOB_CONFIG_JSON_ENV_VAR"] = "{}"  # as in a Ray job

    def answer(self, status: str, status_code: int, code: int) -> None:
        (self._folder / "status").write_text(status)
        program = self._folder / "orchestrator"
        program.write_text(
            f"""#!/bin/sh
echo "$@" >> {self._folder}/asked
if [ "$1" = status ]; then
    cat {self._folder}/status
    [ -z "$RAY_JOB_CONFIG_JSON_ENV_VAR" ] || echo "orchestrator exit code: {status_code}"
    echo why >&2
    exit {status_code}
fi
exit {code}
"""
        )
        program.chmod(0o755)

    def durable(self, *words: str) -> int:
        """The exit code of an attempt that runs in this process."""
        kept = {stop: signal.getsignal(stop) for stop in (signal.SIGINT, signal.SIGTERM)}
        with pytest.MonkeyPatch.context() as patch:
            for name in ("PATH", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
                patch.setenv(name, self._environment[name])
            try:
                code: Any = durable.main(*words)
            except SystemExit as end:
                code = end.code
            finally:
                for stop, handler in kept.items():
                    signal.signal(stop, handler)
        assert isinstance(code, int)
        return code

    def durable_process(self, *words: str) -> int:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.jobs.durable", *words], env=self._environment, timeout=HANG_SECONDS
        )
        return done.returncode

    def asked(self) -> list[str]:
        return (self._folder / "asked").read_text().splitlines()


BEGIN, GO_ON = "sweep recommender --trials 2 --name mf", "sweep --resume mf"


@pytest.mark.parametrize(
    ("standing", "status_code", "code", "then", "ends"),
    [
        pytest.param(None, 2, 0, [BEGIN], 0, id="the first attempt begins it"),
        pytest.param("lost", 1, 0, [GO_ON], 0, id="a retry goes on"),
        pytest.param("interrupted", 130, 1, [GO_ON], 1, id="a failure is one"),
        pytest.param("finished", 0, 1, [], 0, id="what has finished is left alone"),
        pytest.param("partial", 4, 1, [], 0, id="so is a sweep with some failed trials"),
        pytest.param(None, 2, 4, [BEGIN], 0, id="which no retry would mend"),
        pytest.param(None, 3, 0, [], 3, id="a storage that is away begins nothing"),
    ],
)
def test_durable_starts_resumes_or_skips_a_run_by_its_status(
    tmp_path: Path, standing: str | None, status_code: int, code: int, then: list[str], ends: int
) -> None:
    commands = Commands(tmp_path)
    record = {"status": standing, "exit_code": status_code, "command": f"orchestrator {BEGIN}"}
    commands.answer(json.dumps(record) if standing else "", status_code, code)
    assert commands.durable("mf", "sweep", "recommender", "--trials", "2") == ends
    assert commands.asked() == ["status mf --wait --json", *then]


def test_durable_resumes_an_interrupted_run_as_a_process(tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    commands.answer(json.dumps({"status": "interrupted", "command": f"orchestrator {BEGIN}"}), 130, 1)
    assert commands.durable_process("mf", "sweep", "recommender", "--trials", "2") == 1
    assert commands.asked() == ["status mf --wait --json", GO_ON]


@pytest.mark.parametrize("storage", ["--storage /st", "--storage=/st"])
def test_durable_passes_the_addresses_of_its_command_to_a_resume(tmp_path: Path, storage: str) -> None:
    words = f"recommender epochs=2 --tracking none {storage} --experiment e --ray-address=ray:1"
    commands = Commands(tmp_path)
    commands.answer(json.dumps({"status": "lost", "command": f"orchestrator run {words} --name mf"}), 1, 0)
    assert commands.durable("mf", "run", *words.split()) == DONE
    addresses = "--tracking none --experiment e --storage /st --ray-address ray:1"
    assert commands.asked() == ["status mf --wait --json --storage /st", f"run --resume mf {addresses}"]


@pytest.mark.parametrize("given", ["mine.py:Mine --space mine.py:space --sampler tpe", "--config mine.yaml"])
def test_durable_names_the_code_of_its_command_to_a_resume_with_a_new_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    commands = Commands(tmp_path)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "mine.yaml").write_text("workload: mine.py:Mine\nsearch: {space: 'mine.py:space', sampler: tpe}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "new"))
    workload = f"{tmp_path}/mine.py:Mine"
    record = {"status": "lost", "command": f"orchestrator sweep {given} --name mf", "workload": workload}
    commands.answer(json.dumps(record), 1, 0)
    assert commands.durable("mf", "sweep", *given.split()) == DONE
    assert commands.asked()[-1] == f"{GO_ON} --space mine.py:space"
    trusted_spaces.check(workload, tmp_path / "new", "mf", "workload")


def test_durable_trusts_no_code_that_only_the_record_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(tmp_path)
    (tmp_path / "theirs.py").write_text("")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "new"))
    workload = f"{tmp_path}/theirs.py:Theirs"
    record = {"status": "lost", "command": f"orchestrator {BEGIN}", "workload": workload}
    commands.answer(json.dumps(record), 1, 0)
    assert commands.durable("mf", "sweep", "recommender", "--trials", "2") == DONE
    with pytest.raises(UserError, match="was never named here"):
        trusted_spaces.check(workload, tmp_path / "new", "mf", "workload")


@pytest.mark.parametrize("state", ["finished", "interrupted"])
@pytest.mark.parametrize(
    ("recorded", "words", "same"),
    [
        ("orchestrator run recommender epochs=2 --name mf", "run recommender epochs=2", True),
        ("orchestrator run --name=mf recommender epochs=2", "run recommender epochs=2", True),
        ("orchestrator run recommender 'init=a b' --name mf", "run recommender 'init=a b'", True),
        ("orchestrator run recommender api_token=*** --name mf", "run recommender api_token=abc123", True),
        ("orchestrator run recommender epochs=2 --name mf", "run recommender epochs=200 lr=0.3", False),
        ("orchestrator run recommender epochs=2 --name mf", "sweep recommender epochs=2", False),
        ("python train.py run recommender epochs=2 --name mf", "run recommender epochs=2", False),
    ],
)
def test_durable_refuses_other_arguments(
    tmp_path: Path, state: str, recorded: str, words: str, *, same: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(tmp_path)
    commands.answer(json.dumps({"status": state, "command": recorded}), 0, 0)
    assert commands.durable("mf", *shlex.split(words)) == (DONE if same else USAGE)
    go_on = ["run --resume mf"] if same and state == "interrupted" else []
    assert commands.asked() == ["status mf --wait --json", *go_on]
    assert ("mf was begun with other arguments: " in capfd.readouterr().err) is not same


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, str | None]]]]:
    """A server that records the Host and Authorization of requests, and answers 401 to wrong credentials."""
    heard: list[dict[str, str | None]] = []

    class Handler(QuietHandler):
        def get(self) -> None:
            heard.append({name: self.headers.get(name) for name in ("Host", "Authorization")})
            self.respond(200 if self.headers.get("Authorization") in ("Bearer right", "Basic bWU6cmlnaHQ=") else 401)

    with serving(Handler) as url:
        yield f"{url}/api", heard


def test_health_check_sends_host_and_credentials_and_reports_a_failure(
    server: tuple[str, list[dict[str, str | None]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, heard = server
    health = script("health")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "right")
    health.main("ray", url)
    health.main("mlflow", url, "mlflow:5000")
    assert heard[0]["Host"] == url.split("/")[2]
    assert heard[1]["Host"] == "mlflow:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with pytest.raises(SystemExit, match=r"mlflow does not answer at .* 401"):
        health.main("mlflow", url)
    with pytest.raises(SystemExit, match="ray does not answer"):
        health.main("ray", "http://127.0.0.1:1/api")


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_existing_buckets_are_kept_when_buckets_are_created(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DEFAULT_REGION": region, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        script("buckets").make("artifacts")
        boto3.client("s3").put_object(Bucket="artifacts", Key="kept", Body=b"")
        script("buckets").make("artifacts", "runs")
        assert [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]] == ["artifacts", "runs"]
        assert boto3.client("s3").list_objects_v2(Bucket="artifacts")["KeyCount"] == 1


@pytest.mark.slow
def test_training_account_is_not_an_admin_and_its_password_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (SCRIPTS / "auth.ini").read_text()
    database = next(line for line in settings.splitlines() if line.startswith("database_uri"))
    here = tmp_path / "auth.ini"
    here.write_text(settings.replace(database, f"database_uri = sqlite:///{tmp_path / 'users.db'}"))
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(here))
    server = script("mlflow_server")
    for password in ("a-first-password", "another-password"):
        server.make_account("training", password)
        store = server.SqlAlchemyStore()
        store.init_db(server.read_auth_config().database_uri)
        assert store.authenticate_user("training", password)
    assert not store.authenticate_user("training", "a-first-password")
    assert not store.get_user("training").is_admin
    server.make_account("ada", "a-third-password")
    (role,) = store.list_roles(["default"])
    assert len(store.list_role_users(role.id)) == 2
    assert [(may.resource_type, may.resource_pattern, may.permission) for may in role.permissions] == [
        ("experiment", "*", "EDIT")
    ]
