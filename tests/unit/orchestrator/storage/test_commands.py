"""Commands that the output suggests find the run in its storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.storage import commands
from orchestrator.storage.settings import resolve


def test_command_for_a_run_in_another_storage_names_the_storage(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands.for_run(home / "storage" / "r1@2", "run --resume") == "orchestrator run --resume r1"
    there = Path("/mnt/a b/r1")
    assert commands.for_run(there, "sync") == "orchestrator sync r1 --storage '/mnt/a b'"
    again = "orchestrator sweep --resume r1 --retry-failed --storage '/mnt/a b'"
    assert commands.for_run(there, "sweep --resume", "--retry-failed") == again
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", "/mnt/a b")
    assert commands.for_run(there, "sync") == "orchestrator sync r1"
    monkeypatch.delenv("ORCHESTRATOR_STORAGE")
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("storage: /mnt/a b\n")
    assert commands.for_run(there, "sync") == "orchestrator sync r1"


def test_a_run_in_an_object_store_is_named_with_its_uri(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = resolve({"storage": "s3://bucket/runs"}).storage / "r1"
    assert commands.for_run(there, "status") == "orchestrator status r1 --storage s3://bucket/runs"
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", "s3://bucket/runs/")
    assert commands.for_run(there, "status") == "orchestrator status r1"


def test_with_a_setting_that_is_not_valid_the_storage_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_STORAGE", "s3:bucket")
    storage = home / "storage"
    assert commands.for_run(storage / "r1", "status") == f"orchestrator status r1 --storage {storage}"


def test_command_that_continues_a_run_is_a_submit_command_in_a_ray_job(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    folder = home / "storage" / "j2"
    assert commands.for_run(folder, "sweep --resume") == "orchestrator submit -- sweep --resume j2"
    assert commands.for_run(folder, "stop") == "orchestrator stop j2"
    there = Path("/mnt/runs/j2")
    assert commands.for_run(there, "sync") == "orchestrator submit -- sync j2 --storage /mnt/runs"
