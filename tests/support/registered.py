"""Registered versions of workloads that were trained for an epoch or two, for tests of what reads the registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine.experiment import Outcome
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.runs import worker
from orchestrator.storage.settings import Settings
from workloads.contract import Runtime, Workload


def register(
    settings: Settings,
    folder: Path,
    name: str,
    workload: str,
    params: Mapping[str, Any],
    epochs: int = 1,
    run: str | None = None,
) -> Workload:
    """Train a workload, write its outcome to ``folder`` and register it as ``name``. Returns the trained workload.

    ``run`` is the id of an MLflow run that exists, as a sweep's when it is resumed.
    """
    model = workload_loader.params(workload)(**params)
    runtime = Runtime(device=torch.device("cpu"), data=folder, seed=7, epochs=epochs)
    trained: Workload = workload_loader.code(workload)(model, runtime)
    for epoch in range(1, epochs + 1):
        trained.train_epoch(epoch)
    test = trained.evaluate("test")
    metrics = {f"test/{key}": value for key, value in test.metrics.items()}
    folder.mkdir(parents=True, exist_ok=True)
    worker.write_outcome(Outcome(trained, epochs, False, "epochs", metrics, 1.0, test, {}), folder)
    spec = ExperimentSpec(workload=workload, params=model.model_dump(mode="json"), plan=Plan(epochs=epochs), seed=7)
    provenance.write_spec(folder / provenance.SPEC, spec.model_dump(mode="json"))
    client = registry.client(settings)
    tags = {"orchestrator.workload": workload, "orchestrator.repeat": spec.command()}
    run = run or client.create_run("0", tags=tags).info.run_id
    registry.log_model(settings, run, folder, name)
    return trained


def erase(settings: Settings, run: str) -> None:
    """Remove a run from the database, as ``mlflow gc --run-ids`` does. Its logged models stay."""
    client = registry.client(settings)
    client.delete_run(run)
    client._tracking_client.store._hard_delete_run(run)
