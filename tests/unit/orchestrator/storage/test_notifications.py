"""Messages to a webhook or a command: delivery, retries, giving up, and no secret in the output."""

from __future__ import annotations

import itertools
import json
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.cli import doctor
from orchestrator.console import Console
from orchestrator.errors import DONE, USAGE, RunFailed, UserError
from orchestrator.runs.session import Session
from orchestrator.storage import notifications, records
from orchestrator.storage.notifications import Notifier
from orchestrator.storage.settings import resolve
from tests.support.waiting import HANG_SECONDS, until
from tests.support.web import QuietHandler, serving

SECRET = "bba7b392"
ABOUT = {"id": "run-1", "kind": "run", "workload": "toy"}


@dataclass
class Hook:
    """A real HTTP server. It answers each POST with the next of ``answers`` and repeats the last; -1 is no answer."""

    answers: list[int] = field(default_factory=lambda: [200])
    received: list[dict[str, Any]] = field(default_factory=list)
    gets: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()

    class Handler(QuietHandler):
        def post(self) -> None:
            found.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            if answer < 0:
                found.over.wait()
                return
            moved = {"Location": f"{found.url}/elsewhere"} if answer in (301, 302, 307) else {}
            self.respond(answer, **moved)

        def get(self) -> None:
            found.gets += 1
            self.respond(200)

    with serving(Handler) as address:
        found.url = f"{address}/services/{SECRET}"
        yield found
        found.over.set()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry pauses are short. Tries and closes have a very long time limit, unless a test sets another."""
    monkeypatch.setattr(notifications, "TRY_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(notifications, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(Notifier.close, "__defaults__", (HANG_SECONDS,))


# A webhook


def test_message_has_run_event_status_text_and_metrics(hook: Hook) -> None:
    notifier = Notifier(hook.url, ABOUT)
    notifier.send("finish", "finished", "run-1 has finished", metrics={"test/error": 0.5}, url=None)
    assert notifier.close(60) is None
    (body,) = hook.received
    assert body.pop("time").endswith("+00:00")
    assert body == {
        **ABOUT, "event": "finish", "status": "finished", "message": "run-1 has finished", "text": "run-1 has finished",
        "metrics": {"test/error": 0.5},
    }  # fmt: skip


def test_messages_arrive_in_their_order(hook: Hook) -> None:
    hook.answers = [500, 200]
    notifier = Notifier(hook.url, ABOUT)
    for event in ("start", "budget", "finish"):
        notifier.send(event, "running", event)  # type: ignore[arg-type]
    assert notifier.close(60) is None
    assert [body["event"] for body in hook.received] == ["start", "start", "budget", "finish"]


@pytest.mark.parametrize(
    ("answers", "tries", "line"),
    [
        ([500, 503, 200], 3, None),
        ([500], 3, "answers 500"),
        ([429, 204], 2, None),
        ([404], 1, "answers 404"),
        ([302], 1, "answers 302"),  # a redirected POST would become a GET
        ([-1, 200], 2, None),
        ([-1], 3, "did not answer in time"),
    ],
)
def test_webhook_is_tried_up_to_three_times_on_transient_errors(
    hook: Hook, answers: list[int], tries: int, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.answers, post, posts = list(answers), notifications._post, itertools.count()

    def patient(url: str, body: bytes) -> None:
        """Only a try without an answer has a short limit, and the next one waits until the hook has received it."""
        number = next(posts)
        until(lambda: len(hook.received) == number)
        monkeypatch.setattr(notifications, "TRY_SECONDS", 0.2 if hook.answers[0] < 0 else HANG_SECONDS)
        post(url, body)

    monkeypatch.setattr(notifications, "_post", patient)
    notifier = Notifier(hook.url, ABOUT)
    notifier.send("start", "running", "x")
    found = notifier.close(60)
    host = hook.url.removesuffix(f"/services/{SECRET}")
    assert found == (None if line is None else f"Not notified of start: the webhook at {host} {line}")
    until(lambda: len(hook.received) == tries)
    assert (len(hook.received), hook.gets) == (tries, 0)


def test_unreachable_webhook_is_reported_on_close() -> None:
    notifier = Notifier(f"http://127.0.0.1:9/{SECRET}", ABOUT)
    notifier.send("start", "running", "x")
    assert notifier.close(60) == "Not notified of start: the webhook at http://127.0.0.1:9 cannot be reached"


def test_close_waits_a_limited_time_for_a_webhook_that_never_answers(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close without a limit would never return."""
    monkeypatch.setattr(notifications, "TRY_SECONDS", None)
    hook.answers = [-1]
    notifier = Notifier(hook.url, ABOUT)
    for event in ("start", "finish"):
        notifier.send(event, "running", "x")  # type: ignore[arg-type]
    started = time.monotonic()
    line = notifier.close(seconds=0.3)
    assert time.monotonic() - started >= 0.3
    assert line is not None
    assert line.startswith("Not notified of start, finish: the webhook at http://127.0.0.1:")
    assert line.endswith("did not answer in time")


def test_without_a_target_nothing_is_sent_and_no_thread_started() -> None:
    before = set(threading.enumerate())
    notifier = Notifier(None, ABOUT)
    notifier.send("start", "running", "x")
    assert before.issuperset(threading.enumerate())
    assert notifier.close(60) is None


def test_value_without_json_form_is_sent_as_text(hook: Hook) -> None:
    notifier = Notifier(hook.url, ABOUT)
    notifier.send("finish", "finished", "x", metrics={"a": Path("x")})
    assert notifier.close(60) is None
    assert hook.received[0]["metrics"] == {"a": "x"}


# A command


def command(code: str, *words: str) -> str:
    return f"cmd: {shlex.join([sys.executable, '-c', code, *words])}"


def test_command_gets_the_message_on_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "a b.json"
    notifier = Notifier(command("import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')", str(file)), ABOUT)
    notifier.send("start", "running", "one")
    notifier.send("finish", "finished", "two")
    assert notifier.close() is None
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["one", "two"]


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (f"cmd: false {SECRET}", "the command false ends with 1"),
        (f"cmd: /no/such/program {SECRET}", "the command program cannot be started"),
        (f"cmd: sh -c 'sleep 100 && echo {SECRET}'", "the command sh did not answer in time"),
    ],
)
def test_failed_missing_or_hanging_command_is_reported(target: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in target:
        monkeypatch.setattr(notifications, "TRY_SECONDS", 0.2)
    notifier = Notifier(target, ABOUT)
    notifier.send("start", "running", "x")
    assert notifier.close(60) == f"Not notified of start: {line}"


def test_hanging_command_and_its_children_are_killed_on_close(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    notifier = Notifier(f"cmd: sh -c 'sleep 300 & echo $$ $! > {file}; wait'", ABOUT)
    notifier.send("start", "running", "x")
    until(lambda: file.exists() and len(file.read_text().split()) == 2)
    assert notifier.close(seconds=0.1) is not None
    until(lambda: not any(alive(int(pid)) for pid in file.read_text().split()))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[int]:
    """The process id of each command once it has been started."""
    started: queue.SimpleQueue[int] = queue.SimpleQueue()

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.put(self.pid)

    monkeypatch.setattr(notifications.subprocess, "Popen", Popen)
    return started


def sender(notifier: Notifier) -> threading.Thread:
    assert notifier._thread is not None
    return notifier._thread


def test_a_command_that_is_killed_by_the_close_is_not_started_again(
    starts: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "TRY_SECONDS", 600)
    for _ in range(200):
        notifier = Notifier("cmd: sleep 600", ABOUT)
        notifier.send("start", "running", "x")
        notifier.send("finish", "finished", "x")
        pid = starts.get(timeout=60)
        thread = sender(notifier)
        assert notifier.close(seconds=0) == "Not notified of start, finish: the command sleep did not answer in time"
        thread.join(60)
        assert not thread.is_alive()
        assert not alive(pid)
        assert starts.empty()


def test_no_further_try_is_made_after_a_close_between_two_tries(
    starts: queue.SimpleQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is right before its second try when the notifier is closed."""
    before_second = threading.Event()
    closed = threading.Event()

    def split(text: str) -> list[str]:
        if not starts.empty() and threading.current_thread().name == "notify":
            before_second.set()
            closed.wait(60)
        return shlex.split(text)

    monkeypatch.setattr(notifications, "shlex", SimpleNamespace(split=split))
    notifier = Notifier("cmd: false", ABOUT)
    notifier.send("start", "running", "x")
    assert before_second.wait(60)
    thread = sender(notifier)
    assert notifier.close(seconds=0) is not None
    closed.set()
    thread.join(60)
    assert not thread.is_alive()
    assert starts.qsize() == 1


def test_a_webhook_is_not_called_again_after_the_close(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    posting = threading.Event()
    closed = threading.Event()

    def post(url: str, body: bytes) -> None:
        hook.gets += 1
        posting.set()
        closed.wait(60)
        raise TimeoutError

    monkeypatch.setattr(notifications, "_post", post)
    notifier = Notifier(hook.url, ABOUT)
    notifier.send("start", "running", "x")
    notifier.send("finish", "finished", "x")
    assert posting.wait(60)
    thread = sender(notifier)
    assert notifier.close(seconds=0) is not None
    closed.set()
    thread.join(60)
    assert not thread.is_alive()
    assert hook.gets == 1


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# The setting


@pytest.mark.parametrize(
    "target",
    [f"hooks.example/{SECRET}", f"ftp://host/{SECRET}", "http://", "cmd:", f"cmd: say '{SECRET}", f"http://h:x/{SECRET}",
     f"https://me:{SECRET}@host/x", f"https://:{SECRET}@host/x"],
)  # fmt: skip
def test_invalid_target_is_refused_without_repeating_its_secret(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", target)
    with pytest.raises(UserError, match="The setting notify is not valid; allowed: ") as caught:
        resolve()
    assert SECRET not in str(caught.value)
    assert caught.value.code == USAGE


def test_notify_from_the_environment_overrides_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve().notify is None
    home.mkdir()
    (home / "config.yaml").write_text('notify: "cmd: notify-send it"\n')
    assert resolve().notify == "cmd: notify-send it"
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", "https://hooks.example/x")
    assert resolve().notify == "https://hooks.example/x"


def test_doctor_shows_the_webhook_host_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda settings: iter(()),))
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", f"https://hooks.example:8443/{SECRET}?a={SECRET}")
    settings = resolve()
    doctor.run(settings, False)
    shown = capsys.readouterr().out
    assert "the webhook at https://hooks.example:8443  (ORCHESTRATOR_NOTIFY)" in shown
    assert SECRET not in shown + repr(settings)


# A session


def session(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("ORCHESTRATOR_NOTIFY", hook.url)
    settings = resolve({"tracking": "none", "storage": str(tmp_path)})
    folder = records.create(settings.storage, "run", "toy", {}, "orchestrator run toy")
    return Session(folder, settings, Console(), resuming=False, params={}, tags={})


def test_session_sends_start_budget_and_finish_messages(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, hook, monkeypatch) as running:
        running.notify("budget", "80% of the device hours are used")
        running.set_end("finished", DONE, result={"metrics": {"test/error": 0.5}})
    assert [(body["event"], body["status"]) for body in hook.received] == [
        ("start", "running"), ("budget", "running"), ("finish", "finished"),
    ]  # fmt: skip
    assert {(body["id"], body["kind"], body["workload"]) for body in hook.received} == {
        (running.folder.id, "run", "toy")
    }
    assert hook.received[-1]["metrics"] == {"test/error": 0.5}


def test_failure_message_contains_the_cause(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed), session(tmp_path, hook, monkeypatch):
        raise RunFailed("trial 3", "train/loss is nan at epoch 2")
    assert [(body["event"], body["status"]) for body in hook.received] == [("start", "running"), ("failure", "failed")]
    assert "train/loss is nan at epoch 2" in hook.received[-1]["message"]


def test_a_webhook_that_never_answers_is_one_line_in_the_log(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hook.answers = [-1]
    monkeypatch.setattr(notifications, "TRY_SECONDS", 0.2)
    with session(tmp_path, hook, monkeypatch) as running:
        running.set_end("finished", DONE)
    lines = [line for line in running.folder.log.read_text().splitlines() if "otif" in line]
    assert len(lines) == 1
    assert "Not notified of start, finish: the webhook at http://127.0.0.1:" in lines[0]
    kept = [file for file in running.folder.path.iterdir() if file.is_file()]
    assert [file.name for file in kept if SECRET in file.read_text()] == []
    shown = capsys.readouterr()
    assert (SECRET in shown.out + shown.err, "otif" in shown.out) == (False, False)
    assert running.folder.record["status"] == "finished"
