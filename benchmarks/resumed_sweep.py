"""Resume a sweep up to the moment at which it would connect to Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resume(storage: Path, name: str, space: str, leave: Callable[..., Any]) -> None:
    """Resume the sweep ``name``; ``leave`` is called in the place of connecting."""
    from orchestrator.console import Console
    from orchestrator.storage import run_lookup, settings
    from orchestrator.sweeps import sweep

    usual, sweep._on_ray = sweep._on_ray, leave
    try:
        resolved = settings.resolve({"storage": str(storage), "tracking": "none"})
        folder = run_lookup.find(resolved.storage, name)
        sweep.resume(folder, resolved, Console(), sweep.ResumeOptions(space=space))
    finally:
        sweep._on_ray = usual


if __name__ == "__main__":
    resume(Path(sys.argv[1]), sys.argv[2], sys.argv[3], lambda *parts: os._exit(0))
