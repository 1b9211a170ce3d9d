"""Script for a clean interpreter: load a model from its files, predict, measure the time.

``python -I load_probe.py MODEL_FOLDER RESULT_FILE CALLS SECONDS`` writes the measurements or the error as JSON.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

LEAST_CALLS = 3


def measure(folder: str, calls: int, seconds: float) -> dict[str, Any]:
    """Time loading and a call with the input example, as the median of up to ``calls`` calls in ``seconds``."""
    import mlflow

    started = time.perf_counter()
    model = mlflow.pyfunc.load_model(folder)
    loaded = time.perf_counter() - started
    example = model.input_example
    if example is None:
        raise ValueError("the model has no input example to predict")
    model.predict(example)  # warm-up
    times: list[float] = []
    while len(times) < LEAST_CALLS or (len(times) < calls and sum(times) < seconds):
        started = time.perf_counter()
        model.predict(example)
        times.append(time.perf_counter() - started)
    return {"load_seconds": loaded, "milliseconds": 1000 * statistics.median(times)}


def missing_module(error: BaseException | None) -> str | None:
    """The module whose lack caused ``error``; MLflow wraps what a model's code raises."""
    while error and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__ or error.__context__
    return error.name if isinstance(error, ModuleNotFoundError) else None


def main(folder: str, target: str, calls: str, seconds: str) -> None:
    """Measure and write the result."""
    for name in ("orchestrator", "workloads", "search_spaces"):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails, as if it were not installed
    try:
        result = measure(folder, int(calls), float(seconds))
    except Exception as error:  # a model's code can raise anything
        result = {"error": f"{type(error).__name__}: {error}", "missing": missing_module(error)}
    Path(target).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
