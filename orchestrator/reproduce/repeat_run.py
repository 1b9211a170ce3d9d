"""A recorded run once more: what cannot be the same, the run itself, and its metrics beside the recorded ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, RunFailed
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.reproduce import differences, recorded_run
from orchestrator.reproduce.differences import FIRST, Difference
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.reproduce.script import commands
from orchestrator.runs import driver, reports, worker
from orchestrator.search import spaces, trusted_spaces
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import sweep

Verdict = Literal["equal", "within tolerance", "different", "nothing to compare"]

SHOWN = 12
"""Metrics in the table; ``--json`` has them all."""

MEASURED = ("system/",)
"""Metrics that say how it ran, not what came out."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric, as recorded and as it came out now; ``now`` is None where it did not."""

    name: str
    then: float
    now: float | None
    verdict: Verdict


def run(
    settings: Settings,
    reference: str,
    *,
    check: bool,
    script: bool,
    tolerance: float,
    console: Console,
    space: str | None = None,
) -> tuple[dict[str, Any], int]:
    """Repeat the run, trial or sweep that ``reference`` names; with ``check`` only say what would differ, with
    ``script`` only print its commands. Returns what ``--json`` prints, and the exit code: 0 when every recorded
    metric came out again, up to a relative ``tolerance``, else 1, also where no metric was recorded. ``space`` is the
    search space's file where the user names one: one that the record alone names is not run.

    Raises UserError, RunFailed or Interrupted.
    """
    found = recorded_run.find(settings, reference)
    if script:
        lines = commands(found, settings)
        print("\n".join(lines))
        return {"id": found.id, "run_id": found.run_id, "script": lines}, DONE
    now = provenance.sources(apart=(settings.home, settings.storage), workload=found.spec.workload)
    unequal = differences.all_of(found, settings, now)
    local = bool(found.environment.get("options", {}).get("local", found.kind == "trial"))
    spec = _here(found, settings, local, unequal, space)
    console.say(f"Reproducing {found.kind} {found.id}" + (f" (MLflow {found.run_id})" if found.run_id else ""))
    _say(console, unequal)
    told: dict[str, Any] = {
        "id": found.id, "run_id": found.run_id, "kind": found.kind, "differences": [asdict(one) for one in unequal],
    }  # fmt: skip
    if check:
        return told, DONE
    if found.kind == "trial":
        assert isinstance(spec, ExperimentSpec)
        metrics, code = _trial(spec, settings, found), DONE
    else:
        options = driver.Options(local=local)  # and no --register: the registry has this model already
        act: Any = sweep.sweep if isinstance(spec, SweepSpec) else driver.run
        result = act(spec, settings, options, console)
        metrics, code = result.metrics, result.exit_code
        told["reproduction"] = result.to_json()
    compared = compare(found.metrics, metrics, tolerance)
    verdict = overall(compared)
    _show(console, compared, verdict)
    if "reproduction" in told and told["reproduction"]["run_id"]:
        _link(settings, told["reproduction"]["run_id"], found, verdict)
    told |= {"metrics": [asdict(one) for one in compared], "verdict": verdict}
    return told, FAILED if verdict in ("different", "nothing to compare") else code


def compare(then: Mapping[str, float], now: Mapping[str, float], tolerance: float) -> list[Compared]:
    """The recorded metrics beside those of now, by name."""
    names = [name for name in sorted(then) if not name.startswith(MEASURED)]
    return [Compared(name, then[name], now.get(name), _verdict(then[name], now.get(name), tolerance)) for name in names]


def overall(compared: Sequence[Compared]) -> Verdict:
    """The worst of the verdicts."""
    verdicts = {one.verdict for one in compared}
    order: tuple[Verdict, ...] = ("different", "within tolerance", "equal")
    return next((verdict for verdict in order if verdict in verdicts), "nothing to compare")


def _here(
    found: Recorded, settings: Settings, local: bool, unequal: list[Difference], named: str | None
) -> ExperimentSpec | SweepSpec:
    """The spec, with resources that can be had and the search space where it lies; what changed joins ``unequal``."""
    spec = found.spec
    given = differences.resources(spec.resources, settings, local=local or found.kind == "trial")
    if given != spec.resources:
        unequal.append(Difference("resources", _words(spec.resources), _words(given)))
        spec = spec.model_copy(update={"resources": given})
    if isinstance(spec, SweepSpec) and (space := differences.space_of(found, found.files / provenance.SPACE)):
        if named:
            space = spaces.absolute(named)
        else:
            trusted_spaces.check(space, settings.home, found.id)
        spec = spec.model_copy(update={"search": spec.search.model_copy(update={"space": space})})
    return spec


def _words(resources: Any) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in resources.model_dump(exclude_none=True).items())


def _trial(spec: ExperimentSpec, settings: Settings, found: Recorded) -> dict[str, float]:
    """The last value of each metric after as many epochs as were recorded. It selects only: test stays closed."""
    device = worker.take_device(spec.resources)
    values: dict[str, float] = {}
    try:
        for report in worker.experiment(spec, settings.data, device, final=False).stream():
            for row in report.rows:
                if row.epoch > found.epochs:
                    return values
                values |= row.metrics
    except Exception as error:
        raise RunFailed(found.id, reports.describe(error)) from error
    return values


def _verdict(then: float, now: float | None, tolerance: float) -> Verdict:
    if now is None:
        return "different"
    if then == now or (math.isnan(then) and math.isnan(now)):
        return "equal"
    return "within tolerance" if math.isclose(then, now, rel_tol=tolerance) else "different"


def _say(console: Console, unequal: Sequence[Difference]) -> None:
    minor = [
        one for one in unequal if one.what.startswith("package ") and one.what.removeprefix("package ") not in FIRST
    ]
    for one in unequal:
        if one not in minor:
            console.say(f"  {one}")
    if minor:
        console.say(f"  {len(minor)} other packages have other versions (--json names them)")
    if not unequal:
        console.say("  nothing differs: code, packages, machine and data are as recorded")


def _show(console: Console, compared: Sequence[Compared], verdict: Verdict) -> None:
    order = ("different", "within tolerance", "equal")
    worst = sorted(compared, key=lambda one: (order.index(one.verdict), not one.name.startswith("test/")))[:SHOWN]
    rows: list[list[Any]] = [
        [one.name, repr(one.then), "missing" if one.now is None else repr(one.now), one.verdict] for one in worst
    ]
    if rows:
        title = f"{len(rows)} of {len(compared)} metrics, the most different first"
        console.table(title, ["metric", "then", "now", "verdict"], rows)
    if not compared:
        console.say("Repeated, but not compared: no metric was recorded")
        return
    equal = sum(one.verdict == "equal" for one in compared)
    console.say(f"Reproduced: {verdict} ({equal} of {len(compared)} metrics bitwise)")


def _link(settings: Settings, run_id: str, found: Recorded, verdict: Verdict) -> None:
    """Say on the new run what it reproduces; where MLflow went away meanwhile it is only said here."""
    try:
        client = registry.client(settings)
        client.set_tag(run_id, "orchestrator.reproduces", found.run_id or found.id)
        client.set_tag(run_id, "orchestrator.reproduced", verdict)
    except registry.trouble():
        return
