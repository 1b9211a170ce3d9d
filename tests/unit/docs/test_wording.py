"""The wording check of ``make lint`` reads strings, comments and pages, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import wording


@pytest.mark.parametrize(
    ("name", "text", "seen"),
    [
        ("page.md", "It can\nnot be.\nUntold.\nTold.\n", [("can not", 1), ("told", 4)]),
        ("code.py", 'told = 1  # anew\nx = f"beside {x}"\n', [("anew", 1), ("beside", 2)]),
        ("code.py", '"""Cannot.\n\nWhoever asks.\n"""\n', [("whoever", 3)]),
        ("code.py", "told = 1\ndef test_of_what_nobody_is_told(): ...\n", [("nobody", 2), ("told", 2)]),
    ],
)
def test_uses_returns_the_words_with_their_lines(
    name: str, text: str, seen: list[tuple[str, int]], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert sorted(wording.uses(text, file)) == sorted(seen)


def test_only_docstrings_comments_and_names_of_tests_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wording, "TESTS", tmp_path)
    file = tmp_path / "test_code.py"
    file.write_text('"""Told."""\nname = "nobody"  # anew\n')
    assert [*wording.uses(file.read_text(), file)] == [("told", 1), ("anew", 2)]


def test_wording_check_covers_code_tests_and_pages_but_no_recorded_file() -> None:
    names = {str(path.relative_to(wording.ROOT)) for path in wording.files()}
    assert {"README.md", "docs/errata.md", "orchestrator/api.py", "benchmarks/soak.py"} <= names
    assert {"tests/support/toy.py", "tests/unit/docs/test_wording.py"} <= names
    assert not any(name.startswith(("tests/recorded", "benchmarks/results")) for name in names)


def test_documentation_uses_no_word_of_the_wording_check() -> None:
    pages = [path for path in wording.files() if path.suffix == ".md"]
    own = [path for path in pages if path.is_relative_to(wording.ROOT / "docs") or path.parent == wording.ROOT]
    assert [(path.name, use) for path in own for use in wording.uses(path.read_text(), path)] == []


def test_product_binds_vague_names_at_most_40_times() -> None:
    """A variable is named for what it holds. Uses of a name are not counted."""
    vague = {"found", "place", "told", "known", "said", "asked"}
    product = ("orchestrator", "workloads", "search_spaces", "deploy", "examples")
    files = [path for path in wording.files() if path.suffix == ".py"]
    bound = [
        (str(path.relative_to(wording.ROOT)), node.lineno)
        for path in files
        if path.relative_to(wording.ROOT).parts[0] in product
        for node in ast.walk(ast.parse(path.read_text()))
        if name_bound(node) in vague
    ]
    assert len(bound) <= 40, bound


def name_bound(node: ast.AST) -> str | None:
    """The name of a variable, attribute, parameter, function or class that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
    return None
