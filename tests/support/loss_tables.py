"""Tables of losses, samplers and optimisers in the workloads' READMEs, from their rows. Run it to write them again."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.readme_tree import ROOT
from workloads.loss_table import Loss, features

TABLES = {
    "recommender": ("backbone", "loss", "sampler", "contrast"),
    "simclr": ("method", "loss", "optimizer"),
    "bi_encoder": ("loss",),
    "text_ranker": ("loss",),
}
WORKLOADS = tuple(TABLES)
COMMAND = "python -m tests.support.loss_tables"


def rows(workload: str, parameter: str = "loss") -> dict[str, Any]:
    """The rows of a workload's table by name."""
    table: dict[str, Loss] = import_module(f"workloads.{workload}.params").Params.tables[parameter]
    return table


def table(workload: str, parameter: str) -> str:
    """One line a row: its defaults, what it supports, its source, its function."""
    every = rows(workload, parameter)
    supports = [name.replace("_", " ") for name in features(next(iter(every.values())))]
    columns = [f"`{parameter}=`", "parameters of its own, with their defaults", *supports, "source", "file: function"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, row in every.items():
        params = ", ".join(f"`{key}={value}`" for key, value in row.params.items())
        cells = [f"`{name}`", params, *features(row).values(), row.source, function(workload, row.function)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def function(workload: str, reference: str) -> str:
    """The file, relative to the workload's folder, and the name of a function of ours; else the reference."""
    module, _, name = reference.partition(":")
    package, *parts = module.split(".")
    if package != "workloads":
        return f"`{module}`: `{name}`"
    path = "/".join(parts[1:]) if parts[0] == workload else "/".join(["..", *parts])
    return f"`{path}.py`: `{name}`"


def readme(workload: str) -> Path:
    return ROOT / "workloads" / workload / "README.md"


def written(workload: str) -> str:
    """The README as it should be."""
    text = readme(workload).read_text()
    for parameter in TABLES[workload]:
        begin, end = f"<!-- {parameter} rows: {COMMAND} -->", f"<!-- end of {parameter} rows -->"
        before, found, rest = text.partition(begin)
        assert found, f"{workload}: {begin}"
        text = f"{before}{begin}\n{table(workload, parameter)}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for workload in WORKLOADS:
        readme(workload).write_text(written(workload))
