"""Capture of source code in real git repositories, and its record in a run's folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance import git as git_calls
from orchestrator.provenance import machine, source
from orchestrator.provenance import record as provenance
from orchestrator.provenance.source import Source, capture, pack, unpack
from orchestrator.storage import disk
from tests.support.projects import EXAMPLE, installed
from tests.support.waiting import HANG_SECONDS

ELSEWHERE = Path("/nonexistent")


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """git without the configuration of a user, as on a new machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(capture, "__defaults__", (*(capture.__defaults__ or ())[:-1], HANG_SECONDS))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@example.org")


def git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(where: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit of two files, with credentials in the remote's address."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "work")
    write(root, {"train.py": "lr = 1\nsteps = 2\n", "data.bin": b"\0\1"})
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    git(root, "remote", "add", "origin", "https://me:hunter2@example.org/a/b.git")
    return root


def only(where: Path, own: Path = ELSEWHERE) -> Source:
    (found,) = capture(where, own)
    return found


def test_capture_of_a_clean_repository_has_commit_branch_and_remote(repository: Path) -> None:
    assert only(repository) == Source(
        "project", git(repository, "rev-parse", "HEAD"), "work", "https://***@example.org/a/b.git", dirty=False
    )


def test_captured_diff_restores_changed_and_untracked_files(repository: Path, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "lr = 3\nsteps = 2\n",
        "new module.py": "x = 1\n",
        "pfad/ünïcode.py": "y = 'é'\n",
        'line\nbreak "quoted".py': "z = 1",
        "empty.py": "",
    }
    write(repository, files)
    found = only(repository)
    assert found.dirty
    assert found.changed == ("train.py",)
    assert set(found.untracked) == set(files) - {"train.py"}
    assert found.left_out == ()

    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True)
    subprocess.run(["git", "-C", str(clone), "apply", "-"], input=found.diff.encode(), check=True)
    for name, content in files.items():
        assert (clone / name).read_text() == content


def test_diff_restores_latin_1_files_byte_for_byte(repository: Path, tmp_path: Path) -> None:
    write(repository, {"train.py": b"# caf\xe9\nlr = 1\nsteps = 2\n"})
    folder = tmp_path / "run"
    folder.mkdir()
    provenance.write(folder, {}, capture(repository, ELSEWHERE))
    git(repository, "checkout", "-q", "train.py")
    git(repository, "apply", str(folder / "source.diff"))
    assert (repository / "train.py").read_bytes() == b"# caf\xe9\nlr = 1\nsteps = 2\n"


def test_files_left_out_of_the_diff_are_listed_with_the_reason(repository: Path) -> None:
    write(
        repository,
        {"data.bin": b"\0\2", "notes.txt": "n", "big.py": "#" * 60_000, "zero.py": b"\0", ".env": "A=1", "k.pem": "x"},
    )
    (repository / "link.py").symlink_to("train.py")
    found = only(repository)
    told = dict(item.split(": ", 1) for item in found.left_out)
    assert told == {
        "data.bin": "binary",
        "notes.txt": "no source file",
        "big.py": "larger than 50000 bytes",
        "zero.py": "binary",
        ".env": "its name says that it is secret",
        "k.pem": "its name says that it is secret",
        "link.py": "no regular file",
    }
    assert found.diff == ""


def test_secrets_are_not_in_the_captured_diff(repository: Path) -> None:
    write(repository, {"train.py": 'API_KEY = "k1k2k3"\n', "new.yaml": "password: hunter2\n", ".env": "A=hunter3"})
    git(repository, "add", ".env")
    found = only(repository)
    assert not {word for word in ("k1k2k3", "hunter2", "hunter3") if word in found.diff}
    assert '+API_KEY = "***"' in found.diff
    assert ".env: its name says that it is secret" in found.left_out


def test_a_large_difference_is_cut_at_whole_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_DIFF", 2000)
    write(repository, {"train.py": "lr = 2\n", "a.py": "#" * 3000 + "\n", "b.py": "b = 1\n"})
    found = only(repository)
    (left,) = found.left_out
    assert re.fullmatch(r"a.py: 3\d{3} characters, and the difference is kept up to 2000", left)
    git(repository, "stash", "-q", "--include-untracked")
    subprocess.run(["git", "-C", str(repository), "apply", "-"], input=found.diff.encode(), check=True)
    assert (repository / "train.py").read_text() == "lr = 2\n"
    assert (repository / "b.py").exists()


def test_the_users_diff_settings_do_not_matter(repository: Path) -> None:
    write(repository, {"train.py": "lr = 2\n"})
    plain = only(repository).diff
    for name, value in {"noprefix": "true", "external": "false", "mnemonicPrefix": "true"}.items():
        git(repository, "config", f"diff.{name}", value)
    git(repository, "config", "color.ui", "always")
    assert only(repository).diff == plain


def test_folders_of_runs_and_results_are_excluded_from_the_capture(repository: Path) -> None:
    write(repository, {"out put/run/spec.json": "{}", "output.py": "", "home/x.py": ""})
    found = capture(repository, ELSEWHERE, [repository / "out put", repository / "home", repository, ELSEWHERE])
    assert found[0].untracked == ("output.py",)


def test_capture_from_a_subdirectory_covers_the_whole_repository(repository: Path) -> None:
    write(repository, {"train.py": "lr = 2\n", "deep/er/x.py": ""})
    assert only(repository / "deep" / "er") == only(repository)


def test_capture_of_a_repository_without_a_commit_lists_its_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "fresh")
    write(tmp_path / "fresh", {"a.py": "a = 1\n", "b.py": "b = 1\n"})
    git(tmp_path / "fresh", "add", "a.py")
    found = only(tmp_path / "fresh")
    assert (found.commit, found.changed, found.untracked) == (None, ("a.py",), ("b.py",))
    assert found.diff.count("diff --git") == 2


def test_bare_and_shallow_clones_are_captured_and_a_broken_one_is_not(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    subprocess.run(["git", "clone", "-q", "--bare", str(repository), str(tmp_path / "bare")], check=True)
    shallow = ["git", "clone", "-q", "--depth=1", f"file://{repository}", str(tmp_path / "shallow")]
    subprocess.run(shallow, check=True)
    assert only(tmp_path / "bare").commit == only(tmp_path / "shallow").commit == commit
    assert only(tmp_path / "shallow").dirty is False
    (repository / ".git" / "HEAD").unlink()
    assert capture(repository, ELSEWHERE) == ()


def test_a_changed_submodule_is_named(repository: Path, tmp_path: Path) -> None:
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "sub")
    git(repository, "commit", "-q", "-m", "sub")
    (repository / "sub" / "train.py").write_text("lr = 2  # at the same commit\n")
    edited = only(repository)
    git(repository / "sub", "commit", "-q", "--allow-empty", "-m", "on")
    for found in (edited, only(repository)):
        assert found.changed == ("sub",)
        assert found.left_out == ("sub: a submodule",)
        assert found.diff == ""


def test_capture_is_empty_without_a_repository_or_without_git(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capture(tmp_path, ELSEWHERE) == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert capture(repository, ELSEWHERE) == ()


def test_hanging_git_status_is_stopped_and_the_commit_is_captured(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``git status`` hangs, and its child keeps the output open: the commit is captured, the rest is not.

    The timer ends as soon as ``git status`` hangs, so that no other call of git exceeds its time.
    """
    real, hung = shutil.which("git"), tmp_path / "hung"
    (tmp_path / "bin").mkdir()
    script = f'#!/bin/sh\n[ "$1" = status ] && touch {hung} && sleep 3600\nexec {real} "$@"\n'
    (tmp_path / "bin" / "git").write_text(script)
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    class Timer(threading.Timer):
        def __init__(self, interval: float, end: Callable[[], None]) -> None:
            assert 0 < interval <= HANG_SECONDS
            super().__init__(interval, end)

        def run(self) -> None:
            while not self.finished.wait(0.01):
                if hung.exists():
                    self.function()
                    return

    monkeypatch.setattr(git_calls.threading, "Timer", Timer)
    (found,) = capture(repository, ELSEWHERE)
    assert found.commit
    assert found.dirty is None
    assert "more: git status took too long or said too much" in found.left_out
    assert "mlflow.source.git.dirty" not in provenance.code([found])


def test_project_is_listed_before_the_orchestrator(repository: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    git(tmp_path, "init", "-q", "ours")
    write(ours, {"orchestrator/__init__.py": ""})
    git(ours, "add", ".")
    git(ours, "commit", "-q", "-m", "ours")
    assert [found.name for found in capture(repository, ours / "orchestrator")] == ["project", "orchestrator"]
    assert [found.name for found in capture(ours, ours / "orchestrator")] == ["orchestrator"]


def test_code_of_an_external_workload_is_captured_as_a_source(repository: Path, tmp_path: Path) -> None:
    theirs = Path(shutil.copytree(EXAMPLE, tmp_path / "theirs" / "plugin"))
    with installed(theirs, tmp_path / "metadata"):
        assert provenance.sources(repository, workload="linreg")[0].package is None, "it is not in a repository"
        git(tmp_path, "init", "-q", "theirs")
        git(theirs, "add", ".")
        git(theirs, "commit", "-q", "-m", "theirs")
        (workload,) = [one for one in provenance.sources(repository, workload="linreg") if one.name == "workload"]
        assert (workload.commit, workload.package) == (git(theirs, "rev-parse", "HEAD"), "plugin")
        there = provenance.sources(theirs, workload="linreg")
        assert [(one.name, one.package) for one in there if one.name != "orchestrator"] == [("project", "plugin")]
        assert {one.package for one in provenance.sources(theirs, workload="recommender")} == {None}


@pytest.mark.parametrize(
    ("files", "requirement"),
    [
        ({}, None),
        ({"INSTALLER": "pip"}, "linreg==1.0"),
        ({"INSTALLER": "pip", "direct_url.json": '{"url": "file:///here", "dir_info": {"editable": true}}'}, None),
        (
            {"INSTALLER": "pip", "direct_url.json": '{"url": "https://me:x@h/p.whl", "archive_info": {}}'},
            "linreg @ https://***@h/p.whl",
        ),
        (
            {
                "INSTALLER": "pip",
                "direct_url.json": '{"url": "https://h/r.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            },
            "linreg @ git+https://h/r.git@abc",
        ),
        ({"INSTALLER": "pip", "direct_url.json": "[]"}, "linreg==1.0"),
    ],
)
def test_requirement_of_a_package_is_read_from_the_metadata_of_pip(
    files: dict[str, str | bytes], requirement: str | None, tmp_path: Path
) -> None:
    with installed(EXAMPLE, tmp_path):
        write(tmp_path / "linreg-1.0.dist-info", files)
        found = provenance.environment((), {}, workload="linreg")["package"]
        assert found == {"name": "linreg", "version": "1.0", "requirement": requirement}
    assert provenance.environment((), {}, workload="recommender")["package"] is None


def test_orchestrator_installed_inside_a_project_is_not_captured(repository: Path) -> None:
    write(repository, {"venv/orchestrator/__init__.py": "", ".gitignore": "venv\n"})
    assert [found.name for found in capture(repository, repository / "venv" / "orchestrator")] == ["project"]


def test_ray_job_uses_the_source_captured_by_its_client(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, {"train.py": "lr = 2\n"})
    here = capture(repository, ELSEWHERE)
    carried = provenance.carry(here)
    assert unpack(carried[provenance.CARRIED]) == here
    monkeypatch.setenv(provenance.CARRIED, carried[provenance.CARRIED])
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setattr(provenance, "capture", lambda *where: (Source("orchestrator", "0" * 40),))
    assert [found.name for found in provenance.sources()] == ["project", "orchestrator"]
    monkeypatch.setattr(provenance, "capture", lambda *where: ())
    assert provenance.sources() == here
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    assert provenance.sources() == ()  # outside of a Ray job, the variable is ignored


def test_checkouts_of_cluster_and_client_are_recorded_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both repositories have one name, and each has its own diff."""
    clients = Source("orchestrator", "1" * 40, diff="diff --git a/x b/x\n+client\n")
    clusters = Source("orchestrator", "2" * 40, diff="diff --git a/x b/x\n+cluster\n")
    project = Source("project", "3" * 40)
    monkeypatch.setenv(provenance.CARRIED, pack([project, clients], provenance.CARRIED_BYTES))
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setattr(provenance, "capture", lambda *where: (clusters,))
    provenance.write(tmp_path, {"experiment": {}}, provenance.sources())
    told = json.loads((tmp_path / "environment.json").read_text())["sources"]
    assert [(source["name"], source["commit"][0]) for source in told] == [
        ("project", "3"), ("orchestrator", "1"), ("cluster-orchestrator", "2"),
    ]  # fmt: skip
    kept = {source["commit"][0]: (tmp_path / source["diff"]).read_text() for source in told if source["diff"]}
    assert kept == {"1": clients.diff, "2": clusters.diff}


def test_packed_source_fits_into_an_environment_variable() -> None:
    sections = [f"diff --git a/{i}.py b/{i}.py\n+{os.urandom(3000).hex()}\n" for i in range(40)]
    packed = pack([Source("project", "c", diff="".join(sections))], 90_000)
    assert len(packed) <= 90_000
    (found,) = unpack(packed)
    assert 10 < found.diff.count("diff --git") == 40 - len(found.left_out)
    subprocess.run(["true"], env={provenance.CARRIED: "x" * provenance.CARRIED_BYTES}, check=True)


@pytest.mark.parametrize("damaged", ["", "!", "aGVsbG8=", pack([], 100)[:-4]])
def test_damaged_source_variable_unpacks_to_no_sources(damaged: str) -> None:
    assert unpack(damaged) == ()


def test_run_record_has_spec_environment_and_diff_without_secrets(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", "https://hooks.example.org/hunter2")
    monkeypatch.setattr("sys.argv", ["/x/orchestrator", "run", "toy", "--tracking", "http://me:hunter2@h"])
    write(repository, {"train.py": "lr = 2\n"})
    folder = tmp_path / "run"
    folder.mkdir()
    asked = {"experiment": {"workload": "toy", "seed": 3}, "options": {"local": True}}
    files = provenance.write(folder, asked, capture(repository, ELSEWHERE), "abc")
    assert [file.name for file in files] == ["spec.json", "environment.json", "source.diff"]
    assert json.loads((folder / "spec.json").read_text()) == {"format": 1, "workload": "toy", "seed": 3}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["command"] == "orchestrator run toy --tracking 'http://***@h'"
    assert environment["options"] == {"local": True}
    assert environment["data"] == "abc"
    assert environment["packages"]["ray"]
    assert environment["machine"]["cpus"] >= 1
    assert environment["sources"][0]["diff"] == "source.diff"
    assert not [file for file in files if "hunter2" in file.read_text()]


def test_resumed_run_keeps_its_first_environment_record(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    provenance.write(folder, {"experiment": {}}, capture(repository, ELSEWHERE))
    first = json.loads((folder / "environment.json").read_text())
    write(repository, {"train.py": "lr = 2\n"})
    provenance.write(folder, {"experiment": {}}, capture(repository, ELSEWHERE))
    then = json.loads((folder / "environment.json").read_text())
    (again,) = then.pop("resumed")
    assert then == first
    assert again["sources"] == [{"name": "project", "commit": first["sources"][0]["commit"], "dirty": True}]
    assert not (folder / "source.diff").exists()


def test_user_code_changed_since_the_record_is_listed(tmp_path: Path) -> None:
    write(tmp_path, {"mine.py": "lr = 1\n", "other.py": ""})
    request = {"experiment": {"workload": f"{tmp_path}/mine.py:train"}}
    (folder := tmp_path / "run").mkdir()
    assert provenance.changed_code(folder, request) == []  # without a record
    provenance.write(folder, request, [])
    assert provenance.changed_code(folder, request) == []
    write(tmp_path, {"mine.py": "lr = 2\n"})
    assert provenance.changed_code(folder, request) == [tmp_path / "mine.py"]


@pytest.mark.parametrize("file", ["workload.py", "parts/layers.py"])
def test_changed_code_of_an_installed_package_is_named(file: str, tmp_path: Path) -> None:
    theirs = Path(shutil.copytree(EXAMPLE, tmp_path / "theirs"))
    write(theirs / "linreg", {"parts/layers.py": ""})
    request = {"sweep": {"workload": "linreg"}}
    (folder := tmp_path / "run").mkdir()
    with installed(theirs, tmp_path / "metadata"):
        provenance.write(folder, request, [])
        assert provenance.changed_code(folder, request) == []
        (code := theirs / "linreg" / file).write_text(code.read_text() + "# changed\n")
        assert provenance.changed_code(folder, request) == [theirs / "linreg"]


@pytest.mark.parametrize("content", ["", '{"command": ', "[]", "\0" * 9])
def test_a_damaged_record_is_written_again(content: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(content)
    provenance.note_cluster(tmp_path)
    provenance.write(tmp_path, {"experiment": {}}, capture(repository, ELSEWHERE))
    written = json.loads((tmp_path / "environment.json").read_text())
    assert written["packages"]
    assert "resumed" not in written


def test_the_record_is_on_disk_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    really = Path.replace
    monkeypatch.setattr("os.fsync", lambda descriptor: steps.append("sync"))
    monkeypatch.setattr(Path, "replace", lambda self, to: steps.append("replace") or really(self, to))
    provenance.write_spec(tmp_path / "spec.json", {"workload": "toy"})
    disk.write_json(tmp_path / "outcome.json", {})
    assert steps == ["sync", "replace"] * 2


def test_sweep_record_is_updated_with_the_number_of_trials(tmp_path: Path) -> None:
    for trials in (4, 6):
        provenance.write(tmp_path, {"sweep": {"search": {"trials": trials}}}, ())
        assert json.loads((tmp_path / "sweep.json").read_text()) == {"format": 1, "search": {"trials": trials}}


def test_search_space_file_is_copied_into_the_sweep_folder(tmp_path: Path) -> None:
    space = tmp_path / "spaces.py"
    space.write_text("def wide(trial): ...\n")
    asked: dict[str, Any] = {"sweep": {"search": {"space": f"{space}:wide"}}}
    files = provenance.write(tmp_path, asked, ())
    assert [file.name for file in files] == ["sweep.json", "environment.json", "space.py"]
    assert (tmp_path / "space.py").read_text() == space.read_text()


def test_cluster_shape_groups_equal_nodes() -> None:
    node = {"CPU": 8.0, "GPU": 1.0, "gpus": ["H100"]}
    assert machine.shape({"nodes": [node, {"CPU": 4.0, "GPU": 0.0, "gpus": []}, node]}) == (
        "2 x 8 CPU, 1 GPU H100; 1 x 4 CPU"
    )
    assert machine.cluster() is None


def test_command_of_a_notebook_is_not_that_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "/env/lib/python3.11/site-packages/ipykernel_launcher.py"
    monkeypatch.setattr("sys.argv", [kernel, "-f", "/run/user/kernel-1.json"])
    assert provenance.command() == "a call in a notebook"
    monkeypatch.setattr("sys.argv", ["study.py", "--lr", "3"])
    assert provenance.command() == "study.py --lr 3"
