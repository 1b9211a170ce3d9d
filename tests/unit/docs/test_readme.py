"""The README says what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli.app import app
from tests.support.readme_tree import ROOT, readme

TEXT = (ROOT / "README.md").read_text()


def test_the_tree_is_the_code() -> None:
    assert readme(TEXT) == TEXT, "run: python -m tests.support.readme_tree"


def test_every_verb_is_named() -> None:
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    table = TEXT[TEXT.index("## Using it") : TEXT.index("Exit codes")]
    assert all(re.search(rf"`[^`]*\b{verb}\b", table) for verb in verbs)


def test_the_first_commands_are_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^    make ([a-z-]+)", TEXT, re.MULTILINE)[:2] == ["demo", "test"]
    assert {"demo", "test", "lint", "test-lower", "test-gpu"} <= set(targets)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "workloads").glob("*/README.md")), ids=lambda page: Path(page).parent.name
)
def test_a_workloads_readme_names_each_of_its_files(page: Path) -> None:
    """A module by its name, or the folder that it is in; and nothing that is not there."""
    files = page.read_text().partition("\n## Files\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", files))
    there = {path.name for path in page.parent.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in page.parent.glob("*/__init__.py")}
    assert named == there


def test_what_goes_with_the_items_of_the_batch_is_said() -> None:
    from workloads.recommender.losses import LOSSES

    masking = [name for name, row in LOSSES.items() if row.in_batch]
    page = (ROOT / "workloads" / "recommender" / "README.md").read_text()
    assert f"{', '.join(masking[:-1])} and {masking[-1]} alone" in page
    assert sum(row.compiled for row in LOSSES.values()) == 7, "the page says seven"
