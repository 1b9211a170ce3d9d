"""Schedules as pure functions: the batches of an epoch, the stage of an epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run whose stages may end early.

    ``stage`` counts from 1; ``began`` is the last epoch before it; ``best`` is its lowest loss so far, or None;
    ``stale`` counts the epochs since then.
    """

    stage: int
    began: int = 0
    best: float | None = None
    stale: int = 0


def steps_per_pass(examples: int, batch_size: int) -> int:
    """The number of global batches in a pass; the last may be smaller."""
    return -(-examples // batch_size)


def passes_of(epoch: int, per_pass: int, steps: int | None) -> Iterator[tuple[int, range]]:
    """The passes that make up an epoch, from 1: the number of each, from 1, and which of its batches are in the epoch.

    An epoch is a pass, or the next ``steps`` batches of an endless sequence of passes. Its start follows from its
    number, so no position is stored.
    """
    steps = steps or per_pass
    step = (epoch - 1) * steps
    end = epoch * steps
    while step < end:
        number, first = divmod(step, per_pass)
        last = min(per_pass, first + end - step)
        yield number + 1, range(first, last)
        step += last - first


def own_part(size: int, rank: int, world_size: int) -> slice:
    """The part of a global batch that belongs to a rank: contiguous, of nearly equal size, possibly empty."""
    return slice(size * rank // world_size, size * (rank + 1) // world_size)


def own_or_stand_in(batch: NDArray[np.int64], rank: int, world_size: int) -> tuple[NDArray[np.int64], float]:
    """A rank's :func:`own_part` of a global batch, and the weight of each of its rows in the mean over the batch.

    A rank without a row takes part in collectives with a stand-in, the first row, of weight 0.
    """
    own = batch[own_part(len(batch), rank, world_size)]
    return (own, 1 / len(batch)) if len(own) else (batch[:1], 0.0)


def stage_ends(epochs: int, shares: Sequence[float]) -> tuple[int, ...]:
    """The last epoch of each stage, from the stages' shares of all epochs.

    A stage with a share above 0 has at least one epoch. With fewer epochs than stages, the stages of smallest share are
    left out, the earlier of equal ones first. A stage that is left out, or has share 0, ends where its predecessor
    does.
    """
    largest = sorted(range(len(shares)), key=lambda number: (shares[number], number))[-epochs:]
    shares = [share if number in largest else 0.0 for number, share in enumerate(shares)]
    active = [share > 0 for share in shares]
    ends: list[int] = []
    for number, runs in enumerate(active):
        before = ends[-1] if ends else 0
        wanted = round(epochs * sum(shares[: number + 1]) / sum(shares))
        latest = epochs - sum(active[number + 1 :])
        ends.append(min(max(wanted, before + 1), latest) if runs else before)
    return tuple(ends)


def stage_of(epoch: int, ends: Sequence[int]) -> int:
    """The stage (from 1) of an epoch (from 1); after the last end, that of the last epoch."""
    return bisect_left(ends, min(epoch, ends[-1])) + 1


def advanced(
    progress: Progress, epoch: int, loss: float, ends: Sequence[int], patience: int, least_gain: float
) -> Progress:
    """Update the progress after an epoch.

    The next stage begins when the loss has not fallen for ``patience`` epochs or the stage has used its share of
    epochs. The last stage continues to the end of the run.

    Args:
        progress: before the epoch.
        epoch: its number, from 1.
        loss: what the stage minimises.
        ends: from :func:`stage_ends`; they also bound the length of each stage.
        patience: epochs.
        least_gain: the smallest relative decrease that counts.
    """
    fell = progress.best is None or loss < progress.best - least_gain * abs(progress.best)
    here = Progress(progress.stage, progress.began, loss if fell else progress.best, 0 if fell else progress.stale + 1)
    lengths = [end - start for start, end in zip((0, *ends), ends)]
    later = [number for number, length in enumerate(lengths, 1) if number > here.stage and length]
    over = here.stale >= patience or epoch - here.began >= lengths[here.stage - 1]
    return Progress(later[0], epoch) if over and later else here
