"""The names of MLflow tags must not change, because earlier runs have them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orchestrator

TAGS = {
    "orchestrator.accumulate",
    "orchestrator.best_trial",
    "orchestrator.cause",
    "orchestrator.command",
    "orchestrator.contenders",
    "orchestrator.data_fingerprint",
    "orchestrator.device_seconds",
    "orchestrator.epoch",
    "orchestrator.epochs",
    "orchestrator.event",
    "orchestrator.fate",
    "orchestrator.fingerprint",
    "orchestrator.from",
    "orchestrator.id",
    "orchestrator.init",
    "orchestrator.key",
    "orchestrator.kind",
    "orchestrator.lineage",
    "orchestrator.looks",
    "orchestrator.number",
    "orchestrator.outcome",
    "orchestrator.parent",
    "orchestrator.promotion",
    "orchestrator.reads_test",
    "orchestrator.record",
    "orchestrator.refit",
    "orchestrator.repeat",
    "orchestrator.repeat_of",
    "orchestrator.reproduced",
    "orchestrator.reproduces",
    "orchestrator.sampler_reason",
    "orchestrator.seed",
    "orchestrator.selected_on",
    "orchestrator.spec",
    "orchestrator.state",
    "orchestrator.test_opened",
    "orchestrator.untouched",
    "orchestrator.validation_seen",
    "orchestrator.winners",
    "orchestrator.workers",
    "orchestrator.workload",
}


def test_names_of_mlflow_tags_are_unchanged() -> None:
    root = Path(orchestrator.__file__).parent
    texts = {
        node.value
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    used = {text for text in texts if re.fullmatch(r"orchestrator\.\w+", text)}
    assert used == TAGS
