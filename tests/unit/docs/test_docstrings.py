"""Docstrings of losses and metrics state shapes, and presets of the linreg example have docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.readme_tree import ROOT

SHAPE = re.compile(r"\((?:[A-Zkn]|\.\.\.)[\w +*/]*,[^()]*\)|a scalar|any shape|[Ll]ike ``|as for")


def _formulas() -> Iterator[tuple[str, str]]:
    for folder in ("losses", "metrics"):
        for path in sorted((ROOT / "workloads" / folder).glob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                    continue
                if node.returns and "Tensor" in ast.unparse(node.returns):
                    yield f"{folder}/{path.stem}.{node.name}", ast.get_docstring(node) or ""


FORMULAS = dict(_formulas())


@pytest.mark.parametrize("name", FORMULAS)
def test_docstring_of_each_loss_and_metric_states_shapes(name: str) -> None:
    assert SHAPE.search(FORMULAS[name])


def test_presets_of_the_linreg_example_have_docstrings() -> None:
    tree = ast.parse((ROOT / "examples" / "linreg" / "linreg" / "spaces.py").read_text())
    presets = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert presets
    assert [preset.name for preset in presets if not ast.get_docstring(preset)] == []
