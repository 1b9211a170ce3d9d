"""Tables and plots over finished trials."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.settings import Settings
from workloads.contract import Objective

FILES = ("trials.csv", "trials.json", "best.json", "importance.png", "history.png")


def write_trials(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """``trials.csv`` and ``trials.json``: one row a trial."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    with (folder / "trials.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    (folder / "trials.json").write_text(json.dumps(list(rows), indent=1))


def plot_sweep(study: Any, objective: Objective, folder: Path) -> None:
    """``history.png`` and ``importance.png``; a plot that has too little to show is left out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = [t for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    figure, axes = plt.subplots(figsize=(7, 4))
    values = [float(t.value) for t in complete]
    pick = max if objective.direction == "max" else min
    axes.plot([t.number for t in complete], values, "o", label="trial")
    axes.step(
        [t.number for t in complete],
        [pick(values[: i + 1]) for i in range(len(values))],
        where="post",
        label="best so far",
    )
    axes.set(xlabel="trial", ylabel=f"{objective.metric} on validation")
    axes.legend()
    figure.savefig(folder / "history.png", dpi=120, bbox_inches="tight")
    plt.close(figure)

    if len(complete) < 4 or len({tuple(t.params.items()) for t in complete}) < 2:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importance = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError):  # no parameter is common to all trials, or none varies
            return
    figure, axes = plt.subplots(figsize=(7, 0.5 * len(importance) + 1.5))
    names = list(importance)[::-1]
    axes.barh(names, [importance[name] for name in names])
    axes.set(xlabel="importance (PED-ANOVA)", title=f"{objective.metric} on validation, {len(complete)} trials")
    figure.savefig(folder / "importance.png", dpi=120, bbox_inches="tight")
    plt.close(figure)


def log_files(settings: Settings, run_id: str, folder: Path) -> None:
    """Put a sweep's tables and plots on its parent run."""
    from orchestrator.registry import client

    registry = client(settings)
    for name in FILES:
        if (folder / name).exists():
            registry.log_artifact(run_id, str(folder / name))
