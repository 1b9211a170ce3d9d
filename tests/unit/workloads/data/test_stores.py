"""Datasets in an object store (moto's S3) are copied once, with resumption, and then read as files."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from tests.support.s3 import in_this_process
from workloads.data import DATASETS, check, datasets, default_data_root, fingerprint, load_interactions, stores
from workloads.data.cache import STAGED, staged_path
from workloads.data.errors import CacheUnwritable, DataError, DataUnreachable
from workloads.data.interactions.tables import absolute, read_tables
from workloads.data.source import Dataset, SourceFile
from workloads.recommender.params import Params

TRAIN = "user,item\n" + "".join(f"{user},{item}\n" for user in range(9) for item in range(user + 3))
TEST = "user,item\n" + "".join(f"{user},{user + 3}\n" for user in range(8))


class Bucket:
    def __init__(self, endpoint: str) -> None:
        self.client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint)

    def put(self, **files: str) -> None:
        for name, content in files.items():
            self.client.put_object(Bucket="data", Key=f"sets/own/{name}.csv", Body=content.encode())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with in_this_process() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL_S3": endpoint, "ORCHESTRATOR_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stores, "_staged", set())
    bucket = Bucket(endpoint)
    bucket.client.create_bucket(Bucket="data")
    bucket.put(train=TRAIN, test=TEST)
    yield bucket
    for entry in bucket.client.list_objects_v2(Bucket="data").get("Contents", []):
        bucket.client.delete_object(Bucket="data", Key=entry["Key"])


OWN = "s3://data/sets/own"


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_staged", set())


def test_dataset_in_s3_is_fetched_once_and_read_from_its_copy(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Params(dataset=OWN).dataset == absolute(OWN) == OWN
    data = load_interactions(OWN, Path())
    files = tmp_path / "files"
    files.mkdir()
    (files / "train.csv").write_text(TRAIN)
    (files / "test.csv").write_text(TEST)
    expected = read_tables(files, ("train.csv", "test.csv"))
    assert np.array_equal(data.train, expected.train)
    assert np.array_equal(data.test, expected.test)
    another_process(monkeypatch)
    monkeypatch.setattr(stores, "file_system", lambda *args, **kwargs: pytest.fail("the store was asked again"))
    assert datasets.read(OWN, Path()).n_users == data.n_users
    another_process(monkeypatch)
    monkeypatch.setattr(stores, "file_lock", lambda path: pytest.fail("the copy is complete: no lock is needed"))
    stores.stage(staged_path(OWN))


def test_a_copy_that_was_removed_is_fetched_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    load_interactions(OWN, Path())
    shutil.rmtree(staged_path(OWN))
    another_process(monkeypatch)
    bucket.put(train=TRAIN, test=TEST.replace("0,3", "0,4"))
    assert [0, 4] in load_interactions(OWN, Path()).test.tolist()


def test_fingerprint_depends_on_the_content_and_not_on_the_node(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fingerprint(OWN, Path())
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "another node"))
    assert fingerprint(OWN, Path()) == first
    bucket.put(test=TEST.replace("0,3", "0,4"))
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path / "a third"))
    assert fingerprint(OWN, Path()) != first


def test_a_data_root_is_staged_one_dataset_at_a_time(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Dataset("own", "", "interactions", lambda folder: None, (SourceFile("train.csv", len(TRAIN)),))
    monkeypatch.setattr(datasets, "DATASETS", {**DATASETS, "own": entry})
    bucket.client.put_object(Bucket="data", Key="sets/other/big", Body=b"x")
    monkeypatch.setenv("ORCHESTRATOR_DATA", "s3://data/sets/")
    root = default_data_root()
    assert stores.uri_of(root) == "s3://data/sets"
    check("own", root)
    assert (root / "own" / "train.csv").read_text() == TRAIN
    assert not (root / "other").exists()
    with pytest.raises(DataError, match=r"the data root is an object store, s3://data/sets\. Upload"):
        datasets.fetch("own", root)
    elsewhere = Path("/elsewhere") / root.relative_to(tmp_path)
    assert stores.here(elsewhere) == root
    assert stores.here(tmp_path) == tmp_path


def test_interrupted_copy_resumes_without_fetching_finished_parts_again(
    bucket: Bucket, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is complete, and of one there is a part; both differ from the store, to show that they are kept."""
    folder = staged_path(OWN)
    folder.mkdir(parents=True)
    (folder / "test.csv").write_text("x" * len(TEST))
    times = times_in_store()
    os.utime(folder / "test.csv", ns=(times["test.csv"], times["test.csv"]))
    (folder / f".train.csv.{times['train.csv']}.part").write_text("y" * 20)
    monkeypatch.setattr(stores, "PROGRESS_SECONDS", 0)
    stores.stage(folder)
    assert (folder / "train.csv").read_text() == "y" * 20 + TRAIN[20:]
    assert (folder / "test.csv").read_text() == "x" * len(TEST)
    assert capsys.readouterr().err.splitlines()[-1] == f"{OWN}: 0 of 0 MB, 2 of 2 files"
    assert sorted(os.listdir(folder)) == ["test.csv", "train.csv"]


def test_interrupted_copy_fetches_objects_that_were_replaced_since(bucket: Bucket) -> None:
    """The new objects have the sizes of the old ones; only their times show the change. No old content is kept."""
    folder = staged_path(OWN)
    folder.mkdir(parents=True)
    earlier = times_in_store()["test.csv"] - 10**10
    (folder / "test.csv").write_text("x" * len(TEST))
    os.utime(folder / "test.csv", ns=(earlier, earlier))
    (folder / f".train.csv.{earlier}.part").write_text("y" * 20)
    stores.stage(folder)
    assert (folder / "train.csv").read_text() == TRAIN
    assert (folder / "test.csv").read_text() == TEST
    assert sorted(os.listdir(folder)) == ["test.csv", "train.csv"]
    stores._mark(folder).unlink()
    (folder / "train.csv").write_text("z" * len(TRAIN))
    os.utime(folder / "train.csv", ns=(times_in_store()["train.csv"],) * 2)
    stores._staged.clear()
    stores.stage(folder)
    assert (folder / "train.csv").read_text() == "z" * len(TRAIN), "the file must not be fetched again"


def times_in_store() -> dict[str, int]:
    system, base = stores.file_system(OWN, connect=5, request=5, attempts=1)
    return {entry.base_name: entry.mtime_ns for entry in stores._entries(system, base)}


def test_exceeded_disk_quota_raises_cache_unwritable(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exceeded quota is reported like a full disk, also for an error in the middle of a file."""

    def full(file: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheUnwritable, match=r"cannot be written \(Disk quota exceeded\).*Free space"):
        load_interactions(OWN, Path())


def test_concurrent_stagings_copy_the_dataset_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    copy = stores._copy
    both = threading.Barrier(2)

    def counted(*args: Any) -> None:
        copies.append(args)
        copy(*args)

    def stage() -> None:
        both.wait(30)
        stores.stage(staged_path(OWN))

    monkeypatch.setattr(stores, "_copy", counted)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(stage) for _ in range(2)]:
            done.result()
    assert len(copies) == 1


def test_single_object_is_loaded_as_a_dataset(bucket: Bucket) -> None:
    assert load_interactions(f"{OWN}/train.csv", Path()).n_users == 9
    assert not (staged_path(OWN) / "test.csv").exists()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://data/sets/none", "there is nothing at s3://data/sets/none"),
        ("s3://nowhere/set", "there is nothing at s3://nowhere/set|the dataset at s3://nowhere/set cannot be fetched"),
        ("s3://key:secret@data/sets", "the address of a dataset is not valid; expected s3://BUCKET/PREFIX"),
        ("s3:///sets", "the address of a dataset is not valid"),
        ("s3://data/../sets", "the address of a dataset is not valid"),
        ("what://data/sets", "the dataset at what://data/sets cannot be fetched"),
    ],
)
def test_address_that_cannot_be_staged_raises_data_error_without_secrets(
    uri: str, message: str, bucket: Bucket
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_interactions(uri, Path())
    assert "secret" not in str(caught.value)


def test_unreachable_store_raises_data_unreachable(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "ATTEMPTS", 1)
    with pytest.raises(DataUnreachable, match=r"cannot be fetched.*the next start continues"):
        load_interactions(OWN, Path())


def test_unwritable_cache_raises_cache_unwritable(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / STAGED).write_text("not a folder")
    with pytest.raises(CacheUnwritable, match="the copy of a dataset cannot be written"):
        load_interactions(OWN, Path())


@pytest.mark.parametrize("key", ["sets/own/../../../../escaped.csv", "sets/own//tmp/escaped.csv"])
def test_object_key_that_leaves_the_folder_of_the_copy_is_refused(key: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.client.put_object(Bucket="data", Key=key, Body=b"written by the bucket's owner")
    with pytest.raises(DataError, match=r"escaped\.csv is not a path below the dataset's folder"):
        load_interactions(OWN, Path())
    assert not list(tmp_path.rglob("*escaped*"))
    assert not Path("/tmp/escaped.csv").exists()
