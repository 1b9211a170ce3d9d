"""Ends of trial processes: why they died, as Tune reports it, and their release after an interrupt."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from orchestrator.runs import reports


class Died(RayActorError):  # type: ignore[misc]
    """The death of a process, with its cause from Ray's message."""

    def __init__(self, message: str) -> None:
        self.cause = reports.death_cause(message)
        super().__init__(error_msg=self.cause)

    def __reduce__(self) -> tuple[type[Died], tuple[str]]:
        return (Died, (self.cause,))


def death_text(trial: Any) -> str:
    """Why Tune gave up ``trial``. None stands for a trial whose process never started."""
    if trial is None or not trial.error_file or not Path(trial.error_file).exists():
        return "its process did not start"
    # Tune writes all failures of a trial to one file, each after a numbered line.
    last = re.split(r"^Failure # .*\n", Path(trial.error_file).read_text(), flags=re.MULTILINE)[-1]
    return reports.repeated(reports.death_cause(last), trial.num_failures)


def released(error: KeyboardInterrupt) -> KeyboardInterrupt:
    """Release Tune's processes after an interrupt. Tune itself does so after an Exception alone.

    They end with the objects that refer to them. The error's traceback has these, and a notebook keeps it.
    """
    error.__traceback__ = None
    gc.collect()
    return error
