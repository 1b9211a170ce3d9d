"""Monitoring of trials: detection of silent trials, and the place of a hang, read from the stack."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.cluster.leftovers import start_of
from orchestrator.runs import heartbeat
from orchestrator.runs.heartbeat import GIVEN_UP, PROCESS, STACK, START_SECONDS, TrialMonitor
from tests.support.toy import Clock
from tests.support.waiting import HANG_SECONDS, until

HUNG = '  File "/x/model.py", line 7 in forward'


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


def began(folder: Path, pid: int = 1, allowance: float = 0.0) -> None:
    """Write the file of a trial's process, which shows that the process has started."""
    about = {"pid": pid, "created": "17", "node": "a", "allowance": allowance}
    (folder / PROCESS).write_text(json.dumps(about))


def later(clock: Clock, watched: TrialMonitor, seconds: float) -> list[int]:
    """Check each second for ``seconds`` seconds and return the trials that are silent at the end."""
    found: dict[int, Path] = {}
    for step in [1.0] * int(seconds) or [seconds]:
        clock.sleep(step)
        found = watched.silent()
    return sorted(found)


def test_trial_without_a_report_within_the_timeout_is_silent(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    began(tmp_path)
    assert later(clock, watched, 2) == []
    assert later(clock, watched, 9) == []
    watched.heard(7)
    assert later(clock, watched, 9) == []
    clock.sleep(2)
    assert watched.silent() == {7: tmp_path}


def test_silence_is_not_judged_right_after_the_driver_was_busy(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    for trial in (1, 2):
        watched.begin(trial, tmp_path)
        watched.heard(trial)
    assert later(clock, watched, 3) == []
    clock.sleep(60)
    assert watched.silent() == {}
    watched.heard(1)
    assert later(clock, watched, 1) == [2]
    clock.sleep(60)
    assert watched.silent() == {}
    clock.sleep(60)
    assert sorted(watched.silent()) == [1, 2], "if the driver is always busy, every other check decides"


def test_wait_for_a_process_does_not_count_as_silence(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    began(tmp_path)  # of an earlier process
    (tmp_path / GIVEN_UP).write_text("no report for 10 s")
    watched.begin(7, tmp_path)
    assert later(clock, watched, 1000) == []
    assert heartbeat.given_up(tmp_path) is None
    began(tmp_path)
    assert later(clock, watched, 5) == []
    assert later(clock, watched, 11) == [7]


def test_ended_trial_is_not_silent(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    watched.heard(7)
    watched.end(7)
    watched.heard(7)
    assert later(clock, watched, 1000) == []


def test_trial_that_begins_again_gets_the_full_timeout(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    watched.heard(7)
    clock.sleep(9)
    watched.begin(7, tmp_path)
    assert later(clock, watched, 9) == []


def test_process_that_replaces_a_dead_one_gets_the_full_timeout(clock: Clock, tmp_path: Path) -> None:
    """The dead process had reported, and its files must not be taken for those of the new process."""
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    began(tmp_path)
    watched.heard(7)
    clock.sleep(9)
    watched.lost(7)
    assert not (tmp_path / PROCESS).exists()
    assert later(clock, watched, 1000) == [], "the trial waits for devices"
    began(tmp_path, pid=2)
    assert later(clock, watched, 1) == later(clock, watched, 9) == []
    assert later(clock, watched, 2) == [7]
    watched.end(7)
    watched.lost(7)
    assert (tmp_path / PROCESS).exists(), "a trial that was given up is not monitored"


def test_group_gets_its_start_allowance_and_its_worker_the_timeout(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    began(tmp_path, allowance=START_SECONDS)
    assert later(clock, watched, 1) == later(clock, watched, START_SECONDS + 9) == []
    assert later(clock, watched, 2) == [7], "no worker has started"
    watched.begin(7, tmp_path)
    began(tmp_path, allowance=START_SECONDS)
    assert later(clock, watched, 1) == []
    began(tmp_path, pid=2)
    assert later(clock, watched, 5) == later(clock, watched, 5) == []
    assert later(clock, watched, 2) == [7]


def test_without_a_timeout_no_trial_is_silent(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(None)
    watched.begin(7, tmp_path)
    began(tmp_path)
    clock.sleep(1e9)
    assert watched.silent() == {}


def test_silent_trials_are_looked_up_at_most_once_a_second(clock: Clock, tmp_path: Path) -> None:
    watched = TrialMonitor(10)
    watched.begin(7, tmp_path)
    watched.heard(7)
    assert later(clock, watched, 11) == [7]
    assert later(clock, watched, 0.5) == []
    assert later(clock, watched, 0.6) == [7]


# Place of a hang


def test_given_up_is_none_for_a_trial_that_was_not_given_up(tmp_path: Path) -> None:
    assert heartbeat.given_up(tmp_path) is None


def test_hang_message_without_a_stack_contains_only_the_time(tmp_path: Path) -> None:
    (tmp_path / GIVEN_UP).write_text("no report for 5 s")
    assert str(heartbeat.given_up(tmp_path)) == "no report for 5 s"
    (tmp_path / STACK).write_text("")
    assert str(heartbeat.given_up(tmp_path)) == "no report for 5 s"


@pytest.mark.slow
def test_hang_place_is_read_from_the_training_thread(tmp_path: Path) -> None:
    """A real dump of a process with two idle threads and a training thread in the workload's own code."""
    code = (
        "import faulthandler, sys, threading, time\n"
        "sys.path.insert(0, {root!r})\n"
        "from orchestrator.config.plan import Plan\n"
        "from orchestrator.engine import loop\n"
        "from workloads.contract import Objective\n"
        "class Hangs:\n"
        "    objective = Objective('error', 'min')\n"
        "    def train_epoch(self, epoch):\n"
        "        dump()\n"
        "def dump():\n"
        "    faulthandler.dump_traceback(open({stack!r}, 'w'), all_threads=True); sys.exit()\n"
        "for _ in range(2):\n"
        "    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
        "next(loop.run_epochs(Hangs(), Plan(epochs=1)))\n"
    )
    root = str(Path(heartbeat.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code.format(root=root, stack=str(tmp_path / STACK))], check=True)
    assert (tmp_path / STACK).read_text().count("hread 0x") == 3
    (tmp_path / GIVEN_UP).write_text("no report for 5 s")
    found = str(heartbeat.given_up(tmp_path))
    assert re.fullmatch(r'no report for 5 s; it hung at File "<string>", line 11 in dump', found)


def test_hung_worker_of_a_group_is_the_one_not_waiting_for_others(tmp_path: Path) -> None:
    package = Path(heartbeat.__file__).parents[1]
    stream = f'  File "{package}/runs/train.py", line 1 in _stream'
    loop = f'  File "{package}/engine/loop.py", line 1 in run_epochs'
    gather = f'  File "/x/torch/distributed/distributed_c10d.py", line 1 in all_reduce\n{loop}\n{stream}'
    reporting = f'  File "/x/ray/get.py", line 1 in get\n{stream}'
    (tmp_path / GIVEN_UP).write_text("no report for 5 s")
    for rank, stack in enumerate((reporting, f"{HUNG}\n{loop}\n{stream}", gather)):
        (tmp_path / ("stack.txt" if rank == 0 else f"stack-{rank}.txt")).write_text(f"Thread 0x1:\n{stack}")
    assert str(heartbeat.given_up(tmp_path)) == f"no report for 5 s; worker 1 hung at {HUNG.strip()}"
    (tmp_path / "stack-1.txt").write_text(f"Thread 0x1:\n{gather}")
    assert "worker 0 hung at" in str(heartbeat.given_up(tmp_path)), "if all wait, the first is named"


def test_workers_waiting_for_devices_are_named_after_the_possibly_hung_one(tmp_path: Path) -> None:
    """With NCCL no frame shows that a worker waits for the others: the last frame is where it reads a value."""
    package = Path(heartbeat.__file__).parents[1]
    loop = f'  File "{package}/engine/loop.py", line 1 in run_epochs'
    reads = '  File "/x/workloads/recommender/epoch_metrics.py", line 80 in metrics'
    (tmp_path / GIVEN_UP).write_text("no report for 5 s")
    for rank, stack in enumerate((reads, reads, HUNG, reads)):
        (tmp_path / ("stack.txt" if rank == 0 else f"stack-{rank}.txt")).write_text(f"Thread 0x1:\n{stack}\n{loop}")
    assert str(heartbeat.given_up(tmp_path)) == (
        "no report for 5 s; one hung and others may have waited for it: "
        f"worker 2 at {HUNG.strip()}; worker 0 and 2 more at {reads.strip()}"
    )


def test_collective_timeout_message_names_the_worker_that_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers may have reached the timeout too, and one may have ended already."""
    package = Path(heartbeat.__file__).parents[1]
    loop = f'  File "{package}/engine/loop.py", line 1 in run_epochs'
    noticed = f'  File "/x/ray/wait.py", line 1 in wait\n  File "{package}/runs/heartbeat.py", line 9 in waited_in_vain'
    stacks = [f"{noticed}\n{loop}", '  File "/x/ray/worker.py", line 1 in main_loop', f"{HUNG}\n{loop}"]
    monkeypatch.setattr(heartbeat, "_on_each_process", lambda folder, signals: [])
    monkeypatch.setattr("ray.wait", lambda calls, **limits: None)
    for rank, stack in enumerate(stacks):
        (tmp_path / ("stack.txt" if rank == 0 else f"stack-{rank}.txt")).write_text(f"Thread 0x1:\n{stack}")
    limit = "no answer from the other workers for 9 s (ORCHESTRATOR_COLLECTIVE_TIMEOUT)"
    assert str(heartbeat.waited_in_vain(tmp_path, 9)) == f"{limit}; worker 2 hung at {HUNG.strip()}"
    (tmp_path / "stack-2.txt").unlink()
    assert str(heartbeat.waited_in_vain(tmp_path, 9)) == limit


def test_files_of_ranks_of_an_earlier_group_are_removed(clock: Clock, tmp_path: Path) -> None:
    """An elastic run may continue with fewer workers."""
    for name in ("process-1.json", "stack-1.txt"):
        (tmp_path / name).write_text("of before")
    TrialMonitor(10).begin(7, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_all_stacks_are_requested_before_a_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of one process ends the others of its group, including the worker that hung."""
    calls: list[tuple[object, ...]] = []

    def on_each_process(folder: Path, signals: object, *arguments: object) -> list[str]:
        calls.append((signals, *arguments))
        return ["of rank 0", "of rank 1"]

    monkeypatch.setattr(heartbeat, "_on_each_process", on_each_process)
    heartbeat.kill(tmp_path, 15)
    assert calls == [(heartbeat._request_stack,), (heartbeat._kill, ["of rank 0", "of rank 1"])]


def test_a_process_writes_its_stack_and_is_killed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    monkeypatch.setattr("ray.wait", lambda stacks, **_: waited.append((stacks, process.poll())))
    code = (
        "import faulthandler, signal, sys, time\n"
        f"faulthandler.register(signal.SIGUSR2, file=open({str(tmp_path / STACK)!r}, 'w'), all_threads=True)\n"
        "print('up', flush=True)\n"
        "time.sleep(3600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    created = start_of(process.pid)
    heartbeat._request_stack(process.pid, f"{created}0")
    heartbeat._kill(process.pid, f"{created}0", ["stack"])
    assert process.poll() is None, "another process with its pid is not killed"
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: 1.0)  # as if the clock was set
    heartbeat._request_stack(process.pid, created)
    until(lambda: "File " in (tmp_path / STACK).read_text())
    heartbeat._kill(process.pid, created, ["stack"])
    assert process.wait(HANG_SECONDS) == -signal.SIGKILL
    assert waited == [(["stack"], None)] * 2
    heartbeat._request_stack(process.pid, created)  # gone already
    heartbeat._kill(process.pid, created, ["stack"])
