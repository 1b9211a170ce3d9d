"""The package of a working directory that Ray uploads: code is sent, secrets and bulk data are not."""

from __future__ import annotations

import io
import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
import ray
from ray.job_submission import JobSubmissionClient

from orchestrator.jobs import excludes
from orchestrator.provenance.secret_files import secret_file
from orchestrator.provenance.source import capture
from tests.support.web import QuietHandler, serving

CODE = (
    "train.py", "kept/data/code.py", "environment.yaml", "keys.py", "notes.keystore.md", "tokenizer.json",
    "token.py", "tokens.txt", "special_tokens_map.json", "token_embedding.pt", "test_auth.py", "auth.py",
    "secrets.py", "credentials.py", "credentials/__init__.py", "token/model.py", "next_token/loss.py",
    "passwords.py", "service_account.py", "deploy/service-account.yaml", "kubeconfig.py", "id_map.json",
    "id_embeddings.npy", "keypoints.json", "answer_key.json", "envs/env.py", "state.json", "authors.json",
    "monkey.json", "htpasswd.py", "conf/model.yaml", "docker/config.json",
)  # fmt: skip
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
    "token.txt", "conf/token", "a/.token", "hf_token", "hf-token.txt", "b/token.json", "access_tokens.db",
    "service-account.json", "my_service_account_2.json", "gcp-key.json", "kube.config", "prod.kubeconfig",
    "kubeconfig.yaml", "auth.json", ".htpasswd", "x.tfstate", "x.tfstate.backup", "prod.tfvars",
    "prod.auto.tfvars.json", ".envrc", ".env-prod", "aws_credentials", "credentials.csv", "credentials.bak",
    "client_secret_1.json", "secrets.toml", "secret.txt", "password.txt", "api_key.txt", "openai-api-key",
    "krb.keytab", ".pg_service.conf", "kaggle.json", "rclone.conf", "x-firebase-adminsdk-1.json", "basic_auth.ini",
    "vpn.ovpn", "putty.ppk", "apple.p8", ".dockercfg", "id_ed25519_work", "code/Token.TXT", ".mlflow/credentials",
    "Service-Account.JSON",
)  # fmt: skip


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("hunter2")


class Dashboard(QuietHandler):
    """The parts of a Ray dashboard that a submission uses. Stores the package."""

    package = b""

    def get(self) -> None:
        about = {"version": "4", "ray_version": ray.__version__, "ray_commit": ray.__commit__}
        self._answer(200 if self.path == "/api/version" else 404, about)

    def put(self) -> None:
        type(self).package = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {})

    def post(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"job_id": "1", "submission_id": "1"})

    def _answer(self, status: int, body: dict[str, str]) -> None:
        self.respond(status, json.dumps(body).encode())


def sent(folder: Path, *apart: Path) -> set[str]:
    """The files in the package of a folder that Ray uploads."""
    with serving(Dashboard) as address:
        client = JobSubmissionClient(address)
        client.submit_job(
            entrypoint="true",
            runtime_env={"working_dir": str(folder), "excludes": list(excludes.find_excluded(folder, apart).patterns)},
        )
    with zipfile.ZipFile(io.BytesIO(Dashboard.package)) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "pro[j]ect"
    write(folder, *CODE)
    return folder


def test_submitted_package_contains_only_code(project: Path) -> None:
    write(project, *BULK, *ENVIRONMENTS, *SECRETS)
    assert sent(project) == set(CODE)


@pytest.mark.parametrize("path", SECRETS)
def test_secret_files_are_recognised_by_their_paths(path: str) -> None:
    assert secret_file(path)


@pytest.mark.parametrize("path", [*CODE, "a.env/x.py", "secretary.py"])
def test_code_files_are_not_taken_for_secret_files(path: str) -> None:
    assert not secret_file(path)


def test_source_diff_leaves_out_secret_files(project: Path) -> None:
    """git matches the patterns itself: if the two matchers differ, a file is left out without a report, or kept."""
    write(project, *SECRETS)
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    for path in (*SECRETS, *CODE):
        (project / path).write_text("changed\n")
    (source,) = capture(project, Path("/"), seconds=60)
    assert set(re.findall(r"^\+\+\+ b/(.*)$", source.diff, re.MULTILINE)) == set(CODE)
    assert {line.partition(":")[0] for line in source.left_out} == set(SECRETS)


def test_links_to_excluded_files_are_not_sent(project: Path) -> None:
    write(project, ".env", ".ssh/mykey", "data/big.bin", ".git/config", ".venv/pyvenv.cfg", ".venv/bin/x", "runs/a")
    links = {
        "settings.txt": ".env", "again.txt": "settings.txt", "keys": ".ssh", "key.bin": ".ssh/mykey",
        "big.bin": "data/big.bin", "sets": "data", "history": ".git", "python": ".venv/bin", "old": "runs",
        "new.py": "train.py",
    }  # fmt: skip
    for name, target in links.items():
        (project / name).symlink_to(project / target)
    assert sent(project, project / "runs") == {*CODE, "new.py", "big.bin"}, "a linked file of the data folder is sent"
    secret = excludes.find_excluded(project).secret
    assert secret == (".env", ".ssh/", "again.txt", "key.bin", "keys/", "settings.txt")


def test_secret_behind_a_link_within_the_project_is_not_sent(project: Path) -> None:
    write(project, "conf/kubeconfig", "conf/My-Credentials.json")
    (project / "alias").symlink_to(project / "conf")
    assert sent(project) == {*CODE, "alias/model.yaml"}


def test_excluded_secret_files_are_listed(project: Path) -> None:
    write(project, "token.txt", "a/Server.PEM", ".aws/config", ".venv/pyvenv.cfg", ".venv/cacert.pem", "data/key.pem")
    assert excludes.find_excluded(project).secret == (".aws/", "a/Server.PEM", "token.txt")


def test_storage_and_data_folders_in_the_project_are_not_sent(project: Path) -> None:
    write(project, "out/storage/run/record.json", "sets [1]/ratings.csv", "sets 1/code.py")
    assert sent(project, project / "out", project / "sets [1]") == {*CODE, "sets 1/code.py"}


def test_files_ignored_by_git_are_not_sent(project: Path) -> None:
    write(project, "big/weights.bin")
    (project / ".gitignore").write_text("big/\n")
    assert sent(project) == {*CODE, ".gitignore"}


def test_link_to_a_target_outside_the_project_is_not_sent(project: Path, tmp_path: Path) -> None:
    write(tmp_path, "home/.ssh/id_rsa", "home/plain.txt")
    (project / "notes").symlink_to(tmp_path / "home" / ".ssh")
    (project / "notes.txt").symlink_to(tmp_path / "home" / "plain.txt")
    (project / "kept" / "up").symlink_to(project)
    (project / "kept" / "gone").symlink_to(tmp_path / "nowhere")
    (project / "again.py").symlink_to(project / "train.py")
    assert sent(project) == {*CODE, "again.py"}
