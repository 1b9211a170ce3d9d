"""Runs are found by ``latest``, by id and by MLflow run, and a damaged record does not hide other runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from orchestrator.errors import UNAVAILABLE, USAGE, UserError
from orchestrator.storage import records, run_lookup
from orchestrator.storage.records import RunFolder


def create(storage: Path, kind: Any = "run") -> RunFolder:
    return records.create(storage, kind, "toy", {"seed": 1}, "orchestrator run toy")


def older(folder: RunFolder, seconds: int) -> RunFolder:
    file = folder.path / "record.json"
    os.utime(file, (file.stat().st_mtime - seconds,) * 2)
    return folder


def test_latest_is_the_newest_of_its_kind(tmp_path: Path) -> None:
    run, sweep = older(create(tmp_path, "run"), 20), older(create(tmp_path, "sweep"), 10)
    newest = create(tmp_path, "run")
    assert [folder.id for folder in run_lookup.folders(tmp_path)] == [newest.id, sweep.id, run.id]
    assert run_lookup.find(tmp_path, "latest").id == newest.id
    assert run_lookup.find(tmp_path, "latest", "sweep").id == sweep.id
    assert [folder.id for folder in run_lookup.folders(tmp_path, "run")] == [newest.id, run.id]


def test_a_name_is_found_without_a_look_at_the_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = create(tmp_path), create(tmp_path)
    stat = os.stat

    def seen(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        assert other.id not in str(path), "a storage may have many runs, and a network file system is slow"
        return stat(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", seen)
        assert run_lookup.find(tmp_path, folder.id).id == folder.id


def test_run_is_found_by_its_mlflow_run_id(tmp_path: Path) -> None:
    folder = create(tmp_path)
    create(tmp_path)
    run_id = uuid4().hex
    folder.update(run_id=run_id)
    assert run_lookup.find(tmp_path, run_id).id == folder.id
    with pytest.raises(UserError, match=f"Unknown run or sweep: got '{run_id[::-1]}'"):
        run_lookup.find(tmp_path, run_id[::-1])


def test_error_of_an_unknown_id_suggests_the_nearest_id(tmp_path: Path) -> None:
    folder = create(tmp_path)
    typo = folder.id[:-1]
    with pytest.raises(UserError) as caught:
        run_lookup.find(tmp_path, typo, "run")
    assert str(caught.value) == (f"Unknown run: got '{typo}'; allowed: latest, {folder.id}. Did you mean {folder.id}?")
    assert caught.value.code == USAGE


def test_lookup_of_an_unknown_id_opens_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        records.create(tmp_path, "run", "toy", {}, "orchestrator run toy", name=f"toy-{n}")
    sweep = records.create(tmp_path, "sweep", "toy", {}, "orchestrator sweep toy", name="toy-sweep")
    opened: list[Path] = []

    def count(path: Path) -> RunFolder:
        opened.append(path)
        return open_folder(path)

    open_folder = records.open_folder
    monkeypatch.setattr(run_lookup, "open_folder", count)
    assert run_lookup.find_here(tmp_path, "toy-20") is None
    assert not opened
    with pytest.raises(UserError, match=r"allowed: latest, toy-.*\. Did you mean toy-sweep\?"):
        run_lookup.find(tmp_path, "toy-swep")
    assert len(opened) <= 6
    with pytest.raises(UserError, match=rf"allowed: latest, {sweep.id}\. Did you mean toy-sweep\?"):
        run_lookup.find(tmp_path, "toy-1s", "sweep")


def test_sweep_is_refused_where_a_run_is_required(tmp_path: Path) -> None:
    folder = create(tmp_path, "sweep")
    here = f"{folder.id} --storage {tmp_path}"
    fix = f"Try: orchestrator status {here}, or orchestrator sweep --resume {here}."
    message = f"{folder.id} is a sweep, not a run. {fix}"
    with pytest.raises(UserError, match=re.escape(message)):
        run_lookup.find(tmp_path, folder.id, "run")
    with pytest.raises(UserError, match="There is no run yet"):
        run_lookup.find(tmp_path, "latest", "run")


def test_latest_in_an_empty_storage_raises_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"There is no sweep yet: got 'latest'. Looked in {tmp_path}/none"):
        run_lookup.find(tmp_path / "none", "latest", "sweep")


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]", "{}"])
def test_damaged_record_raises_user_error(content: str, tmp_path: Path) -> None:
    folder = create(tmp_path)
    (folder.path / "record.json").write_text(content)
    with pytest.raises(UserError, match=f"record of {folder.path} is damaged"):
        run_lookup.find(tmp_path, folder.id)


def test_record_without_read_permission_is_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proposed fix must not be to remove another user's run."""
    folder = create(tmp_path)

    def denied(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    message = f"The record {folder.path}/record.json cannot be read: got Permission denied. Get the right to read it."
    with pytest.raises(UserError, match=f"^{message}$") as caught:
        run_lookup.find(tmp_path, folder.id)
    assert caught.value.code == UNAVAILABLE


def test_record_of_another_format_raises_user_error(tmp_path: Path) -> None:
    folder = create(tmp_path)
    folder.update(format=99)
    with pytest.raises(UserError, match="another format: got 99; allowed: 1"):
        run_lookup.find(tmp_path, folder.id)


def test_damaged_record_does_not_hide_other_runs(tmp_path: Path) -> None:
    healthy = older(create(tmp_path), 10)
    (create(tmp_path).path / "record.json").write_text("{")
    assert run_lookup.find(tmp_path, healthy.id).id == healthy.id
    assert run_lookup.find(tmp_path, "latest").id == healthy.id


def test_run_without_read_permission_does_not_hide_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, private = older(create(tmp_path), 10), create(tmp_path)
    stat = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if private.id in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(run_lookup.os, "stat", refuse)
    assert [folder.id for folder in run_lookup.folders(tmp_path)] == [own.id]
    assert run_lookup.find(tmp_path, "latest").id == own.id
