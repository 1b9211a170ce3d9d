"""``orchestrator reproduce thesis-N``: a published table or figure run, told, and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.console import Console
from orchestrator.errors import DONE, PARTIAL, Interrupted, UserError
from orchestrator.provenance import record as provenance
from orchestrator.published import drawing, figures, report, table
from orchestrator.published.table import Effort
from orchestrator.settings import Settings
from workloads.recommender.published import FIGURES, TABLES

BACKBONES = ("mf", "lightgcn")


@dataclass(frozen=True)
class Asked:
    """A table or figure by its id, and which part of it; empty stands for all."""

    id: str
    datasets: tuple[str, ...] = ()
    backbones: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def name(self, effort: Effort) -> str:
        """Of its folder and MLflow run: another part, or a quick look at it, is another one."""
        words = [self.id, *self.datasets, *self.backbones, *self.methods]
        words += ["as-published"] * effort.as_published + ["quick"] * effort.quick
        return "-".join("".join(c if c.isalnum() or c in "._" else "-" for c in word.strip("/")) for word in words)[
            :100
        ]


def reproduce(asked: Asked, settings: Settings, effort: Effort, console: Console) -> tuple[dict[str, Any], int]:
    """What ``--json`` prints, and the exit code: 0, or 4 where rows failed or a dataset is not here.

    What has finished is kept and not run again, so that a call after Ctrl-C goes on. Raises UserError and Interrupted.
    """
    for backbone in asked.backbones:
        if backbone not in BACKBONES:
            raise UserError("Unknown backbone", got=repr(backbone), allowed=BACKBONES)
    make = _table if asked.id in TABLES else _figure
    try:
        told, texts = make(asked, settings, effort, console)
    except Interrupted:
        raise Interrupted(provenance.command()) from None
    folder, trouble = report.keep(told, texts, asked.name(effort), settings)
    console.say(f"Kept in {folder}: {', '.join(sorted(file.name for file in folder.glob(f'{asked.id}*')))}")
    if trouble:
        console.say(trouble)
    return {**told, "folder": str(folder)}, DONE if told["complete"] else PARTIAL


def _table(
    asked: Asked, settings: Settings, effort: Effort, console: Console
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    found = table.run(
        TABLES[asked.id], settings, effort, console,
        datasets=asked.datasets, backbones=asked.backbones, methods=asked.methods,
    )  # fmt: skip
    told = report.record(found)
    report.show(console, told)
    return told, {
        f"{asked.id}.md": report.markdown(told),
        f"{asked.id}.csv": report.as_csv(told),
    }


def _figure(
    asked: Asked, settings: Settings, effort: Effort, console: Console
) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    found = figures.redraw(
        FIGURES[asked.id], settings, effort, console,
        datasets=asked.datasets, backbones=asked.backbones, methods=asked.methods,
    )  # fmt: skip
    told = drawing.record(found)
    drawing.show(console, found)
    return told, drawing.files(found, told)
