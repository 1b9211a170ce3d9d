"""Count words that plain English replaces, in strings, comments and pages. Part of ``make lint``.

Counted in the strings and comments of the product's Python files, in the docstrings, comments and names of tests, and
in all Markdown pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).resolve()
SOURCES = ("orchestrator/", "workloads/", "search_spaces/", "deploy/", "examples/", "benchmarks/", "tests/")
RECORDED = ("benchmarks/results/", "tests/recorded/")
TESTS = ROOT / "tests"
HELPERS = TESTS / "support"

LIMITS = {"can not": 0, "beside": 2, "told": 0, "nobody": 0, "anew": 0, "whoever": 0}
"""Allowed number of uses. The remaining ones are strings on disk and quoted names.

Write: cannot; next to, with, compared with; reported; no one; again; the one who.
"""


def uses(text: str, path: Path) -> Iterator[tuple[str, int]]:
    """Each use of a word, with its line."""
    for first, part in _prose(path) if path.suffix == ".py" else [(1, text)]:
        for word in LIMITS:
            for match in re.finditer(rf"\b{word}\b".replace(" ", r"\s+"), part, re.IGNORECASE):
                yield word, first + part.count("\n", 0, match.start())


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Strings, comments and names of tests, with their first lines. The other strings of tests are data."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            kind = tokenize.tok_name[token.type]
            is_data = TESTS in path.parents and HELPERS not in path.parents and not token.string.startswith('"""')
            if kind == "COMMENT" or ((kind == "STRING" or kind.startswith("FSTRING")) and not is_data):
                yield token.start[0], token.string
            elif kind == "NAME" and token.string.startswith("test_"):
                yield token.start[0], token.string.replace("_", " ")


def files() -> list[Path]:
    """Python files of the product, the benchmarks and the tests, and all pages."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = (name for name in names if name.endswith(".md") or (name.startswith(SOURCES) and ROOT / name != OWN))
    return [ROOT / name for name in wanted if (ROOT / name).is_file() and not name.startswith(RECORDED)]


def main() -> int:
    """Print the uses of each word that is over its limit. Returns the exit code."""
    seen: dict[str, list[str]] = {word: [] for word in LIMITS}
    for path in files():
        for word, line in uses(path.read_text(encoding="utf-8"), path):
            seen[word].append(f"{path.relative_to(ROOT)}:{line}")
    over = {word: lines for word, lines in seen.items() if len(lines) > LIMITS[word]}
    for word, lines in over.items():
        print(f'"{word}" is used {len(lines)} times, {LIMITS[word]} at most: {", ".join(lines)}')
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
