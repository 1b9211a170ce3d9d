"""Device hours as a text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.console import aligned, show
from orchestrator.storage.prices import Prices
from orchestrator.storage.usage_log import By


def device_hours(rows: Sequence[Mapping[str, Any]], by: By, silent: int, prices: Prices | None = None) -> str:
    """The rows of :func:`orchestrator.storage.usage_log.table` as a text table, with their sum; with prices, costs."""
    kinds = ("gpu_hours", "cpu_hours")

    def line(name: str, hours: Sequence[float], runs: str) -> list[str]:
        costs = [prices.text(prices.cost(*hours))] if prices else []
        return [name, *map(show, hours), *costs, runs]

    lines = [line(str(row[by]), [float(row[key]) for key in kinds], str(row["runs"])) for row in rows]
    notes = [f"Without {silent} older runs that have no accounts."] if silent else []
    if not rows:
        return "\n".join(["No device hours.", *notes])
    sums = line("total", [float(sum(row[key] for row in rows)) for key in kinds], "")
    head = [
        "RUN OR SWEEP" if by == "sweep" else by.upper(),
        "GPU HOURS",
        "CPU HOURS",
        *(["COST"] if prices else []),
        "RUNS",
    ]
    return "\n".join([aligned([head, *lines, sums]), *notes])
