"""Wait for another thread or process. Limits only bound hangs; tests never depend on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 120.0
"""Seconds after which a test counts as hung, also on a machine with load 10 per core."""

FOR_EVER = 3600.0
"""A limit that is never reached: pytest ends the test first."""


def until(
    condition: Callable[[], Any],
    seconds: float = HANG_SECONDS,
    *,
    pause: float = 0.01,
    why: Callable[[], object] = str,
) -> Any:
    """Return the first true value of ``condition()``, called every ``pause`` seconds.

    Raises AssertionError with ``why()`` after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {why()}"
        time.sleep(pause)
    return value
