"""The README's tree: one line per folder, from the first sentence of each package. Run it to rewrite the README."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- tree: python -m tests.support.readme_tree -->", "<!-- end of tree -->"

FOLDERS = {
    "orchestrator": "the engine and everything around it; knows Ray, Optuna and MLflow, knows no model",
    "workloads": "plain PyTorch; never imports Ray, MLflow or Optuna",
    "search_spaces": "one module per workload: Optuna-native `space(trial) -> params`",
}
REST = {
    "deploy": "images, compose, KubeRay, Slurm, Ray's launcher",
    "docs": "this project's documentation; `make docs` builds the site",
    "tests": "unit/ mirrors the code; integration/ (real Ray, MLflow, signals), cluster/ (three nodes), gpu/",
    "examples": "linreg/: a workload in a package; functions/: a function as a workload; notes/: the sources' settings",
    "benchmarks": "speed and quality against peers, and the recorded results",
}


def tree() -> str:
    """One line per folder: the first sentence of each package, then other folders."""
    lines = []
    for folder, about in FOLDERS.items():
        lines.append(f"{folder + '/':18}{about}")
        for source in sorted((ROOT / folder).glob("*/__init__.py")):
            if doc := ast.get_docstring(ast.parse(source.read_text())):
                lines.append(f"{'  ' + source.parent.name + '/':18}{_first_sentence(doc)}")
    return "\n".join([*lines, *(f"{folder + '/':18}{about}" for folder, about in REST.items())])


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].rstrip(".").replace("``", "")


def readme(text: str) -> str:
    """The README with its current tree."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n```text\n{tree()}\n```\n{END}{tail}"


if __name__ == "__main__":
    file = ROOT / "README.md"
    file.write_text(readme(file.read_text()))
