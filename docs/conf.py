"""The site: `make docs`."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import GoogleDocstring

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

project = "Ray experiment orchestrator"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
myst_enable_extensions = ["deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
add_module_names = False

html_theme = "furo"
html_title = f"{project} {release}"

MIRRORED = {
    **{f"workloads/{path.parent.name}": path for path in sorted((ROOT / "workloads").glob("*/README.md"))},
    "project/benchmarks": ROOT / "benchmarks" / "README.md",
    "project/changelog": ROOT / "CHANGELOG.md",
    "project/contributing": ROOT / "CONTRIBUTING.md",
    "project/deploy": ROOT / "deploy" / "README.md",
    "project/grafana": ROOT / "deploy" / "grafana" / "README.md",
}
"""Pages of the site whose text is a file elsewhere in the repository; the page itself is empty."""

PAGES = {path: DOCS / f"{name}.md" for name, path in MIRRORED.items()}


def _read(app: Any, name: str, source: list[str]) -> None:
    """Fill mirrored pages, and point links to files of the repository at their pages or at a download."""
    page = DOCS / f"{name}.md"
    origin = MIRRORED.get(name, page)

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(origin.parent / target))
        if path.is_dir():
            return text
        inside = PAGES.get(path, path)
        relative = os.path.relpath(inside, page.parent)
        return f"[{text}]({relative}{anchor})" if DOCS in inside.parents else f"[{text}](path:{relative})"

    source[0] = re.sub(r"(?<!!)\[((?:[^\]\n]|\n(?!\n))*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", link, origin.read_text())


def _escape(app: Any, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
    """Bars of absolute values are no substitutions of reStructuredText."""
    lines[:] = [re.sub(r"(``.*?``)|\|", lambda match: match[1] or "\\|", line) for line in lines]


# Else napoleon takes what stands before a colon in the docstring of a constant for its type.
GoogleDocstring._consume_inline_attribute = lambda self: ("", self._dedent(self._consume_to_end()))


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _escape)
