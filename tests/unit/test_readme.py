"""The README says what is there."""

from __future__ import annotations

import re

from orchestrator.cli import app
from tests.readme_tree import ROOT, readme

TEXT = (ROOT / "README.md").read_text()


def test_the_tree_is_the_code() -> None:
    assert readme(TEXT) == TEXT, "run: python -m tests.readme_tree"


def test_every_verb_is_named() -> None:
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    table = TEXT[TEXT.index("## Using it") : TEXT.index("Exit codes")]
    assert all(re.search(rf"`[^`]*\b{verb}\b", table) for verb in verbs)


def test_the_first_commands_are_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^    make ([a-z-]+)", TEXT, re.MULTILINE)[:2] == ["demo", "test"]
    assert {"demo", "test", "lint", "test-lower", "test-gpu"} <= set(targets)
