"""What of a working directory reaches a cluster: the very package that Ray would upload is looked into."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

from orchestrator.jobs import excludes

CODE = ("train.py", "kept/data/code.py", "environment.yaml", "keys.py", "notes.keystore.md")
BULK = ("data/big.bin", "mlruns/0/meta.yaml", "pkg/__pycache__/a.pyc", ".git/config", ".cache/huggingface/token")
ENVIRONMENTS = (
    ".venv/pyvenv.cfg",
    ".venv/bin/python",
    "tools/my env/pyvenv.cfg",
    "tools/my env/x.py",
    "conda/conda-meta/h",
)
SECRETS = (
    ".env", "app/.env.local", "prod.env", "server.pem", "deep/er/Server.PEM", "id_rsa", "x/ID_ED25519", ".netrc",
    ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".aws/config", ".ssh/known_hosts", ".docker/config.json",
    ".kube/config", "a/.config/gcloud/access_tokens.db", "gcp/My-Credentials.json", "auth_token", "store.p12",
    "client.key", "kubeconfig", "secrets.yaml", "config/db-secret.json", ".databrickscfg", ".vault-token",
)  # fmt: skip


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("hunter2")


def sent(folder: Path, *apart: Path) -> set[str]:
    """The files in the package that Ray makes of a folder."""
    package = folder.parent / "package.zip"
    create_package(str(folder), package, include_gitignore=True, excludes=excludes.of(folder, apart))
    with zipfile.ZipFile(package) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "pro[j]ect"
    write(folder, *CODE)
    return folder


def test_code_is_sent_and_nothing_else(project: Path) -> None:
    write(project, *BULK, *ENVIRONMENTS, *SECRETS)
    assert sent(project) == set(CODE)


def test_runs_and_data_within_it_stay(project: Path) -> None:
    write(project, "out/storage/run/record.json", "sets [1]/ratings.csv", "sets 1/code.py")
    assert sent(project, project / "out", project / "sets [1]") == {*CODE, "sets 1/code.py"}


def test_what_gitignore_names_stays(project: Path) -> None:
    write(project, "big/weights.bin")
    (project / ".gitignore").write_text("big/\n")
    assert sent(project) == {*CODE, ".gitignore"}


def test_a_link_brings_nothing_from_elsewhere(project: Path, tmp_path: Path) -> None:
    write(tmp_path, "home/.ssh/id_rsa", "home/plain.txt")
    (project / "notes").symlink_to(tmp_path / "home" / ".ssh")
    (project / "notes.txt").symlink_to(tmp_path / "home" / "plain.txt")
    (project / "kept" / "up").symlink_to(project)
    (project / "kept" / "gone").symlink_to(tmp_path / "nowhere")
    (project / "again.py").symlink_to(project / "train.py")
    assert sent(project) == {*CODE, "again.py"}
