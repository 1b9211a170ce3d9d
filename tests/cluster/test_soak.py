"""A hundred short trials leak no resources: the code path of ``benchmarks/soak.py``, which runs 500."""

from __future__ import annotations

import subprocess
import sys

from tests.support.commands import ROOT
from tests.support.waiting import HANG_SECONDS


def test_soak_of_100_trials_shows_no_growth_of_resources() -> None:
    """Resident memory, file handles and processes do not grow; no placement group is left."""
    soak = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--trials", "100"]
    done = subprocess.run(soak, capture_output=True, text=True, timeout=HANG_SECONDS * 8)
    print(f"\n{done.stdout}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert "placement groups afterwards: 0" in done.stdout
