"""Ctrl-C, SIGTERM, a closed pipe and a lost node: orderly stops, recorded ends and correct exit codes."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil
import pytest

from orchestrator.cli.exit_codes import guarded
from orchestrator.cluster import interrupts
from orchestrator.cluster.interrupts import Interrupts, keep_sigterm_handler
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, INTERRUPTED, Interrupted, UserError
from tests.support.waiting import FOR_EVER, HANG_SECONDS, until


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Check that each test leaves the signal handlers unchanged."""
    before = {number: signal.getsignal(number) for number in interrupts.DEFAULTS}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def import_numpy() -> None:
    """An import like that of a C extension, which turns any error into an ImportError."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("numpy.core.multiarray failed to import") from None


def wait_for_a_thread() -> None:
    """A wait like ``threading.Event.wait``, interrupted after the release of its lock and before it is regained."""
    lock = threading.Lock()
    with lock:
        lock.release()
        signal.raise_signal(signal.SIGINT)


def refuse() -> None:
    try:
        import_numpy()
    except ImportError as error:
        raise UserError("The search space cannot be loaded", got=str(error)) from None


def stop_cleanly() -> None:
    try:
        import_numpy()
    except ImportError:
        raise Interrupted("orchestrator run --resume one") from None


@pytest.mark.parametrize("call", [lambda: signal.raise_signal(signal.SIGINT), import_numpy, wait_for_a_thread, refuse])
def test_ctrl_c_exits_with_130_even_if_it_became_another_error(
    call: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(call) == INTERRUPTED
    assert capsys.readouterr().err == ""


def test_interrupted_error_prints_the_command_that_continues(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(stop_cleanly) == INTERRUPTED
    assert "Continue with: orchestrator run --resume one" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_swallowed_by_a_destructor_still_requests_a_stop(tmp_path: Path) -> None:
    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def command() -> int:
        Swallows()
        with Interrupts(tmp_path / "stop", Console()) as heard:
            return INTERRUPTED if heard.stop_requested() else DONE

    assert guarded(command) == INTERRUPTED
    assert (tmp_path / "stop").exists()


def test_sigterm_before_a_session_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGTERM)) == INTERRUPTED
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == ""


def test_import_error_without_ctrl_c_exits_as_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ImportError("numpy is too old\nsee below")

    assert guarded(broken) == FAILED
    assert capsys.readouterr().err.startswith("failed: ImportError: numpy is too old (a bug of orchestrator; ")


def test_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGINT)) == DONE
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time of the signal handler, in a list of one element."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return now


def test_first_signal_requests_a_stop_and_second_ends_the_process(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Interrupts(tmp_path / "stop", Console()) as heard:
        assert not heard.stop_requested()
        for _ in range(2):  # a wrapper in the terminal's process group forwards the same key press
            signal.raise_signal(signal.SIGINT)
            assert heard.stop_requested()
            assert (tmp_path / "stop").exists()
        assert ended == []
        clock[0] += interrupts.ONE_PRESS_SECONDS
        signal.raise_signal(signal.SIGTERM)
        assert ended == [INTERRUPTED]
    assert capsys.readouterr().out.count("Press Ctrl-C again") == 1


def test_ctrl_c_while_the_console_is_locked_does_not_hang(tmp_path: Path) -> None:
    """The main thread holds a lock that the message about the stop needs, as while it prints a line.

    In a command, the thread of the live view may hold such a lock too.
    """
    lock = threading.Lock()
    said: list[str] = []

    class Locked(Console):
        def say(self, text: str = "") -> None:
            assert lock.acquire(timeout=60)
            said.append(text)
            lock.release()

    with Interrupts(tmp_path / "stop", Locked()) as heard, lock:
        signal.raise_signal(signal.SIGINT)
        assert heard.stop_requested()
        assert said == []
    assert said == [interrupts.STOPPING]


def test_second_ctrl_c_ends_a_command_and_raises_outside_of_a_command(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)

    def press_twice() -> None:
        with Interrupts(tmp_path / "stop", Console()):
            signal.raise_signal(signal.SIGINT)
            clock[0] += interrupts.ONE_PRESS_SECONDS
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert ended == []
    assert guarded(press_twice) == DONE, "os._exit, which does not return, was replaced"
    assert ended == [INTERRUPTED]


@pytest.mark.parametrize("number", interrupts.DEFAULTS)
def test_signal_is_recorded_once_by_a_thread_other_than_main(number: int, tmp_path: Path, clock: Any) -> None:
    recorded: list[threading.Thread] = []
    done = threading.Event()

    def record() -> None:
        recorded.append(threading.current_thread())
        done.set()

    with Interrupts(tmp_path / "stop", Console(), record):
        signal.raise_signal(number)
        assert done.wait(60)
        signal.raise_signal(number)  # the same press
    assert recorded != [threading.main_thread()]
    assert len(recorded) == 1


def test_signal_is_recorded_while_the_main_thread_is_in_a_c_call(tmp_path: Path) -> None:
    """The C call may be one of PyTorch, or of Ray while it connects: only another thread can notice the signal."""
    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    causes: list[str] = []

    def free(cause: str) -> None:
        causes.append(cause)
        libc.pthread_mutex_unlock(mutex)

    late = threading.Timer(60, free, ["too late"])
    with Interrupts(tmp_path / "stop", Console(), lambda: free("recorded")):
        libc.pthread_mutex_lock(mutex)
        late.start()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        libc.pthread_mutex_lock(mutex)  # until another thread unlocks it
    late.cancel()
    assert causes == ["recorded"]


def say_and_sleep(pipe: Any) -> None:
    pipe.send("ready")
    time.sleep(FOR_EVER)


@pytest.mark.parametrize("number", interrupts.DEFAULTS)
def test_signal_to_a_forked_process_does_not_stop_the_parent(number: int, tmp_path: Path) -> None:
    recorded: list[str] = []
    with Interrupts(tmp_path / "stop", Console(), lambda: recorded.append("stop")) as heard:
        ready, send = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=say_and_sleep, args=(send,), daemon=True)
        child.start()
        assert child.pid is not None
        assert ready.recv()
        os.kill(child.pid, number)
        if number == signal.SIGINT:  # a terminal sends SIGINT to all its processes; only the parent handles it
            child.join(0.3)
            assert child.is_alive()
            child.terminate()
        child.join(HANG_SECONDS)
        assert child.exitcode == -(signal.SIGTERM if number == signal.SIGINT else number)
        assert not heard.stop_requested()
    assert recorded == []


def test_a_process_under_nohup_goes_on_when_its_terminal_closes(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(tmp_path / "stop", Console()) as heard:
            signal.raise_signal(signal.SIGHUP)
            assert not heard.stop_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_requests_a_stop_without_a_writable_folder(tmp_path: Path) -> None:
    with Interrupts(tmp_path / "gone" / "stop", Console()) as heard:
        signal.raise_signal(signal.SIGTERM)
        assert heard.stop_requested()


def test_without_a_free_thread_the_limit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stopped = Interrupts(tmp_path / "stop", Console())
    with pytest.raises(RuntimeError, match="can't start new thread"):
        stopped.__enter__()
    stopped.end_recording()
    stopped.__exit__(None, None, None)


def test_without_a_signal_nothing_is_recorded_and_no_thread_stays(tmp_path: Path) -> None:
    recorded: list[str] = []
    with Interrupts(tmp_path / "stop", Console(), lambda: recorded.append("interrupted")) as heard:
        thread = heard._recorder
        (tmp_path / "stop").touch()  # as ``orchestrator stop`` does, which sends no signal
        assert heard.stop_requested()
    assert recorded == []
    assert thread is not None
    assert not thread.is_alive()


def test_second_signal_ends_the_process_after_the_first_is_recorded(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()
    steps: list[str] = []

    def record() -> None:
        assert going.wait(60)
        steps.append("recorded")

    def end(code: int) -> None:
        steps.append(f"ended with {code}")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(interrupts, "RECORD_SECONDS", 60)
    (tmp_path / "stop").touch()
    with Interrupts(tmp_path / "stop", Console(), record) as heard:
        assert heard.stop_requested()
        signal.raise_signal(signal.SIGTERM)
        assert steps == [], "a signal after a stop by another command is the first signal"
        clock[0] += interrupts.ONE_PRESS_SECONDS
        going.set()
        signal.raise_signal(signal.SIGTERM)
    assert steps == ["recorded", f"ended with {INTERRUPTED}"]


def ray_init(*signals: int) -> None:
    """Install a SIGTERM handler as the start of Ray's ``init`` does; then raise the ``signals``."""

    def handle(number: int, frame: Any) -> None:
        sys.exit(number)

    signal.signal(signal.SIGTERM, handle)
    for number in signals:
        signal.raise_signal(number)


def test_sigterm_handler_is_restored_after_ray_init(tmp_path: Path) -> None:
    with Interrupts(tmp_path / "stop", Console()) as heard:
        with keep_sigterm_handler():
            ray_init()
        signal.raise_signal(signal.SIGTERM)
        assert heard.stop_requested()


def test_sigterm_during_ray_init_requests_a_stop(tmp_path: Path) -> None:
    recorded = threading.Event()
    with Interrupts(tmp_path / "stop", Console(), recorded.set) as heard:
        with pytest.raises(KeyboardInterrupt), keep_sigterm_handler():
            ray_init(signal.SIGTERM)
        assert heard.stopped
        assert recorded.wait(60)
        assert signal.getsignal(signal.SIGTERM) == heard._handle


def test_sigterm_during_ray_init_without_a_session_raises_system_exit() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit), keep_sigterm_handler():
            ray_init(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("in_main", [True, False])
@pytest.mark.parametrize(("signal_of", "said"), [("this_node", "taken away"), ("this_node_is_dead", "has died")])
def test_a_driver_whose_node_is_taken_away_or_dead_stops_without_a_signal(
    signal_of: str,
    said: str,
    in_main: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from orchestrator.cluster import preemption

    answers = iter([False, ConnectionError("the cluster does not answer"), True])

    def leaves() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recorded = threading.Event()

    def drive() -> None:
        stop = Interrupts(tmp_path / "stop", Console(), recorded.set)
        with stop as heard, preemption.stop_with_node(heard, "resume"):
            assert recorded.wait(60)
            while not heard.stop_requested():
                time.sleep(0.01)

    monkeypatch.setattr(preemption, "POLL_SECONDS", 0.01)
    for name in ("this_node", "this_node_is_dead"):
        monkeypatch.setattr(preemption, name, lambda name=name: leaves if name == signal_of else lambda: False)
    driver = threading.Thread(target=drive)
    if in_main:
        drive()
    else:
        driver.start()
        driver.join(60)
    assert (tmp_path / "stop").exists()
    assert said in capsys.readouterr().out
    assert [thread.name for thread in threading.enumerate() if thread.name in ("leaving", "interrupts")] == []


def test_death_of_this_node_is_polled_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.cluster import polling, preemption

    now, asked = [0.0], []

    def nodes() -> list[dict[str, Any]]:
        asked.append(now[0])
        return [{"NodeID": "other", "Alive": False}, {"NodeID": "here", "Alive": len(asked) < 3}]

    monkeypatch.setattr(polling.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("ray.nodes", nodes)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    dead, answers = preemption.this_node_is_dead(), []
    for _ in range(31):
        answers.append(dead())
        now[0] += 0.5
    assert asked == [5.0, 10.0, 15.0]
    assert answers == [False] * 30 + [True]


def test_ctrl_c_during_a_write_to_a_full_pipe_exits_with_code_0(tmp_path: Path) -> None:
    """The signal interrupts a blocked write, as on a slow terminal; the stream accepts no other write meanwhile."""
    script = f"""if True:
        from pathlib import Path
        from orchestrator.console import Console
        from orchestrator.cluster.interrupts import Interrupts
        console = Console()
        with Interrupts(Path({str(tmp_path / "stop")!r}), console) as heard:
            while not heard.stop_requested():
                console.say("x" * 999)
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        room = fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        pipe, state = process.stdout, psutil.Process(process.pid).status

        def in_a_line() -> bool:
            """The process writes without end, so it sleeps only if the pipe has no room for its output."""
            return waiting_in(pipe) >= room - 1000 and state() == psutil.STATUS_SLEEPING

        until(in_a_line)
        process.send_signal(signal.SIGINT)
        until((tmp_path / "stop").exists)
        until(in_a_line)
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"{output}{errors}".count("Press Ctrl-C again") == 1


def waiting_in(pipe: IO[str]) -> int:
    """The number of unread bytes in the pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_output_pipe_closed_by_the_reader_exits_with_code_0() -> None:
    words = "from orchestrator.cli.app import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", words, "workloads", "recommender"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (DONE, b"")


def test_second_stop_after_the_death_of_ray_does_not_enable_saving(tmp_path: Path) -> None:
    interrupts = Interrupts(tmp_path / "stop", Console())
    interrupts.stop("Ray on the node of this process has died: stopping", saves=False)
    interrupts.stop("Stopping at the end of this epoch and saving.")
    assert interrupts.stop_requested()
    assert not interrupts.saves
