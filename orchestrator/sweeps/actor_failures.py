"""Deaths of trials' processes, as Tune reports them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from orchestrator.runs import reports


class Died(RayActorError):  # type: ignore[misc]
    """The process is gone: why, by Ray's words for it."""

    def __init__(self, told: str) -> None:
        self.cause = reports.death_cause(told)
        super().__init__(error_msg=self.cause)

    def __reduce__(self) -> tuple[type[Died], tuple[str]]:
        return (Died, (self.cause,))


def cause(trial: Any) -> str:
    """Why Tune's ``trial`` was given up; None for one whose process never came up."""
    if trial is None or not trial.error_file or not Path(trial.error_file).exists():
        return "its process did not start"
    # Tune's own file of all of the trial's failures, each below a line that numbers it.
    last = re.split(r"^Failure # .*\n", Path(trial.error_file).read_text(), flags=re.MULTILINE)[-1]
    times = trial.num_failures
    return f"{reports.death_cause(last)} {times} time{'s' * (times > 1)}"
