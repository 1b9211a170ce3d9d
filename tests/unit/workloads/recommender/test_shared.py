"""Prepared data shared by the processes of a node: it equals data prepared in one process, and is made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from workloads.contract import Runtime
from workloads.data import load_interactions, partition
from workloads.data.errors import CacheUnwritable
from workloads.data.interactions import load
from workloads.recommender import shared, shared_writer
from workloads.recommender.dataset import History, RecommenderData, divide
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender
from workloads.sampling import negatives, pairs
from workloads.sampling.negatives import Unobserved

CPU = torch.device("cpu")
RUNTIME = Runtime(device=CPU, data=Path(), seed=3, epochs=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ORCHESTRATOR_CACHE", str(tmp_path))
    monkeypatch.setattr(shared, "SHARED_FROM", 1)
    yield tmp_path / "prepared"
    shared._shared.cache_clear()


@pytest.mark.parametrize("listed", [2**25, 0], ids=["few pairs", "many pairs"])
@pytest.mark.parametrize("holdout", [True, False])
def test_shared_data_equals_data_prepared_in_the_process(
    holdout: bool, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pairs, negatives, shared):
        monkeypatch.setattr(module, "LISTED", listed)
    data = load_interactions("synthetic", Path(), noise=0.1)
    expected = divide(data, 1, holdout, CPU)
    found = shared.prepare_on_node(data, 1, holdout, CPU, "synthetic")
    for field in fields(RecommenderData):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, History):
            assert (ours.indptr == theirs.indptr).all()
            assert torch.equal(ours.users, theirs.users)
            assert torch.equal(ours.items, theirs.items)
        elif isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs)
        elif not isinstance(theirs, Unobserved):
            assert ours is theirs or ours == theirs
    users, ranks = torch.arange(data.n_users), torch.arange(data.n_users) % expected.unobserved.fewest
    assert torch.equal(found.unobserved.pick(users, ranks), expected.unobserved.pick(users, ranks))
    items = torch.arange(data.n_items).expand(data.n_users, -1)
    contained = found.unobserved.observed.contains(users[:, None], items)
    assert torch.equal(contained, expected.unobserved.observed.contains(users[:, None], items))


@pytest.mark.parametrize("holdout", [True, False])
@pytest.mark.parametrize("by_time", [True, False])
def test_data_written_in_blocks_of_users_equals_data_prepared_at_once(
    holdout: bool, by_time: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ROWS`` and ``TABLE_BYTES`` limit the interactions and the bytes of the table in memory."""
    data = load_interactions("synthetic", Path(), noise=0.1)
    source = np.random.default_rng(0)
    order = source.permutation(len(data.train))
    assert data.noise is not None
    data = replace(data, train=data.train[order], noise=data.noise[order])
    data = replace(data, held_out=source.random(len(order)) < 0.1 if by_time else None)
    for module in (pairs, negatives):
        monkeypatch.setattr(module, "LISTED", 0)
    expected = shared._tensors(divide(data, 1, holdout, CPU))
    rows: list[int] = []
    monkeypatch.setattr(partition, "ROWS", 1000)
    monkeypatch.setattr(shared_writer, "TABLE_BYTES", 30_000)
    monkeypatch.setattr(
        shared_writer,
        "divide",
        lambda some, *given, **more: rows.append(len(some.train)) or divide(some, *given, **more),
    )
    with (tmp_path / "written").open("wb") as file:
        shared_writer.write_by_users(file, data, 1, holdout)
    written = load_file(tmp_path / "written")
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        assert written[name].dtype == tensor.dtype
        assert torch.equal(written[name], tensor)
    assert sum(rows) == len(data.train)
    assert max(rows) <= 1000


def test_shared_data_is_prepared_once_and_memory_mapped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Recommender(Params(), RUNTIME)
    (file,) = cache.glob("*.safetensors")
    shared._shared.cache_clear()
    monkeypatch.setattr(shared, "divide", lambda *args: pytest.fail("prepared again"))
    second = Recommender(Params(), RUNTIME)
    assert first.train_epoch(1) == second.train_epoch(1)
    start = second.data.pairs.data_ptr()
    maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line)
    ranges = [[int(end, 16) for end in words[0].split("-")] for words in maps]
    assert any(low <= start < high for low, high in ranges), "the tensor is in the mapped file"


def test_another_split_or_noise_has_its_own_prepared_file(cache: Path) -> None:
    for params in ({}, {"split_seed": 1}, {"dataset_noise": 0.1}, {"lr": 0.1}):
        Recommender(Params(**params), RUNTIME)
    assert len(list(cache.glob("*.safetensors"))) == 3


@pytest.mark.parametrize("version", ["FORMAT", "VARIANTS"])
def test_another_format_or_split_version_has_its_own_prepared_file(
    version: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recommender(Params(), RUNTIME)
    monkeypatch.setattr(load, version, 99)
    Recommender(Params(), RUNTIME)
    assert len(list(cache.glob("*.safetensors"))) == 2


def test_an_incomplete_file_is_written_again(cache: Path) -> None:
    Recommender(Params(), RUNTIME)
    (file,) = cache.glob("*.safetensors")
    whole = file.read_bytes()
    shared._shared.cache_clear()
    file.unlink()
    file.write_bytes(whole[: len(whole) // 2])
    Recommender(Params(), RUNTIME)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_reported(cache: Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(CacheUnwritable, match="set ORCHESTRATOR_CACHE"):
        Recommender(Params(), RUNTIME)
