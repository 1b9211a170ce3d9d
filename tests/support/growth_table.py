"""Growth of costs, in docs/results/speed.md, as benchmarks/scale.py computed it. Run it to rewrite the page."""

from __future__ import annotations

import json

from tests.support.readme_tree import ROOT

BEGIN, END = "<!-- growth: python -m tests.support.growth_table -->", "<!-- end of growth -->"
FILE = ROOT / "benchmarks" / "results" / "scale.json"
PAGE = ROOT / "docs" / "results" / "speed.md"


def block() -> str:
    """The table of the stored results, with their date and commit."""
    if not FILE.exists():
        return "Not measured yet on a quiet machine."
    stored = json.loads(FILE.read_text())
    when = f"Measured on {stored['when'][:10]} on {stored['machine']['cores']} cores; commit: {stored['commit']}."
    return "\n".join(["<!-- from: scale.json -->", *stored["table"], "", when])


def page(text: str) -> str:
    """The page with its current block."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{block()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
