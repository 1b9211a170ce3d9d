"""Writes the checkpoints of one experiment, large ones while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import Checkpoint
from orchestrator.errors import UserError

BACKGROUND_BYTES = 2**26
"""Size of a workload's state from which a checkpoint is written in the background. A smaller one takes a tenth of a
second, and a copy of a larger one takes a tenth of its writing."""


class CheckpointWriter:
    """Context manager that writes checkpoints below ``folder`` and removes all but the ``newest`` ones.

    At most one checkpoint is written at a time; the next ``save`` waits for it. After a kill, training continues from
    the newest complete checkpoint, so at most two intervals are trained again. Leaving the context waits for the last
    write.
    """

    def __init__(self, folder: Path, newest: int) -> None:
        self._folder = folder
        self._newest = newest
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, state: Checkpoint, order: int, *, wait: bool = False) -> None:
        """Write the checkpoint number ``order``, large ones in the background unless ``wait``.

        Raises UserError (exit 3) when this or the one before cannot be written.
        """
        self.finish()
        if wait or size(state.state.get("workload")) < BACKGROUND_BYTES:
            self._write(state, order)
            return
        copied = replace(state, state=state.state | {"workload": copy(state.state["workload"])})
        self._pending = self._threads.submit(self._write, copied, order)

    def finish(self) -> None:
        """Wait until everything is written. Raises UserError (exit 3) when it cannot be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, state: Checkpoint, order: int) -> None:
        checkpoint.write(self._folder / checkpoint.name(order), state)
        checkpoint.keep(self._folder, self._newest)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        except UserError:
            if error is None:  # else that error ends the run
                raise
        finally:
            self._threads.shutdown()


def size(value: Any) -> int:
    """Bytes of all tensors of a state."""
    if isinstance(value, Mapping):
        return sum(map(size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size, value))
    return getattr(value, "nbytes", 0)


def copy(value: Any) -> Any:
    """Copy of a state on the CPU, which later training steps do not change."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy(item) for item in value]
    return value
