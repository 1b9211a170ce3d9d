"""What every workload refuses in the same words: a batch that can not be shared out, a part that was trained on."""

from __future__ import annotations

from typing import Any

from workloads.contract import Runtime, Split


def check_batch(batch_size: int, runtime: Runtime, *, equal_parts: bool = False) -> None:
    """Refuse a global batch that does not divide over the workers, and, in ``equal_parts``, their micro-batches.

    Raises:
        ValueError: names the nearest that does.
    """
    parts, over = runtime.world_size, f"{runtime.world_size} workers"
    if equal_parts:
        parts *= runtime.accumulate
        over = f"{runtime.world_size} worker(s) x accumulate={runtime.accumulate}"
    if batch_size % parts:
        nearest = max(1, round(batch_size / parts)) * parts
        raise ValueError(
            f"batch_size={batch_size} is the global batch and does not divide over {over}; the nearest that does is "
            f"{nearest}"
        )


def check_plan(params: Any, runtime: Runtime) -> None:
    """Refuse a batch that does not divide over the workers, and a plan that the parameters can not be trained by.

    Raises:
        ValueError: as :func:`check_batch`, and as ``check_plan`` of the parameters.
    """
    check_batch(params.batch_size, runtime)
    params.check_plan(runtime.epochs, not runtime.holdout)


def check_split(split: Split, runtime: Runtime) -> None:
    """Refuse the validation split of a model that was built without one, for a refit.

    Raises:
        ValueError: it has been trained on.
    """
    if split == "validation" and not runtime.holdout:
        raise ValueError("a refit has no validation split: it was trained on. Evaluate on test, or build with holdout")
