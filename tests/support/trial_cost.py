"""Cost of a trial, in README and docs/results/speed.md, from its results file. Run it to rewrite both.

Contestants that other processes disturbed are omitted, by the benchmark's rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from tests.support.readme_tree import ROOT

BEGIN, END = "<!-- trial cost: python -m tests.support.trial_cost -->", "<!-- end of trial cost -->"
FILE = ROOT / "benchmarks" / "results" / "trial_overhead.json"
QUIET_CORES = 0.3
"""``QUIET_CORES`` of benchmarks/harness.py."""

RAY, TUNE, NESTED = "ours", "Tune function + MLflow callback", "Tune trial -> TorchTrainer"
PAIRS = (
    ("on Ray, every report sent", RAY, TUNE),
    ("the same", RAY, NESTED),
    ("on Ray, reports rationed as shipped", "ours as shipped", TUNE),
    ("`sweep --local`", "ours --local", "Optuna + MLflow fluent"),
    ("`sweep --local --tracking none`", "ours --local --tracking none", None),
)


def costs(result: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per trial of each undisturbed contestant."""
    quiet = [name for name, cores in result["busy_cores"].items() if median(cores) <= QUIET_CORES]
    return {name: median(result["samples"][name]) for name in quiet}


def table(result: Mapping[str, Any]) -> str:
    """Table for docs/results/speed.md."""
    found = costs(result)
    lines = ["| a trial | ours | compared with | ratio |", "| --- | --- | --- | --- |"]
    for what, ours, theirs in PAIRS:
        if ours in found and theirs is None:
            lines.append(f"| {what} | {_seconds(found[ours])} | - | - |")
        elif ours in found and theirs in found:
            ratio = _ratio(found[theirs] / found[ours])
            lines.append(f"| {what} | {_seconds(found[ours])} | {theirs} {_seconds(found[theirs])} | {ratio} |")
    commit = result.get("commit") or "not recorded"
    when = f"Measured on {result['when'][:10]} on {result['machine']['cores']} cores; commit: {commit}."
    return "\n".join(["<!-- from: trial_overhead.json -->", *lines, "", when])


def sentence(result: Mapping[str, Any]) -> str:
    """Sentence for README.md; empty if one of its three contestants was disturbed."""
    found = costs(result)
    if not {RAY, TUNE, NESTED} <= set(found):
        return "<!-- not measured on a quiet machine -->"
    ours, tune, nested = (_seconds(found[name]) for name in (RAY, TUNE, NESTED))
    return (
        "<!-- from: trial_overhead.json -->\n"
        f"A trial on Ray takes {ours} more than its training. "
        f"A Tune function with MLflow's callback takes {tune}, and a\n"
        f"trial that starts a TorchTrainer {nested} (`python benchmarks/trial_overhead.py`)."
    )


def page(text: str, block: str) -> str:
    """The page with its current block."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}"


def _ratio(value: float) -> str:
    """Our speed divided by theirs."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 1 else f"{value:.3g} s"


BLOCKS = {"README.md": sentence, "docs/results/speed.md": table}

if __name__ == "__main__":
    measured = json.loads(FILE.read_text())
    for name, block in BLOCKS.items():
        (ROOT / name).write_text(page((ROOT / name).read_text(), block(measured)))
