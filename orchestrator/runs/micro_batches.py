"""``accumulate=auto``: a global batch in as few micro-batches as fit into the device's memory.

Training begins with one. After an error of memory in an epoch of training it goes on from the last checkpoint with at
least twice as many. The number is kept in the folder of the trial or run, so that a resume begins with it.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from orchestrator.config.spec import ExperimentSpec
from orchestrator.runs import reports
from orchestrator.storage import disk
from workloads.data.cache import replacing

FILE = "accumulate.json"
TAG = "orchestrator.accumulate"


def chosen(spec: ExperimentSpec, folder: Path) -> int:
    """Number of micro-batches to train with."""
    if spec.plan.accumulate != "auto":
        return spec.plan.accumulate
    try:
        return int((folder / FILE).read_text())
    except (FileNotFoundError, ValueError):  # none is noted, or the file is damaged
        return 1


def carry(trial: Path, *folders: Path) -> None:
    """Begin in ``folders`` with the number that a trial has found, if any."""
    for folder in folders if (trial / FILE).exists() else ():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trial / FILE, folder / FILE)


def increase(spec: ExperimentSpec, folder: Path, error: BaseException) -> bool:
    """Choose more micro-batches after ``error``.

    Returns False if the error is not one of memory in :func:`~orchestrator.engine.loop.train` (where Ray has killed the
    process, it is not known where), the plan sets the number, or the batch cannot be split further. Raises UserError
    when the folder cannot be written.
    """
    if spec.plan.accumulate != "auto" or not reports.is_out_of_memory(error):
        return False
    if not (
        getattr(error, "in_training", False) or reports.killed_for_memory(error)
    ):  # evaluation and what is built do not become smaller
        return False
    now = chosen(spec, folder)
    size = spec.params.get("batch_size")
    workers = math.lcm(*range(spec.resources.fewest_workers, spec.resources.workers + 1))
    if not isinstance(size, int):
        return False
    more = next((parts for parts in range(2 * now, size // workers + 1) if size % (workers * parts) == 0), None)
    if more is None:
        return False
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / FILE) as file:
            file.write(json.dumps(more).encode())
    return True
