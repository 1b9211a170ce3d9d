"""The numbers of trials that the soak accepts."""

from __future__ import annotations

import sys

import pytest


def test_too_few_trials_are_refused_before_the_cluster_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import soak

    monkeypatch.setattr(soak, "cluster", lambda: pytest.fail("the cluster was started"))
    monkeypatch.setattr(sys, "argv", ["soak.py", "--trials", "55"])
    with pytest.raises(SystemExit, match="2"):
        soak.main()
    assert "--trials must be above 55" in capsys.readouterr().err
