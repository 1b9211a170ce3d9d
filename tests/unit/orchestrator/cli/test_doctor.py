"""The doctor: each check prints a line, errors do not stop it, secrets are masked, the exit code is correct."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.cli import doctor
from orchestrator.cli.doctor import Check
from orchestrator.cluster import connection
from orchestrator.errors import UserError, mask
from orchestrator.provenance import machine
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher
from orchestrator.storage import records, remote, run_lookup
from orchestrator.storage.settings import NAMES, Settings, resolve
from tests.support.web import QuietHandler, serving
from workloads.data import datasets


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ORCHESTRATOR_DATA", str(tmp_path / "data"))
    return resolve()


@pytest.fixture
def server() -> Iterator[type[QuietHandler]]:
    """A server with the two paths of MLflow that the doctor requests; yields its handler class, to be configured."""

    class Handler(QuietHandler):
        version: ClassVar[str] = version("mlflow")
        refuses: ClassVar[int] = 200
        uri: ClassVar[str] = ""
        seen: ClassVar[list[str | None]] = []

        def get(self) -> None:
            self.seen.append(self.headers["Authorization"])
            self.respond(200, self.version.encode() if self.path == "/version" else b"")

        def post(self) -> None:
            self.respond(self.refuses, b"Invalid Host header")

    with serving(Handler) as Handler.uri:
        yield Handler


def found(check: Callable[[Settings], Iterable[Check]], settings: Settings) -> list[tuple[str, str]]:
    """The levels and sentences of one check."""
    return [(line.level, f"{line.text}. {line.fix}") for line in doctor._guarded(check, settings)]


def one(check: Callable[[Settings], Iterable[Check]], settings: Settings) -> tuple[str, str]:
    (line,) = found(check, settings)
    return line


@pytest.mark.slow
def test_json_report_holds_setting_sources_and_levels_of_all_checks(tmp_path: Path) -> None:
    """The command runs as a user runs it, with a setting from each kind of source."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"storage: {tmp_path / 'elsewhere'}\n")
    code = (
        "import sys; from orchestrator.cli.app import main; sys.argv = ['orchestrator', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print('ray' in sys.modules, 'torch' in sys.modules, file=sys.stderr)"
    )
    uri = "postgresql://me:s3cret@127.0.0.1:1/db"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--json"],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.stderr.strip() == "False False"  # the command's own process imports neither
    assert "s3cret" not in done.stdout
    sources = {name: setting["source"] for name, setting in report["settings"].items()}
    assert list(sources) == list(NAMES)
    assert [sources[name] for name in ("home", "storage", "tracking", "ray_address")] == [
        "environment", "file", "environment", "default",
    ]  # fmt: skip
    assert report["settings"]["tracking"]["value"] == "postgresql://me:***@127.0.0.1:1/db"
    levels: dict[str, set[str]] = {}
    for check in report["checks"]:
        levels.setdefault(check["name"], set()).add(check["level"])
        assert bool(check["fix"]) <= (check["level"] != "ok")
    assert list(levels) == ["python", "packages", "gpu", "ray token", "ray", "mlflow", "storage", "data", "runs"]
    assert levels["mlflow"] == {"problem"}  # nothing listens at the address
    assert (report["status"], done.returncode) == ("problem", 3)


def test_printed_report_has_one_line_per_check(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fine(_: Settings) -> Iterator[Check]:
        yield Check("fine", "ok", "all is\nwell", "Nothing to do")

    def poor(_: Settings) -> Iterator[Check]:
        yield Check("poor", "warning", "little is left", "Make room")

    monkeypatch.setattr(doctor, "CHECKS", (fine, poor))
    assert doctor.run(settings, as_json=False) == 0
    head, _, tail = capsys.readouterr().out.partition("\n\n")
    assert head.splitlines() == ["ok       fine      all is well", "warning  poor      little is left. Make room"]
    assert [line.split()[0] for line in tail.splitlines()] == ["setting", *NAMES]


def test_exception_in_a_check_is_reported_as_a_line(settings: Settings) -> None:
    def told(_: Settings) -> Iterator[Check]:
        yield Check("told", "ok", "so far")
        raise UserError("The cellar is full", got="http://me:pw@cellar", fix="Dig")

    def broken(_: Settings) -> Iterator[Check]:
        yield Check("broken", "ok", str(1 // 0))

    assert found(told, settings) == [
        ("ok", "so far. "), ("problem", "The cellar is full: got http://me:***@cellar. Dig.. ")
    ]  # fmt: skip
    assert one(broken, settings)[1].startswith("could not be checked: ZeroDivisionError")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@host:5000/x", "http://me:***@host:5000/x"),
        ("postgresql://me:p@ss/w:rd@host/db", "postgresql://me:***@host/db"),
        ("https://token@host", "https://***@host"),
        (
            "postgresql://host/db?user=me&password=pw&sslmode=off",
            "postgresql://host/db?user=me&password=***&sslmode=off",
        ),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dpw", "mssql+pyodbc:///?odbc_connect=***"),
        (
            "cannot connect: DRIVER={ODBC 17};UID=me;PWD=pw;Port=1",
            "cannot connect: DRIVER={ODBC 17};UID=me;PWD=***;Port=1",
        ),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://host:5000", "http://host:5000"),
        ("No MLflow answers at http://me:pw@host (refused)", "No MLflow answers at http://me:***@host (refused)"),
    ],
)
def test_secrets_in_addresses_are_masked(text: str, shown: str) -> None:
    assert mask(text) == shown


def test_packages_outside_their_version_bounds_are_problems(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = ["numpy>=2,<99", "pydantic>=99", "no-such-package>=1", 'no-such-tool>=1; extra == "dev"']
    bounds += ['scipy>=99; extra == "train"']
    monkeypatch.setattr(doctor, "requires", lambda _: bounds)
    python, *packages = found(doctor._packages, settings)
    assert python[0] == "ok"
    assert platform.python_version() in python[1]
    assert packages == [
        ("problem", f"pydantic {version('pydantic')} (needs >=99). pip install 'pydantic>=99'"),
        ("problem", "no-such-package is not installed (needs >=1). pip install 'no-such-package>=1'"),
        ("problem", f"scipy {version('scipy')} (needs >=99). pip install 'scipy>=99'"),
    ]
    monkeypatch.undo()
    assert {level for level, _ in found(doctor._packages, settings)} == {"ok"}


def test_a_package_that_is_required_twice_is_one_line_with_its_extras(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = ["ray[default]>=99", 'ray[default,train,tune]>=99; extra == "train"']
    monkeypatch.setattr(doctor, "requires", lambda _: bounds)
    _, *packages = found(doctor._packages, settings)
    text = f"ray {version('ray')} (needs >=99). pip install 'ray[default,train,tune]>=99'"
    assert packages == [("problem", text)]


def test_missing_package_of_the_train_extra_is_a_note_not_a_problem(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = ["numpy>=2", 'torch>=99; extra == "train"']
    monkeypatch.setattr(doctor, "requires", lambda _: bounds)
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name == "torch" else "2.1")
    assert [level for level, _ in found(doctor._packages, settings)] == ["ok", "ok", "note"]
    assert list(doctor._gpu(settings)) == []


def test_gpu_check_reports_devices_compiler_and_cuda_build(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: dict[str, Any] = {"torch": "2.15.0", "build": "13.2", "gpus": [["H200", 141 * 2**30]]}
    monkeypatch.setattr(doctor, "_probe", lambda _: answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor, "has_compiler", lambda: True)
    assert one(doctor._gpu, settings) == ("ok", "H200 (141 GiB); PyTorch 2.15.0. ")
    monkeypatch.setattr(doctor, "has_compiler", lambda: False)
    assert [check.level for check in doctor._gpu(settings)] == ["ok", "note"]
    answer["gpus"] = []
    monkeypatch.setattr(Path, "glob", lambda *_: [Path("/dev/nvidia0")])
    assert one(doctor._gpu, settings)[0] == "problem"
    answer["build"] = None
    assert "Install a CUDA build" in one(doctor._gpu, settings)[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for fast in (True, False):
        monkeypatch.setattr(machine, "has_bf16_instructions", lambda fast=fast: fast)
        level, text = one(doctor._gpu, settings)
        assert (level, "CUDA_VISIBLE_DEVICES=''" in text, "faster in fp32" in text) == ("ok", True, not fast)


def test_failing_or_hanging_probe_raises_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._probe("import sys; print('noise'); print('[1, \"' + sys.argv[1] + '\"]')", "two") == [1, "two"]
    with pytest.raises(RuntimeError, match=r"^KeyError: 'torch'$"):
        doctor._probe("raise KeyError('torch')")
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match="no answer within"):
        doctor._probe("import time; time.sleep(60)")


def test_ray_check_without_address_reports_the_local_cluster(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    token, ray = found(doctor._ray, settings)
    assert token[0] == ray[0] == "ok"
    assert ray[1].startswith(f"{version('ray')}; a local cluster would have {len(os.sched_getaffinity(0))} CPU")
    monkeypatch.setattr(doctor, "LOW_SHARED_MEMORY", 2**60)
    level, text = found(doctor._ray, settings)[1]
    assert (level, "--shm-size" in text) == ("warning", True)
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "none")  # as on macOS
    level, text = found(doctor._ray, settings)[1]
    assert (level, " GPU" in text, "/dev/shm" in text) == ("ok", True, False)


def test_ray_address_where_nothing_listens_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
        level, text = found(doctor._ray, resolve({"ray_address": address}))[1]
        assert (level, text.startswith(f"No Ray answers at {address}")) == ("problem", True)


@pytest.mark.parametrize(
    ("theirs", "level", "words"),
    [
        ({}, "ok", f"runs Ray {version('ray')} on Python {platform.python_version()}, as needed here"),
        ({"ray_version": "2.1.0"}, "problem", "got Ray 2.1.0 on"),
        ({"python_version": "3.1.0"}, "problem", "on Python 3.1.0; allowed"),
        (None, "problem", "no cluster at "),
    ],
)
def test_ray_check_requires_equal_ray_and_python_versions(
    theirs: dict[str, str] | None, level: str, words: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"ray_version": version("ray"), "python_version": platform.python_version(), "gpus": 0}
    answer = None if theirs is None else mine | theirs
    monkeypatch.setattr(connection, "_probe", lambda address: (answer, ""))
    monkeypatch.setattr(connection, "_answers", {})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = resolve({"ray_address": f"127.0.0.1:{listening.getsockname()[1]}"})
        _, (found_level, text) = found(doctor._ray, asked)
    assert (found_level, words in text) == (level, True)


def test_ray_token_check_reports_mode_and_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    assert doctor._token().text == f"mode unset, no token in {token}; a local cluster creates one"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert doctor._token().level == "problem"
    token.write_text("abc")
    assert doctor._token().text == f"mode token, token in {token}"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hidden")
    assert doctor._token().text == "mode token, token in RAY_AUTH_TOKEN"


def test_embedded_store_is_reported_before_and_after_its_first_use(
    settings: Settings, request: pytest.FixtureRequest
) -> None:
    assert one(doctor._mlflow, settings) == (
        "ok", f"{version('mlflow')}; the store is created at its first use: {settings.home / 'mlflow.db'}. "
    )  # fmt: skip
    settings.home.rmdir()
    request.getfixturevalue("database")
    assert "holds 0 runs and 0 registered models" in one(doctor._mlflow, settings)[1]
    with sqlite3.connect(settings.home / "mlflow.db") as store:
        store.execute("INSERT INTO runs (run_uuid) VALUES ('a')")
    assert "holds 1 run and 0 registered models" in one(doctor._mlflow, settings)[1]


def test_damaged_embedded_store_is_a_problem(settings: Settings) -> None:
    settings.home.mkdir()
    (settings.home / "mlflow.db").write_bytes(b"no database" * 1000)
    level, text = one(doctor._mlflow, settings)
    assert (level, "file is not a database" in text) == ("problem", True)


def test_mlflow_server_of_another_version_or_refusing_is_a_problem(server: Any) -> None:
    settings = resolve({"tracking": server.uri})
    assert one(doctor._mlflow, settings)[0] == "ok"
    server.version = "2.22.0"
    assert one(doctor._mlflow, settings) == (
        "problem", f"{server.uri} runs '2.22.0', and here is {version('mlflow')}. "
        "Install the server's major version here, or upgrade the server",
    )  # fmt: skip
    server.refuses = 403
    level, text = one(doctor._mlflow, settings)
    assert (level, "--allowed-hosts" in text) == ("problem", True)


def test_mlflow_server_is_requested_with_the_configured_credentials(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    assert one(doctor._mlflow, resolve({"tracking": server.uri}))[0] == "ok"
    assert server.seen == ["Basic bWU6c2VjcmV0"]


def test_disabled_tracking_is_reported(settings: Settings) -> None:
    assert one(doctor._mlflow, resolve({"tracking": "none"}))[1].endswith("tracking is off. ")


def test_storage_check_reports_low_space_and_unusable_folders(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one(doctor._storage, settings)[0] == "ok"
    monkeypatch.setattr(doctor, "LOW_SPACE", 2**60)
    assert one(doctor._storage, settings)[0] == "warning"
    (tmp_path / "file").touch()
    level, text = one(doctor._storage, resolve({"storage": str(tmp_path / "file" / "below")}))
    assert (level, "is a file, not a folder" in text) == ("problem", True)


def test_storage_without_conditional_writes_is_a_warning(settings: Settings, tmp_path: Path) -> None:
    object.__setattr__(settings, "storage", remote.mirror_of(f"file://{tmp_path}/bucket", tmp_path / "home"))
    lines = found(doctor._storage, settings)
    assert [level for level, _ in lines] == ["ok", "warning"]
    assert "no conditional writes" in lines[1][1]


def test_missing_and_damaged_datasets_are_reported(settings: Settings) -> None:
    assert found(doctor._data, settings)[:2] == [
        ("ok", "synthetic is present. "), ("note", "ml-100k is missing. orchestrator data fetch ml-100k")
    ]  # fmt: skip
    file = settings.data / "ml-100k" / datasets.DATASETS["ml-100k"].files[0].path
    file.parent.mkdir(parents=True)
    file.write_text("user,item\n")
    assert found(doctor._data, settings)[1] == (
        "problem", "ml-100k is damaged. orchestrator data verify ml-100k"
    )  # fmt: skip


@pytest.mark.parametrize(("busy", "level"), [(0.4, "ok"), (0.9, "warning")])
def test_driver_with_high_utilisation_is_a_warning_while_it_runs(busy: float, level: str, settings: Settings) -> None:
    folder = records.create(settings.storage, "sweep", "toy", {}, "orchestrator ...")
    with StatusPublisher(folder) as publisher:
        publisher.set_source(lambda: DriverStatus(driver_utilisation=busy))
    lines = found(doctor._runs, settings)
    assert [each for each, text in lines if "busy" in text and folder.id in text] == [level]
    assert any(f"is busy {busy:.0%} of the time" in text for _, text in lines)
    folder.release("finished", 0)
    assert not any("busy" in text for _, text in found(doctor._runs, settings))


def test_runs_of_dead_drivers_are_warnings_with_resume_commands(settings: Settings) -> None:
    assert one(doctor._runs, settings)[0] == "ok"

    def drive(kind: Any) -> None:
        records.create(settings.storage, kind, "toy", {}, "orchestrator ...")
        os._exit(0)

    for kind in ("run", "sweep"):
        process = multiprocessing.get_context("fork").Process(target=drive, args=(kind,))
        process.start()
        process.join()
    living = records.create(settings.storage, "run", "toy", {}, "orchestrator ...")
    lost = {
        folder.record["kind"]: folder.id for folder in run_lookup.folders(settings.storage) if folder.id != living.id
    }
    lines = found(doctor._runs, settings)
    assert {level for level, _ in lines} == {"warning"}
    assert {text.partition(": ")[2] for _, text in lines} == {
        f"orchestrator run --resume {lost['run']}", f"orchestrator sweep --resume {lost['sweep']}"
    }  # fmt: skip
