"""Notifications to a webhook or command about starts, ends, failures, budgets and gates.

A failed delivery never affects the run. Messages are sent in a separate thread, with short timeouts; those that could
not be delivered become one line in a log.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from orchestrator.errors import UserError

Kind = Literal["start", "finish", "failure", "budget", "gate"]

COMMAND = "cmd:"
TRIES = 3
TRY_SECONDS = 5.0
PAUSE_SECONDS = 0.5
"""Seconds before the second attempt; twice as long before the third."""
NO_ANSWER = "did not answer in time"
CLOSE_SECONDS = 3.0
"""Seconds that the end waits for messages that are being sent."""


class Notifier:
    """Sends messages to ``target``, a URL or ``cmd: PROGRAM WORDS``; None sends nothing. Nothing here raises.

    ``about`` is part of every message: ``id``, ``kind``, ``workload``.
    """

    def __init__(self, target: str | None, about: Mapping[str, Any]) -> None:
        self._target = target
        self._about = dict(about)
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._undelivered: list[dict[str, Any]] = []
        self._cause = NO_ANSWER
        self._closing = threading.Event()
        self._closed = False
        self._starting = threading.Lock()  # held while an attempt begins: after the close none does
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def send(self, event: Kind, status: str, message: str, **more: Any) -> None:
        """Queue a message. ``more``: further fields of the event; those that are None are left out."""
        if self._target is None:
            return
        given = {name: value for name, value in more.items() if value is not None}
        # ``text`` is where chat services look for the sentence.
        body = {"event": event, **self._about, "status": status, "message": message, "text": message, **given}
        body["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._undelivered.append(body)
        self._queue.put(body)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(self._target,), name="notify", daemon=True)
            self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> str | None:
        """Wait a little for messages that are being sent. Returns a line about undelivered ones.

        A command that still runs is killed. Nothing is started or sent afterwards.
        """
        if self._target is None or self._thread is None:
            return None
        self._closing.set()
        self._queue.put(None)
        self._thread.join(seconds)
        with self._starting:
            self._closed = True
        if self._thread.is_alive():
            self._cause = NO_ANSWER
            if self._child:
                _kill(self._child)
        if not self._undelivered:
            return None
        events = ", ".join(body["event"] for body in self._undelivered)
        return f"Not notified of {events}: {describe(self._target)} {self._cause}"

    def _work(self, target: str) -> None:
        while (body := self._queue.get()) is not None:
            if self._deliver(target, json.dumps(body, default=str).encode()):
                self._undelivered.remove(body)

    def _deliver(self, target: str, body: bytes) -> bool:
        for attempt in range(TRIES):
            try:
                if target.startswith(COMMAND):
                    self._call(shlex.split(target.removeprefix(COMMAND)), body)
                else:
                    self._check_open()
                    _post(target, body)
                return True
            except Exception as error:  # of any kind: training continues
                cause, again = _cause(error)
            if self._closed:  # it was killed, or took too long
                break
            self._cause = cause
            if not again:
                break
            if attempt < TRIES - 1:
                self._closing.wait(PAUSE_SECONDS * 2**attempt)
        return False

    def _call(self, words: list[str], body: bytes) -> None:
        quiet = subprocess.DEVNULL
        with self._starting:
            self._check_open()
            self._child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
            )  # in its own session, so that Ctrl-C does not reach it
        try:
            self._child.communicate(body, TRY_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(self._child)
            raise
        if self._child.returncode:
            raise subprocess.CalledProcessError(self._child.returncode, words[0])

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the notifier is closed")


def check(target: str) -> str:
    """The target as :class:`Notifier` expects it. Raises UserError without the target, which may be secret."""
    target = target.strip()
    try:
        if target.startswith(COMMAND):
            good = bool(shlex.split(target.removeprefix(COMMAND)))
        else:
            parts = urlsplit(target)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            good = good and "@" not in parts.netloc  # a user, or a password without one
    except ValueError:
        good = False
    if not good:
        raise UserError(
            "The setting notify is not valid",
            allowed="http(s)://HOST/PATH without a user, or 'cmd: PROGRAM WORDS' in quotes",
        )
    return target


def describe(target: str) -> str:
    """The target without its path and arguments, which may be secret."""
    if target.startswith(COMMAND):
        return f"the command {os.path.basename(shlex.split(target.removeprefix(COMMAND))[0])}"
    parts = urlsplit(target)
    return f"the webhook at {parts.scheme}://{parts.netloc}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST would arrive as a GET, without its message."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=TRY_SECONDS):
        pass


def _cause(error: Exception) -> tuple[str, bool]:
    """Why a delivery failed, and whether to retry. Never the error's text, which may contain the address."""
    if isinstance(error, urllib.error.HTTPError):
        return f"answers {error.code}", error.code >= 500 or error.code in (408, 429)
    if isinstance(error, subprocess.CalledProcessError):
        return f"ends with {error.returncode}", True
    if isinstance(error, FileNotFoundError | PermissionError):
        return "cannot be started", False
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError | subprocess.TimeoutExpired):
        return NO_ANSWER, True
    return "cannot be reached", True


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a command and everything it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
