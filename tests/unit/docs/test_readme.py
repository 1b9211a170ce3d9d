"""The README and the pages of docs/ agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from orchestrator.cli.app import app
from tests.support.readme_tree import ROOT, readme

TEXT = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def test_readme_tree_matches_the_code() -> None:
    assert readme(TEXT) == TEXT, "run: python -m tests.support.readme_tree"


def test_every_verb_is_in_the_table_of_the_first_guide() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    guide = (ROOT / "docs" / "guide" / "first-run.md").read_text()
    table = guide[guide.index("## All verbs") : guide.index("## Exit codes")]
    assert [verb for verb in verbs if not re.search(rf"`[^`]*\b{verb}\b", table)] == []
    assert f"All {len(verbs)} verbs" in TEXT


def test_readme_has_at_most_160_lines() -> None:
    assert len(TEXT.splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_have_existing_targets(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_named_in_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"(?:[a-z_]+/)*[a-z_]+\.py\b", text))
    assert len(named) > 35
    assert [name for name in named if not any((ROOT / top / name).exists() for top in ("orchestrator", "."))] == []


def test_first_commands_of_the_readme_are_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.findall(r"^    make ([a-z-]+)", TEXT, re.MULTILINE)[:2] == ["demo", "test"]
    assert {"demo", "test", "lint", "test-lower", "test-gpu"} <= set(targets)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "workloads").glob("*/README.md")), ids=lambda page: Path(page).parent.name
)
def test_a_workloads_readme_names_each_of_its_files(page: Path) -> None:
    """A file is named as a module or by its folder, and each named file exists."""
    files = page.read_text().partition("\n## Files\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", files))
    there = {path.name for path in page.parent.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in page.parent.glob("*/__init__.py")}
    assert named == there
