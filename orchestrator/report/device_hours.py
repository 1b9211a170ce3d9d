"""Device hours as a text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.console import aligned, show
from orchestrator.storage.usage_log import By


def device_hours(rows: Sequence[Mapping[str, Any]], by: By, silent: int) -> str:
    """The rows of :func:`orchestrator.storage.usage_log.table` as a text table, with their sum."""
    lines = [[str(row[by]), *(show(float(row[key])) for key in ("gpu_hours", "cpu_hours")), str(row["runs"])]
             for row in rows]  # fmt: skip
    sums = [show(float(sum(row[key] for row in rows))) for key in ("gpu_hours", "cpu_hours")]
    notes = [f"Without {silent} older runs that have no accounts."] if silent else []
    if not rows:
        return "\n".join(["No device hours.", *notes])
    shown = aligned([[by.upper(), "GPU HOURS", "CPU HOURS", "RUNS"], *lines, ["in all", *sums, ""]])
    return "\n".join([shown, *notes])
