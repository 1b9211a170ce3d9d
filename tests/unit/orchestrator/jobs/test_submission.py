"""Submission of a job: its command, queue, priority, settings and files, and the resume of a lost job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.jobs import submission
from orchestrator.jobs.job_state import Job, read
from orchestrator.storage.settings import resolve


class Details:
    """The details of a job as Ray returns them."""

    def __init__(self, metadata: dict[str, str]) -> None:
        self.metadata, self.submission_id, self.entrypoint = metadata, "j", "python -m orchestrator run toy"
        self.status = type("Status", (str,), {"is_terminal": lambda self: False})("RUNNING")
        self.start_time, self.end_time = 0, None


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The metadata, environment and excluded files of the last submission."""
    found: dict[str, Any] = {}

    class Dashboard:
        address = "http://head:8265"

        def __init__(self, address: str | None) -> None:
            pass

        def submit(self, entrypoint: str, job_id: str, **about: Any) -> Job:
            found.update(about)
            return Job(job_id, "pending", None, entrypoint)

    monkeypatch.setattr(submission, "Dashboard", Dashboard)
    return found


def test_queue_and_priority_are_sent_as_metadata_and_environment(sent: dict[str, Any]) -> None:
    assert submission.submit(["sweep", "toy"], queue="team", priority="4", wait=False) == 0
    assert (sent["metadata"]["queue"], sent["metadata"]["priority"]) == ("team", "4")
    assert sent["environment"]["ORCHESTRATOR_QUEUE"] == "team"
    assert sent["environment"]["ORCHESTRATOR_PRIORITY"] == "4"
    job = read(Details(sent["metadata"]))
    assert (job.queue, job.priority) == ("team", 4)


def test_queue_is_sent_in_the_environment_only_if_it_is_set(
    sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.submit(["sweep", "toy"], wait=False)
    assert (sent["metadata"]["queue"], sent["metadata"]["priority"]) == ("default", "1")
    assert "ORCHESTRATOR_QUEUE" not in sent["environment"]
    monkeypatch.setenv("ORCHESTRATOR_QUEUE", "mine")
    submission.submit(["sweep", "toy"], wait=False)
    assert sent["environment"]["ORCHESTRATOR_QUEUE"] == "mine"


def test_settings_of_the_environment_are_sent_with_the_job(
    sent: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home and the cache of the job are not those of the client."""
    given = {
        "ORCHESTRATOR_STORAGE": "s3://bucket/runs",
        "ORCHESTRATOR_DATA": "s3://bucket/sets",
        "ORCHESTRATOR_PRICES": "EUR gpu=2.5,cpu=0.04",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    here = resolve({})
    submission.submit(["sweep", "toy"], wait=False)
    assert given.items() <= sent["environment"].items()
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "there"))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "cache"))
    for name in given:
        monkeypatch.setenv(name, sent["environment"][name])
    there = resolve({})
    assert there.remote == here.remote == "s3://bucket/runs"
    assert there.storage.is_relative_to(tmp_path / "there")
    assert there.data.is_relative_to(tmp_path / "cache")
    assert there.prices == here.prices


def test_secret_files_that_are_not_sent_are_named_in_one_line(
    sent: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    submission.submit(["run", "toy"], working_dir=tmp_path, wait=False)
    assert "secret" not in capsys.readouterr().out
    for name in ("token.txt", *(f"{number}.pem" for number in range(6))):
        (tmp_path / name).touch()
    submission.submit(["run", "toy"], working_dir=tmp_path, wait=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if "secret" in line]
    assert lines == [
        "Not sent, because their names say that they are secret: 0.pem, 1.pem, 2.pem, 3.pem, 4.pem and 2 more"
    ]
    assert "*.[pP][eE][mM]" in sent["excludes"]
    assert "/token.txt" in sent["excludes"]


def test_invalid_priority_is_refused_before_anything_is_sent(sent: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="The priority is not valid: got 'high'; allowed: an integer from 1 to 100"):
        submission.submit(["sweep", "toy"], priority="high")
    assert not sent


def test_an_output_in_the_jobs_own_folder_is_refused(sent: dict[str, Any]) -> None:
    predict = ("predict", "rec@champion", "--input", "/shared/users.csv")
    for words in (["--output", "top.csv"], ["--output=out/top.csv"]):
        with pytest.raises(UserError, match=r"below the job's own folder on the cluster: got (out/)?top.csv"):
            submission.submit([*predict, *words], wait=False)
    assert not sent
    assert submission.submit([*predict, "--output", "/shared/top.csv"], wait=False) == 0


def test_job_without_metadata_has_no_queue_and_priority() -> None:
    job = read(Details({}))
    assert (job.queue, job.priority) == (None, None)


def test_the_message_of_a_lost_job_ends_before_the_lines_of_its_log() -> None:
    details: Any = Details({})
    details.status = type("Status", (str,), {"is_terminal": lambda self: True})("FAILED")
    details.driver_exit_code, details.driver_node_id = 137, "node"
    details.message = (
        "Job entrypoint command failed with exit code 137, last available logs (truncated to 20,000 chars):\n"
        "Run r1: toy"
    )
    job = read(details)
    assert (job.status, job.message) == ("lost", "Job entrypoint command failed with exit code 137")


@pytest.mark.parametrize(
    ("command", "log", "resume"),
    [
        ("orchestrator sweep toy --name mf --trials 2", [], "sweep --resume mf"),
        ("orchestrator run toy --name=mf", ["Run other: toy"], "run --resume mf"),
        ("orchestrator run --resume mf", [], "run --resume mf"),
        ("orchestrator sweep --resume latest", ["Sweep toy-1: toy"], "sweep --resume toy-1"),
        ("python -m orchestrator run toy 'note=a b'", [], "run --resume latest"),
        (
            "orchestrator run toy --name mf --storage '/mnt/a b' --tracking=http://x",
            [],
            "run --resume mf --storage '/mnt/a b' --tracking http://x",
        ),
    ],
)
def test_resume_command_of_a_lost_job_names_its_run(command: str, log: list[str], resume: str) -> None:
    job = Job("j", "lost", 1, command)
    assert submission.resume_command(job, log) == f"orchestrator submit -- {resume}"
    assert submission.resume_command(replace(job, status="failed"), log) is None


@pytest.mark.parametrize(
    "command", ["orchestrator promote run --to champion", "python train.py run", "orchestrator data"]
)
def test_job_of_another_command_has_no_resume_command(command: str) -> None:
    assert submission.resume_command(Job("j", "lost", 1, command)) is None
