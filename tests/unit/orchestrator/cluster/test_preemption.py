"""The end of a local cluster, which a signal to the whole process group causes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cluster import leftovers, preemption
from orchestrator.cluster.interrupts import Interrupts
from orchestrator.console import Console

PART = [sys.executable, "-c", "print(flush=True); input()"]


@pytest.mark.parametrize(("seconds", "signalled"), [(1, True), (600, True), (1, False)])
def test_a_part_of_the_local_cluster_ends_with_a_signal(
    seconds: float, signalled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(preemption.time, "monotonic", lambda: now[0])
    interrupts = Interrupts(tmp_path / "stop", Console())
    with leftovers.marked():
        part = subprocess.Popen(PART, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with part:
        assert part.stdout is not None
        part.stdout.readline()
        ends = preemption.local_cluster_ends(interrupts)
        interrupts.signalled = True
        assert not ends()
        interrupts.signalled = False
        part.kill()
        part.wait()
        assert not ends(), "without a signal only the end of the control store is the cluster's"
        now[0] += seconds
        interrupts.signalled = signalled
        assert ends() == (signalled and seconds == 1)
