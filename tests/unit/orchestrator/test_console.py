"""Console output: throughput, time left, the live view, and the log."""

from __future__ import annotations

import contextlib
import io
import threading
from pathlib import Path

import pytest

from orchestrator import console
from orchestrator.console import Console
from tests.support.toy import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


@pytest.fixture
def shown(clock: Clock) -> tuple[Console, io.StringIO]:
    """A console that shows every line, and its output."""
    found, out = Console(every=0.0), io.StringIO()
    found._out = out
    return found, out


def test_throughput_of_units_ending_together_is_measured_since_begin(
    shown: tuple[Console, io.StringIO], clock: Clock
) -> None:
    lines, out = shown
    lines.begin("trial")
    clock.sleep(10.0)
    for done in (1, 2, 3, 4):
        lines.progress(done, 8, "trial")
        clock.sleep(0.01)
    assert out.getvalue().splitlines()[0] == "trial 1/8, 0.1 trials/s, 1 min 10 s left"
    assert out.getvalue().splitlines()[3] == "trial 4/8, 0.399 trials/s, 10 s left"


def test_rate_of_long_units_is_shown_per_hour(shown: tuple[Console, io.StringIO], clock: Clock) -> None:
    lines, out = shown
    lines.begin("trial")
    clock.sleep(1200.0)
    lines.progress(1, 3, "trial")
    lines.progress(1, 3, "trial", "1 running", seconds_left=900.0)
    lines.progress(3, 3, "trial", seconds_left=900.0)
    assert out.getvalue().splitlines() == [
        "trial 1/3, 3 trials/h, 40 min 00 s left",
        "trial 1/3, 3 trials/h, 15 min 00 s left  1 running",
        "trial 3/3, 9 trials/h",
    ]


def test_throughput_excludes_units_done_before_the_start(shown: tuple[Console, io.StringIO], clock: Clock) -> None:
    lines, out = shown
    lines.begin("trial", 6)
    clock.sleep(4.0)
    lines.progress(8, 8, "trial")
    assert out.getvalue() == "trial 8/8, 0.5 trials/s\n"


def test_no_rate_is_shown_in_the_first_half_second(shown: tuple[Console, io.StringIO], clock: Clock) -> None:
    lines, out = shown
    lines.begin("trial")
    clock.sleep(0.5)
    lines.progress(2, 4, "trial")
    assert out.getvalue() == "trial 2/4\n"


def test_throughput_of_each_kind_of_unit_is_timed_separately(shown: tuple[Console, io.StringIO], clock: Clock) -> None:
    """After the trials the winner is refitted. Units without ``begin`` are timed from their first report on."""
    lines, out = shown
    lines.begin("trial")
    clock.sleep(100.0)
    lines.progress(1, 1, "trial")
    for epoch in (2, 6):
        lines.progress(epoch, 8, "refit epoch")
        clock.sleep(2.0)
    assert out.getvalue().splitlines()[1:] == ["refit epoch 2/8", "refit epoch 6/8, 2 refit epochs/s, 1 s left"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> Terminal:
    """Make standard output a terminal. Tests call this themselves, because pytest replaces what a fixture sets."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout", terminal)
    return terminal


def test_lines_are_printed_and_logged_while_the_live_view_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    lines = Console(every=0.0)
    lines.log_to(tmp_path / "log.txt")
    drawn = threading.Event()
    lines.view(lambda: drawn.set() or "[bold]the view")  # type: ignore[func-returns-value]
    try:
        assert drawn.wait(60)
        lines.say("trial 0 complete [1]")
        lines.event("trial 1 started")
        lines.progress(1, 2, "trial")
        lines.table("A table", ["name"], [["value"]])
    finally:
        lines.end_view()
    text = terminal.getvalue()
    assert "trial 0 complete [1]" in text
    assert "A table" in text
    assert "trial 1 started" not in text, "the view shows it"
    assert "\x1b[?25h" in text.rpartition("the view")[2], "the cursor is hidden"
    log = (tmp_path / "log.txt").read_text()
    assert all(line in log for line in ("trial 0 complete [1]", "trial 1 started", "trial 1/2", "A table"))


def test_without_an_output_the_log_has_the_lines(tmp_path: Path) -> None:
    with contextlib.redirect_stdout(None):
        lines = Console()
        lines.log_to(tmp_path / "log.txt")
        lines.say("trial 0 complete")
        lines.table("A table", ["name"], [["value"]])
    assert all(line in (tmp_path / "log.txt").read_text() for line in ("trial 0 complete", "A table"))


def test_a_table_in_a_notebook_is_printed_once_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    lines = Console()
    lines.log_to(tmp_path / "log.txt")
    lines.table("A table", ["name"], [["value"]])
    for text in (capsys.readouterr().out, (tmp_path / "log.txt").read_text()):
        assert (text.count("A table"), text.count("value")) == (1, 1)


def test_a_view_that_fails_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    lines, again = Console(), threading.Event()
    calls: list[int] = []

    def draw() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        again.set()
        return ""

    lines.view(draw)
    try:
        assert again.wait(60)
    finally:
        lines.end_view()


def test_a_dumb_terminal_and_a_pipe_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for out in (on_terminal(monkeypatch, "dumb"), io.StringIO()):
        monkeypatch.setattr("sys.stdout", out)
        lines = Console()
        lines.view(lambda: "the view")
        lines.event("trial 1 started")
        assert out.getvalue() == "trial 1 started\n"


def test_log_is_still_written_when_the_output_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because of a full disk behind the output, a closed terminal or a closed pipe."""

    class Unwritable(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout", Unwritable())
    lines = Console()
    lines.log_to(tmp_path / "log.txt")
    lines.say("epoch 1/2 λ")
    lines.table("trials", ["trial"], [[7]])
    lines.say("the end")
    logged = (tmp_path / "log.txt").read_text("utf-8")
    assert [word in logged for word in ("epoch 1/2 λ", "trials", "7", "the end")] == [True] * 4


def test_wide_characters_count_twice_in_a_table() -> None:
    assert console.aligned([["NAME", "HOURS"], ["山田", "1"], ["ab", "2"]]) == "NAME  HOURS\n山田  1\nab    2"
