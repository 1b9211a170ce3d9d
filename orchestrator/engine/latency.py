"""Latency of a model as it would be served, measured in the process that trained it."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import pandas as pd

from orchestrator.errors import UserError
from workloads.contract import Servable
from workloads.predictor_sources import copy_sources
from workloads.served_weights import served_weights

CALLS, SECONDS = 20, 2.0
"""A measurement ends after so many calls, or, if there were at least three, after so much time."""


def milliseconds(servable: Servable) -> float:
    """Median milliseconds of a call of the predictor with the servable's example, after one call to warm up.

    The predictor is loaded from copies of its files, with arrays on the CPU, as a served model is. Raises UserError
    for a model that cannot be served.
    """
    if servable.predictor is None:
        raise UserError("The latency of a model without a class Predictor cannot be measured")
    package = f"measured_{uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(servable.predictor, Path(folder, package), "workload")
        sys.path.insert(0, folder)
        try:
            module = importlib.import_module(f"{package}.workload.predictor")
            weights = {name: tensor.numpy() for name, tensor in served_weights(servable.weights).items()}
            predictor = module.Predictor(weights, json.loads(json.dumps(dict(servable.config))))
            example = pd.DataFrame({name: column.tolist() for name, column in servable.example.items()})
            predictor.predict(example, **servable.params)
            times: list[float] = []
            while len(times) < 3 or (len(times) < CALLS and sum(times) < SECONDS):
                started = time.perf_counter()
                predictor.predict(example, **servable.params)
                times.append(time.perf_counter() - started)
        finally:
            sys.path.remove(folder)
            for name in [name for name in sys.modules if name.startswith(package)]:
                del sys.modules[name]
    return 1000 * statistics.median(times)
