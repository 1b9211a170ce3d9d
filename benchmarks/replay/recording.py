"""A recording: the values of many trials at every epoch, of which schedulers and selectors are replayed.

A file in NumPy's ``.npz`` format. T trials are recorded for E epochs on U units of the validation split; R of them, the
best ones, with S further seeds.

| array | shape, type | content |
|---|---|---|
| ``about`` | JSON | workload, fixed parameters, metric, dataset, commit |
| ``params`` | JSON | the searched parameters of each trial |
| ``units`` | (T, E, U) float16 | the objective of each unit of the validation split, by epoch |
| ``test`` | (T,) float32 | the objective on the test split, of the epoch that is best on validation |
| ``seconds`` | (T,) float32 | median CPU seconds of an epoch, with its evaluation on validation |
| ``repeated`` | (R,) int64 | the trials with further seeds |
| ``repeat_units`` | (R, S, U) float16 | units at the best epoch of each further seed |
| ``repeat_test`` | (R, S) float32 | test value at the best epoch of each further seed |

The test split is evaluated for every trial, which the product never does. A recording leaves no run that could be
selected, compared or promoted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Recording:
    """See the module. ``params`` and ``about`` are parsed."""

    about: dict[str, Any]
    params: list[dict[str, Any]]
    units: Array
    test: Array
    seconds: Array
    repeated: Array
    repeat_units: Array
    repeat_test: Array

    @cached_property
    def values(self) -> Array:
        """(T, E): the objective on the validation split."""
        return np.stack([trial.astype(np.float32).mean(axis=1) for trial in self.units])

    @cached_property
    def best_epochs(self) -> Array:
        """(T,): index of each trial's best epoch."""
        return np.asarray(self.values.argmax(axis=1))

    def first(self, trials: int, epochs: int, units: int) -> Recording:
        """The part with the first ``trials``, every so many ``epochs`` and the first ``units``."""
        every = self.units.shape[1] // epochs
        kept = self.repeated < trials
        return Recording(
            self.about | {"part": True, "every": every},
            self.params[:trials],
            self.units[:trials, every - 1 :: every, :units],
            self.test[:trials],
            self.seconds[:trials] * every,
            self.repeated[kept],
            self.repeat_units[kept, :, :units],
            self.repeat_test[kept],
        )

    def write(self, file: Path) -> None:
        """Write the file, with its folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = {name: np.array(json.dumps(getattr(self, name))) for name in ("about", "params")}
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        arrays.pop("values", None)
        arrays.pop("best_epochs", None)
        np.savez_compressed(file, **texts, **arrays)


def read(file: Path) -> Recording:
    """The recording in ``file``."""
    with np.load(file, allow_pickle=False) as arrays:
        found = dict(arrays)
    texts = {name: json.loads(str(found.pop(name))) for name in ("about", "params")}
    return Recording(**texts, **found)
