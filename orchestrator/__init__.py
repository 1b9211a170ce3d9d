"""Run experiments and hyperparameter sweeps and register models. In a notebook: ``from orchestrator import run``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Must be set before PyTorch loads OpenMP. With threads that spin while they wait, an epoch of small steps takes 30
# times as long when another process needs the core; threads that sleep do not (benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Must be set before Ray is imported: a local cluster then listens only on 127.0.0.1. Other clusters are not affected.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

if TYPE_CHECKING:
    from orchestrator.api import load_model, load_result, run, sweep

__all__ = ["load_model", "load_result", "run", "sweep"]


def __getattr__(name: str) -> Any:  # lazy, so that the command line starts fast
    if name in __all__:
        from orchestrator import api

        return getattr(api, name)
    raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")


def __dir__() -> list[str]:  # completion in a notebook
    return sorted({*globals(), *__all__})
