"""What a writer of a format gets and gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.registry import servable
from orchestrator.registry.versions import Version
from orchestrator.storage.settings import Settings

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Model:
    """A downloaded version. ``rows``: the file of ``--input``, whose rows are embedded."""

    version: Version
    folder: Path
    settings: Settings
    rows: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / servable.CONFIG).read_text())
        return config

    def predictor(self) -> Any:
        """The predictor of the installed workload with the model's weights: the model's own code is not run."""
        entry = workload_loader.entry(str(self.version.workload))
        package = entry.workload.partition(":")[0].rpartition(".")[0]
        assert entry.predictor is not None, "such a model is not logged"
        module = import_module(f"{package}.{Path(entry.predictor).stem}")
        return module.Predictor(self.weights, self.config)

    @cached_property
    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        from safetensors.numpy import load_file

        weights: dict[str, np.ndarray[Any, Any]] = load_file(self.folder / servable.WEIGHTS)
        return weights


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer says of its files: how to load them (code), limits, further lines, and the card's library."""

    usage: str
    library: str
    limits: Sequence[str] = ()
    notes: Sequence[str] = ()
    task: str | None = None
