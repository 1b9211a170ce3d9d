"""Steer a running sweep: add a trial, or stop one. Requests go through the sweep's folder to its driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from orchestrator.config.spec import SweepSpec, parse
from orchestrator.errors import UserError
from orchestrator.search import recorded, trusted_spaces
from orchestrator.search.points import Points
from orchestrator.search.study import Study
from orchestrator.storage import commands, requests
from orchestrator.storage.records import SETTLED, RunFolder
from orchestrator.storage.settings import Settings

StopState = Literal["pruned", "failed"]
VERDICTS: tuple[StopState, ...] = ("pruned", "failed")


def add(folder: RunFolder, settings: Settings, params: Mapping[str, Any]) -> dict[str, Any]:
    """Request a trial with ``params``; the sampler suggests the other ones. Returns the accepted values.

    Raises UserError for a sweep that has ended or is a population, and for parameters outside its search space.
    """
    spec = _steered(folder)
    if folder.status() in SETTLED:
        more = commands.for_run(folder.path, "sweep --resume", "--more-trials 1")
        raise UserError(f"{folder.id} has finished", fix=f"Continue it, and add while it runs: {more}")
    if not params:
        raise UserError("No parameter is given", fix=f"Such as: {commands.for_run(folder.path, 'add', 'lr=0.001')}")
    trusted_spaces.check(spec.search.space, settings.home, folder.id)
    accepted = Points(spec).checked(params)
    folder.request({"add": accepted})
    return accepted


def stop(folder: RunFolder, number: int, verdict: StopState) -> str:
    """Request that a running trial ends at its next report, or a waiting one before it starts. Returns when it ends.

    Raises UserError if it has ended.
    """
    _steered(folder)
    states = {trial.number: trial.state.name.lower() for trial in recorded.trials(folder)}
    if number not in states:
        raise UserError(f"{folder.id} has no trial {number}", allowed=f"0 to {max(states)}" if states else None)
    if states[number] not in ("running", "waiting"):
        raise UserError(f"Trial {number} of {folder.id} has already ended ({states[number]})")
    folder.request({"stop": number, "verdict": verdict})
    return "at its next report" if states[number] == "running" else "before it starts"


def apply(study: Study, request: str, values: Mapping[str, Any]) -> str:
    """Apply a request in the driver. Returns what was done, or why it was not, which is recorded as well."""
    try:
        if "add" in values:
            params = Points(study.spec).checked(dict(values["add"]))
            number = study.add(params, request)
            return f"Trial {number} was added: {'  '.join(f'{name}={value}' for name, value in params.items())}"
        stopped, verdict = values.get("stop"), values.get("verdict")
        if type(stopped) is not int or verdict not in VERDICTS:
            raise ValueError("the request neither adds nor stops a trial")
    except (UserError, ValueError, TypeError) as error:
        study.refuse(request, str(error))
        return f"A request was refused: {error}"
    state = study.stop_trial(stopped, verdict, request)
    if state is not None:
        when = "stops at its next report" if state == "RUNNING" else "has ended before it started"
        return f"Trial {stopped} {when}, as {verdict}"
    return f"Trial {stopped} was to be stopped, but is not running"


def unapplied(study: Study, folder: RunFolder, known: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """The requests to a sweep that are not in ``known`` and not in its journal. Adds all to ``known``."""
    fresh = requests.read(folder.path, known)
    known.update(name for name, _ in fresh)
    return [(name, values) for name, values in fresh if not study.applied(name)]


def _steered(folder: RunFolder) -> SweepSpec:
    """The spec of a sweep that takes requests."""
    spec = parse(SweepSpec, recorded.spec(folder), folder.id)
    if spec.search.scheduler == "pbt":
        raise UserError("The members of a population cannot be added or stopped one by one", got=folder.id)
    return spec
