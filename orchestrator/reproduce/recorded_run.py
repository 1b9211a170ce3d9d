"""Read the record of a run, a trial or a sweep, from its folder or from MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.spec import ExperimentSpec, SweepSpec, parse
from orchestrator.errors import UNAVAILABLE, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.runs import worker
from orchestrator.runs.session import adopt
from orchestrator.search import recorded
from orchestrator.storage import history, run_lookup
from orchestrator.storage.names import OUTCOME
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.tracking.client import KEY, all_pages

Kind = Literal["run", "sweep", "trial"]
OWN_VERSION = "Run it with its own version: --script shows how"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of a run, trial or sweep.

    ``files`` is the folder with its diffs and search space, ``metrics`` are the last values, ``epochs`` is the last
    epoch with metrics, ``data`` the fingerprint of the dataset. A run that has not ended is ``partial``: its metrics
    are those up to that epoch.
    """

    id: str
    run_id: str | None
    kind: Kind
    spec: ExperimentSpec | SweepSpec
    files: Path
    environment: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    partial: bool = False


def find(settings: Settings, reference: str) -> Recorded:
    """Find the record of ``reference``: the id of a run, a sweep or an MLflow run, a trial (``SWEEP/7``), or
    ``latest``. Raises UserError."""
    owner = reference.partition("/")[0]
    folder = run_lookup.find_here(settings.storage, owner)
    if folder is not None and owner == reference:
        return _from_folder(folder)
    if folder is not None:
        settings = adopt(settings, folder)
        reference = f"{folder.id}/{reference.partition('/')[2]}"
    if settings.tracking is None:
        raise UserError("Unknown run", got=repr(reference), fix=f"Looked in {settings.storage}; tracking is off")
    return _from_mlflow(settings, reference)


def _from_folder(folder: RunFolder) -> Recorded:
    files = folder.path
    model: type[ExperimentSpec | SweepSpec] = SweepSpec if folder.record["kind"] == "sweep" else ExperimentSpec
    outcome = worker.outcome_of(files) or worker.outcome_of(files / "winner")
    rows = history.read(files) if outcome is None else []
    return Recorded(
        id=folder.id,
        run_id=folder.record.get("run_id"),
        kind=folder.record["kind"],
        spec=parse(model, recorded.spec(folder), folder.id, OWN_VERSION),
        files=files,
        environment=(environment := _environment(files)),
        data=_data(environment.get("data")),
        metrics=outcome["metrics"] if outcome else last_values(rows),
        epochs=rows[-1]["epoch"] if rows else 0,
        partial=outcome is None,
    )


def _from_mlflow(settings: Settings, reference: str) -> Recorded:
    client = registry.client(settings)
    try:
        run = client.get_run(_run_id(client, reference))
        tags = run.data.tags
        run_id = run.info.run_id
        kind = tags.get("orchestrator.kind")
        parent = tags.get("mlflow.parentRunId")
        if kind not in ("run", "sweep", "trial"):
            raise UserError(
                f"The MLflow run {reference} was not made by orchestrator", fix="Name a run, a sweep or a trial"
            )
        files = settings.home / "reproduced" / run_id
        _download(client, parent if kind == "trial" else run_id, files)
        owner = client.get_run(parent).data.tags if kind == "trial" and parent else tags
    except registry.outage_errors() as error:
        unknown = getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
        reason = one_line(error)
        if unknown:
            where = f"{settings.storage} and {settings.tracking}"
            raise UserError("Unknown run", got=repr(reference), fix=f"Looked in {where}: {reason}") from None
        raise UserError(f"The record of {reference} cannot be read from MLflow: {reason}", code=UNAVAILABLE) from None
    model: type[ExperimentSpec | SweepSpec] = SweepSpec if kind == "sweep" else ExperimentSpec
    if kind == "trial":
        values = _tagged(tags, reference)
    else:
        values = _spec_file(files / (provenance.SWEEP if kind == "sweep" else provenance.SPEC), reference)
    outcome = _json(files / OUTCOME) if kind != "trial" else None
    last = {m.key: m for m in run.data.to_proto().metrics}
    return Recorded(
        id=tags.get(KEY, run_id),
        run_id=run_id,
        kind=kind,
        spec=parse(model, values, reference, OWN_VERSION),
        files=files,
        environment=_environment(files),
        data=_data(owner.get("orchestrator.data_fingerprint")),
        metrics=outcome["metrics"] if outcome else {n: float(m.value) for n, m in last.items() if _repeats(kind, n)},
        epochs=_last_epoch(last),
        partial=outcome is None and kind != "trial",
    )


def _last_epoch(last: Mapping[str, Any]) -> int:
    """The last epoch with metrics, of the refit if it had begun."""
    refit = [int(metric.step) for name, metric in last.items() if name.startswith("refit/")]
    return max(
        refit or [int(m.step) for name, m in last.items() if name.startswith(("train/", "validation/"))], default=0
    )


def _repeats(kind: str, metric: str) -> bool:
    """Whether a repetition has this metric. Trials of lifelong sweeps had test values in earlier versions.

    Of a run that never ended the history is compared, which has no values within epochs.
    """
    return not metric.startswith("test/" if kind == "trial" else "train_steps/")


def _run_id(client: Any, reference: str) -> str:
    """The MLflow id of a trial ``SWEEP/7``; any other reference is returned as it is."""
    if "/" not in reference:
        return reference
    experiments = [experiment.experiment_id for experiment in all_pages(client.search_experiments)]
    runs = client.search_runs(experiments, f"tags.`{KEY}` = '{reference}'", max_results=1) if experiments else []
    if not runs:
        raise UserError("Unknown trial", got=repr(reference), allowed="SWEEP/NUMBER, or its MLflow run's id")
    return str(runs[0].info.run_id)


def _download(client: Any, run_id: str, files: Path) -> None:
    private_files.make_folder(files)
    wanted = (provenance.SPEC, provenance.SWEEP, provenance.ENVIRONMENT, OUTCOME, *provenance.CODE.values())
    for name in (file.path for file in client.list_artifacts(run_id)):
        if name in wanted or re.fullmatch(r"source(-[\w.-]+)?\.diff", name):
            client.download_artifacts(run_id, name, str(files))


def _tagged(tags: Mapping[str, str], reference: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(tags["orchestrator.spec"])
        return values
    except (KeyError, json.JSONDecodeError):  # of an older version, or truncated as too long for a tag
        command = tags.get("orchestrator.repeat")
        raise UserError(
            f"The trial {reference} has no complete spec", fix=f"The closest is: {command}" if command else None
        ) from None


def _spec_file(file: Path, reference: str) -> dict[str, Any]:
    values = _json(file)
    if values is None:
        raise UserError(
            f"The run {reference} has no {file.name}", fix="It is of an older version, or its artifacts were removed"
        )
    form = values.pop("format", 1)  # the first version did not write it
    if form != provenance.FORMAT:
        raise UserError(f"{file.name} of {reference} has another format", got=form, allowed=provenance.FORMAT)
    return values


def _environment(files: Path) -> Mapping[str, Any]:
    """The recorded environment; empty if it is missing, damaged or of another format."""
    values = provenance.recorded_environment(files)
    return values if values.get("format") == provenance.FORMAT else {}


def _data(fingerprint: str | None) -> str | None:
    return None if fingerprint in (None, "none") else fingerprint


def _json(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file does not exist. Raises UserError if it is damaged."""
    values = None
    with suppress(OSError):
        values = private_files.read_json(file)
    if values is None and file.exists():
        raise UserError(f"{file.name} of the run is damaged", fix=f"Restore it: {file}")
    return values


def last_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The last value of each metric in some rows of a history."""
    values: dict[str, float] = {}
    for row in rows:
        values |= {name: value for name, value in row.items() if "/" in name}
    return values
