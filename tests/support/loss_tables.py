"""The tables of losses in the workloads' READMEs, from the rows of ``LOSSES``. Run it to write them again."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.support.readme_tree import ROOT
from workloads.loss_table import Loss

BEGIN, END = "<!-- losses: python -m tests.support.loss_tables -->", "<!-- end of losses -->"
WORKLOADS = ("recommender", "simclr", "bi_encoder", "text_ranker")


def rows(workload: str) -> dict[str, Loss]:
    """The losses of a workload by name."""
    losses: dict[str, Loss] = import_module(f"workloads.{workload}.losses").LOSSES
    return losses


def table(workload: str) -> str:
    """One line a loss: its defaults, its source, its function."""
    lines = ["| `loss=` | parameters of its own, with their defaults | source | file: function |", "|---|---|---|---|"]
    for name, loss in rows(workload).items():
        module, _, function = loss.function.partition(":")
        parts = module.split(".")[1:]
        path = "/".join(parts[1:]) if parts[0] == workload else "/".join(["..", *parts])
        params = ", ".join(f"`{key}={value}`" for key, value in loss.params.items())
        lines.append(f"| `{name}` | {params} | {loss.source} | `{path}.py`: `{function}` |")
    return "\n".join(lines)


def readme(workload: str) -> Path:
    return ROOT / "workloads" / workload / "README.md"


def written(workload: str) -> str:
    """The README as it should be."""
    before, _, rest = readme(workload).read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table(workload)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for workload in WORKLOADS:
        readme(workload).write_text(written(workload))
