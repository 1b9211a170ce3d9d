"""Checks of parameters against the data and the memory. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.contract import Runtime
from workloads.data.datasets import friends, occupations
from workloads.data.errors import DataError
from workloads.data.interactions.load import load_interactions
from workloads.data.interactions.priors import read_prior
from workloads.data.interactions.types import Interactions
from workloads.memory import free_bytes
from workloads.recommender.backbones import BACKBONES, ease_memory_error, table_memory_error
from workloads.recommender.contrasts import size_error

BLOCKS: Mapping[str, int] = {"infonce": 4, "decoupled": 4, "dcl": 4, "hcl": 7, "supervised": 10, "bcl": 13}
"""Blocks of scores, users by items, that a step with ``sampler=in_batch`` has in memory at its peak, at least.

Measured on a CPU with 8192 interactions and rounded down; with measures of the negatives they are up to 17.
"""


def check_data(values: Mapping[str, Any], root: Path, holdout: bool) -> None:
    """Check that the dataset has what the parameters need: side information, ratings, nodes for the contrast's views.

    With ``holdout`` also that a split by time leaves someone to validate on.

    Raises:
        ValueError: there are more clusters, or a larger rank of the SVD, than users or items; or as
            :func:`rated_interactions`.
        workloads.data.DataError: the dataset has no occupations or friends of its users, their file is damaged, or that
            of an own prior is; or as :func:`rated_interactions`.
    """
    if holdout and values["split"] in ("leave_last_out", "global_time"):
        import numpy as np

        data = _interactions(values, root)
        held = data.held_out
        if held is not None and not np.isin(data.train[held, 0], data.train[~held, 0]).any():
            raise DataError(
                f"split={values['split']} leaves no user with an interaction before and one in the validation part",
                got=f"{int(held.sum())} of {len(data.train)} in validation",
                fix="Take finer timestamps, or another split",
            )
    if values["contrast"] is not None:
        data = _interactions(values, root)
        if message := size_error(values, data.n_users, data.n_items):
            raise ValueError(message)
    if values["ials_confidence"] == "rating":
        rated_interactions(values, root)
    if values["bns_prior"] == "occupation":
        occupations(values["dataset"], root)
    if values["bns_prior"] == "social":
        friends(values["dataset"], root)
    if values["prior_file"] is not None:
        read_prior(Path(values["prior_file"]), _interactions(values, root))


def rated_interactions(values: Mapping[str, Any], root: Path) -> Interactions:
    """The interactions, with the ratings that ``ials_confidence=rating`` weighs them by.

    Raises:
        ValueError: some are injected noise, which is not rated.
        workloads.data.DataError: the dataset has no ratings, or one below 0.
    """
    if values["dataset_noise"]:
        raise ValueError(
            "ials_confidence=rating needs ratings, and dataset_noise injects unrated interactions. Drop one"
        )
    data = _interactions(values, root)
    if data.train_ratings is None or data.train_ratings.min() < 0:
        raise DataError(
            "ials_confidence=rating weighs by ratings or counts from 0",
            got="none" if data.train_ratings is None else f"{data.train_ratings.min():g}",
            fix="Drop it, or take a dataset with such ratings in train and test",
        )
    return data


def _interactions(values: Mapping[str, Any], root: Path) -> Interactions:
    """The interactions without noise, which adds neither users nor items."""
    return load_interactions(values["dataset"], root, values["split"], min_rating=values["dataset_min_rating"])


def check_block(values: Mapping[str, Any], n: int, runtime: Runtime) -> None:
    """Check that the scores of a step with ``sampler=in_batch``, on ``n`` interactions, fit into a CPU's memory.

    Otherwise the system would end the process without an error. A GPU raises one of its own.

    Raises:
        MemoryError: they do not fit. With ``accumulate=auto`` the engine then takes more micro-batches.
    """
    if values["sampler"] != "in_batch" or runtime.device.type != "cpu":
        return
    items = min(values["batch_size"], n)
    users = items // (runtime.world_size * runtime.accumulate)
    needed = 4 * users * items * BLOCKS.get(values["loss"], 4)  # 4: a loss that a user has added
    if needed > (available := free_bytes()):
        raise MemoryError(
            f"sampler=in_batch scores {users:,} users with {items:,} items, which needs {needed / 2**30:.1f} GiB with "
            f"loss={values['loss']}; {available / 2**30:.1f} GiB are available"
        )


def check_memory(values: Mapping[str, Any], root: Path, available: int) -> None:
    """Check that EASE's matrices, or the embeddings of a learnt backbone, fit into ``available`` bytes.

    Raises:
        ValueError: they do not; the message has the size that would.
    """
    message = None
    if values["backbone"] == "ease":
        data = _interactions(values, root)
        message = ease_memory_error(data.n_items, available)
    elif BACKBONES[values["backbone"]].learnt:
        data = _interactions(values, root)
        message = table_memory_error(values, data.n_users, data.n_items, available)
    if message:
        raise ValueError(message)
