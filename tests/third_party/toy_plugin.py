"""The toy workload as an installed third party's, with a model that serves and a space that can diverge."""

from __future__ import annotations

from typing import Any

from tests.support.toy import Toy
from workloads.catalog import Entry

ENTRY = Entry("tests.support.toy:Params", "toy_plugin:Plugin", "A parabola.", predictor="toy_predictor.py")


class Plugin(Toy):
    pass


def space(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2)}


def some_diverge(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "nan_at": 3 if trial.number % 2 else None}


def one_hangs(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "hang_at": 2 if trial.number == 1 else None}


def one_loses_its_device(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "lost_at": 2 if trial.number == 1 else None}


def one_hogs(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "hog_at": 2 if trial.number == 1 else None}


def steps(trial: Any) -> dict[str, Any]:
    momentum = trial.suggest_categorical("momentum", [0.0, 0.5])
    return {"momentum": momentum, "lr": trial.suggest_float("lr", 0.1, 0.3, step=0.1) if momentum else 0.05}


def all_diverge(trial: Any) -> dict[str, Any]:
    return {"lr": trial.suggest_float("lr", 0.01, 0.2), "nan_at": 2}
