"""What the thesis publishes on recommendation: its tables and figures, and the settings of every row. Plain data."""

from __future__ import annotations

from workloads.recommender.published.figures import FIGURES, Figure, Line, Panel, Point
from workloads.recommender.published.rows import Doubt, Method, Row, Table
from workloads.recommender.published.tables import TABLES

__all__ = ["FIGURES", "TABLES", "Doubt", "Figure", "Line", "Method", "Panel", "Point", "Row", "Table"]
