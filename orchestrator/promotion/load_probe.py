"""Run by a fresh interpreter that holds nothing of ours: load a model from its own files, predict, take the time.

``python -I probe.py MODEL_FOLDER RESULT_FILE CALLS SECONDS`` writes JSON: what it measured, or the error.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

LEAST_CALLS = 3


def measure(folder: str, calls: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a call with the model's input example: the median of up to ``calls`` within ``seconds``."""
    import mlflow

    started = time.perf_counter()
    model = mlflow.pyfunc.load_model(folder)
    loaded = time.perf_counter() - started
    example = model.input_example
    if example is None:
        raise ValueError("the model has no input example to predict")
    model.predict(example)  # the first call pays for what is made once
    times: list[float] = []
    while len(times) < LEAST_CALLS or (len(times) < calls and sum(times) < seconds):
        started = time.perf_counter()
        model.predict(example)
        times.append(time.perf_counter() - started)
    return {"load_seconds": loaded, "milliseconds": 1000 * statistics.median(times), "calls": len(times)}


def main(folder: str, target: str, calls: str, seconds: str) -> None:
    """Measure and write the result."""
    for name in ("orchestrator", "workloads", "search_spaces"):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it now fails, as where it is not installed
    try:
        result = measure(folder, int(calls), float(seconds))
    except Exception as error:  # whatever a model's own code can raise
        result = {"error": f"{type(error).__name__}: {error}"}
    Path(target).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
