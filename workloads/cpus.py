"""The CPUs of a process: its affinity, and the quota of its container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time, or ``max``, in a period of so many (cgroup 2)."""

QUOTA_1 = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
"""The same of cgroup 1, where -1 is no quota."""


def usable_cpus() -> int:
    """Number of CPUs that this process may use, at least 1. A quota is rounded down, as Ray does."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _quota()
    return max(1, min(cpus, quota // period)) if quota > 0 else cpus


def _quota() -> tuple[int, int]:
    """Quota and period; (0, 1) without a quota."""
    with suppress(OSError, ValueError):  # there is no such file, or it says max
        quota, period = map(int, QUOTA.read_text().split())
        return quota, period
    with suppress(OSError, ValueError):
        quota, period = (int(file.read_text()) for file in QUOTA_1)
        return quota, period
    return 0, 1
