"""Storage on S3: a real server on this machine, real commands, an endpoint that fails, machines that are lost.

Another home stands for another machine. The toy workload spends its time sleeping, so the events do not depend on how
busy the machine is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engine import checkpoint
from orchestrator.errors import UserError
from orchestrator.storage import remote
from tests.support.commands import ROOT, SPACES, THIRD_PARTY, Command, Start, Store, starting, typed
from tests.support.ports import free_port
from tests.support.s3 import BUCKET, KEYS, Door, Server
from tests.support.stores import copy_store
from tests.support.waiting import HANG_SECONDS

SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.end()


@pytest.fixture
def door(server: Server) -> Iterator[Door]:
    door = Door(server)
    yield door
    door.shut()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """This test's prefix in the bucket."""
    return f"tests/{tmp_path.name}"


@pytest.fixture
def home(tmp_path: Path, door: Door, prefix: str, initialised_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose commands store on S3, except for local files."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", door.endpoint)
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", f"s3://{BUCKET}/{prefix}")
    remote._open.cache_clear()  # it has the endpoint of the last test
    # One MLflow for all machines.
    database = copy_store(initialised_store, tmp_path / "home")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    return tmp_path / "home"


@pytest.fixture
def start(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with starting(home) as begin:

        def on(*words: str, machine: Path = home) -> Command:
            monkeypatch.setenv("ORCHESTRATOR_HOME", str(machine))
            return begin(*words, machine=machine)

        yield on


def told(command: Command, code: int = 0) -> Any:
    """The last line of a command with ``--json``, which ends with ``code``."""
    assert command.end() == code, command.text()
    return json.loads(command.text().splitlines()[-1])


def answer(home: Path, *words: str) -> Any:
    """The same for a command in this process."""
    done = typed(home, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def record(server: Server, prefix: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.read(f"{prefix}/{name}/record.json"))
    return found


def gaps(home: Path) -> float:
    """The longest time, in seconds, between two epochs of one trial."""
    sql = (
        "select run_uuid, timestamp - lag(timestamp) over (partition by run_uuid order by step) "
        "from metrics where key = 'train/loss'"
    )
    with sqlite3.connect(home / "mlflow.db") as connection:
        return max(gap for _, gap in connection.execute(sql) if gap) / 1000


@pytest.mark.parametrize(
    "words",
    [
        ["run", "toy", "epochs=3", "--local"],
        [*SWEEP, "epochs=3", "--trials", "3", "--local"],
        pytest.param([*SWEEP, "epochs=3", "--trials", "3"], marks=[pytest.mark.faults, pytest.mark.long]),
    ],
    ids=["run-local", "sweep-local", "sweep-ray"],
)
@pytest.mark.usefixtures("third_party")
def test_results_are_on_s3_and_readable_from_another_machine(
    words: list[str], home: Path, server: Server, prefix: str, start: Start, tmp_path: Path
) -> None:
    words = [*words, "--name", "one"]
    result = answer(home, *words) if "--local" in words else told(start(*words, "--json"))
    names = server.names(f"{prefix}/one")
    outcome = "winner/" if words[0] == "sweep" else ""
    assert names >= {"record.json", "log.txt", f"{outcome}outcome.json", f"{outcome}model/weights.safetensors"}
    assert not [name for name in names if name.startswith(("trials/", "tune/")) or "lease" in name]
    assert record(server, prefix, "one")["status"] == "finished"
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in b"".join(server.read(f"{prefix}/one/{n}") for n in names)

    there = tmp_path / "there"
    listed = answer(there, "ls")
    rows = listed["runs"] if isinstance(listed, dict) else listed
    assert [row["id"] for row in rows] == ["one"]
    status = answer(there, "status", "one")
    assert (status["status"], status["metrics"]) == ("finished", result["metrics"])


@pytest.mark.faults
@pytest.mark.long
def test_a_killed_sweep_goes_on_on_another_machine(
    home: Path, server: Server, prefix: str, start: Start, tmp_path: Path
) -> None:
    epochs, store, there = 30, Store(home), tmp_path / "there"
    first = start(*SWEEP, f"epochs={epochs}", "slow=0.25", "--trials", "2", "--name", "one")
    marks = "checkpoint.json"
    first.until(lambda: [name for name in server.names(f"{prefix}/one/trials") if name.endswith(marks)])
    first.kill()
    names = sorted(name for name in server.names(f"{prefix}/one/trials") if name.endswith(marks))

    second = start(
        "sweep", "--resume", "one", *SWEEP[2:4], machine=there
    )  # the code of a space is run only if it is named
    second.until(lambda: list(there.glob("mirror/*/one/tune")))  # its trials are about to start
    assert names[0] in {
        path.as_posix().partition("/trials/")[2] for path in there.glob(f"mirror/*/one/trials/*/*/{marks}")
    }
    assert second.end() == 0, second.text()
    assert record(server, prefix, "one")["status"] == "finished"
    store.check()
    store.check_trials(2, epochs)
    assert "trial 1 complete" in second.text()
    assert not server.names(f"{prefix}/one/trials")


@pytest.mark.faults
def test_a_killed_run_goes_on_from_its_checkpoint_on_another_machine(
    home: Path, server: Server, prefix: str, start: Start, tmp_path: Path
) -> None:
    first = start("run", "toy", "epochs=4000", "slow=0.2", "--local", "--name", "one")
    first.until(lambda: [name for name in server.names(f"{prefix}/one/checkpoints") if name.endswith(".json")])
    first.kill()
    before = max(Store(home).steps().get("one", ()), default=0)  # it may have logged none yet
    there = tmp_path / "there"
    second = start("run", "--resume", "one", machine=there)
    second.until(lambda: list(there.glob("mirror/*/one/checkpoints/checkpoint-*")))
    second.until(lambda: max(Store(home).steps().get("one", ()), default=0) > before)
    second.ctrl_c()
    assert second.end() == 130, second.text()
    assert record(server, prefix, "one")["status"] == "interrupted"
    steps = Store(home).steps()["one"]
    assert steps == list(range(1, steps[-1] + 1)), "a row was lost or doubled"


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [4, pytest.param(30, marks=[pytest.mark.faults, pytest.mark.long])])
def test_trials_continue_while_the_s3_endpoint_is_away(
    seconds: float, home: Path, server: Server, door: Door, prefix: str, start: Start
) -> None:
    epochs, store = round((seconds + 8) / 0.2), Store(home)
    sweep = start(*SWEEP, f"epochs={epochs}", "slow=0.2", "--trials", "2", "--name", "one", "--keep", "all")
    sweep.until(lambda: len(store.steps()) >= 2)
    door.shut(mute=seconds > 10)  # refused at once, or never answered
    since = {key: steps[-1] for key, steps in store.steps().items()}
    # They continue without an answer: a trial that waited for the endpoint would not.
    sweep.until(lambda: all(steps[-1] >= since[k] + seconds / 0.2 for k, steps in store.steps().items() if k in since))
    door.open()
    assert sweep.end() == 0, sweep.text()
    assert "could not be stored" not in sweep.text()
    assert gaps(home) < remote.REQUEST_SECONDS, "a trial waited for a request"
    store.check()
    assert all(steps == list(range(1, epochs + 1)) for key, steps in store.steps().items() if "/" in key)
    (here,) = home.glob("mirror/*/one")
    for number in range(2):
        found = checkpoint.latest(here / "trials" / f"{number:05d}")
        assert found is not None
        for file in found.iterdir():
            assert server.read(f"{prefix}/one/{file.relative_to(here)}") == file.read_bytes()
    assert record(server, prefix, "one")["status"] == "finished"


@pytest.mark.faults
def test_sync_delivers_a_run_that_ended_while_the_endpoint_was_away(
    home: Path, server: Server, door: Door, prefix: str, start: Start
) -> None:
    run = start("run", "toy", "epochs=20", "slow=0.1", "--local", "--name", "one")
    run.until(lambda: "record.json" in server.names(f"{prefix}/one"))
    door.shut()
    assert run.end() == 0, run.text()
    (line,) = [line for line in run.text().splitlines() if "could not be stored" in line]
    assert line.endswith("orchestrator sync one")
    assert record(server, prefix, "one")["status"] == "running"

    away = start("sync", "one")
    assert away.end() == 3, away.text()
    assert "cannot be used: nothing answers" in away.text()
    door.open()
    sync = start("sync", "one")
    assert sync.end() == 0, sync.text()
    assert "stored" in sync.text()
    assert record(server, prefix, "one")["status"] == "finished"
    assert "model/weights.safetensors" in server.names(f"{prefix}/one")


@pytest.mark.faults
def test_the_second_of_two_drivers_is_refused_and_a_stop_reaches_the_first(
    home: Path, server: Server, prefix: str, start: Start, tmp_path: Path
) -> None:
    first = start("run", "toy", "epochs=4000", "slow=0.1", "--local", "--name", "one")
    first.until(lambda: "record.json" in server.names(f"{prefix}/one"))
    there = tmp_path / "there"
    second = start("run", "--resume", "one", machine=there)
    assert second.end() == 2, second.text()
    assert f"one is being driven by another process: got pid {first.process.pid}" in second.text()
    assert told(start("status", "one", "--json", machine=there))["status"] == "running"
    stop = start("stop", "one", machine=there)
    assert stop.end() == 0, stop.text()
    assert first.end() == 130, first.text()
    assert record(server, prefix, "one")["status"] == "interrupted"


SHORT_LEASE = (
    "from orchestrator.storage import lease, object_sync; lease.SECONDS = 5.0; object_sync.RENEW_SECONDS = 0.5; "
    "from orchestrator.cli.app import main; main()"
)


class Hurried(Command):
    """A command whose lease lasts five seconds."""

    program = ("-c", SHORT_LEASE)


class HurriedSuccessor(Command):
    """The same, with epochs that take no time."""

    program = ("-c", f"from tests.support import toy; toy.time = toy.Clock(); {SHORT_LEASE}")


def stop_between_requests(command: Command, journal: Path) -> None:
    """Stop a process while it sends no request to MLflow, because a sent request cannot be withdrawn."""
    while True:
        os.killpg(command.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, command.process.pid, os.WSTOPPED)
        if journal.stat().st_size == 0:
            return
        os.killpg(command.process.pid, signal.SIGCONT)
        time.sleep(0.05)


@pytest.mark.faults
@pytest.mark.long
def test_driver_that_lost_its_lease_keeps_the_successors_result(
    home: Path, server: Server, prefix: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(home))
    first = Hurried(home, "run", "toy", "epochs=400", "slow=0.3", "--local", "--name", "one")
    try:
        first.until(lambda: [name for name in server.names(f"{prefix}/one/checkpoints") if name.endswith(".json")])
        (journal,) = home.rglob("one/tracking.jsonl")
        first.until(Store(home).steps)
        stop_between_requests(first, journal)
        stopped, code = time.monotonic(), 2
        monkeypatch.setenv("ORCHESTRATOR_HOME", str(there))
        while code == 2 and time.monotonic() - stopped < 120:  # refused until the lease has ended
            second = HurriedSuccessor(there, "run", "--resume", "one")
            code = second.end()
        assert code == 0, second.text()
        assert record(server, prefix, "one")["status"] == "finished"
        os.killpg(first.process.pid, signal.SIGCONT)
        assert first.end() == 130, first.text()
    finally:
        if first.process.poll() is None:
            first.kill()
    assert "one was taken over by another driver" in first.text()
    Store(home).check()  # checks that each run has ended
    assert Store(home).steps() == {"one": list(range(1, 401))}
    assert record(server, prefix, "one")["status"] == "finished"
    for machine in (tmp_path / "third", there, home):
        assert told(start("status", "one", "--json", machine=machine))["status"] == "finished"
    assert [name for name in server.names(prefix) if name.startswith("one@2/model/")]


@pytest.mark.faults
@pytest.mark.long
def test_run_of_two_workers_resumes_from_s3_on_another_machine(
    home: Path, server: Server, prefix: str, start: Start, tmp_path: Path
) -> None:
    words = ["run", "toy", "epochs=60", "slow=0.2", "--workers", "2", "--cpus-per-worker", "1", "--name", "one"]
    first = start(*words)
    first.until(lambda: [name for name in server.names(f"{prefix}/one/train") if name.endswith("checkpoint.json")])
    first.kill()
    second = start("run", "--resume", "one", machine=tmp_path / "there")
    assert second.end() == 0, second.text()
    Store(home).check()
    (steps,) = Store(home).steps().values()
    assert steps == list(range(1, 61))
    assert {"outcome.json", "model/weights.safetensors"} <= server.names(f"{prefix}/one")


@pytest.fixture
def far_cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster whose only node with CPUs does not see the driver's home."""
    apart = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounts of its own cannot be had here (unshare)")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)  # set for clusters that are started here
    monkeypatch.setenv("PYTHONPATH", f"{THIRD_PARTY}:{ROOT}")
    (home.parent / "mlflow").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.parent / 'mlflow' / 'mlflow.db'}")
    address = f"127.0.0.1:{free_port()}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--object-store-memory", "80000000"]
    head = [*ray, "--head", "--port", address.split(":")[1], "--num-cpus", "0", "--include-dashboard=false"]
    node = shlex.join([*ray, "--address", address, "--num-cpus", "4"])
    hidden = [*apart, "sh", "-c", f"mount -t tmpfs none {shlex.quote(str(home))} && exec {node}"]
    started = []
    for number, words in enumerate((head, hidden)):
        log = (home.parent / f"ray-{number}.log").open("w")
        started.append(subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True))
        deadline = time.monotonic() + HANG_SECONDS
        while "--block" not in (home.parent / f"ray-{number}.log").read_text():
            assert time.monotonic() < deadline, (home.parent / f"ray-{number}.log").read_text()
            time.sleep(0.2)
    yield address
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.faults
@pytest.mark.long
def test_nodes_without_a_shared_folder_save_and_resume_through_s3(
    far_cluster: str, server: Server, prefix: str, start: Start
) -> None:
    ray = ["--ray-address", far_cluster]
    words = [*SWEEP, "epochs=30", "slow=0.25", "--trials", "2", "--keep", "all", "refit=false", "--name", "one", *ray]
    sweep = start(*words)  # the winner continues from its trial's checkpoint
    assert sweep.end() == 0, sweep.text()
    names = server.names(f"{prefix}/one")
    for part in ("trials/00000", "trials/00001"):
        assert {name.split("/")[-1] for name in names if name.startswith(part)} >= {"checkpoint.json"}
    assert "winner/model/weights.safetensors" in names

    words = ["run", "toy", "epochs=4000", "slow=0.1", "--cpus-per-worker", "1", "--name", "two", *ray]
    first = start(*words)
    first.until(lambda: [name for name in server.names(f"{prefix}/two/train") if name.endswith("checkpoint.json")])
    first.ctrl_c()
    assert first.end() == 130, first.text()
    reached = max(json.loads(line)["epoch"] for line in server.read(f"{prefix}/two/history.jsonl").splitlines())
    second = start("run", "--resume", "two", *ray)
    second.until(lambda: re.search(r"epoch (\d+)/4000", second.text()))
    (further, *_) = re.findall(r"epoch (\d+)/4000", second.text())
    assert int(further) >= reached
    second.until(lambda: int(re.findall(r"epoch (\d+)/4000", second.text())[-1]) > reached)
    second.ctrl_c()
    assert second.end() == 130, second.text()

    for verb in ([], ["plan"]):
        refused = start(*verb, *SWEEP[:-1], "pbt", "epochs=8", "--trials", "4", *ray)
        assert refused.end() == 3, refused.text()
        assert "--scheduler pbt reads the trials' folders while they run: got 2 nodes" in refused.text()


@pytest.mark.faults
@pytest.mark.long
def test_start_state_and_weights_reach_nodes_without_a_shared_folder(
    far_cluster: str, server: Server, prefix: str, start: Start
) -> None:
    """The state of another run (--from) and the weights of its model (init=) reach the nodes by the storage."""
    ray = ["--ray-address", far_cluster]

    def history(*words: str, name: str) -> dict[int, float]:
        command = start("run", *words, "--name", name, *ray)
        assert command.end() == 0, command.text()
        rows = [json.loads(line) for line in server.read(f"{prefix}/{name}/history.jsonl").splitlines()]
        return {row["epoch"]: row["validation/error"] for row in rows}

    history("toy", "epochs=4", "refit=false", name="first")
    whole = history("toy", "epochs=8", "refit=false", name="whole")
    longer = history("--from", "first", "epochs=8", name="longer")
    assert set(longer) >= {5, 6, 7, 8}
    assert {epoch: longer[epoch] for epoch in (5, 6, 7, 8)} == {epoch: whole[epoch] for epoch in (5, 6, 7, 8)}
    assert server.names(f"{prefix}/longer/start/state") >= {"checkpoint.json"}

    warm = start(*SWEEP, "init=first", "epochs=3", "--trials", "2", "--concurrency", "2", "--name", "warm", *ray)
    assert warm.end() == 0, warm.text()
    assert "Starts from the weights of first" in warm.text()
    assert server.names(f"{prefix}/warm/start/weights") >= {"config.json", "weights.safetensors"}


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("s3://no-such-bucket/x", "there is no such bucket"),
        ("s3://key:secret@experiments/x", "contains a password"),
    ],
)
@pytest.mark.usefixtures("third_party")
def test_unusable_storage_is_refused_in_one_line_without_secrets(storage: str, said: str, home: Path) -> None:
    run = typed(home, "run", "toy", "--local", "--storage", storage)
    assert run.returncode == (2 if "@" in storage else 3)
    (line,) = (run.stdout + run.stderr).splitlines()
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize("mute", [False, True], ids=["refused", "mute"])
def test_unreachable_s3_endpoint_raises_user_error_without_hanging(mute: bool, home: Path, door: Door) -> None:
    door.shut(mute=mute)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be used: (nothing answers|no answer)"):
        remote.Remote(f"s3://{BUCKET}/x").check()
    assert remote.CHECK_SECONDS <= 5
    assert time.monotonic() - begun < HANG_SECONDS
