"""What a formula takes and gives is said where it stands."""

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
def test_a_loss_or_metric_says_its_shapes(name: str) -> None:
    assert SHAPE.search(FORMULAS[name])
