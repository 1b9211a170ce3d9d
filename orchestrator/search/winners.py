"""The winners that a sweep has had: one that goes on may come to another one, and opens test for that one too.

What MLflow hears of a winner (its refit, its test) is on the sweep's own run. There a step of a metric is logged once,
and the value shown is that of the highest step: a second winner at the steps of the first would be dropped where it
was trained for fewer epochs, or hidden. So each winner has steps of its own. The first one's epoch 1 is step 1, the
second one's is step ``epochs`` + 1, the third one's 2 ``epochs`` + 1 (``epochs`` of the plan, which no winner exceeds):
the curves stand one after the other and the values shown are the last winner's, after any number of resumes.
"""

from __future__ import annotations

import json
from typing import Any

from orchestrator.storage.names import OUTCOME, SEALED
from orchestrator.storage.records import RunFolder

WINNER = "winner"
"""Below a sweep's folder: the outcome of its best trial, refitted or tested."""

MARK = "trial.json"
"""In there: the number of that trial."""

WINNERS = "winners"
"""In a sweep's record: each winner's ``trial``, the present one last, and if test was opened for it: ``tested``."""


def record_winner(folder: RunFolder, trial: int) -> int:
    """Note in the record that ``trial`` wins now. Returns how many winners there were before it.

    Called before an earlier winner makes room: what it has left says whether test was opened for it.
    """
    place = folder.path / WINNER
    held = holds(folder)
    found = known(folder) or ([{"trial": held, "tested": False}] if held is not None else [])  # of before WINNERS
    if found and found[-1]["trial"] == held and ((place / OUTCOME).exists() or (place / SEALED).exists()):
        found[-1]["tested"] = True
    if not found or found[-1]["trial"] != trial:
        found.append({"trial": trial, "tested": False})
    folder.update(**{WINNERS: found})
    return len(found) - 1


def settled(folder: RunFolder) -> int:
    """Note that test was opened for the last winner. Returns for how many of them it was."""
    found = known(folder)
    found[-1]["tested"] = True
    folder.update(**{WINNERS: found})
    return len(tested(folder))


def known(folder: RunFolder) -> list[dict[str, Any]]:
    """The winners so far, as the record has them."""
    return [dict(winner) for winner in folder.record.get(WINNERS, ())]


def tested(folder: RunFolder) -> set[int]:
    """The trials for which test was opened."""
    return {winner["trial"] for winner in known(folder) if winner["tested"]}


def holds(folder: RunFolder) -> int | None:
    """The trial whose outcome the folder has, begun or whole."""
    mark = folder.path / WINNER / MARK
    return int(json.loads(mark.read_text())) if mark.exists() else None


def steps(folder: RunFolder, epochs: int) -> str:
    """Where each of several winners begins on the sweep's MLflow run: ``trial 3 from step 1, trial 20 from step 51``.

    Empty where there was only one.
    """
    each = [f"trial {winner['trial']} from step {place * epochs + 1}" for place, winner in enumerate(known(folder))]
    return ", ".join(each) if each[1:] else ""
