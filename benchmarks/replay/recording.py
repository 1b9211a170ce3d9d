"""A recording: the values of many trials at several epochs, from which schedulers and selectors are replayed.

A file in NumPy's ``.npz`` format. T trials are recorded at K epochs. ``about`` lists them as ``epochs``; without a list
they are ``every`` epochs apart. The values are of the U units of the validation split. R of the trials, the best ones
and some at random, are trained with S further seeds.

| array | shape, type | content |
|---|---|---|
| ``about`` | JSON | dataset, fixed parameters, metric, epochs, distributions of the searched parameters, commits |
| ``params`` | JSON | the searched parameters of each trial |
| ``units`` | (T, K, U) float16 | the objective of each unit of the validation split |
| ``test`` | (T,) float32 | the objective on the test split, of the model that is best on validation (not refitted) |
| ``seconds`` | (T,) float32 | median CPU seconds of ``every`` epochs, evaluation on validation included |
| ``repeated`` | (R,) int64 | the trials with further seeds |
| ``repeat_units`` | (R, S, K, U) float16 | as ``units``, of each further seed |
| ``repeat_test`` | (R, S) float32 | as ``test``, of each further seed |

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
ARRAYS = ("units", "test", "seconds", "repeated", "repeat_units", "repeat_test")


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
    def epochs(self) -> tuple[int, ...]:
        """The K epochs."""
        every = int(self.about["every"])
        return tuple(self.about.get("epochs") or range(every, every * self.units.shape[1] + 1, every))

    @cached_property
    def whole(self) -> float:
        """Average CPU seconds of a trial that runs to its end."""
        return float(self.seconds.mean()) * self.epochs[-1] / int(self.about["every"])

    @cached_property
    def values(self) -> Array:
        """(T, E): the objective on the validation split."""
        return np.stack([trial.astype(np.float32).mean(axis=1) for trial in self.units])

    @cached_property
    def best(self) -> Array:
        """(T,): index of each trial's best value."""
        return np.asarray(self.values.argmax(axis=1))

    def first(self, trials: int, units: int) -> Recording:
        """The part with the first ``trials`` and the first ``units``. ``test`` remains that of all units."""
        kept = self.repeated < trials
        return Recording(
            self.about | {"part": True},
            self.params[:trials],
            self.units[:trials, :, :units],
            self.test[:trials],
            self.seconds[:trials],
            self.repeated[kept],
            self.repeat_units[kept, ..., :units],
            self.repeat_test[kept],
        )

    def joined(self, more: Recording) -> Recording:
        """With the trials and the further seeds of ``more``."""
        arrays = {name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in ARRAYS}
        return Recording(self.about, [*self.params, *more.params], **arrays)

    def write(self, file: Path) -> None:
        """Write the file, with its folder, in one step."""
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = {name: np.array(json.dumps(getattr(self, name))) for name in ("about", "params")}
        partial = file.with_suffix(".partial.npz")
        np.savez_compressed(partial, **texts, **{name: getattr(self, name) for name in ARRAYS})
        partial.replace(file)


def read(file: Path) -> Recording:
    """The recording in ``file``."""
    with np.load(file, allow_pickle=False) as arrays:
        content = dict(arrays)
    texts = {name: json.loads(str(content.pop(name))) for name in ("about", "params")}
    return Recording(**texts, **content)
