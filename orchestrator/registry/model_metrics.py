"""Test values on MLflow's logged models, with the dataset, so that its Models page ranks and filters them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.registry.intervals import half_width
from orchestrator.storage.names import OUTCOME, TEST_UNITS
from orchestrator.tracking.names import Names

LOW = "test_low"
HIGH = "test_high"
"""In the place of ``test`` in a metric's name: the ends of its 95% interval over test units."""


def link(client: Any, run_id: str, model_id: str, folder: Path) -> None:
    """Attach the test values of the outcome in ``folder`` to a model, and the ends of their intervals.

    Each value has the step and time at which the run has it, so that the run does not get it twice, and the name and
    digest of the run's dataset. The values of a model kept at an earlier epoch are those of that epoch.
    """
    from mlflow.entities import Metric

    outcome = json.loads((folder / OUTCOME).read_text())
    values = {name: value for name, value in outcome["metrics"].items() if name.startswith("test/")}
    run = client.get_run(run_id)
    logged = run.inputs.dataset_inputs if run.inputs else ()
    data = {"dataset_name": logged[0].dataset.name, "dataset_digest": logged[0].dataset.digest} if logged else {}
    step, moment = _logged_at(client, run_id, values, round(outcome["time"] * 1000), outcome["epochs"])
    names = Names()
    every = {**values, **_interval(values, folder / TEST_UNITS)}
    # MLflow copies the run's values of step 0 to each model, whatever its epoch, and takes no value twice.
    present = {(one.key, one.step, one.timestamp) for one in client.get_logged_model(model_id).metrics or ()}
    metrics = [
        Metric(name, every[ours], moment, step, model_id=model_id, run_id=run_id, **data)
        for ours, name in names.give(every).items()
        if (name, step, moment) not in present
    ]
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def _logged_at(client: Any, run_id: str, values: dict[str, float], moment: int, epochs: int) -> tuple[int, int]:
    """Step and time, in milliseconds, at which the run has these values; those of the outcome if it has them not.

    A later winner of a sweep continues the steps of the earlier one. Values of an epoch in ``test_epochs`` have that
    epoch's time, also those of the outcome.
    """
    for name, theirs in Names().give(values).items():
        history = client.get_metric_history(run_id, theirs)
        then = [one for one in history if one.timestamp == moment]
        if logged := then or [one for one in history if one.value == values[name]]:
            return int(logged[-1].step), int(logged[-1].timestamp)
    return epochs, moment


def _interval(values: dict[str, float], units: Path) -> dict[str, float]:
    ends: dict[str, float] = {}
    for name, value in values.items():
        metric = name.removeprefix("test/")
        if (half := half_width(units, metric, value)) is not None:
            ends |= {f"{LOW}/{metric}": value - half, f"{HIGH}/{metric}": value + half}
    return ends
