"""What a model version's run says about it: on what data it was validated, and every unit's values."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.config.objectives import chosen
from orchestrator.errors import UserError
from orchestrator.provenance.record import SPEC
from orchestrator.registry.models import EPOCH_TAG
from orchestrator.report.samples import on_what
from orchestrator.storage.names import OUTCOME, SEALED, VALIDATION_UNITS
from workloads.contract import Objective

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evidence:
    """``metrics`` are the version's own on the validation split; ``units`` has a row a unit, indexed by its id.

    What the run did not leave is None or empty.
    """

    version: str
    spec: Mapping[str, Any] | None
    fingerprint: str | None
    metrics: Mapping[str, float]
    units: pd.DataFrame | None

    @property
    def data(self) -> dict[str, Any]:
        """What it was evaluated on, in parameters."""
        return on_what((self.spec or {}).get("params", {}))

    @property
    def known(self) -> set[str]:
        """The metrics that a gate can ask for."""
        return set(self.metrics) | set(self.units.columns if self.units is not None else ())

    def objectives(self) -> tuple[Objective, ...]:
        """What the run selected by. Raises UserError where its workload is not installed."""
        assert self.spec is not None
        try:
            workload = workload_loader.code(self.spec["workload"])
        except UserError as error:
            raise UserError(
                f"What version {self.version} was selected by is not known here: {error}",
                fix="Install its workload, or promote without the gates better and guard",
            ) from None
        return chosen(workload.objective, tuple(self.spec["plan"].get("objective", ())))


def gather(registry: Any, version: Any) -> Evidence:
    """The evidence of a model version, from its run. Raises MlflowException during an outage."""
    if not version.run_id:
        return Evidence(version.version, None, None, {}, None)
    from mlflow.exceptions import MlflowException

    try:
        run = registry.get_run(version.run_id)
    except MlflowException as error:
        if error.get_http_status_code() == 404:
            return Evidence(version.version, None, None, {}, None)
        raise
    import pandas as pd

    spec, outcome, units = None, {}, None
    there = {file.path for file in registry.list_artifacts(version.run_id)}
    sealed = f"{SEALED}/{int(version.tags.get(EPOCH_TAG, 0)):04d}"
    own = {file.path for file in registry.list_artifacts(version.run_id, sealed)} if SEALED in there else set()
    place = f"{sealed}/" if own else ""
    with tempfile.TemporaryDirectory() as scratch:
        files = {
            name: Path(registry.download_artifacts(version.run_id, name, scratch))
            for name in (SPEC, place + OUTCOME, place + VALIDATION_UNITS)
            if name in there | own
        }
        if file := files.get(SPEC):
            spec = json.loads(file.read_text())
        if file := files.get(place + OUTCOME):
            outcome = json.loads(file.read_text())["metrics"]
        if file := files.get(place + VALIDATION_UNITS):
            units = pd.read_parquet(file).set_index("id")
    metrics = {name.removeprefix("validation/"): v for name, v in outcome.items() if name.startswith("validation/")}
    fingerprint = run.data.tags.get("orchestrator.data_fingerprint")
    return Evidence(version.version, spec, None if fingerprint == "none" else fingerprint, metrics, units)


def incomparable(before: Evidence, after: Evidence) -> str | None:
    """Why the values of two versions cannot be compared; None when they are of the same evaluation data."""
    for one in (before, after):
        if one.spec is None or one.fingerprint is None:
            return f"the run of version {one.version} does not say on what data it was validated"
        if one.units is None:
            return f"the run of version {one.version} left no validation units"
        if not one.units.index.is_unique:
            return f"the validation units of version {one.version} hold an id twice"
    if before.fingerprint != after.fingerprint:
        return f"version {before.version} was validated on other data: the datasets' fingerprints differ"
    for name in sorted({*before.data, *after.data}):
        if before.data.get(name) != after.data.get(name):
            values = f"{name} is {before.data.get(name)} there and {after.data.get(name)} here"
            return f"version {before.version} was validated on other data: {values}"
    assert before.units is not None
    assert after.units is not None
    if only := len(before.units.index.symmetric_difference(after.units.index)):
        return f"{only} validation units are in one of both versions alone"
    return None
