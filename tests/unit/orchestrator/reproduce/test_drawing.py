"""Drawn figures."""

from __future__ import annotations

import re

from orchestrator.reproduce.drawing import _draw
from workloads.published import Curve


def test_a_title_wider_than_the_figure_is_broken_into_lines() -> None:
    title = "Embeddings saved by an append-only index over the number of sessions"
    curve = Curve([1.0, 2.0], [3.0, 4.0], name="counted", x_label="sessions", y_label="share")
    lines = re.findall(r"<text [^>]*>([^<]*)</text>", _draw({"": [curve]}, "svg", title).decode())
    assert title not in lines
    assert title in " ".join(lines)
