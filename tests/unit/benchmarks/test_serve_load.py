"""The benchmark of requests exits with the server's output if the server ends at the start."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest


@pytest.fixture
def serve_load() -> Any:
    pytest.importorskip("aiohttp")
    import serve_load

    return serve_load


def test_server_that_ends_at_the_start_exits_with_its_output(serve_load: Any) -> None:
    command = [sys.executable, "-c", "raise SystemExit('ray[serve] is missing')"]
    started = time.monotonic()
    with (
        pytest.raises(SystemExit, match=r"does not answer at .*\n.*is missing"),
        serve_load.server(command, serve_load._free_port(), "health"),
    ):
        pass
    assert time.monotonic() - started < serve_load.START_SECONDS / 2
