"""What the program refuses, with one sentence for the user."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.errors import USAGE, UserError


def refused(call: Callable[[], object], *words: str, code: int = USAGE) -> UserError:
    """The error of ``call``: one line, with each of ``words``; ``code`` is the exit code."""
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert caught.value.code == code
    return caught.value
