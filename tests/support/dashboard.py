"""The Grafana dashboard of ``deploy/`` and the metric names in its panels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from orchestrator.runs.prometheus import DEVICE_SECONDS, EPOCHS, SPOOL, TRIALS

PROMETHEUS = {name: f"ray_{name}" for name in (TRIALS, EPOCHS, DEVICE_SECONDS, SPOOL)}
"""Names of our metrics in Prometheus."""

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "orchestrator.json").read_text())
    return found


def expressions() -> list[str]:
    """PromQL of every panel and variable."""
    board = dashboard()
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    return [*asked, *variables]


def names() -> set[str]:
    """Metric names in the panels."""
    return {name for expression in expressions() for name in re.findall(r"\bray_\w+", expression)}
