"""Prepared data of large datasets as a file in the cache, which the processes of a node map into their memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workloads.data import Interactions
from workloads.data.cache import cache_dir, replacing
from workloads.data.conversion_cache import build_once
from workloads.memory import BoundedCache
from workloads.recommender.dataset import History, RecommenderData, divide, prepare
from workloads.recommender.shared_writer import HISTORIES, write_by_users
from workloads.sampling.negatives import Unobserved
from workloads.sampling.pairs import LISTED

SHARED_FROM = 2**22
"""Number of training interactions from which prepared data is shared: below it, preparing takes about a second."""

FORMAT = 1
"""Version of the file's layout, part of its name."""


def prepare_on_node(
    data: Interactions, split_seed: int, holdout: bool, device: torch.device, identity: str
) -> RecommenderData:
    """As :func:`~workloads.recommender.dataset.prepare`, once a node for a large dataset.

    The first process writes the result to the cache while others wait. All map the file: a page that several processes
    read is in memory once.

    Args:
        identity: a text that differs between datasets.

    Raises:
        DataError: what was written cannot be read.
        CacheUnwritable: the cache cannot be written.
    """
    if len(data.train) < SHARED_FROM:
        return prepare(data, split_seed, holdout, device)
    return _shared(data, split_seed, holdout, device, identity)


@BoundedCache
def _shared(data: Interactions, split_seed: int, holdout: bool, device: torch.device, identity: str) -> RecommenderData:
    name = hashlib.sha256(f"{FORMAT} {identity} {split_seed} {holdout}".encode()).hexdigest()[:32]
    path = cache_dir() / "prepared" / f"{name}.safetensors"

    def write() -> None:
        with replacing(path) as file:
            if data.n_users * data.n_items > LISTED:
                write_by_users(file, data, split_seed, holdout)
            else:
                save_file(_tensors(divide(data, split_seed, holdout, torch.device("cpu"))), file.name)

    return build_once(path, lambda path: _load(path, data, device), write)


def _tensors(data: RecommenderData) -> dict[str, torch.Tensor]:
    tensors = {"pairs": data.pairs}
    for name in HISTORIES:
        history: History = getattr(data, name)
        tensors |= {f"{name}.indptr": torch.from_numpy(history.indptr), f"{name}.items": history.items}
        tensors[f"{name}.users"] = history.users
    tensors |= {f"unobserved.{name}": tensor for name, tensor in data.unobserved.tensors().items()}
    return tensors if data.wrong is None else tensors | {"wrong": data.wrong}


def _load(path: Path, data: Interactions, device: torch.device) -> RecommenderData | None:
    """The content of a file; None if it is missing or incomplete."""
    try:
        tensors = load_file(path)
        histories = {name: _history(name, tensors, device) for name in HISTORIES}
        train = histories["train"]
        indptr = torch.from_numpy(train.indptr).to(device)
        parts = {name: tensor.to(device) for name, tensor in _below("unobserved.", tensors).items()}
        return RecommenderData(
            n_users=data.n_users,
            n_items=data.n_items,
            **histories,
            unobserved=Unobserved(indptr, train.items, data.n_items, made=parts),
            pairs=tensors["pairs"].to(device),
            truth=data.truth,
            wrong=tensors["wrong"].to(device) if "wrong" in tensors else None,
            user_ids=data.user_ids,
            item_ids=data.item_ids,
        )
    except (OSError, SafetensorError, KeyError):
        return None


def _history(name: str, tensors: Mapping[str, torch.Tensor], device: torch.device) -> History:
    parts = _below(f"{name}.", tensors)
    return History(parts["indptr"].numpy(), parts["users"].to(device), parts["items"].to(device))


def _below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
