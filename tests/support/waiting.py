"""Waiting for what another thread or process does. A limit bounds a hang; it is never what is tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 120.0
"""After so long a test has hung, on a machine with ten times the work that it has cores for as well."""

FOR_EVER = 3600.0
"""For a limit that nothing may wait for, and a wait that nothing may last for: pytest ends the test first."""


def until(condition: Callable[[], Any], seconds: float = HANG_SECONDS, pause: float = 0.01) -> Any:
    """The first true value of ``condition()``, which is asked for every ``pause`` seconds.

    Raises AssertionError after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(pause)
    return value
