"""The README's tree, from each module's own first sentence. Run it to write the README anew."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- tree: python -m tests.support.readme_tree -->", "<!-- end of tree -->"

FOLDERS = {
    "orchestrator": "the engine and everything around it; knows Ray, Optuna and MLflow, knows no model",
    "workloads": "plain PyTorch; never imports Ray, MLflow or Optuna",
    "search_spaces": "one module a workload: Optuna-native `space(trial) -> params`",
}
REST = """\
deploy/                         images, compose, KubeRay, Ray's launcher; README.md: from a laptop to each, and back
docs/                           who may do what (access.md); what the workloads follow (sources.md), and what is done
                                where that is wrong or silent (errata.md); screenshots
tests/                          unit/ (numerics, conformance, engine), integration/ (real Ray, MLflow, signals),
                                cluster/ (three nodes, PostgreSQL, a browser), gpu/ (two devices),
                                third_party/ (a toy as somebody else would install it, to be disturbed)
examples/                       linreg/: a workload in a package of one's own, to be copied
benchmarks/                     ours beside the peers, in one run, as ratios
constraints.txt                 exact versions the results were made with; constraints-lower.txt: the lowest allowed"""


def tree() -> str:
    """One line a module or package, from its own first sentence; a package's modules say the rest themselves."""
    lines = []
    for folder, about in FOLDERS.items():
        lines.append(f"{folder + '/':32}{about}")
        for path in sorted((ROOT / folder).iterdir(), key=lambda path: (path.is_dir(), path.name)):
            source = path / "__init__.py" if path.is_dir() else path
            if source.suffix == ".py" and source.exists() and path.name != "__init__.py":
                doc = ast.get_docstring(ast.parse(source.read_text()))
                if doc:
                    name = f"  {path.name}/" if path.is_dir() else f"  {path.name}"
                    sentence = re.split(r"(?<=\.)\s", " ".join(doc.split("\n\n")[0].split()))[0].rstrip(".")
                    lines.append(f"{name:32}{sentence.replace('``', '')}")
    return "\n".join([*lines, REST])


def readme(text: str) -> str:
    """The README's text with its tree as it is now."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n```text\n{tree()}\n```\n{END}{tail}"


if __name__ == "__main__":
    file = ROOT / "README.md"
    file.write_text(readme(file.read_text()))
