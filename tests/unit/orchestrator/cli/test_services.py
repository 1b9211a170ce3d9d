"""Commands that ``submit`` refuses before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UNAVAILABLE, USAGE
from tests.support.commands import typed


def test_submitted_promotion_without_the_gates_of_the_home_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = ("submit", "--address", "http://127.0.0.1:9", "--", "promote", "rec", "--to", "champion")
    assert typed(home, *submit).returncode == UNAVAILABLE, "nothing answers at the address"
    home.mkdir(exist_ok=True)
    (home / "gates.yaml").write_text("default: {size_mb: 500}\n")
    done = typed(home, *submit)
    assert done.returncode == USAGE
    assert f"does not read the gates in the home of this machine: got {home / 'gates.yaml'}." in done.stderr
    assert typed(home, *submit, "--gates=gates.yaml").returncode == UNAVAILABLE
    assert typed(home, *submit, "--force", "--reason", "test").returncode == UNAVAILABLE
    monkeypatch.setenv("ORCHESTRATOR_GATES", str(home / "gates.yaml"))
    assert typed(home, *submit).returncode == UNAVAILABLE, "the variable is passed to the job"
