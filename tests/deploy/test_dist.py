"""The wheel of ``make dist``, installed as a client in a clean environment: what works there, and what it weighs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deploy.manifests import ROOT

pytestmark = pytest.mark.deploy
MEGABYTES = 1000
"""What the client may weigh, in place of the 7 GB of everything."""


def clean() -> dict[str, str]:
    """This environment without what leads to this checkout or to a service."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_", "MLFLOW_"))}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the executables of an environment that has the wheel alone."""
    subprocess.run(["make", "dist", f"VENV={Path(sys.executable).parents[1]}"], cwd=ROOT, check=True)
    (wheel,) = (ROOT / "build" / "dist").glob("*.whl")
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", wheel], check=True, env=clean())
    return folder / "bin"


def call(client: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [client / "orchestrator", *words], env=clean() | {"ORCHESTRATOR_HOME": str(home)},
        capture_output=True, text=True, cwd=home, timeout=300,
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
