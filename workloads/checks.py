"""Checks shared by all workloads: of the global batch, the plan and the evaluated split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workloads.contract import Runtime, Split


def check_batch(batch_size: int, runtime: Runtime, *, equal_parts: bool = False) -> None:
    """Check that the global batch divides over the workers and, with ``equal_parts``, over their micro-batches.

    Raises:
        ValueError: it does not; the message names the nearest size that does.
    """
    parts = runtime.world_size
    over = f"{parts} workers"
    if equal_parts:
        parts *= runtime.accumulate
        over = f"{runtime.world_size} worker(s) x accumulate={runtime.accumulate}"
    if batch_size % parts:
        nearest = max(1, round(batch_size / parts)) * parts
        raise ValueError(
            f"batch_size={batch_size} is the global batch and does not divide over {over}; the nearest that does is "
            f"{nearest}"
        )


def check_limits(limits: Mapping[str, str], runtime: Runtime) -> None:
    """Check that nothing is requested that the parameters rule out.

    Args:
        limits: reasons by setting (``Limited`` in the contract).

    Raises:
        ValueError: with the reason and the setting.
    """
    requested = {
        "workers": (runtime.world_size, 1),
        "accumulate": (runtime.accumulate, 1),
        "steps_per_epoch": (runtime.steps_per_epoch, None),
        "log_every": (runtime.log_every, 0),
    }
    for name, (value, default) in requested.items():
        if name in limits and value != default:
            raise ValueError(f"{limits[name]}, which rules out {name}={value}. Leave it out")


def check_plan(params: Any, runtime: Runtime) -> None:
    """Check that the batch divides over the workers and that the parameters allow the planned training.

    Raises:
        ValueError: as :func:`check_batch`, and as ``check_plan`` of the parameters.
    """
    check_batch(params.batch_size, runtime)
    params.check_plan(runtime.epochs, not runtime.holdout)


def check_split(split: Split, runtime: Runtime) -> None:
    """Refuse to evaluate a refit on the validation split.

    Raises:
        ValueError: the model was trained on that split.
    """
    if split == "validation" and not runtime.holdout:
        raise ValueError("a refit has no validation split: it was trained on. Evaluate on test, or build with holdout")
