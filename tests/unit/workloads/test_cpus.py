"""The number of CPUs of a process in a container with a quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workloads import cpus


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 16),
        ("9900000 100000", 16),
        ("", 16),
    ],
)
def test_usable_cpus_follow_the_cgroup_2_quota_of_a_container(
    text: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(cpus, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cpus, "QUOTA_1", (tmp_path / "quota", tmp_path / "period"))
    assert cpus.usable_cpus() == 16
    (tmp_path / "cpu.max").write_text(text)
    assert cpus.usable_cpus() == number


@pytest.mark.parametrize(("quota", "number"), [("300000", 3), ("-1", 16)])
def test_usable_cpus_follow_the_cgroup_1_quota(
    quota: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(cpus, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cpus, "QUOTA_1", (tmp_path / "quota", tmp_path / "period"))
    (tmp_path / "quota").write_text(quota)
    (tmp_path / "period").write_text("100000")
    assert cpus.usable_cpus() == number
