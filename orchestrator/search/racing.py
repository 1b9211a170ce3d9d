"""Racing: stop a trial whose values by unit say that it cannot become the best any more.

At a rung ``r`` of trials of ``E`` epochs, a trial is compared with the best other one there, unit by unit. Let ``d[u]``
be the difference of the best values so far for unit ``u`` of the validation split. The trial is stopped if

    mean(d) - allowance > t * sd(d) / sqrt(U)

a paired one-sided test at :data:`LEVEL` over the U units that are kept. With ``constrained``, only trials that have
ended and violate no constraint stop others. The allowance is what the trial may still gain. Learning curves are concave
in the logarithm of the epoch, by and large: what a trial has gained since half of its epochs, it gains at most again in
each further doubling,

    allowance = (value(r) - value(h)) * log(E / r) / log(r / h),    h the last rung up to r / 2

while the best one is granted nothing. It needs no complete trial, unlike a model of the curves that ended, and no
trial is stopped before it has values at two such rungs. ``benchmarks/replay`` has what it costs and how often it errs.
"""

from __future__ import annotations

import base64
import json
import math
import os
from contextlib import suppress
from pathlib import Path

from orchestrator.search.schedulers import Observed, Trials
from orchestrator.search.unit_values import UnitValues, decode
from orchestrator.storage import disk

LEVEL = 0.05

KEPT = 5
"""Number of trials, the best ones, whose units are kept at each rung: the best may still fail."""

UNITS = "units-at-rungs.jsonl"


class Racing:
    """The units of the best trials at each rung, in memory and in a file of ``folder`` if there is one."""

    def __init__(
        self, epochs: int, folder: Path | None = None, *, ordered: bool = False, constrained: bool = False
    ) -> None:
        self._epochs = epochs
        self._constrained = constrained
        self._file = folder / UNITS if folder else None
        self._ordered = ordered
        self._current: dict[int, UnitValues] = {}
        self._best: dict[int, list[tuple[float, int, UnitValues]]] = {}
        self.unpaired = False
        """Whether a trial could not be compared, because it has no values by unit, or values of other units."""
        self._read()

    def observe(self, number: int, units: UnitValues | None) -> None:
        """Take the signed values by unit that trial ``number`` has at its rung, before its decision."""
        self._current.pop(number, None)
        if units is None:
            self.unpaired = True
            return
        self._current[number] = units

    def prunes(self, number: int, epoch: int, trials: Trials) -> bool:
        """Whether the trial cannot become the best. ``observe`` was called with its units at ``epoch``."""
        own = self._current.pop(number, None)
        if own is None:
            return False
        self._keep(number, epoch, own, trials)
        allowance = _allowance(trials[number].values, epoch, self._epochs)
        if allowance is None:
            return False
        rivals = (units for _, other, units in self._best[epoch] if other != number and self._is_rival(trials[other]))
        leader = next(rivals, None)
        if leader is None:
            return False
        if (leader.total, leader.ids) != (own.total, own.ids):
            self.unpaired = True
            return False
        return _is_behind(leader, own, allowance)

    def _is_rival(self, trial: Observed) -> bool:
        """Whether a trial may stop others."""
        # With an order, what became of a trial after this rung does not count: it may or may not be known yet.
        return self._ordered or (not trial.is_out and (trial.is_complete or not self._constrained))

    def _keep(self, number: int, epoch: int, units: UnitValues, trials: Trials) -> None:
        """Keep the units if they are among the best. Decisions with an order are made by number, and so is this."""
        # A trial that is out must not take the place of one that can win.
        best = [row for row in self._best.get(epoch, []) if self._ordered or not trials[row[1]].is_out]
        is_new = all(other != number for _, other, _ in best)
        own = [(float(units.values.mean()), number, units)] if is_new else []
        best = sorted(best + own, key=lambda row: (-row[0], row[1]))[:KEPT]
        if is_new and any(other == number for _, other, _ in best):
            self._write(number, epoch, units)
        self._best[epoch] = best

    def _write(self, number: int, epoch: int, units: UnitValues) -> None:
        if self._file is None:
            return
        values = base64.b64encode(units.values.astype("<f4").tobytes()).decode()
        line = {"trial": number, "epoch": epoch, "total": units.total, "ids": units.ids, "values": values}
        disk.drop_half_line(self._file)
        with self._file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _read(self) -> None:
        for row in disk.json_lines(self._file) if self._file else ():
            with suppress(ValueError, KeyError, TypeError):
                units = decode(row)
                kept = (float(units.values.mean()), row["trial"], units)
                self._best.setdefault(row["epoch"], []).append(kept)


def _allowance(values: dict[int, float], epoch: int, epochs: int) -> float | None:
    """What a trial may still gain after ``epoch``, from its values at rungs. None without a rung up to the half."""
    earlier = [rung for rung in values if 2 * rung <= epoch]
    if not earlier:
        return None
    half = max(earlier)
    best = {at: max(value for rung, value in values.items() if rung <= at) for at in (half, epoch)}
    return (best[epoch] - best[half]) * math.log(epochs / epoch) / math.log(epoch / half)


def _is_behind(leader: UnitValues, own: UnitValues, allowance: float) -> bool:
    """Whether the leader is better by more than the allowance, beyond the noise over units."""
    from scipy.special import stdtrit

    difference = leader.values - own.values
    mean = float(difference.mean())
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return mean > 0 and mean - allowance > float(stdtrit(len(difference) - 1, 1 - LEVEL)) * error
