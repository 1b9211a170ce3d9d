"""Trials that only post reports, without PyTorch, so that their processes are cheap."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any


class PostedTrial:
    """State of a trial: its epochs since the last report, its best value so far."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.seed_run, self.config = int(config["number"]), config
        params, plan = config["spec"]["params"], config["spec"]["plan"]
        self.quality = -((params["x"] - 0.3) ** 2) - (params["dropout"] - 0.4) ** 2
        self.epochs, self.rungs = plan["epochs"], plan["decide_at"]
        self.epoch = self.posted = 0
        self._noise = random.Random(self.seed_run)
        self._values: list[float] = []

    def train(self) -> None:
        """Add one epoch."""
        self.epoch += 1
        self._values.append(self.quality - 1 / self.epoch + 0.01 * self._noise.random())

    @property
    def ended(self) -> bool:
        return self.epoch >= self.epochs

    @property
    def at_rung(self) -> bool:
        return self.epoch in self.rungs

    def payload(self) -> dict[str, Any]:
        """The report of all epochs since the last one."""
        best = max(range(len(self._values)), key=self._values.__getitem__)
        rows = []
        for epoch in range(self.posted + 1, self.epoch + 1):
            values = {"train/loss": 1 / epoch, "train/rate": 0.1, "validation/score": self._values[epoch - 1]}
            rows.append([epoch, time.time(), values | {"validation/other": 0.5}])
        self.posted = self.epoch
        return {
            "rows": rows, "epoch": self.epoch, "best_epoch": best + 1, "best_value": self._values[best],
            "best_metrics": {"validation/score": self._values[best], "validation/other": 0.5},
            "train_seconds": float(self.epoch), "ended": "epochs" if self.ended else None, "done": self.ended,
        }  # fmt: skip


def actor(epoch_seconds: float, folder: Path) -> type:
    """A Tune trainable that posts one report per epoch, and writes its waiting time to ``folder``."""
    from ray import tune

    class PostingActor(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.reset_config(config)

        def reset_config(self, config: dict[str, Any]) -> bool:
            self._trial, self._waited, self._left, self._begun = PostedTrial(config), 0.0, None, time.monotonic()
            return True

        def step(self) -> dict[str, Any]:
            if self._left is not None:
                self._waited += time.monotonic() - self._left
            time.sleep(epoch_seconds)
            self._trial.train()
            result = self._trial.payload()
            if self._trial.ended:
                seen = {
                    "waited": self._waited,
                    "seconds": time.monotonic() - self._begun,
                    "torch": "torch" in sys.modules,
                }
                (folder / f"{self._trial.seed_run}.json").write_text(json.dumps(seen))
            self._left = time.monotonic()
            return result

    return PostingActor
