"""Interactions: read, prepare, rank, and compare."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

from growth import Cost, Item, measured


def _interactions(size: int, folder: Path) -> Any:
    from workloads.data.interactions.synthetic_large import Sizes, generate_large

    return generate_large(Sizes(n_users=size // 33, n_items=max(size // 24, 10_000), n_interactions=size))


def read_csv(size: int, folder: Path) -> Cost:
    return _read(size, folder, "csv")


def read_parquet(size: int, folder: Path) -> Cost:
    return _read(size, folder, "parquet")


def _read(size: int, folder: Path, end: str) -> Cost:
    """Convert a user's table with text ids and times, rows in random order, and draw its test part."""
    from workloads.data import load_interactions
    from workloads.data.interactions import load

    path = folder / f"all.{end}"
    # In another process, so that this one does not reuse its memory.
    writer = get_context("spawn").Process(target=_write_table, args=(size, path))
    writer.start()
    writer.join()
    load.CACHED_FROM = 1
    with measured(folder, private=True) as cost:
        load_interactions(str(path), folder)
    return cost


def split_noise(size: int, folder: Path) -> Cost:
    """Another split of a converted table, by its highest ratings, with noise."""
    from workloads.data import load_interactions
    from workloads.data.interactions import load

    path = folder / "all.parquet"
    writer = get_context("spawn").Process(target=_write_table, args=(size, path, True))
    writer.start()
    writer.join()
    load.CACHED_FROM = 1
    load_interactions(str(path), folder)
    with measured(folder, private=True) as cost:
        load_interactions(str(path), folder, "clean", 0.2)
    return cost


def _write_table(size: int, path: Path, rated: bool = False) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv, parquet

    data = _interactions(size, path.parent)
    pairs = np.random.default_rng(0).permutation(np.concatenate([data.train, data.test]))
    names = [pc.binary_join_element_wise(kind, pa.array(ids).cast("string"), "") for kind, ids in zip("ui", pairs.T)]
    columns = {"user": names[0], "item": names[1], "timestamp": np.arange(size)}
    table = pa.table(columns | ({"rating": np.arange(size) % 5 + 1} if rated else {}))
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, path)


def prepare(size: int, folder: Path) -> Cost:
    import torch

    from workloads.recommender import shared

    data = _interactions(size, folder)
    shared.SHARED_FROM = 1
    with measured(folder, private=True) as cost:
        shared.prepare_on_node(data, 0, True, torch.device("cpu"), "scale")
    return cost


def prepare_again(size: int, folder: Path) -> Cost:
    """A further process of the node: private memory, since what it maps is in the node's memory once."""
    import torch

    from workloads.recommender import shared

    data = _interactions(size, folder)
    prepare(size, folder)
    shared._shared.cache_clear()
    with measured(folder, private=True) as cost:
        shared.prepare_on_node(data, 0, True, torch.device("cpu"), "scale")
    return cost


def evaluate(size: int, folder: Path) -> Cost:
    return _rank(size, folder, None)


def evaluate_sample(size: int, folder: Path) -> Cost:
    return _rank(size, folder, 1000)


def _rank(size: int, folder: Path, users: int | None) -> Cost:
    """Rank users with one interaction in 10,000 of 100,000 items."""
    import numpy as np
    import torch

    from workloads.recommender.dataset import History, sampled_users
    from workloads.recommender.evaluation import evaluation, rank_users
    from workloads.recommender.scorers import Factors

    source = np.random.default_rng(0)
    items = 100_000
    wanted, seen = (
        History.of(np.stack([np.arange(size), source.integers(items, size=size)], 1), size, torch.device("cpu"))
        for _ in range(2)
    )
    model = Factors(torch.randn(size, 32), torch.randn(items, 32))
    with measured(folder) as cost:
        if users is not None:
            chosen = sampled_users(wanted, users, 0)
            wanted, seen, model = wanted.only(chosen), seen.only(chosen), model.only(chosen)
        values, lists = rank_users([model], wanted, seen)
        evaluation(values[0], lists[0], wanted, torch.ones(items, dtype=torch.int64))
    return cost


def intervals(size: int, folder: Path) -> Cost:
    import numpy as np

    from orchestrator.report import statistics

    values = np.random.default_rng(0).normal(0.01, 1, size)
    statistics.over_units(values, np.zeros(size))  # imports SciPy
    with measured(folder) as cost:
        statistics.over_units(values, np.zeros(size))
    return cost


MILLIONS = (10**6, 2 * 10**6, 4 * 10**6)

ITEMS = {
    "read-csv": Item("read a table, CSV", "interaction", MILLIONS, read_csv),
    "read-parquet": Item("read a table, Parquet", "interaction", MILLIONS, read_parquet),
    "split-noise": Item("clean split, a fifth of noise", "interaction", MILLIONS, split_noise),
    "prepare": Item("prepare interactions", "interaction", MILLIONS, prepare),
    "prepare-again": Item("map prepared interactions", "interaction", MILLIONS, prepare_again),
    "evaluate": Item("rank all users, 100,000 items", "user", (500, 1000, 2000), evaluate),
    "evaluate-sample": Item("rank 1,000 of the users", "user", (2000, 4000, 8000), evaluate_sample),
    "intervals": Item("interval of paired differences", "unit", (10**5, 10**6, 10**7), intervals),
}
