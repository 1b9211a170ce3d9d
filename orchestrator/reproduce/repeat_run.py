"""Repeat a recorded run: list what cannot be the same, run it, compare its metrics with the recorded ones."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.cluster import preflight
from orchestrator.config.spec import ExperimentSpec, SweepSpec
from orchestrator.console import Console
from orchestrator.errors import DONE, FAILED, RunFailed, UserError
from orchestrator.provenance import record as provenance
from orchestrator.registry import models as registry
from orchestrator.reproduce import differences, recorded_run
from orchestrator.reproduce.differences import FIRST, Difference
from orchestrator.reproduce.recorded_run import Recorded
from orchestrator.reproduce.script import commands
from orchestrator.runs import driver, reports, start_point, worker
from orchestrator.runs.session import Result
from orchestrator.search import trusted_spaces
from orchestrator.storage import history
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import sweep

Match = Literal["equal", "within tolerance", "different", "nothing to compare"]

SHOWN = 12
"""Metrics in the table; ``--json`` has them all."""

MEASURED = ("system/",)
"""Prefixes of metrics about the machine, which are not compared."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric, recorded and repeated; ``now`` is None if the repetition does not have it."""

    name: str
    then: float
    now: float | None
    verdict: Match


def run(
    settings: Settings,
    reference: str,
    *,
    check: bool,
    script: bool,
    tolerance: float,
    console: Console,
    trusted: Mapping[str, str | None],
) -> tuple[dict[str, Any], int]:
    """Repeat the run, trial or sweep ``reference`` and compare its metrics.

    With ``check`` only list the differences, with ``script`` only print the commands. ``trusted`` has the space,
    sampler and scheduler that the user names; code that only the record names is not executed unless trusted before.
    Returns the output for ``--json`` and the exit code: 0 if every recorded metric is equal up to a relative
    ``tolerance``, else 1, also if no metric was recorded. Raises UserError, RunFailed or Interrupted.
    """
    recorded = recorded_run.find(settings, reference)
    if script:
        lines = commands(recorded, settings)
        console.say("\n".join(lines))
        return {"id": recorded.id, "run_id": recorded.run_id, "script": lines}, DONE
    trusted_spaces.check(recorded.spec.workload, settings.home, recorded.id, "workload")
    now = provenance.sources(apart=(settings.home, settings.storage), workload=recorded.spec.workload)
    unequal = differences.all_of(recorded, settings, now)
    local = bool(recorded.environment.get("options", {}).get("local", recorded.kind == "trial"))
    spec = _here(recorded, settings, local, unequal, trusted)
    console.say(
        f"Reproducing {recorded.kind} {recorded.id}" + (f" (MLflow {recorded.run_id})" if recorded.run_id else "")
    )
    _say(console, unequal)
    output: dict[str, Any] = {
        "id": recorded.id,
        "run_id": recorded.run_id,
        "kind": recorded.kind,
        "differences": [asdict(one) for one in unequal],
    }
    if check:
        return output, DONE
    if recorded.kind == "trial":
        assert isinstance(spec, ExperimentSpec)
        metrics = _trial(spec, settings, recorded, console)
        code = DONE
    else:
        options = driver.Options(local=local)  # without --register: the registry already has this model
        act: Any = sweep.sweep if isinstance(spec, SweepSpec) else driver.run
        result = act(spec, settings, options, console)
        metrics = _until(recorded, result) if recorded.partial else result.metrics
        code = result.exit_code
        output["reproduction"] = result.to_json()
    compared = compare(recorded.metrics, metrics, tolerance)
    verdict = overall(compared)
    _show(console, compared, verdict)
    if "reproduction" in output and output["reproduction"]["run_id"]:
        _link(settings, output["reproduction"]["run_id"], recorded, verdict)
    output |= {"metrics": [asdict(one) for one in compared], "verdict": verdict}
    return output, FAILED if verdict in ("different", "nothing to compare") else code


def compare(then: Mapping[str, float], now: Mapping[str, float], tolerance: float) -> list[Compared]:
    """Compare the recorded metrics with the repeated ones, by name."""
    names = [name for name in sorted(then) if not name.startswith(MEASURED)]
    return [Compared(name, then[name], now.get(name), _verdict(then[name], now.get(name), tolerance)) for name in names]


def overall(compared: Sequence[Compared]) -> Match:
    """The worst of the verdicts."""
    verdicts = {one.verdict for one in compared}
    order: tuple[Match, ...] = ("different", "within tolerance", "equal")
    return next((verdict for verdict in order if verdict in verdicts), "nothing to compare")


def _here(
    recorded: Recorded, settings: Settings, local: bool, unequal: list[Difference], trusted: Mapping[str, str | None]
) -> ExperimentSpec | SweepSpec:
    """The spec with resources that are available and the current paths of the user's code.

    Changes of resources are added to ``unequal``.
    """
    spec = recorded.spec
    given = preflight.available_resources(spec.resources, settings, local=local or recorded.kind == "trial")
    if given != spec.resources:
        unequal.append(Difference("resources", _words(spec.resources), _words(given)))
        spec = spec.model_copy(update={"resources": given})
    if isinstance(spec, SweepSpec):
        search = spec.search
        if space := differences.space_of(recorded, recorded.files / provenance.SPACE):
            search = search.model_copy(update={"space": space})
        spec = spec.model_copy(update={"search": trusted_spaces.choose(search, trusted, settings.home, recorded.id)})
    elif options := " ".join(f"--{kind}" for kind, code in trusted.items() if code):
        raise UserError(f"{recorded.id} is a {recorded.kind}, which searches nothing", got=options, fix="Leave it out")
    return spec


def _words(resources: Any) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in resources.model_dump(exclude_none=True).items())


def _until(recorded: Recorded, result: Result) -> dict[str, float]:
    """The last values of a repetition up to the epoch that the recorded run, which never ended, had reached."""
    refitted = any(name.startswith("refit/") for name in recorded.metrics)
    rows = []
    for row in history.read(result.folder):
        rows.append(row)
        if row["epoch"] == recorded.epochs and refitted == any(name.startswith("refit/") for name in row):
            break
    return recorded_run.last_values(rows)


def _trial(spec: ExperimentSpec, settings: Settings, recorded: Recorded, console: Console) -> dict[str, float]:
    """Train a trial for the recorded number of epochs and return the last value of each metric. Does not use test."""
    values: dict[str, float] = {}
    try:
        with worker.own_device(spec.resources, console.say) as device, tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            start_point.prepare(folder, spec, settings)
            work = worker.experiment(spec, settings.data, device, final=False, folder=folder)
            for report in work.stream(start_point.state(spec, folder, None)):
                for row in report.rows:
                    if row.epoch > recorded.epochs:
                        return values
                    values |= row.metrics
                    for _, _, metrics in row.steps:
                        values |= metrics
    except UserError:
        raise
    except Exception as error:
        raise RunFailed(recorded.id, reports.describe(error)) from error
    return values


def _verdict(then: float, now: float | None, tolerance: float) -> Match:
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
        console.say(f"  {len(minor)} other packages have other versions (see --json)")
    if not unequal:
        console.say("  nothing differs: code, packages, machine and data are as recorded")


def _show(console: Console, compared: Sequence[Compared], verdict: Match) -> None:
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


def _link(settings: Settings, run_id: str, recorded: Recorded, verdict: Match) -> None:
    """Tag the new MLflow run with the run that it reproduces and the verdict; ignored during an outage."""
    with suppress(*registry.outage_errors()):
        client = registry.client(settings)
        client.set_tag(run_id, "orchestrator.reproduces", recorded.run_id or recorded.id)
        client.set_tag(run_id, "orchestrator.reproduced", verdict)
