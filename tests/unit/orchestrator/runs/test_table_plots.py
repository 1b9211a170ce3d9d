"""Plots of an evaluation's tables, chosen by their columns, in reports and as image files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import UserError
from orchestrator.report import comparison_output
from orchestrator.runs import plot_style
from orchestrator.runs.table_plots import COLOURS, draw, figures, illustrate
from orchestrator.runs.worker import write_table
from tests.support.finished import run, sweep

CURVES: dict[str, Any] = {
    "coverage": np.linspace(0, 1, 5), "risk": np.array([0.0, 0.1, np.nan, 0.3, 0.4]), "evidence": np.ones(5),
    "queries": np.arange(5), "note": np.array(list("abcde")),
}  # fmt: skip
PLANE: dict[str, Any] = {"x": np.arange(6.0), "y": np.arange(6.0) ** 2, "label": np.array(["cat", "dog"] * 3)}


def test_real_numbers_are_lines_over_the_first_column() -> None:
    figure = draw(CURVES)
    assert figure is not None
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["risk", "evidence"]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), CURVES["coverage"])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), CURVES["risk"])
    assert axes.get_xlabel() == "coverage"
    assert axes.get_legend() is not None


def test_single_line_is_named_on_its_axis_without_a_legend() -> None:
    figure = draw({"true_rate": np.arange(3), "mean_confidence": np.arange(3.0)})
    assert figure is not None
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_legend()) == ("true rate", "mean confidence", None)


def test_points_have_a_colour_and_a_legend_entry_per_class() -> None:
    figure = draw(PLANE)
    assert figure is not None
    cat, dog = figure.axes[0].lines
    assert [cat.get_label(), dog.get_label()] == ["cat", "dog"]
    assert cat.get_color() != dog.get_color()
    assert cat.get_xdata().tolist() == [0.0, 2.0, 4.0]
    assert dog.get_ydata().tolist() == [1.0, 9.0, 25.0]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cat", "dog"]


def test_more_classes_than_colours_are_drawn_without_a_legend() -> None:
    many = len(COLOURS) + 1
    figure = draw({"x": np.arange(many), "y": np.arange(many), "label": np.arange(many).astype(str)})
    assert figure is not None
    assert len({line.get_color() if isinstance(line.get_color(), str) else tuple(line.get_color())
                for line in figure.axes[0].lines}) == many  # fmt: skip
    assert figure.legends == []


def test_points_need_no_label() -> None:
    figure = draw({"x": PLANE["x"], "y": PLANE["y"]})
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert len(line.get_xdata()) == 6
    assert figure.legends == []


@pytest.mark.parametrize(
    "table",
    [
        {"image": np.array(["a.png", "b.png"])},
        {"image": np.array(["a.png", "b.png"]), "score": np.ones(2)},
        {"bin": np.arange(3), "count": np.arange(3)},
        {"coverage": np.empty(0), "risk": np.empty(0)},
        {"x": np.empty(0), "y": np.empty(0)},
    ],
)
def test_tables_without_plottable_columns_are_not_drawn(table: Any) -> None:
    assert draw(table) is None


def test_tables_are_drawn_into_png_files_in_their_folder(tmp_path: Path) -> None:
    for name, table in (("risk", CURVES), ("plane", PLANE), ("skipped", {"image": np.array(["a.png"])})):
        write_table(table, tmp_path / f"{name}.parquet")
    assert list(figures(tmp_path)) == ["plane", "risk"]
    illustrate(tmp_path)
    assert {file.name for file in tmp_path.glob("*.png")} == {"plane.png", "risk.png"}
    (tmp_path / "risk.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"The table .*risk\.parquet cannot be read"):
        figures(tmp_path)


@pytest.mark.usefixtures("toy_workload")
def test_reports_show_the_plots_of_evaluation_tables(tmp_path: Path) -> None:
    alone, searched = run(tmp_path, "alone", 1.0), sweep(tmp_path, "searched", [(3.0,), (1.0,)])
    assert "Measured on test" not in comparison_output.report([alone])
    for folder in (alone.path, searched.path / "winner"):
        write_table(CURVES, folder / "tables" / "risk_coverage.parquet")
        write_table(PLANE, folder / "tables" / "plane.parquet")
    for one in (alone, searched):
        text = comparison_output.report([one])
        assert "Measured on test" in text
        assert "<figcaption>risk coverage</figcaption>" in text
        assert "<figcaption>plane</figcaption>" in text
        ids = [part.split('"')[0] for part in text.split(' id="')[1:]]
        assert len(ids) == len(set(ids))


def test_table_plot_uses_the_common_plot_style() -> None:
    figure = draw(PLANE)
    assert figure is not None
    assert figure.get_size_inches()[0] == pytest.approx(plot_style.WIDTH)
    assert "currentColor" in plot_style.svg(figure, "plane")
