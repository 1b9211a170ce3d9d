"""``orchestrator reproduce ID``: run a published table, figure or computation, show it, save it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.console import Console
from orchestrator.errors import DONE, PARTIAL, Interrupted
from orchestrator.provenance import record as provenance
from orchestrator.reproduce import drawing, figures, table, table_report
from orchestrator.reproduce.table_runs import ReproductionBudget
from orchestrator.storage.settings import Settings
from workloads.published import Computation, Published, Table

LONGEST = 100
"""Characters of a name; a longer one ends in a digest of the whole."""


@dataclass(frozen=True)
class ReproductionRequest:
    """A published result and the parts of it to run; empty means all.

    ``where`` gives values of the parameters that define a block, by name.
    """

    published: Published
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()

    def name(self, budget: ReproductionBudget) -> str:
        """The name of its folder and MLflow run, which depends on the parts, ``as_published`` and ``quick``."""
        words = [self.published.id, *(word for words in self.where.values() for word in words), *self.methods]
        words += ["as-published"] * budget.as_published + ["quick"] * budget.quick
        name = "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in word.strip("/")) for word in words)
        if len(name) <= LONGEST:
            return name
        return f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def reproduce(
    request: ReproductionRequest,
    settings: Settings,
    budget: ReproductionBudget,
    console: Console,
    command: str | None = None,
) -> tuple[dict[str, Any], int]:
    """Reproduce a published result; return the output for ``--json`` and the exit code.

    The record names the ``command``, by default that of this process.

    The exit code is 0, or 4 if rows failed or a dataset is missing. Finished runs are reused, so that a call after
    Ctrl-C continues. Raises UserError and Interrupted.
    """
    name = request.published.id
    try:
        result, texts = _run(request, settings, budget, console, command or provenance.command())
    except Interrupted:
        raise Interrupted(provenance.command()) from None
    folder, trouble = table_report.keep(result, texts, request.name(budget), settings)
    console.say(f"Saved in {folder}: {', '.join(sorted(file.name for file in folder.glob(f'{name}*')))}")
    if trouble:
        console.say(trouble)
    return {**result, "folder": str(folder)}, DONE if result["complete"] else PARTIAL


def _run(
    request: ReproductionRequest, settings: Settings, budget: ReproductionBudget, console: Console, command: str
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    """Run and show a published result; return its record as JSON, and its other files by name."""
    published = request.published
    workload = published.workload if isinstance(published, Computation) else published.regime.workload
    origin = {
        "command": command,
        **table_report.origin(settings, workload),
    }  # taken before the runs, which may take long
    if isinstance(published, Table):
        reproduction = table.run(published, settings, budget, console, where=request.where, methods=request.methods)
        result = table_report.record(reproduction) | origin
        table_report.show(console, result)
        return result, {
            f"{published.id}.md": table_report.markdown(result),
            f"{published.id}.csv": table_report.as_csv(result),
        }
    if isinstance(published, Computation):
        redrawn = figures.Redrawn(published, budget, published.compute(budget.quick))
    else:
        redrawn = figures.redraw(published, settings, budget, console, where=request.where, methods=request.methods)
    result = drawing.record(redrawn) | origin
    drawing.show(console, redrawn)
    return result, drawing.files(redrawn, result)
