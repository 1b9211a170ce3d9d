"""Experiments from an idea to a registered model. From a notebook: ``from orchestrator import run, sweep``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Before PyTorch loads OpenMP. Threads that spin while they wait slow an epoch of small steps thirtyfold as soon as
# another process wants the core; threads that sleep cost it nothing (benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Before Ray is imported: a cluster that starts here listens on 127.0.0.1 alone. Other clusters are joined as ever.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

if TYPE_CHECKING:
    from orchestrator.api import load_model, run, sweep

__all__ = ["load_model", "run", "sweep"]


def __getattr__(name: str) -> Any:  # lazily: the command line must start in a blink
    if name in __all__:
        from orchestrator import api

        return getattr(api, name)
    raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
