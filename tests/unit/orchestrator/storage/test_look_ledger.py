"""The ledger of looks: no row is lost, doubled or partial with concurrent writers; changes are reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import boto3
import pytest

from orchestrator.storage import conditional, look_ledger, remote
from orchestrator.storage.look_ledger import Look, append, chains, faults, rows
from tests.support.s3 import in_this_process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "storage").mkdir()
    return tmp_path / "storage"


@pytest.fixture
def unconditional(tmp_path: Path) -> Path:
    return remote.mirror_of(f"file://{tmp_path}/bucket", tmp_path / "home")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    with in_this_process() as endpoint:
        for name, value in {**keys, "AWS_ENDPOINT_URL_S3": endpoint}.items():
            monkeypatch.setenv(name, value)
        remote._open.cache_clear()
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="experiments")
        yield remote.mirror_of(f"s3://experiments/{tmp_path.name}", tmp_path / "home")  # moto keeps earlier objects
        remote._open.cache_clear()


@pytest.fixture(params=["folder", "unconditional", pytest.param("s3", marks=pytest.mark.faults)])
def storage(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def look(storage: Path, run: str = "run-1", fingerprint: str | None = "f" * 64) -> Look:
    return Look(storage, "toy", "d1", fingerprint, run, "run", "epochs by error (min) on validation", "s", 0, "me", "h")


def test_each_row_has_the_digest_of_the_previous_row(storage: Path) -> None:
    written = [append(look(storage, f"run-{number}"), epoch=number) for number in range(1, 4)]
    (chain,) = chains(storage)
    assert rows(storage, chain) == written
    assert [row.fields["looks_before"] for row in written] == [0, 1, 2]
    assert [row.fields["previous"] for row in written] == [None, written[0].digest, written[1].digest]
    assert faults(written) == []
    fields = written[2].fields
    assert (fields["run"], fields["epoch"], fields["split"], fields["dataset"]) == ("run-3", 3, "test", "d1")
    assert not {"storage", str(storage)} & set(map(str, fields.values())), "a row must have no local path"


def test_each_dataset_has_a_separate_chain_also_without_a_fingerprint(folder: Path) -> None:
    for fingerprint in ("a" * 64, "b" * 64, None):
        append(look(folder, fingerprint=fingerprint), 1)
    assert len(chains(folder)) == 3
    assert look(folder, fingerprint=None).chain != replace(look(folder, fingerprint=None), dataset="d2").chain


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.faults)])
def test_concurrent_writers_lose_no_row(kind: str, request: pytest.FixtureRequest) -> None:
    storage = request.getfixturevalue(kind)
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(partial(_append, storage), range(24)))
    found = rows(storage, look(storage).chain)
    assert {row.name for row in found} == {row.name for row in written}
    assert len(found) == 24
    assert faults(found) == []


def _append(storage: Path, number: int) -> look_ledger.Row:
    return append(look(storage, f"run-{number}"), 1)


def test_a_writer_that_was_overtaken_takes_the_next_number(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower writer lists the rows before the other one writes."""
    names = look_ledger._Chain.names
    listed = []

    def stale(chain: look_ledger._Chain) -> list[str]:
        listed.append(names(chain))
        if len(listed) == 1:
            append(look(storage, "faster"), 1)
        return listed[0] if len(listed) == 2 else names(chain)

    append(look(storage, "first"), 1)
    with monkeypatch.context() as patch:
        patch.setattr(look_ledger._Chain, "names", stale)
        append(look(storage, "slower"), 1)
    found = rows(storage, look(storage).chain)
    assert {row.fields["run"] for row in found} == {"first", "faster", "slower"}
    assert faults(found) == []


def test_store_with_exclusive_writes_refuses_a_second_row_of_a_name(folder: Path, unconditional: Path) -> None:
    for storage, exclusive in ((folder, True), (unconditional, False)):
        chain = look_ledger._Chain(storage, "c")
        assert chain.exclusive is exclusive
        one, other = look_ledger.Row("000001-a.json", b"{}"), look_ledger.Row("000001-a.json", b"[]")
        chain.create(one)
        if exclusive:
            with pytest.raises(FileExistsError):
                chain.create(other)
            assert rows(storage, "c") == [one]
        assert [file for file in storage.rglob(".*.json*") if file.is_file()] == []


def test_a_lost_answer_makes_no_second_row(unconditional: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is written, but the store's answer does not arrive."""
    location = remote.location_of(unconditional)
    assert location is not None
    chain = location / look_ledger.FOLDER / look(unconditional).chain

    class Deaf:
        def write(self, name: str, content: bytes, tag: str | None) -> str:
            chain.write(name, content)
            raise conditional.Changed(name)

    monkeypatch.setattr(conditional, "objects", lambda location: Deaf())
    row = append(look(unconditional), 1)
    assert rows(unconditional, look(unconditional).chain) == [row]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", ["unconditional", pytest.param("s3", marks=pytest.mark.faults)])
def test_a_store_that_fails_for_a_moment_gets_one_row(
    kind: str, written: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fails twice with a server's error, before or after the object was stored."""
    storage = request.getfixturevalue(kind)
    create = look_ledger._Chain.create
    failures = [OSError("503 Slow Down"), OSError("503 Slow Down")]

    def create_badly(chain: look_ledger._Chain, row: look_ledger.Row) -> None:
        if written or not failures:
            create(chain, row)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(look_ledger, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(look_ledger._Chain, "create", create_badly)
    row = append(look(storage), 1)
    assert rows(storage, look(storage).chain) == [row]
    failures += [OSError("503 Slow Down")] * 3
    if not written:
        with pytest.raises(OSError, match="503"):
            append(look(storage), 2)


def test_probe_for_conditional_writes_leaves_no_objects_in_the_bucket(s3: Path) -> None:
    """This holds too if the threads of many drivers probe at the same time."""
    location = remote.location_of(s3)
    assert location is not None
    below = location / "chain"
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(conditional.reason_without, [below] * 16)) == [None] * 16
    listed = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket="experiments", Prefix=f"{s3.name}")
    assert listed.get("Contents", []) == []


def test_a_writer_that_is_killed_leaves_no_half_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(look(folder), 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            append(look(folder), 2)
    append(look(folder), 3)
    found = rows(folder, look(folder).chain)
    assert [row.fields["epoch"] for row in found] == [1, 3]
    assert faults(found) == []


def change(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"run": "another"}))


@pytest.mark.parametrize(
    ("number", "what", "fault"),
    [
        (1, change, "row 1 is not the one that row 2 follows"),
        (2, change, "row 2 is not the one that row 3 follows"),
        (1, Path.unlink, "row 1 is missing"),
        (2, Path.unlink, "row 2 is missing"),
        (3, lambda file: file.write_text("{"), "row 3 is damaged"),
        (3, lambda file: file.write_text('{"number": 3, "format": 9}'), "row 3 is of another format: 9"),
    ],
)
def test_changed_removed_or_damaged_rows_are_reported(number: int, what: object, fault: str, folder: Path) -> None:
    for epoch in (1, 2, 3):
        append(look(folder), epoch)
    what(folder / ".looks" / look(folder).chain / f"{number:06d}.json")  # type: ignore[operator]
    assert faults(rows(folder, look(folder).chain))[0] == fault


def test_ledger_folders_are_group_writable_and_rows_group_readable(folder: Path) -> None:
    folder.chmod(0o2770)
    before = os.umask(0o077)
    try:
        row = append(look(folder), 1)
    finally:
        os.umask(before)
    for made in (folder / ".looks", folder / ".looks" / look(folder).chain):
        assert made.stat().st_mode & 0o7777 == 0o2770
    assert (made / row.name).stat().st_mode & 0o777 == 0o640, "the next writer must read the row"
