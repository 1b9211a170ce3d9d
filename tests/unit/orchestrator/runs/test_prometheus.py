"""The dashboard queries only metrics that are exported."""

from __future__ import annotations

import re

from orchestrator.runs.prometheus import DEVICE_SECONDS, EPOCHS
from tests.support.dashboard import FOLDER, PROMETHEUS, dashboard, expressions, names

SCHEDULER = {"ray_resources"}
"""Metrics of Ray's C++ code, which no Python file names; the tests on a real cluster scrape them."""


def test_dashboard_queries_all_own_metrics_and_otherwise_only_those_of_ray() -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    asked = names()
    assert set(PROMETHEUS.values()) <= asked
    assert asked <= set(PROMETHEUS.values()) | {f"ray_{name}" for name in METRICS_GAUGES} | SCHEDULER


def test_growing_metrics_are_queried_as_rates_or_maxima() -> None:
    for grows in (PROMETHEUS[EPOCHS], PROMETHEUS[DEVICE_SECONDS]):
        asked = [expression for expression in expressions() if grows in expression]
        assert asked
        assert all("rate(" in expression or "max by" in expression for expression in asked)


def test_panels_have_consecutive_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert x + w <= 24
        assert not cells & taken
        taken |= cells
        assert panel["description"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_parentheses_match_and_labels_are_quoted() -> None:
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        for inside in re.findall(r"\{([^{}]*)\}", expression):
            assert all(re.fullmatch(r'\w+(=|=~)"[^"]*"', matcher) for matcher in inside.split(","))


def test_readme_names_every_exported_metric() -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in PROMETHEUS.values())
