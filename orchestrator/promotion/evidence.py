"""Evidence about a model version from its run: the validation data, and metrics of each validation unit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import workload_loader
from orchestrator.config.objectives import direction_of, of_workload
from orchestrator.errors import UserError
from orchestrator.provenance.record import ENVIRONMENT, SPEC
from orchestrator.registry.models import EPOCH_TAG, VALIDATION_SEEN, existing_run, record_paths
from orchestrator.report.samples import evaluated_on
from orchestrator.storage.names import OUTCOME, VALIDATION_UNITS
from workloads.contract import Objective

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evidence:
    """Evidence about one version.

    ``fingerprint`` is that of the dataset or, for a workload that reads its own data, the digests of its input files.
    ``metrics`` are values on the validation split; ``units`` has one row a validation unit, indexed by id. Parts that
    the run does not have are None or empty. ``seen``: the run started from weights that had learned from that split, or
    may have, since they were trained on another one.
    """

    version: str
    spec: Mapping[str, Any] | None
    fingerprint: str | None
    metrics: Mapping[str, float]
    units: pd.DataFrame | None
    seen: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """The parameters that define the evaluation data."""
        return evaluated_on((self.spec or {}).get("params", {}))

    @property
    def metric_names(self) -> set[str]:
        """The metrics that a gate can use."""
        return set(self.metrics) | set(self.units.columns if self.units is not None else ())

    def _workload(self) -> Any:
        """The code of the run's workload. Raises UserError if it is not installed."""
        assert self.spec is not None
        try:
            return workload_loader.code(self.spec["workload"])
        except UserError as error:
            raise UserError(
                f"The objective of version {self.version} is unknown here: {error}",
                fix="Install its workload, or promote without the gates better and guard",
            ) from None

    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of the run. Raises UserError if its workload is not installed."""
        assert self.spec is not None
        return of_workload(self._workload(), tuple(self.spec["plan"].get("objective", ())))

    def minimized(self) -> set[str]:
        """The metrics of which less is better, as the run's objectives and its workload say."""
        directions = dict(getattr(self._workload(), "directions", {}))
        directions |= {objective.metric: objective.direction for objective in self.objectives()}
        return {metric for metric in self.metric_names if direction_of(metric, directions) == "min"}


def gather(registry: Any, version: Any) -> Evidence:
    """Gather the evidence of a model version from its run. Raises MlflowException during an outage."""
    run = existing_run(registry, version.run_id)
    if run is None:
        return Evidence(version.version, None, None, {}, None)
    import pandas as pd

    spec = units = None
    outcome = {}
    paths = record_paths(registry, version.run_id, version.source, version.tags.get(EPOCH_TAG))
    with tempfile.TemporaryDirectory() as scratch:
        files = {
            name: Path(registry.download_artifacts(version.run_id, paths[name], scratch))
            for name in (SPEC, OUTCOME, VALIDATION_UNITS)
            if name in paths
        }
        if file := files.get(SPEC):
            spec = json.loads(file.read_text())
        if file := files.get(OUTCOME):
            outcome = json.loads(file.read_text())["metrics"]
        if file := files.get(VALIDATION_UNITS):
            units = pd.read_parquet(file).set_index("id")
    metrics = {name.removeprefix("validation/"): v for name, v in outcome.items() if name.startswith("validation/")}
    fingerprint = run.data.tags.get("orchestrator.data_fingerprint")
    if fingerprint == "none":
        fingerprint = _input_digests(registry, version.run_id)
    seen = VALIDATION_SEEN in run.data.tags
    return Evidence(version.version, spec, fingerprint, metrics, units, seen)


def _input_digests(registry: Any, run_id: str) -> str | None:
    """The digests of the files that a run's workload names in ``input_files``, as one text; None without any."""
    if ENVIRONMENT not in {one.path for one in registry.list_artifacts(run_id)}:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        recorded = json.loads(Path(registry.download_artifacts(run_id, ENVIRONMENT, scratch)).read_text())
    return json.dumps(recorded["inputs"], sort_keys=True) if recorded.get("inputs") else None


def incomparable(before: Evidence, after: Evidence) -> str | None:
    """Why the values of two versions cannot be compared; None if they are from the same evaluation data."""
    for one in (before, after):
        if one.spec is None or one.fingerprint is None:
            what = "it has neither a dataset nor input_files"
            return f"the run of version {one.version} does not say on what data it was validated: {what}"
        if one.seen:
            how = "were refitted on its validation part, or trained on another split"
            return f"the run of version {one.version} started from weights that {how}"
        if one.units is None:
            return f"the run of version {one.version} has no validation units of its own"
        if not one.units.index.is_unique:
            return f"the validation units of version {one.version} have an id twice"
    if before.fingerprint != after.fingerprint:
        return f"version {before.version} was validated on other data: the datasets' fingerprints differ"
    for name in sorted({*before.data, *after.data}):
        if before.data.get(name) != after.data.get(name):
            values = f"{name} is {before.data.get(name)} there and {after.data.get(name)} here"
            return f"version {before.version} was validated on other data: {values}"
    assert before.units is not None
    assert after.units is not None
    if only := len(before.units.index.symmetric_difference(after.units.index)):
        return f"{only} validation units are in only one of both versions"
    return None
