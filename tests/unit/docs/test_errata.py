"""Errata tags in code and pages match the entries of docs/errata.md, and READMEs link to them."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.readme_tree import ROOT

ERRATA = ROOT / "docs" / "errata.md"
TAG = r"E-[0-9A-Z](?:[0-9A-Za-z.]*[0-9A-Za-z])?"
WORKLOADS = sorted(path.parent for path in (ROOT / "workloads").glob("*/README.md"))


def _tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: tracked files cannot be listed")
    return listed.stdout.splitlines()


def test_every_tag_has_an_entry_and_every_entry_is_referred_to() -> None:
    entries = Counter(re.findall(rf"^- \*\*({TAG})\*\* ", ERRATA.read_text(), re.MULTILINE))
    used: dict[str, str] = {}
    for name in _tracked():
        if (ROOT / name).is_file() and ROOT / name != ERRATA:
            used |= dict.fromkeys(re.findall(rf"(?<![\w-]){TAG}", (ROOT / name).read_text()), name)
    assert set(entries.values()) == {1}
    assert {tag: name for tag, name in used.items() if tag not in entries} == {}
    assert set(entries) <= set(used)


def test_errata_entries_have_an_arrow_and_at_most_five_lines() -> None:
    for entry in re.split(r"^- (?=\*\*E-)", ERRATA.read_text(), flags=re.MULTILINE)[1:]:
        text = entry.partition("\n\n")[0]
        assert "→" in text, text
        assert len(text.splitlines()) <= 5, text


@pytest.mark.parametrize("folder", WORKLOADS, ids=lambda folder: folder.name)
def test_workload_readme_links_sources_and_errata(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "../../docs/sources.md" in text
    assert "../../docs/errata.md" in text


def test_tag_range_in_a_workload_readme_ends_with_the_last_tag() -> None:
    entries = re.findall(r"^- \*\*(E-[A-Z]+)(\d+)\*\* ", ERRATA.read_text(), re.MULTILINE)
    last = {group: int(number) for group, number in sorted(entries, key=lambda entry: int(entry[1]))}
    ranges = [
        (folder.name, group, int(number))
        for folder in WORKLOADS
        for group, number in re.findall(r"(E-[A-Z]+)1\s+to\s+\1(\d+)\s+are", (folder / "README.md").read_text())
    ]
    assert {name for name, _, _ in ranges} >= {"vera", "lifelong"}
    for name, group, number in ranges:
        assert number == last[group], name


def test_readme_and_results_page_link_sources_and_errata() -> None:
    for name in ("README.md", "RESULTS.md"):
        assert {"docs/sources.md", "docs/errata.md"} <= set(re.findall(r"\]\(([^)]*)\)", (ROOT / name).read_text()))
