"""Questions that are asked of a slow service at intervals only."""

from __future__ import annotations

import time
from collections.abc import Callable


def at_intervals(ask: Callable[[], bool], seconds: float, *, wait: bool = False) -> Callable[[], bool]:
    """Return a function that gives the answer of ``ask``, which it calls at most once in ``seconds`` until it is true.

    With ``wait`` the first call of ``ask`` is ``seconds`` from now; until then the answer is False.
    """
    last = time.monotonic() if wait else -seconds
    answer = False

    def answered() -> bool:
        nonlocal last, answer
        if not answer and time.monotonic() - last >= seconds:
            last = time.monotonic()
            answer = ask()
        return answer

    return answered
