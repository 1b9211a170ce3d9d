"""The winners of a sweep. A resumed sweep may have another winner, and tests that one too.

A winner's selection, refit and test are logged to the sweep's MLflow run. There each step of a metric is logged once,
and MLflow shows the value of the highest step. A second winner with the steps of the first would be dropped or hidden,
so each winner has its own steps: epoch 1 of the first winner is step 1, of the second step ``epochs`` + 1, of the third
step 2 ``epochs`` + 1, with the plan's ``epochs``, which no winner exceeds. The curves follow each other, and the values
shown are those of the last winner.
"""

from __future__ import annotations

import json
from typing import Any

from orchestrator.provenance import private_files
from orchestrator.storage.names import OUTCOME, SEALED
from orchestrator.storage.records import RunFolder

WINNER = "winner"
"""Folder in the sweep's folder with the outcome of its best trial."""

MARK = "trial.json"
"""File in that folder with the number of the trial."""

WINNERS = "winners"
"""Key in a sweep's record: the ``trial`` of each winner, the current one last, and whether it was ``tested``."""


def record_winner(folder: RunFolder, trial: int) -> int:
    """Record ``trial`` as the winner. Returns the number of winners before it.

    Call it before an earlier winner's files are removed: they say whether it was tested.
    """
    outcome = folder.path / WINNER
    held = trial_of_outcome(folder)
    winners = recorded(folder) or ([{"trial": held, "tested": False}] if held is not None else [])  # an old record
    if winners and winners[-1]["trial"] == held and ((outcome / OUTCOME).exists() or (outcome / SEALED).exists()):
        winners[-1]["tested"] = True
    if not winners or winners[-1]["trial"] != trial:
        winners.append({"trial": trial, "tested": False})
    folder.update(**{WINNERS: winners})
    return len(winners) - 1


def mark_tested(folder: RunFolder) -> int:
    """Record that the current winner was tested. Returns the number of tested winners."""
    winners = recorded(folder)
    winners[-1]["tested"] = True
    folder.update(**{WINNERS: winners})
    return len(tested(folder))


def recorded(folder: RunFolder) -> list[dict[str, Any]]:
    """The recorded winners."""
    return [dict(winner) for winner in folder.record.get(WINNERS, ())]


def tested(folder: RunFolder) -> set[int]:
    """The trials that were tested."""
    return {winner["trial"] for winner in recorded(folder) if winner["tested"]}


def trial_of_outcome(folder: RunFolder) -> int | None:
    """Number of the trial whose outcome, perhaps incomplete, is in the winner's folder."""
    mark = folder.path / WINNER / MARK
    return int(json.loads(mark.read_text())) if mark.exists() else None


def mark_outcome(folder: RunFolder, trial: int) -> None:
    """Write the number of the trial into the winner's folder. A resume could not read half of it."""
    private_files.replace(folder.path / WINNER / MARK, json.dumps(trial))


def steps(folder: RunFolder, epochs: int) -> str:
    """First step of each winner on the sweep's MLflow run: ``trial 3 from step 1, trial 20 from step 51``.

    Empty for a single winner.
    """
    each = [f"trial {winner['trial']} from step {k * epochs + 1}" for k, winner in enumerate(recorded(folder))]
    return ", ".join(each) if each[1:] else ""
