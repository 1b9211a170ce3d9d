"""Ray Tune as in its documentation: a function trainable, OptunaSearch and the MLflow callback.

With --nested each trial starts a TorchTrainer with one worker, which reports through TuneReportCallback. Prints the
seconds from the first suggestion to the last trial's end, as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

import ray
from ray import train, tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.search.optuna import OptunaSearch

REPORTS = 10


def score(x: float, epoch: int) -> float:
    return epoch - (x - 0.3) ** 2


def function(config: dict[str, Any]) -> None:
    for epoch in range(1, REPORTS + 1):
        tune.report({"score": score(config["x"], epoch), "loss": 1 / epoch})


def worker(config: dict[str, Any]) -> None:
    for epoch in range(1, REPORTS + 1):
        train.report({"score": score(config["x"], epoch), "loss": 1 / epoch})


def nested(config: dict[str, Any], storage: str) -> None:
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        worker,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(
            name=tune.get_context().get_trial_id(), storage_path=storage, callbacks=[TuneReportCallback()]
        ),
    ).fit()


class Timed(OptunaSearch):  # type: ignore[misc]
    """Searcher that records the first suggestion and the last result."""

    first = last = 0.0

    def suggest(self, trial_id: str) -> Any:
        self.first = self.first or time.monotonic()
        return super().suggest(trial_id)

    def on_trial_complete(self, *args: Any, **kwargs: Any) -> None:
        super().on_trial_complete(*args, **kwargs)
        self.last = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--tracking", required=True)
    parser.add_argument("--nested", action="store_true")
    args = parser.parse_args()
    # A nested trial needs a CPU for itself and one for its worker: with one CPU per core, none would ever start.
    ray.init(num_cpus=2 * args.concurrency if args.nested else None, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as storage:
        search = Timed()
        results = tune.Tuner(
            tune.with_parameters(nested, storage=storage) if args.nested else function,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="score", mode="max", search_alg=search, num_samples=args.trials,
                max_concurrent_trials=args.concurrency,
            ),
            run_config=tune.RunConfig(
                storage_path=storage,
                callbacks=[MLflowLoggerCallback(tracking_uri=args.tracking, experiment_name="tune")],
                verbose=0,
            ),
        ).fit()  # fmt: skip
        complete = sum(result.metrics is not None and result.metrics["score"] > REPORTS - 1 for result in results)
    ray.shutdown()
    print(json.dumps({"seconds": search.last - search.first, "trials": complete}))


if __name__ == "__main__":
    main()
