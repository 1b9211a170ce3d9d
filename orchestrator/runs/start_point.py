"""What a run or sweep starts from: its data, the weights of a model (``init=``), the state of another run (``--from``).

The driver copies it into the run's folder before anything trains, so that every process and every resume starts alike.
A spec holds the reference with a digest of its content, ``rec/3#9f86d081884c7d65``: a repetition that finds something
else under the reference is refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config import workload_loader
from orchestrator.config.spec import DATA, ExperimentSpec, SweepSpec, parse
from orchestrator.engine import checkpoint
from orchestrator.engine.checkpoint import Checkpoint
from orchestrator.engine.loop import Progress
from orchestrator.errors import USAGE, UserError, one_line
from orchestrator.provenance import private_files
from orchestrator.provenance import record as provenance
from orchestrator.registry import servable, versions
from orchestrator.registry.models import VALIDATION_SEEN
from orchestrator.runs import earlier_training
from orchestrator.search.winners import WINNER
from orchestrator.storage import commands, disk, remote, run_lookup
from orchestrator.storage.names import OUTCOME, TRAIN
from orchestrator.storage.object_sync import download
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from workloads.contract import Workload

FOLDER = "start"
"""Folder in a run's folder, with ``data``, and ``weights`` or ``state``."""

SELECTION = "selection"
"""Checkpoint of a run at the end of its selection, which a refit does not replace."""

REFERENCES = "MODEL@ALIAS, MODEL/VERSION, or the id of a finished run or sweep"

_WEIGHTS = "weights"
_STATE = "state"
_DATASET = "data"
_EXPECTED = "fingerprint.json"
_DIGITS = 16

_DEPTH = 3
"""Most levels below the run's folder at which training may work (``trials/NNNNN``, ``train``)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run whose state another one goes on from, after ``epoch`` epochs."""

    id: str
    spec: ExperimentSpec
    run: Path
    checkpoint: Path
    epoch: int
    digest: str

    @property
    def origin(self) -> str:
        """As ``origin`` of a spec."""
        return f"{self.id}@{self.epoch}#{self.digest}"


def resolve(settings: Settings, workload: str, reference: str) -> str:
    """The complete form of ``init=reference``: version instead of alias, and the digest of the weights.

    Raises UserError for an unknown model, one of another workload, other weights than the given digest says, and a
    workload that cannot start from weights.
    """
    if not hasattr(workload_loader.code(workload), "load_weights"):
        raise UserError(
            f"The workload {workload} cannot start from weights: it has no load_weights", got=f"init={reference}",
            fix="See workloads.contract.Initialisable",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="init-") as scratch:
        return _fetch(settings, workload, reference, Path(scratch))


def source(settings: Settings, reference: str) -> Source:
    """The run of ``--from``: an id, ``latest``, or an ``origin``. Raises UserError.

    Of a run with a refit it is the state at the end of the selection.
    """
    name, _, recorded = reference.partition("@")
    folder = run_lookup.find(settings.storage, name).fetch()
    if folder.has_live_driver():
        raise UserError(f"{folder.id} is still running", got=reference, fix="Wait for its end, or stop it")
    origin = Source(folder.id, _spec(folder), folder.path, *_selection(folder))
    if recorded and f"{folder.id}@{recorded}" != origin.origin:
        raise UserError(f"The state of {folder.id} is not the recorded one", got=origin.origin, allowed=reference)
    return origin


def check(origin: Source, spec: ExperimentSpec | SweepSpec) -> None:
    """Raise UserError if ``spec`` cannot go on from ``origin``."""
    if spec.plan.epochs <= origin.epoch:
        raise UserError(
            f"{origin.id} has trained {origin.epoch} epochs already", got=f"epochs={spec.plan.epochs}",
            allowed=f"more than {origin.epoch}, which count from its first one",
        )  # fmt: skip
    if spec.plan.refit:
        raise UserError(
            "A refit cannot repeat the training of two runs", got=f"refit={str(spec.plan.refit).lower()}",
            fix="Leave it out",
        )  # fmt: skip
    if spec.plan.init:
        raise UserError(f"A run that goes on from {origin.id} has its weights", got=f"init={spec.plan.init}")
    if spec.plan.abstention_part != (part := origin.spec.plan.abstention_part):
        raise UserError(
            f"{origin.id} has learned from other queries", got=f"abstention_part={spec.plan.abstention_part:g}",
            allowed=f"{part:g}",
        )  # fmt: skip
    params = spec.params if isinstance(spec, ExperimentSpec) else spec.fixed
    for name, value in params.items():
        if name.startswith(DATA) and value != (before := origin.spec.params.get(name)):
            raise UserError(
                f"A run that goes on from {origin.id} keeps its data", got=f"{name}={value}", allowed=before,
                fix=f"Start from its weights alone: init={origin.id}",
            )  # fmt: skip


def prepare(folder: Path, spec: ExperimentSpec | SweepSpec, settings: Settings) -> None:
    """Copy what ``spec`` starts from into the run's ``folder``, unless it is there. Raises UserError."""
    if spec.plan.init and not (folder / FOLDER / _WEIGHTS / servable.CONFIG).exists():
        with disk.writing(folder):
            _fetch(settings, spec.workload, spec.plan.init, folder / FOLDER / _WEIGHTS)
    if spec.origin and not (folder / FOLDER / _STATE / checkpoint.META).exists():
        origin = source(settings, spec.origin)
        same = isinstance(spec, ExperimentSpec) and spec.plan.objective == origin.spec.plan.objective
        checkpoint.write(folder / FOLDER / _STATE, _forked(checkpoint.read(origin.checkpoint), best=same))
        for noted in (Path(_DATASET, _EXPECTED), Path(_WEIGHTS, earlier_training.FILE)):
            if (origin.run / FOLDER / noted).exists():
                (folder / FOLDER / noted).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin.run / FOLDER / noted, folder / FOLDER / noted)


def record_data(
    folder: Path, params: Mapping[str, Any], fingerprint: str | None, data: Path, *, elsewhere: bool = False
) -> None:
    """Note in the run's ``folder`` which bytes of its dataset the driver has, or None, and whether it has read them.

    ``data`` is the data root; ``elsewhere`` is as for :func:`preflight.dataset`. Raises UserError (exit 3 where nothing
    can be written) if the run, or the one that it goes on from, began with others.
    """
    file = folder / FOLDER / _DATASET / _EXPECTED
    before = private_files.read_json(file) or {}
    if fingerprint and fingerprint != before.get("fingerprint", fingerprint) and before["dataset"] == params["dataset"]:
        raise UserError(
            f"The dataset {params['dataset']}, or how this version of the program reads it, is not the one that "
            "training began with", got=f"fingerprint {fingerprint[:12]}", allowed=before["fingerprint"][:12],
            fix="Restore its files, or start a new run",
        )  # fmt: skip
    read = preflight.is_read_here(params, data, elsewhere=elsewhere)
    with disk.writing(folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        noted = {"dataset": params.get("dataset"), "fingerprint": fingerprint, "read": read}
        disk.write_json(file, noted | {"node": socket.gethostname()})


def check_data(spec: ExperimentSpec, data: Path, folder: Path) -> None:
    """Check, before training, that this node has the driver's bytes of the dataset. ``folder`` is in the run's folder.

    What the driver has not read is checked here as it would have been there. Raises UserError that names this node.
    """
    if spec.params.get("dataset") is None:
        return
    is_here = any((parent / FOLDER / _DATASET).exists() for parent in _candidates(folder))
    if not is_here and not remote.run_folder(folder):
        return
    noted = private_files.read_json(_start_folder(folder, _DATASET, _EXPECTED) / _EXPECTED)
    if noted is None or noted["dataset"] != spec.params["dataset"] or not noted["fingerprint"]:
        return
    read = noted.get("read", True)
    if read and noted["node"] == socket.gethostname():
        return
    try:
        now = preflight.fingerprint(spec.workload, spec.params, data)
        if now == noted["fingerprint"] and not read:
            preflight.dataset(spec.workload, spec.params, data)
            preflight.data(spec.workload, spec.params, data, spec.plan.refit)
    except UserError as error:
        raise UserError(f"The dataset on node {socket.gethostname()}: {error}", code=error.code) from None
    if now is not None and now != noted["fingerprint"]:
        raise UserError(
            f"Node {socket.gethostname()} has other bytes of dataset {noted['dataset']} than the driver's node "
            f"{noted['node']}", got=f"fingerprint {now[:12]} below {data}", allowed=noted["fingerprint"][:12],
            fix="Bring the same files to both, or remove the copy that is out of date",
        )  # fmt: skip


def load(workload: Workload, init: str, folder: Path) -> None:
    """Give a new workload the weights that its run starts from. ``folder`` is the run's folder or in it.

    Raises UserError that names the weights that do not fit.
    """
    from safetensors.torch import load_file

    files = _start_folder(folder, _WEIGHTS, servable.CONFIG)
    weights = load_file(files / servable.WEIGHTS)
    if (files / servable.TRAINING).exists():
        weights |= load_file(files / servable.TRAINING)
    try:
        workload.load_weights(weights, json.loads((files / servable.CONFIG).read_text()))  # type: ignore[attr-defined]
    except ValueError as error:
        raise UserError(f"Training cannot start from {_name(init)}: {one_line(error)}") from None


def state(spec: ExperimentSpec, folder: Path, latest: Path | None) -> Checkpoint | None:
    """The checkpoint to go on from: ``latest``, the run's own, else the state of ``--from``, else None."""
    if latest is not None:
        return checkpoint.read(latest, spec.identity)
    return checkpoint.read(_start_folder(folder, _STATE, checkpoint.META)) if spec.origin else None


def progress(spec: ExperimentSpec, folder: Path) -> Progress:
    """The progress that a run goes on from with ``--from``. ``folder`` is the run's folder."""
    return Progress.from_json(checkpoint.progress(folder / FOLDER / _STATE) if spec.origin else {})


def warning(
    folder: Path, spec: ExperimentSpec | SweepSpec, fingerprint: str | None, params: Mapping[str, Any]
) -> str | None:
    """The warning about weights in the run's ``folder`` that have learned from what it evaluates on; None without any.

    ``fingerprint`` and ``params`` are of its data.
    """
    return earlier_training.warning(folder / FOLDER / _WEIGHTS, fingerprint, params, spec.plan)


def tags(spec: ExperimentSpec | SweepSpec, seen: bool) -> dict[str, str]:
    """What the run starts from, as tags of its MLflow run. ``seen``: whether there is a :func:`warning`."""
    named = {"orchestrator.init": spec.plan.init, "orchestrator.from": spec.origin, VALIDATION_SEEN: seen and "true"}
    return {name: value for name, value in named.items() if value}


def sentence(spec: ExperimentSpec | SweepSpec) -> str | None:
    """What the run starts from, in words."""
    if spec.origin:
        run, _, rest = spec.origin.partition("@")
        return f"Goes on from {run} after epoch {_name(rest)}, without a refit"
    return f"Starts from the weights of {_name(spec.plan.init)}" if spec.plan.init else None


def _name(reference: str) -> str:
    return reference.partition("#")[0]


def _start_folder(folder: Path, part: str, mark: str) -> Path:
    """Folder ``start/PART`` of the run that contains ``folder``, complete with file ``mark``.

    Downloads it on other nodes.
    """
    for parent in _candidates(folder):
        if (parent / FOLDER / part / mark).exists():
            return parent / FOLDER / part
    root = remote.run_folder(folder)
    if root is None:
        raise UserError(f"What the run starts from is missing: there is no {FOLDER}/{part} above {folder}")
    download(root / FOLDER / part, mark)
    return root / FOLDER / part


def _candidates(folder: Path) -> tuple[Path, ...]:
    """``folder`` and the folders above it that may be the run's."""
    return (folder, *folder.parents[:_DEPTH])


def _fetch(settings: Settings, workload: str, reference: str, target: Path) -> str:
    """Copy the files of a model's weights to ``target``, the configuration last; return the complete reference."""
    name, _, recorded = reference.partition("#")
    target.mkdir(parents=True, exist_ok=True)
    of_registry = "@" in name or "/" in name
    complete = (_from_registry if of_registry else _from_run)(settings, workload, name, target)
    content = hashlib.sha256()
    for file in (servable.WEIGHTS, servable.TRAINING, servable.CONFIG):
        if (target / file).exists():
            content.update((target / file).read_bytes())
    digest = content.hexdigest()[:_DIGITS]
    if recorded and digest != recorded:
        shutil.rmtree(target, ignore_errors=True)
        raise UserError(
            f"The weights of {complete} are not the recorded ones", got=f"#{digest}", allowed=f"#{recorded}"
        )
    return f"{complete}#{digest}"


def _from_run(settings: Settings, workload: str, name: str, target: Path) -> str:
    """Copy the files of a run's model. Returns the run's id."""
    try:
        folder = run_lookup.find(settings.storage, name).fetch()
    except UserError as error:
        if error.code != USAGE:
            raise
        raise UserError("init names no model", got=repr(name), allowed=REFERENCES, fix=error.fix) from None
    _check_workload(workload, folder.record["workload"], folder.id)
    outcome = folder.path / WINNER if folder.record["kind"] == "sweep" else folder.path
    if not (outcome / OUTCOME).exists():
        raise UserError(
            f"{folder.id} has no model yet", got=f"init={name}", fix=f"See: {commands.for_run(folder.path, 'status')}"
        )
    for file in (servable.WEIGHTS, servable.TRAINING, servable.CONFIG):
        if (outcome / "model" / file).exists():
            shutil.copyfile(outcome / "model" / file, target / file)
    noted = private_files.read_json(folder.path / FOLDER / _DATASET / _EXPECTED) or {}
    refitted = bool((private_files.read_json(outcome / OUTCOME) or {}).get("refitted"))
    spec = private_files.read_json(outcome / provenance.SPEC) or {}
    before = earlier_training.trained(folder.path / FOLDER / _WEIGHTS)
    earlier_training.note(target, noted.get("fingerprint"), spec, refitted, before)
    return folder.id


def _from_registry(settings: Settings, workload: str, name: str, target: Path) -> str:
    version = versions.find(settings, name)
    _check_workload(workload, version.workload, version.name)
    learnt = version.tags.get("orchestrator.refit", "false") != "false" or VALIDATION_SEEN in version.tags
    with tempfile.TemporaryDirectory(prefix="init-") as scratch:
        spec = versions.record_json(settings, version, provenance.SPEC, Path(scratch))
    earlier_training.note(target, version.tags.get("orchestrator.data_fingerprint"), spec, learnt)
    versions.download(settings, version, target, (servable.WEIGHTS, servable.TRAINING, servable.CONFIG))
    return version.name


def _check_workload(workload: str, other: str | None, name: str) -> None:
    if other != workload:
        raise UserError(f"{name} is a model of another workload", got=other or "none that is known", allowed=workload)


def _selection(folder: RunFolder) -> tuple[Path, int, str]:
    """The last checkpoint of a run's selection, its epoch and its digest. Raises UserError if there is none."""
    for part in ("checkpoints", TRAIN, f"{WINNER}/checkpoints", f"{WINNER}/{TRAIN}"):
        home = folder.path / part
        kept = home / SELECTION
        latest = kept if kept.is_dir() else checkpoint.latest(home)
        if latest is not None and (read := checkpoint.read(latest)).state["phase"] == "select":
            digest = hashlib.sha256((latest / checkpoint.META).read_bytes()).hexdigest()[:_DIGITS]
            return latest, read.epoch, digest
    raise UserError(
        f"{folder.id} has kept no state of a selection to go on from", fix=f"Start from its weights: init={folder.id}"
    )


def _spec(folder: RunFolder) -> ExperimentSpec:
    """The spec of a run, or of a sweep's winner."""
    if folder.record["kind"] == "run":
        return parse(ExperimentSpec, folder.record["spec"]["experiment"], folder.id)
    values: dict[str, Any] = json.loads((folder.path / WINNER / provenance.SPEC).read_text())
    values.pop("format", None)
    return parse(ExperimentSpec, values, folder.id)


def _forked(read: Checkpoint, *, best: bool) -> Checkpoint:
    """The state for another run: without rows, seconds and patience, and ``best`` says whether with the best epoch."""
    progress = replace(Progress.from_json(read.state["progress"]), stale=0, train_seconds=0.0)
    values = {**read.state, "rows": []}
    if not best or read.state["best"] is None:
        progress = replace(progress, best_epoch=0, best_value=None, best_metrics={})
        values |= {"best": None, "units": {}}
    values["progress"] = progress.to_json()
    return Checkpoint({"workload": read.identity["workload"]}, read.epoch, values)
