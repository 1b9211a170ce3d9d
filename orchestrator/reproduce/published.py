"""``orchestrator reproduce ID``: a published table, figure or computation run, told, and kept."""

from __future__ import annotations

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


@dataclass(frozen=True)
class ReproductionRequest:
    """What is published, and which part of it; empty stands for all. ``where`` are values of the parameters that make
    a block, by their names."""

    published: Published
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()

    def name(self, effort: ReproductionBudget) -> str:
        """Of its folder and MLflow run: another part, or a quick look at it, is another one."""
        words = [self.published.id, *(word for words in self.where.values() for word in words), *self.methods]
        words += ["as-published"] * effort.as_published + ["quick"] * effort.quick
        return "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in word.strip("/")) for word in words)[
            :100
        ]


Told = tuple[dict[str, Any], dict[str, str | bytes]]
"""A record as JSON, and the files that are kept beside it, by their names."""


def reproduce(
    asked: ReproductionRequest, settings: Settings, effort: ReproductionBudget, console: Console
) -> tuple[dict[str, Any], int]:
    """What ``--json`` prints, and the exit code: 0, or 4 where rows failed or a dataset is not here.

    What has finished is kept and not run again, so that a call after Ctrl-C goes on. Raises UserError and Interrupted.
    """
    name = asked.published.id
    try:
        told, texts = _tell(asked, settings, effort, console)
    except Interrupted:
        raise Interrupted(provenance.command()) from None
    folder, trouble = table_report.keep(told, texts, asked.name(effort), settings)
    console.say(f"Kept in {folder}: {', '.join(sorted(file.name for file in folder.glob(f'{name}*')))}")
    if trouble:
        console.say(trouble)
    return {**told, "folder": str(folder)}, DONE if told["complete"] else PARTIAL


def _tell(asked: ReproductionRequest, settings: Settings, effort: ReproductionBudget, console: Console) -> Told:
    published = asked.published
    workload = published.workload if isinstance(published, Computation) else published.regime.workload
    origin = table_report.origin(settings, workload)  # of the code that runs, however long it takes
    if isinstance(published, Table):
        ran = table.run(published, settings, effort, console, where=asked.where, methods=asked.methods)
        told = table_report.record(ran) | origin
        table_report.show(console, told)
        return told, {
            f"{published.id}.md": table_report.markdown(told),
            f"{published.id}.csv": table_report.as_csv(told),
        }
    if isinstance(published, Computation):
        found = figures.Redrawn(published, effort, published.compute(effort.quick))
    else:
        found = figures.redraw(published, settings, effort, console, where=asked.where, methods=asked.methods)
    told = drawing.record(found) | origin
    drawing.show(console, found)
    return told, drawing.files(found, told)
