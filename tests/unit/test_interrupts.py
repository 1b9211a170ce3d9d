"""Ctrl-C and a pipe's end: what they come into may make something else of them, and the exit code tells the truth."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from orchestrator import interrupts
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, INTERRUPTED, Interrupted, UserError
from orchestrator.exits import guarded
from orchestrator.interrupts import Interrupts
from tests.waiting import until


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Of signals, as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def import_numpy() -> None:
    """As an extension's import does it, in C: whatever went wrong is an ImportError."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("numpy.core.multiarray failed to import") from None


def wait_for_a_thread() -> None:
    """As ``threading.Event.wait`` does it, which gives its lock back and has not got it again."""
    lock = threading.Lock()
    with lock:
        lock.release()
        signal.raise_signal(signal.SIGINT)


def refuse() -> None:
    try:
        import_numpy()
    except ImportError as error:
        raise UserError("The search space can not be loaded", got=str(error)) from None


def stop_cleanly() -> None:
    try:
        import_numpy()
    except ImportError:
        raise Interrupted("orchestrator run --resume one") from None


@pytest.mark.parametrize("call", [lambda: signal.raise_signal(signal.SIGINT), import_numpy, wait_for_a_thread, refuse])
def test_ctrl_c_is_130_whatever_became_of_it(call: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(call) == INTERRUPTED
    assert capsys.readouterr().err == ""


def test_the_command_that_goes_on_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(stop_cleanly) == INTERRUPTED
    assert "Go on with: orchestrator run --resume one" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_press_that_a_destructor_swallowed_is_heard_by_what_comes_next(tmp_path: Path) -> None:
    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def command() -> int:
        Swallows()
        with Interrupts(tmp_path / "stop", Console()) as heard:
            return INTERRUPTED if heard.asked() else DONE

    assert guarded(command) == INTERRUPTED
    assert (tmp_path / "stop").exists()


def test_an_error_without_ctrl_c_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ImportError("numpy is too old\nsee below")

    assert guarded(broken) == FAILED
    assert capsys.readouterr().err.startswith("failed: ImportError: numpy is too old (a fault of ours; ")


def test_what_was_started_to_ignore_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGINT)) == DONE
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as the handler sees it."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return now


def test_once_stops_and_twice_ends(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Interrupts(tmp_path / "stop", Console()) as heard:
        assert not heard.asked()
        for _ in range(2):  # a wrapper in the terminal's group hands the same press on
            signal.raise_signal(signal.SIGINT)
            assert heard.asked()
            assert (tmp_path / "stop").exists()
        assert ended == []
        assert capsys.readouterr().out.count("Once more to end at once") == 1
        clock[0] += interrupts.ONE_PRESS_SECONDS
        signal.raise_signal(signal.SIGTERM)
        assert ended == [INTERRUPTED]


def test_a_press_in_the_middle_of_a_line_is_no_failure(tmp_path: Path) -> None:
    """As on a terminal that is slow: the signal comes into a write, and Python takes no other one to that stream."""
    script = f"""if True:
        from pathlib import Path
        from orchestrator.console import Console
        from orchestrator.interrupts import Interrupts
        console = Console()
        with Interrupts(Path({str(tmp_path / "stop")!r}), console) as heard:
            while not heard.asked():
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
            """It has work for ever, so it sleeps only where the pipe has no room for what it writes."""
            return waiting_in(pipe) >= room - 1000 and state() == psutil.STATUS_SLEEPING

        until(in_a_line)
        process.send_signal(signal.SIGINT)
        until((tmp_path / "stop").exists)
        until(in_a_line)
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"{output}{errors}".count("Once more to end at once") == 1


def waiting_in(pipe: IO[str]) -> int:
    """Bytes that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_reader_who_has_seen_enough_is_no_failure() -> None:
    words = "from orchestrator import cli; cli.main()"
    with subprocess.Popen(
        [sys.executable, "-c", words, "workloads", "recommender"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (DONE, b"")
