"""Put the folder of the benchmarks on the module path, so that tests import them as the benchmarks' commands do."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return folder
