"""``status``, ``logs`` and ``stop`` on run folders with real drivers; ids, addresses and logs of jobs without a Ray."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import run_control
from orchestrator.errors import UserError
from orchestrator.jobs import dashboard
from orchestrator.jobs import submission as jobs
from orchestrator.jobs.job_state import EXIT_RECORD, Job, Lines, read, recorded
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher
from orchestrator.storage import records, run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings, resolve
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS
from tests.support.web import QuietHandler, serving

DRIVER = """
import sys
from pathlib import Path
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher
from orchestrator.storage import records, run_lookup
folder = records.create(Path(sys.argv[1]), sys.argv[2], "recommender", {}, "orchestrator run recommender")
for epoch in range(1, 4):
    with folder.log.open("a") as log:
        log.write(f"epoch {epoch}\\n")
    print(folder.id, flush=True)
    sys.stdin.readline()
folder.release(sys.argv[3], int(sys.argv[4]), run_id="a" * 32, result={"metrics": {"test/ndcg_at_20": 0.25}})
"""

LOOKING = """
import sys
from orchestrator.cli import app, run_control
look = run_control._run
def looking(folder):
    print("looks", file=sys.stderr, flush=True)
    return look(folder)
run_control._run = looking
app.main()
"""
"""The command line, writing a line at each read of a run."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS", "ORCHESTRATOR_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    monkeypatch.setattr(dashboard, "DEFAULT_ADDRESS", f"http://127.0.0.1:{free_port()}")
    return resolve()


def test_run_with_a_provisional_end_is_still_running(settings: Settings) -> None:
    folder = records.create(settings.storage, "run", "recommender", {}, "orchestrator run recommender")
    folder.provisional_end("interrupted", 130)
    told = run_control._run(folder)
    assert (told["status"], told["exit_code"], told["resume"]) == ("running", None, None)
    folder.release("interrupted", 130)
    told = run_control._run(folder)
    assert (told["status"], told["exit_code"]) == ("interrupted", 130)
    assert told["resume"] == f"orchestrator run --resume {folder.id}"


class Driver:
    """A process that drives a folder; each ``step`` lets it continue until its next line of output."""

    def __init__(self, settings: Settings, kind: str = "run", status: str = "finished", code: int = 0) -> None:
        words = [sys.executable, "-c", DRIVER, str(settings.storage), kind, status, str(code)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().strip()

    def step(self, times: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * times)
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def driver(settings: Settings) -> Iterator[Driver]:
    process = Driver(settings, "sweep", "partial", 4)
    yield process
    process.kill()


def _ended(settings: Settings, status: records.Status, code: int) -> RunFolder:
    folder = records.create(settings.storage, "run", "recommender", {}, "orchestrator run recommender")
    folder.release(status, code)
    return folder


def _told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_status_is_running_for_a_live_driver_and_lost_for_a_dead_one(
    settings: Settings, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_control.status(settings, driver.id, wait=False, address=None, as_json=True) == 0
    told = _told(capsys)
    assert (told["status"], told["exit_code"], told["resume"]) == ("running", None, None)
    assert told["progress"] == "epoch 1"
    driver.kill()
    assert run_control.status(settings, driver.id, wait=True, address=None, as_json=True) == 1
    told = _told(capsys)
    assert (told["status"], told["exit_code"]) == ("lost", 1)
    assert told["resume"] == f"orchestrator sweep --resume {driver.id}"


@pytest.mark.slow
def test_status_waits_and_returns_the_runs_own_code(
    settings: Settings, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["status", "--wait", "--json", "--storage", str(settings.storage)]
    waiting = subprocess.Popen(
        [sys.executable, "-c", LOOKING, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None
    assert [waiting.stderr.readline() for _ in range(2)] == ["looks\n"] * 2
    driver.step(3)
    out, _ = waiting.communicate(timeout=HANG_SECONDS)
    assert waiting.returncode == 4
    told = json.loads(out)
    assert (told["id"], told["status"], told["exit_code"]) == (driver.id, "partial", 4)
    assert told["metrics"] == {"test/ndcg_at_20": 0.25}
    run_control.status(settings, "a" * 32, wait=False, address=None, as_json=False)
    text = capsys.readouterr().out
    assert driver.id in text
    assert "test/ndcg_at_20 0.25" in text


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({"experiment": {"resources": {"gpus_per_worker": 1}}}, "1 worker of 1 GPU"),
        ({"experiment": {"resources": {}}, "options": {"local": True}}, "1 CPU, in this process"),
        ({"sweep": {"resources": {"workers": 4, "gpus_per_worker": 2}}}, "4 workers of 2 GPU"),
        ({}, None),
    ],
)
def test_status_shows_devices_and_micro_batches(
    requested: dict[str, Any], expected: str | None, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = records.create(settings.storage, "run", "simclr", requested, "orchestrator run simclr")
    folder.update(accumulate=4)
    run_control.status(settings, folder.id, wait=False, address=None, as_json=True)
    values = _told(capsys)
    assert (values["devices"], values["accumulate"]) == (expected, 4)


@pytest.mark.parametrize(
    ("kind", "done", "expected"), [("run", 11, "epoch 11 of 600"), ("run", 0, None), ("sweep", 11, None)]
)
def test_status_shows_the_epoch_reached_by_an_unfinished_run(
    kind: records.Kind, done: int, expected: str | None, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = records.create(settings.storage, kind, "recommender", {}, "orchestrator run recommender")
    with StatusPublisher(folder, interval=60) as publisher:
        publisher.set_source(lambda: DriverStatus(done, 600))
    folder.release("interrupted", 130)
    values = run_control._run(folder)
    assert values["progress"] == expected
    assert "ended" not in values["driver"]
    folder.update(status="running", ended=None)
    values = run_control._run(folder)
    assert (values["status"], values["progress"]) == ("lost", expected)
    assert values["driver"].endswith(", ended without recording how")
    run_control.status(settings, folder.id, wait=False, address=None, as_json=False)
    assert ("progress:   epoch 11 of 600\n" in capsys.readouterr().out) is bool(expected)
    folder.update(status="finished", ended=folder.record["started"])
    assert run_control._run(folder)["progress"] is None


def test_status_shows_only_the_metrics_of_the_objectives(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = records.create(settings.storage, "run", "simclr", {}, "orchestrator run simclr")
    metrics = {f"{split}/{name}": 0.5 for split in ("validation", "test") for name in ("uniformity", "knn_top1")}
    folder.update(objectives=[["knn_top1", "max"]])
    folder.release("finished", 0, result={"metrics": metrics})
    run_control.status(settings, folder.id, wait=False, address=None, as_json=False)
    text = capsys.readouterr().out
    assert "validation/knn_top1 0.5  test/knn_top1 0.5" in text
    assert "uniformity" not in text


@pytest.mark.parametrize(
    ("status", "code", "resumable"),
    [
        ("finished", 0, False),
        ("partial", 4, False),
        ("interrupted", 130, True),
        ("failed", 1, True),
        ("failed", 2, False),
    ],
)
def test_resume_command_is_shown_only_for_resumable_runs(
    settings: Settings, capsys: pytest.CaptureFixture[str], status: records.Status, code: int, resumable: bool
) -> None:
    folder = _ended(settings, status, code)
    assert run_control.status(settings, "latest", wait=True, address=None, as_json=True) == code
    assert (_told(capsys)["resume"] == f"orchestrator run --resume {folder.id}") is resumable


@pytest.mark.parametrize(("started", "found"), [("2020-01-01T00:00:00", "run"), ("2099-01-01T00:00:00", "job")])
def test_latest_is_the_newest_of_runs_and_jobs_with_a_cluster_address(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, started: str, found: str
) -> None:
    folder = _ended(settings, "finished", 0)
    job = Job("raysubmit_1", "running", None, "orchestrator run toy", started=started)
    monkeypatch.setattr(dashboard, "Dashboard", lambda _: SimpleNamespace(jobs=lambda: [job]))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    target = run_control.find(settings, "latest", None)
    assert (target.id if isinstance(target, records.RunFolder) else target[1].id) == {"run": folder.id, "job": job.id}[
        found
    ]
    assert run_control.find(settings, folder.id, None) is not target


@pytest.mark.slow
def test_logs_follow_until_the_driver_ends(
    settings: Settings, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    run_control.logs(settings, driver.id, follow=False, address=None)
    assert capsys.readouterr().out == "epoch 1\n"
    words = ["logs", "-f", driver.id, "--storage", str(settings.storage)]
    following = subprocess.Popen([sys.executable, "-m", "orchestrator", *words], stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    assert following.stdout.readline() == "epoch 1\n"
    driver.step()
    assert following.stdout.readline() == "epoch 2\n"
    assert following.poll() is None
    driver.step(2)
    assert following.communicate(timeout=HANG_SECONDS)[0] == "epoch 3\n"
    assert following.returncode == 0


def test_stop_is_requested_only_from_a_running_driver(
    settings: Settings, driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    run_control.stop(settings, driver.id, address=None)
    folder = run_lookup.find(settings.storage, driver.id)
    assert folder.stop_file.exists()
    assert f"orchestrator sweep --resume {driver.id}" in capsys.readouterr().out

    ended = _ended(settings, "interrupted", 130)
    run_control.stop(settings, ended.id, address=None)
    assert not ended.stop_file.exists()
    out = capsys.readouterr().out
    assert "Nothing to stop" in out
    assert f"orchestrator run --resume {ended.id}" in out


def test_error_of_an_unknown_id_names_the_searched_places(settings: Settings) -> None:
    known = _ended(settings, "finished", 0)
    with pytest.raises(UserError) as caught:
        run_control.find(settings, known.id[:-1], None)
    assert caught.value.code == 2
    for part in (str(settings.storage), dashboard.DEFAULT_ADDRESS, f"Did you mean {known.id}?"):
        assert part in str(caught.value)


def test_unreachable_cluster_of_the_environment_exits_with_code_3(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
    with pytest.raises(UserError, match=address) as caught:
        run_control.find(settings, "sweep-recommender-20260101-000000-abcd", None)
    assert caught.value.code == 3


class Ailing(QuietHandler):
    """A dashboard that answers the request for its version and fails every other request."""

    def get(self) -> None:
        if self.path == "/api/version":
            self.respond(200, json.dumps({"version": "4", "ray_version": "2.60.0", "ray_commit": ""}).encode())
        else:
            self.respond(500)


@pytest.mark.parametrize(("named", "code"), [(None, 2), ("flag", 3), ("environment", 3)])
def test_failing_dashboard_is_unavailable_only_if_its_address_was_given(
    named: str | None, code: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request gives the same result: the address set for Ray's client does not count as the user's."""
    with serving(Ailing) as address:
        monkeypatch.setattr(dashboard, "DEFAULT_ADDRESS", address)
        if named == "environment":
            monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
        monkeypatch.setattr(dashboard, "authenticate", lambda: None)  # its changes of the environment would stay
        before = os.environ.get(dashboard.VARIABLE)
        for _ in range(2):
            with pytest.raises(UserError, match=address) as caught:
                run_control.find(settings, "nobody", address if named == "flag" else None)
            assert caught.value.code == code
        assert os.environ.get(dashboard.VARIABLE) == before


def test_the_address_comes_from_flag_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert dashboard.dashboard_address() == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://ray.example/")
    assert dashboard.dashboard_address() == "https://ray.example"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")
    assert dashboard.dashboard_address() == "http://head:8265"
    assert dashboard.dashboard_address("other:1234") == "http://other:1234"
    with pytest.raises(UserError, match="allowed: http"):
        dashboard.dashboard_address("ray://head:10001")


def test_dashboard_that_never_answers_raises_user_error_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "ANSWER_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="timed out") as caught:
            dashboard.Dashboard(f"127.0.0.1:{silent.getsockname()[1]}")
    assert caught.value.code == 3


@pytest.mark.parametrize(("state", "code"), [("lost", 1), ("failed", 0)])
def test_logs_and_status_of_a_lost_job_name_its_resume_command(
    state: str, code: int, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``test_jobs.py`` tests the same with a real cluster that is stopped."""
    ended = Job("j", state, 1, "orchestrator sweep toy --name mf", message="No Ray dashboard answers")
    cluster = SimpleNamespace(address="http://head:8265", follow=lambda job, show: ended, wait=lambda job: ended)
    monkeypatch.setattr(run_control, "find", lambda *_: (cluster, replace(ended, status="running", exit_code=None)))
    assert run_control.logs(settings, "j", follow=True, address=None) == code
    followed = capsys.readouterr().out
    assert run_control.status(settings, "j", wait=True, address=None, as_json=False) == 1
    waited = capsys.readouterr().out
    for text in (followed, waited):
        assert ("orchestrator submit -- sweep --resume mf" in text) is (state == "lost"), text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "orchestrator submit -- sweep"),
        (["swep", "recommender"], "Did you mean 'sweep'?"),
        (["run", "recommender", "--tracking", "postgresql://me:hunter2@db/mlflow"], "MLFLOW_TRACKING_URI"),
    ],
)
def test_invalid_submission_is_refused_before_anything_is_sent(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        jobs.submit(words, address=f"127.0.0.1:{free_port()}")
    assert caught.value.code == 2
    assert "hunter2" not in str(caught.value)


def test_submission_id_starts_with_the_verb_and_workload() -> None:
    assert re.fullmatch(r"sweep-recommender-\d{8}-\d{6}-[0-9a-f]{4}", jobs.new_id(["sweep", "recommender", "a=1"]))
    assert re.fullmatch(r"run-\d{8}-\d{6}-[0-9a-f]{4}", jobs.new_id(["run", "--resume", "latest"]))


@given(st.lists(st.sampled_from(["epoch 1", "", f"{EXIT_RECORD}0", "loss 0.5 é"]), max_size=8), st.data())
def test_every_line_is_shown_once_whichever_source_it_comes_from(content: list[str], data: st.DataObject) -> None:
    log = "\n".join(content)
    shown: list[str] = []
    lines = Lines(shown.append)
    streamed = 0
    while streamed < len(log):
        chunk = log[streamed : streamed + data.draw(st.integers(1, 9))]
        lines.feed(chunk, streamed)
        streamed += len(chunk)
        lines.feed(log[: data.draw(st.integers(0, len(log)))], 0)
    lines.close()
    expected = log.split("\n") if not log.endswith("\n") else log.split("\n")[:-1]
    assert shown == [line for line in expected if log and not line.startswith(EXIT_RECORD)]


def test_last_exit_record_determines_the_exit_code() -> None:
    assert recorded(f"{EXIT_RECORD}2\nsaid: {EXIT_RECORD}3\n{EXIT_RECORD}4\n") == 4
    assert recorded("no record\n") is None


@pytest.mark.parametrize(
    ("ray_status", "driver_code", "node", "log", "expected"),
    [
        ("RUNNING", None, "n", "", ("running", None)),
        ("SUCCEEDED", 0, "n", f"{EXIT_RECORD}0\n", ("finished", 0)),
        ("FAILED", 4, "n", f"{EXIT_RECORD}4\n", ("partial", 4)),
        ("FAILED", 5, "n", f"{EXIT_RECORD}5\n", ("failed", 5)),
        ("SUCCEEDED", 0, "n", f"{EXIT_RECORD}2\n", ("failed", 2)),  # ... | tee log
        ("FAILED", 7, "n", "", ("failed", 7)),  # an entrypoint of another program
        ("FAILED", 130, "n", "", ("interrupted", 130)),  # Ctrl-C twice
        ("STOPPED", None, "n", "", ("interrupted", 130)),
        ("FAILED", -9, "n", "", ("lost", 1)),
        ("FAILED", 137, "n", "", ("lost", 1)),
        ("FAILED", None, "n", "", ("lost", 1)),  # its node failed
        ("FAILED", None, None, "", ("failed", 1)),  # never started
    ],
)
def test_job_status_and_exit_code_are_derived_from_ray_and_the_log(
    ray_status: str, driver_code: int | None, node: str | None, log: str, expected: tuple[str, int | None]
) -> None:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

    details = JobDetails(
        type="SUBMISSION",
        submission_id="run-x",
        status=ray_status,
        entrypoint="python -m orchestrator run x",
        driver_exit_code=driver_code,
        driver_node_id=node,
        message="runtime_env setup failed: no such package\nmore",
    )
    job = read(details, log)
    assert (job.status, job.exit_code) == expected
    assert (job.message is not None) is (expected == ("lost", 1) or node is None)
