"""Upload a finished model to MLflow: at the end of a run, or later by ``orchestrator sync`` when the server is away.

The run's record notes the pending upload from before the first request until after the last one, so that it is known
after a crash. Files that were uploaded are not sent again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.cluster import preflight
from orchestrator.config import user_code, workload_loader
from orchestrator.errors import FAILED, UNAVAILABLE, UserError, one_line, plural
from orchestrator.registry import logged_model
from orchestrator.registry import models as registry
from orchestrator.registry.models import Logged
from orchestrator.registry.servable import DATA_FILES
from orchestrator.runs.session import Session, adopt, open_tracker
from orchestrator.storage import commands, lease, remote, sync_state
from orchestrator.storage.names import SEALED, TABLES
from orchestrator.storage.records import RunFolder, open_folder
from orchestrator.storage.settings import Settings
from orchestrator.tracking.tracker import JOURNAL
from workloads.catalog import catalog
from workloads.data.cache import file_lock
from workloads.predictor_sources import copy_sources, predictor_sources

PENDING_MODEL = "owed"


class UntrustedModel(UserError):
    """A model's files contain code that is not that of an installed workload."""


def deliver(session: Session, outcome: Path, register: str | None) -> Logged | None:
    """Log the model below ``outcome`` and register it; None, which is said, when MLflow is away.

    Raises UserError (exit 3) when MLflow answers and refuses the run or the name to register under.
    """
    folder = session.folder
    tracker = session.tracker
    assert tracker is not None
    if folder.record.get(PENDING_MODEL):  # an earlier attempt may have failed for a predictor that is fixed now
        _renew(outcome, folder.record["workload"])
    folder.update(**{PENDING_MODEL: {"outcome": outcome.relative_to(folder.path).as_posix(), "register": register}})
    later = commands.for_run(folder.path, "sync")
    if not tracker.flush():  # it may answer again before the end, where the tracker then has nothing to say
        session.console.say(
            f"The model is not logged, since MLflow does not answer; it is kept, deliver it with: {later}"
        )
        return None
    run_id = tracker.run_id(folder.id)
    trouble: tuple[type[Exception], ...] = (UntrustedModel, *registry.outage_errors())
    try:
        logged = _log(session.settings, folder, run_id, outcome, register)
    except logged_model.Unservable as error:
        raise UserError(
            f"The model cannot be logged, its predictor fails on its own example: {one_line(error)}",
            fix=f"It is kept; mend the predictor and go on with: {folder.resume_command}", code=FAILED,
        ) from error  # fmt: skip
    except trouble as error:
        cause = one_line(error)
        if register and isinstance(error, UntrustedModel):
            raise
        if register and registry.refused(error):
            raise UserError(
                f"The model could not be registered: {cause}", fix=f"It is kept; {later}", code=UNAVAILABLE
            ) from None
        session.console.say(f"The model could not be logged ({cause}); it is kept, deliver it with: {later}")
        return None
    folder.update(**{PENDING_MODEL: None})
    session.discard(outcome / SEALED)  # they are registered, or were not requested
    return logged


def _log(settings: Settings, folder: RunFolder, run_id: str, outcome: Path, register: str | None) -> Logged:
    """Log the model, and the tables of its evaluation with their plots."""
    _check_files(outcome, folder.record["workload"])
    if (tables := outcome / TABLES).is_dir():
        from orchestrator.runs.table_plots import illustrate  # imports Matplotlib

        illustrate(tables)
    return registry.log_model(settings, run_id, outcome, register)


def _check_files(outcome: Path, workload: str) -> None:
    """Raise UntrustedModel for unknown code or links: logging runs the predictor and sends the targets of links.

    The folder of a run may come from another user, through shared storage or by copying.
    """
    _check_links(outcome)
    for bytecode in [folder for model in _models(outcome) for folder in model.rglob("__pycache__")]:
        shutil.rmtree(bytecode)  # Python would run it instead of the checked source
    trusted = _trusted(workload)
    for code in _code(outcome):
        if code.read_bytes() not in trusted and not user_code.is_allowed(f"{code.absolute()}:Predictor"):
            fix = "Deliver it with the version that wrote it"
            if user_code.is_named(workload) and not user_code.is_in_package(workload):
                fix += ", or put it into a package and name that: PACKAGE.MODULE:NAME"
            raise UntrustedModel(f"{code} is not the code of a workload that is installed here", fix=fix)


def _check_links(outcome: Path) -> None:
    if link := next((path for path in outcome.rglob("*") if path.is_symlink()), None):
        raise UntrustedModel(f"{link} is a link, and what it points at would be sent", fix="Remove it")


def _models(outcome: Path) -> list[Path]:
    return [outcome / "model", *outcome.glob(f"{SEALED}/*/model")]


def _code(outcome: Path) -> list[Path]:
    """Files of the models in ``outcome`` that Python may run: all but data, since an import also finds libraries."""
    files = (file for model in _models(outcome) for file in model.rglob("*") if not file.is_dir())
    return [file for file in files if not (file.name in DATA_FILES and file.parent.name == "model")]


def _renew(outcome: Path, workload: str) -> None:
    """Replace the code of the models in ``outcome`` with the workload's current code, if it is another."""
    _check_links(outcome)
    code = _code(outcome)
    predictor = workload_loader.predictor(workload)
    trusted = _trusted(workload)
    if predictor is None or all(file.read_bytes() in trusted for file in code):
        return
    for file in code:
        file.unlink()
    for model in _models(outcome):
        copy_sources(predictor, model)


@cache
def _installed() -> frozenset[bytes]:
    """The source files next to the modules of workloads, and those that their predictors import."""
    sources: set[bytes] = set()
    for entry in catalog().values():
        with suppress(Exception):  # a broken workload must not affect the others
            sources.update(file.read_bytes() for file in entry.folder.glob("*.py"))
            if entry.predictor:
                files = predictor_sources(entry.folder / entry.predictor).values()
                sources.update(file.read_bytes() for file in files)
    return frozenset(sources)


def _trusted(workload: str) -> frozenset[bytes]:
    """The source files of installed workloads and, if this user has named ``workload``, its file and what that imports.

    Of a package's module these are all files of its folder: a class may name any of them as its predictor.
    """
    if not user_code.is_named(workload) or not user_code.is_allowed(workload):
        return _installed()
    file = user_code.source(workload)
    files = {file} if file else set()
    if file and user_code.is_in_package(workload):
        files.update(file.parent.glob("*.py"))
    sources: set[bytes] = set()
    for each in files:
        with suppress(OSError, ValueError, SyntaxError):  # not the file of a predictor
            sources.update(source.read_bytes() for source in predictor_sources(each).values())
    return _installed() | sources


def sync(settings: Settings, folder: RunFolder) -> str:
    """Upload what an outage has delayed: the journal's values and files, then the model, then the folder's files.

    The model is registered as requested; the folder's files go to object storage. Returns a sentence. Raises UserError
    (exit 3) when MLflow or the storage still cannot be reached.
    """
    # A driver that begins meanwhile would write to the journal that is emptied here.
    with file_lock(folder.path / "sync.lock"), ExitStack() as held:
        if folder.has_live_driver() or not held.enter_context(lease.locked(folder.path)):
            raise UserError(f"{folder.id} is still running and uploads its own results", fix="Wait for its end")
        folder = open_folder(folder.path)  # another one may have uploaded it meanwhile
        try:
            uploaded = _sync_tracking(settings, folder)
        finally:
            with remote.answering(str(remote.uri_of(folder.path.parent))):
                count = sync_state.upload_pending(folder.path)
    if count is None:
        stored = ["another driver has continued it; what only the copy here has is not stored"]
    else:
        stored = [f"{plural(count, 'file')} stored"] if count else []
    return f"{folder.id}: {'; '.join([*uploaded, *stored]) or 'everything is uploaded'}"


def _sync_tracking(settings: Settings, folder: RunFolder) -> list[str]:
    journal = folder.path / JOURNAL
    owed = folder.record.get(PENDING_MODEL)
    if not owed and not journal.exists():
        return []
    settings = adopt(settings, folder)
    preflight.tracking(settings)
    with _leased(folder.path):
        tracker = open_tracker(settings, folder, resuming=True)
        if tracker is None:
            raise UserError("Tracking is off, so nothing can be uploaded", fix="Name a server with --tracking")
        problem = tracker.close()
        if journal.exists():
            raise UserError(problem or f"{journal} could not be uploaded", code=UNAVAILABLE)
        lines = ["uploaded"]
        if owed:
            lines.append(_complete(settings, folder, tracker.run_id(folder.id, timeout=0), owed))
    return [*lines, *([problem] if problem else [])]


@contextmanager
def _leased(folder: Path) -> Iterator[None]:
    """Hold the lease of a run in object storage: a driver of another machine would log the same epochs meanwhile.

    Raises UserError, with exit 3 if the storage is out of reach.
    """
    location = remote.location_of(folder)
    with ExitStack() as held:
        if location is not None:
            with remote.answering(location.uri):
                held.enter_context(lease.holding(location, sync_state.manifest(folder)[0]))
        yield


def _complete(settings: Settings, folder: RunFolder, run_id: str, owed: dict[str, Any]) -> str:
    """Log the pending model, and complete the record as if there had been no outage."""
    name = owed["register"]
    outcome = folder.path / owed["outcome"]
    if not outcome.resolve().is_relative_to(folder.path.resolve()):
        raise UserError(f"The pending model of {folder.id} is outside its folder", got=outcome)
    try:
        logged = _log(settings, folder, run_id, outcome, name)
    except logged_model.Unservable as error:
        raise UserError(
            f"Metrics of {folder.id} were uploaded, its model was not: its predictor fails on its own example: "
            f"{one_line(error)}",
            code=FAILED,
        ) from error
    except registry.outage_errors() as error:
        raise UserError(
            f"Metrics of {folder.id} were uploaded, its model was not: {one_line(error)}",
            fix="Try again when MLflow accepts it", code=UNAVAILABLE,
        ) from None  # fmt: skip
    shutil.rmtree(folder.path / owed["outcome"] / SEALED, ignore_errors=True)
    result = folder.record.get("result") or {}
    upload = {"run_id": run_id, "model_uri": logged.uri, "registered_version": logged.version}
    folder.update(**{PENDING_MODEL: None, "run_id": run_id, "result": {**result, **upload} if result else None})
    return f"registered as models:/{name}/{logged.version}" if name else f"model {logged.uri}"
