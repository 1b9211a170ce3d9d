"""The same trials in one process with only Optuna and MLflow, as in their tutorials.

Prints the seconds from the first trial's start to the last one's end, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import mlflow
import optuna

REPORTS = 10


def objective(trial: optuna.Trial) -> float:
    x: float = trial.suggest_float("x", 0, 1)
    with mlflow.start_run(nested=True):
        mlflow.log_params(trial.params)
        for epoch in range(1, REPORTS + 1):
            mlflow.log_metrics({"score": epoch - (x - 0.3) ** 2, "loss": 1 / epoch}, step=epoch)
    return REPORTS - (x - 0.3) ** 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--tracking", required=True)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mlflow.set_tracking_uri(args.tracking)
    mlflow.set_experiment("optuna")
    study = optuna.create_study(direction="maximize")
    with mlflow.start_run():
        started = time.monotonic()
        study.optimize(objective, n_trials=args.trials)
        seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "trials": len(study.trials)}))


if __name__ == "__main__":
    main()
