"""Wheel and sdist of ``make dist``, each installed as a client in a clean environment: its functions and its size."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ray_head, tracked
from tests.unit.deploy.manifests import ROOT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]
DIST = ROOT / "build" / "dist"
MEGABYTES = 1000
"""The limit on the client's size; a full installation has 7 GB."""


def clean() -> dict[str, str]:
    """This environment without the variables that point to this checkout or to a service."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "MLFLOW_"))}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the executables of an environment in which only the wheel is installed."""
    subprocess.run(["make", "dist", f"PYTHON={sys.executable}"], cwd=ROOT, check=True, env=clean())
    (wheel,) = DIST.glob("*.whl")
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", wheel], check=True, env=clean())
    return folder / "bin"


def call(client: Path, home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [client / "orchestrator", *words], env=clean() | {"ORCHESTRATOR_HOME": str(home)} | environment,
        capture_output=True, text=True, cwd=home, timeout=600,
    )  # fmt: skip


def test_it_is_small_and_knows_its_version(client: Path, tmp_path: Path) -> None:
    size = sum(file.lstat().st_size for file in client.parent.rglob("*") if file.is_file()) / 1e6
    print(f"\nthe client weighs {size:.0f} MB")
    assert size < MEGABYTES
    assert not list(client.parent.rglob("site-packages/torch"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in call(client, tmp_path, "--version").stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["ls"], 0, ""),
        (["top"], 0, "no cluster is configured"),
        (["workloads"], 0, "recommender"),
        (["jobs", "--address", "http://127.0.0.1:9"], 3, "No Ray dashboard answers"),
        (["submit", "--address", "http://127.0.0.1:9", "--", "doctor"], 3, "No Ray dashboard answers"),
        (["promote", "mf", "--to", "champion", "--tracking", "http://127.0.0.1:9"], 3, "http://127.0.0.1:9"),
        (["status", "latest"], 2, "There is no run, sweep or job yet"),
        (["logs", "latest"], 2, "There is no run, sweep or job yet"),
        (["stop", "latest"], 2, "There is no run, sweep or job yet"),
        (["report", "latest"], 2, "There is no run or sweep yet"),
        (["ui"], 3, "this is the client. Install ray-experiment-orchestrator[train]"),
        (["run", "recommender", "epochs=1", "--local"], 3, "which is not installed here: this is the client"),
        (["sweep", "recommender", "--trials", "1"], 3, "which is not installed here: this is the client"),
    ],
)
def test_a_verb_works_or_names_what_it_needs(
    client: Path, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    done = call(client, tmp_path, *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
    assert "a bug of orchestrator" not in done.stderr


def test_the_sdist_installs_the_same(client: Path, tmp_path: Path) -> None:
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    pip = [client / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--target", tmp_path / "sdist", sdist], check=True, env=clean())
    files = {str(path.relative_to(tmp_path / "sdist")) for path in (tmp_path / "sdist").rglob("*") if path.is_file()}
    packages = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packages == {name for name in files if ".dist-info/" not in name and not name.startswith("bin/")}
    done = subprocess.run(
        [client / "python", "-m", "orchestrator", "--version"], env=clean() | {"PYTHONPATH": str(tmp_path / "sdist")},
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("orchestrator ")


def test_a_model_from_a_submitted_run_to_a_prediction(client: Path, tmp_path: Path, initialised_store: Path) -> None:
    """The cluster and MLflow's server use the tests' environment, which can train; the client does the rest."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = tracked.Server(folder, initialised_store)
    try:
        with ray_head.running(initialised_store) as head:
            address = {name: value for name, value in head.environment.items() if name.startswith("RAY_")}
            address["MLFLOW_TRACKING_URI"] = server.wait()

            def orchestrator(*words: str, code: int = 0) -> str:
                done = call(client, head.root / "home", *words, **address)
                assert done.returncode == code, done.stdout + done.stderr
                return done.stdout + done.stderr

            train = [
                "run",
                "recommender",
                "dataset=synthetic",
                "epochs=2",
                "--local",
                "--name",
                "mf",
                "--register",
                "mf",
            ]
            job = orchestrator("submit", "--", *train).split()[1]
            assert "finished" in orchestrator("jobs")
            assert "exit_code:  0" in orchestrator("status", job)
            assert "Run mf:" in orchestrator("logs", job)
            assert "Nothing to stop" in orchestrator("stop", job)
            assert "finished" in orchestrator("status", "mf")
            orchestrator("promote", "mf", "--to", "champion")
            (head.root / "home" / "users.csv").write_text("user\n3\n")
            assert "item" in orchestrator("predict", "mf@champion", "--input", "users.csv")
            report = orchestrator("report", "mf", code=3)
            assert "needs matplotlib, which is not installed here: this is the client. Install" in report
    finally:
        server.kill()
