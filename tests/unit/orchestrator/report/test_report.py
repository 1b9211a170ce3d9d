"""The HTML report of sweeps, runs and comparisons: content, escaping, figures and files."""

from __future__ import annotations

import re
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from optuna.trial import TrialState, create_trial

from orchestrator.cli.common import write
from orchestrator.engine.loop import Row
from orchestrator.report import comparison_output, figures, html, listing, plots, report, run_page, trials
from orchestrator.runs import plot_style
from orchestrator.search import curves, recorded
from orchestrator.search.curves import CURVES, Curves
from orchestrator.storage.records import RunFolder
from tests.support.finished import continue_sweep, run, sweep
from workloads.contract import Objective

pytestmark = pytest.mark.usefixtures("toy_workload")

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """A parser that checks that tags nest, and collects them with their attributes, headings and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]


def page(folder: RunFolder) -> str:
    return comparison_output.report([folder])


@pytest.fixture
def five(tmp_path: Path) -> RunFolder:
    return sweep(tmp_path, "five", [(3.0,), (1.0,), None, (2.0,), (5.0,), (4.0,), None])


@pytest.mark.parametrize("violated", ["size<=10", None])
def test_the_page_says_what_trials_violate_only_if_one_does(five: RunFolder, violated: str | None) -> None:
    rows = [row | {"violates": None} for row in listing.trial_rows(five)]
    rows[1]["violates"] = violated
    assert (">violates<" in run_page.of_sweep(five, rows)) == (violated is not None)


def test_each_table_cell_is_inspected_at_most_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to build a page is then proportional to the number of trials."""
    looked: list[object] = []
    plain = html._is_number
    monkeypatch.setattr(html, "_is_number", lambda value: looked.append(value) or plain(value))
    html._template.cache_clear()
    table = html.Table(["a", "b"], [[number, str(number)] for number in range(50)])
    Reader(html.render("t", "", [html.Section("s", tables=[table])]))
    html._template.cache_clear()
    assert len(looked) <= 2 * 2 * 50


def test_numbers_that_are_texts_are_sorted_as_numbers() -> None:
    cells = [10, 9.5, float("nan"), None, True, "+0.1", "9e-05", "< 1e-10", "> 1000", "-0.2 to +0.3", "reference", ""]
    read = Reader(html.render("t", "", [html.Section("s", tables=[html.Table(["a"], [[cell] for cell in cells])])]))
    keys = [attributes.get("data-key") for tag, attributes in read.tags if tag == "td"]
    assert keys == ["10.0", "9.5", None, None, None, "0.1", "9e-05", "1e-10", "1000.0", "-0.2", None, None]


def test_page_of_a_sweep_has_all_sections_and_figures(five: RunFolder) -> None:
    read = Reader(page(five))
    assert read.texts["h1"] == ["five"]
    assert read.texts["h2"] == ["Request", "The winner", "The search", "Trials", "Failures", "Accounts"]
    assert read.names().count("svg") == 4
    assert "orchestrator sweep toy" in read.texts["pre"]
    assert "saved model" in read.texts["dt"]  # not "model", which may be a parameter
    captions = " ".join(read.texts["figcaption"])
    for word in ("history", "Learning", "Parallel", "importance"):
        assert word in captions
    assert "PED-ANOVA" in " ".join(read.texts["text"])
    rows = [attributes for tag, attributes in read.tags if tag == "tr" and attributes.get("class") == "marked"]
    assert len(rows) == 2  # the objective among the metrics, the winner among the trials


def test_page_contains_no_reference_to_other_files(five: RunFolder) -> None:
    text = page(five)
    for tag, attributes in Reader(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#")
    without = re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", text)
    assert "http" not in without
    assert "@import" not in text
    assert "@font-face" not in text


def test_ids_within_a_page_are_unique(five: RunFolder) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page(five))
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page(five))) <= set(ids)


def test_html_in_user_text_is_escaped(tmp_path: Path) -> None:
    evil = "</svg><script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{$ & \"'"
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,), None], cause=evil, fixed={"start": evil})
    folder.update(command=evil, user=evil)
    read = Reader(page(folder))
    assert read.names().count("script") == 1
    assert "img" not in read.names()
    assert any("alert(1)" in text for text in read.texts["td"])
    figure = plots.importance({evil[:20]: 0.5, "lr": 0.5}, evil)
    assert "script" not in Reader(plot_style.svg(figure, evil)).names()


def test_page_notes_too_few_trials_for_importance_and_curves(tmp_path: Path) -> None:
    text = page(sweep(tmp_path, "s", [(3.0,), (1.0,)]))
    assert "No importance: PED-ANOVA needs 4 complete trials, there are 2." in text
    none = sweep(tmp_path, "t", [None], settled=False)
    text = page(none)
    assert "No trial is complete." in text
    assert "No learning curves" in text


def test_a_running_sweep_shows_the_best_so_far(tmp_path: Path) -> None:
    read = Reader(page(sweep(tmp_path, "s", [(3.0,), (1.0,)], settled=False)))
    assert "The best so far" in read.texts["h2"]
    assert "The test split is opened once, at the end of the sweep." in read.texts["p"]


def test_an_interrupted_sweep_has_no_running_trial(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,)], settled=False)
    recorded.study(folder).add_trial(create_trial(state=TrialState.RUNNING))
    assert Reader(page(folder)).texts["td"].count("running") == 1
    folder.release("interrupted", 130)
    assert Reader(page(folder)).texts["td"].count("interrupted") == 1


def test_a_continued_sweep_shows_the_best_so_far(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,)])
    folder.update(winners=[{"trial": 1, "tested": True}])
    assert "The winner" in Reader(page(folder)).texts["h2"]
    continue_sweep(folder, 0.5)
    read = Reader(page(folder))
    assert "The best so far" in read.texts["h2"]
    assert "sweep of toy, running" in " ".join(read.texts["p"])
    assert "m-1" not in read.texts["dd"]
    assert "9" not in read.texts["td"], "the test value of the earlier winner is not shown"
    assert any("opened for an earlier winner" in text for text in read.texts["p"])


def test_the_page_has_estimates_and_the_mean_of_a_finalist(tmp_path: Path) -> None:
    values = [(0.1,), (0.2,), (0.3,), (0.5,), (0.2,)]
    folder = sweep(tmp_path, "s", values, settled=False, repeat_of={3: 0, 4: 1}, spreads=[0.1] * 5)
    read = page(folder)
    assert "error on validation</dt><dd>0.2 (mean of 2 seeds, sd 0)" in read.replace("\n", "").replace("  ", "")
    assert " over units, " in read
    assert " over seeds)" in read
    assert all(f">{name}<" in read for name in ("estimate", "se (units)", "se (seeds)"))
    assert "Trials that cannot be separated from trial 1" in read


def test_failures_are_grouped_by_cause(five: RunFolder) -> None:
    text = " ".join(Reader(page(five)).texts["td"])
    assert "2 train/loss is nan at epoch 2 2, 6" in text


def test_page_of_several_objectives_shows_the_pareto_front(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [(3.0, 1.0), (1.0, 5.0), (2.0, 0.5), None], directions=("min", "max"))
    drawn = figures.of_sweep(folder)
    assert isinstance(drawn["pareto"], Figure)
    front, others = drawn["pareto"].axes[0].lines[1], drawn["pareto"].axes[0].lines[0]
    assert sorted(front.get_xdata()) == [1.0]
    assert sorted(others.get_xdata()) == [2.0, 3.0]
    read = Reader(page(folder))
    assert any("Pareto" in caption for caption in read.texts["figcaption"])
    assert {"error", "x"} <= set(read.texts["button"])


def test_legends_are_placed_above_the_axes(tmp_path: Path) -> None:
    values = [(float(number % 7), float(number % 5)) for number in range(20)]
    folder = sweep(tmp_path, "s", values, directions=("min", "max"), violating={3}, settled=False)
    Curves(folder.path).add(0, [Row(epoch, 0.0, {"validation/error": 1 / epoch}) for epoch in (1, 2)])
    Curves(folder.path).add(1, [Row(epoch, 0.0, {"validation/error": epoch / 2}) for epoch in (1, 2)])
    drawn = figures.of_sweep(folder)
    for name in ("pareto", "history", "learning"):
        figure = drawn[name]
        assert isinstance(figure, Figure)
        plot_style.svg(figure, name)  # computes the layout
        (legend,) = figure.legends
        assert legend.get_window_extent().y0 >= figure.axes[0].get_window_extent().y1, name


def test_one_trial_of_one_epoch_has_whole_numbers_on_its_axes(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [(0.5,)], settled=False)
    Curves(folder.path).add(0, [Row(1, 0.0, {"validation/error": 0.5})])
    drawn = figures.of_sweep(folder)
    for name, number in (("history", 0), ("learning", 1)):
        figure = drawn[name]
        assert isinstance(figure, Figure)
        low, high = figure.axes[0].get_xlim()
        assert [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high] == [number]


@pytest.mark.parametrize("metric", ["seconds_per_example", "recall_at_20_of_users_with_few_interactions"])
def test_a_long_metric_has_its_label_within_the_figure(metric: str) -> None:
    figure = plots.learning({"": [(1, 0.5), (2, 0.25)]}, "", Objective(metric, "min"))
    plot_style.svg(figure, metric)
    extent = figure.axes[0].yaxis.label.get_window_extent()
    assert extent.y0 >= 0
    assert extent.y1 <= figure.bbox.y1


def test_characters_missing_in_the_font_cause_no_warning(tmp_path: Path) -> None:
    figure = plots.importance({"学習率": 0.5, "lr": 0.5}, "share")
    with warnings.catch_warnings(action="error"):
        assert "学習率" in plot_style.svg(figure, "importance")
        plot_style.png(figure, tmp_path / "importance.png")


def test_parallel_plot_shows_the_latest_parameters_of_a_population_member(tmp_path: Path) -> None:
    """The tables show these parameters too."""
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,)], settled=False)
    study = recorded.study(folder)
    first = study.trials[0]
    later = {**first.user_attrs["params"], "lr": 0.05}
    lineage = {"lineage": [{"epoch": 2, "from": 0, "params": later}], "began_with": first.user_attrs["params"]}
    about = {**first.user_attrs, **lineage, "params": later, "best_value": 0.5}
    study.add_trial(create_trial(value=0.5, params=first.params, distributions=first.distributions, user_attrs=about))
    drawn = figures.of_sweep(folder)["parallel"]
    assert isinstance(drawn, Figure)
    (winner,) = (line for line in drawn.axes[0].lines if line.get_color() == plot_style.ORANGE)
    assert winner.get_ydata()[0] == 1.0  # lr: 0.05 is the highest of 0.01, 0.02 and 0.05


@pytest.mark.parametrize(("first", "second"), [("min", "min"), ("min", "max"), ("max", "min"), ("max", "max")])
def test_steps_of_the_pareto_front_do_not_dominate_its_points(first: str, second: str, tmp_path: Path) -> None:
    sign = (1 if first == "min" else -1, 1 if second == "min" else -1)
    values = [(sign[0] * a, sign[1] * b) for a, b in ((1.0, 3.0), (2.0, 2.0), (3.0, 1.0))]
    folder = sweep(tmp_path, "s", values, directions=(first, second), settled=False)
    drawn = figures.of_sweep(folder)["pareto"]
    assert isinstance(drawn, Figure)
    (stairs,) = (line for line in drawn.axes[0].lines if line.get_drawstyle().startswith("steps"))
    for x, y in _corners(stairs):  # none is better than the front
        assert not any(
            sign[0] * x <= sign[0] * a and sign[1] * y <= sign[1] * b and (x, y) != (a, b) for a, b in values
        )


def test_the_front_is_empty_while_all_trials_violate_a_constraint() -> None:
    values = [(0.1 * number, 0.2 * number) for number in range(3)]
    complete = [create_trial(values=pair) for pair in values]
    for number, trial in enumerate(complete):
        trial.number = number
    drawn = plots.pareto(complete, [], (Objective("ndcg", "max"), Objective("ece", "min")))
    (points,) = drawn.axes[0].lines
    assert [*zip(points.get_xdata(), points.get_ydata())] == values


def test_a_trial_that_cannot_win_is_not_the_best_so_far(tmp_path: Path) -> None:
    """Trial 1 violates a constraint, trial 3 repeats trial 0."""
    values = [(3.0,), (1.0,), (2.5,), (2.0,), (2.8,)]
    drawn = figures.of_sweep(sweep(tmp_path, "s", values, repeat_of={3: 0}, violating={1}, settled=False))
    history, parallel = drawn["history"], drawn["parallel"]
    assert isinstance(history, Figure)
    best, competing, others = history.axes[0].lines
    assert [*zip(best.get_xdata(), best.get_ydata())] == [(0, 3.0), (2, 2.5), (4, 2.5), (4, 2.5)]
    assert [*competing.get_xdata()] == [0, 2, 4]
    assert [*others.get_xdata()] == [1, 3]
    assert isinstance(parallel, Figure)
    lines = [line for line in parallel.axes[0].lines if len(line.get_xdata()) == 3]
    lines.sort(key=lambda line: line.get_ydata()[0])  # by lr: in the order of the trials
    colours = [line.get_color() for line in lines]
    assert [line.get_linestyle() for line in lines] == ["-", ":", "-", "-"]
    assert len(colours) == 4, "a repeat is not a separate configuration"
    assert colours[1:3] == [plot_style.GREY, plot_style.ORANGE]
    assert colours[0] == plots.SCALE(0.0)


def test_the_history_is_drawn_while_all_trials_violate_a_constraint(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,)], violating={0, 1}, settled=False)
    drawn = figures.of_sweep(folder)
    history = drawn["history"]
    assert isinstance(history, Figure)
    assert [[*line.get_xdata()] for line in history.axes[0].lines] == [[0, 1]]
    assert isinstance(drawn["parallel"], Figure)


def test_importance_excludes_repeated_and_warm_start_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,), (2.5,), (2.0,), (2.8,)], repeat_of={3: 0}, settled=False)
    study = recorded.study(folder)
    learnt = study.get_trials()[0]
    learnt.user_attrs["warm_from"] = "other/0"
    study.add_trial(learnt)
    counted: list[int] = []
    monkeypatch.setattr(
        figures, "get_param_importances", lambda study, **_: counted.append(len(study.trials)) or {"lr": 1.0}
    )
    drawn = figures.of_sweep(folder)["importance"]
    assert counted == [4]
    assert isinstance(drawn, Figure)
    assert drawn.axes[0].get_xlabel() == "share (PED-ANOVA, 4 complete trials)"


def _corners(line: object) -> list[tuple[float, float]]:
    """Every point of a step line, its corners included."""
    xs, ys = line.get_xdata(), line.get_ydata()  # type: ignore[attr-defined]
    post = line.get_drawstyle() == "steps-post"  # type: ignore[attr-defined]
    between = [(xs[i + 1], ys[i]) if post else (xs[i], ys[i + 1]) for i in range(len(xs) - 1)]
    return [*zip(xs, ys), *between]


def test_parameters_drawn_logarithmically_have_logarithmic_axes(five: RunFolder) -> None:
    found = recorded.trials(five)
    heights, ticks = plots._column([t for t in found if t.values], "lr")
    values = [t.params["lr"] for t in found if t.values]
    middle = (values[0] * values[-1]) ** 0.5
    for value, height in zip(values, heights):
        assert height is not None
        assert (height > 0.5) == (value > middle)
    assert [text for _, text in ticks] == ["0.01", "0.0182", "0.033", "0.06"]


@pytest.mark.slow
def test_settled_sweep_gets_images_tables_and_page(five: RunFolder) -> None:
    rows = listing.trial_rows(five)
    report.write_trials(rows, five.path)
    report.write_page(five, rows, five.record["result"])
    images = {file.name for file in five.path.glob("*.png")}
    assert images == {"history.png", "learning.png", "parallel.png", "importance.png"}
    written, drawn = (
        re.split(r"(?s)(<svg.*?</svg>)", text) for text in ((five.path / report.PAGE).read_text(), page(five))
    )
    assert written[::2] == drawn[::2]
    for one, other in zip(written[1::2], drawn[1::2]):  # Matplotlib gives clips random names and rounds
        numbers = [[float(n) for n in re.findall(r"-?\d+\.\d+", svg)] for svg in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)
        kept = [re.sub(r"\bp[0-9a-f]{10}\b|-?\d+\.\d+", "", svg) for svg in (one, other)]
        assert kept[0] == kept[1]
    assert images | {report.PAGE, "trials.csv", "trials.json"} <= set(report.FILES)


@pytest.mark.slow
def test_a_record_that_is_not_utf_8_has_a_page(five: RunFolder, tmp_path: Path) -> None:
    """Earlier versions accepted such text in a record."""
    five.update(user="a\udcff")
    report.write_page(five, [], five.record["result"])
    report.write_trials([{"user": "a\udcff"}], tmp_path)
    assert (tmp_path / "trials.csv").read_text("utf-8") == "user\na\\udcff\n"
    assert "a\\udcff" in (five.path / report.PAGE).read_text("utf-8")
    write("a\udcff", tmp_path / "page")
    assert (tmp_path / "page").read_text("utf-8") == "a\\udcff\n"


def test_page_of_a_run_has_its_learning_curve(tmp_path: Path) -> None:
    folder = run(tmp_path, "a", 1.0)
    history = '{"epoch": 1, "validation/error": 2.0}\n{"epoch": 2, "validation/error": 1.0}\n'
    (folder.path / "history.jsonl").write_text(history + history)
    assert run_page.curve(folder.path, "validation/error") == [(1, 2.0), (2, 1.0)]
    read = Reader(page(folder))
    assert read.names().count("svg") == 1
    assert "Learning curve" in read.texts["figcaption"]


def test_page_of_a_comparison_has_its_runs_and_one_figure(tmp_path: Path) -> None:
    read = Reader(
        comparison_output.report([run(tmp_path, n, e, lr=lr) for n, e, lr in (("a", 1.0, 0.1), ("b", 2.0, 0.2))])
    )
    assert read.texts["h1"] == ["Comparison by lr"]
    assert {"a", "b"} <= set(read.texts["td"])
    assert read.names().count("svg") == 1


# Curves


def test_curves_keep_the_last_value_written_for_each_epoch(tmp_path: Path) -> None:
    writer = Curves(tmp_path)
    writer.add(0, [Row(1, 0.0, {"validation/error": 3.0, "validation/x": 1.0}), Row(2, 0.0, {"train/loss": 1.0})])
    with (tmp_path / CURVES).open("a") as file:
        file.write('{"trial": 0, "se')  # killed here
    again = Curves(tmp_path)
    again.add(0, [Row(1, 0.0, {"validation/error": 2.5}), Row(2, 0.0, {"validation/error": 2.0})])
    again.add(1, [Row(1, 0.0, {"validation/error": 9.0})], seed=2)
    assert curves.read(tmp_path, "validation/error") == {(0, 0): [(1, 2.5), (2, 2.0)], (1, 2): [(1, 9.0)]}
    assert curves.read(tmp_path, "train/loss") == {(0, 0): [(2, 1.0)]}
    first, second = curves.rows(tmp_path, 0)
    assert (first.metrics, second.metrics) == ({"validation/error": 2.5}, {"validation/error": 2.0})
    assert curves.read(tmp_path / "none", "train/loss") == {}


def test_without_curves_the_rungs_are_drawn(five: RunFolder) -> None:
    found = recorded.trials(five)
    assert trials.learning_curves(five.path, found, "error")[1, 0] == [(1, 2.0), (3, 1.0)]
    Curves(five.path).add(1, [Row(1, 0.0, {"validation/error": 7.0})])
    assert trials.learning_curves(five.path, found, "error") == {(1, 0): [(1, 7.0)]}


def test_the_winners_seeds_are_drawn_with_their_spread(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "s", [[0.3, 0.5], [0.1, 0.3]], seeds=2)
    written = Curves(folder.path)
    for trial, seed, values in ((0, 0, (9.0, 9.0)), (1, 0, (1.0, 2.0)), (1, 1, (3.0, 2.0, 1.0))):
        rows = [Row(epoch, 0.0, {"validation/error": value}) for epoch, value in enumerate(values, 1)]
        written.add(trial, rows, seed)
    found = curves.over_seeds(curves.read(folder.path, "validation/error"), {1})
    assert [(point.epoch, point.n, point.mean) for point in found] == [(1, 2, 2.0), (2, 2, 2.0)]
    assert [point.spread for point in found] == [pytest.approx(2**0.5), 0.0]
    assert curves.over_seeds(curves.read(folder.path, "validation/error"), {0}) == []
    assert isinstance(figures.of_sweep(folder)["seeds"], Figure)
    assert run_page.CAPTIONS["seeds"] in " ".join(Reader(page(folder)).texts["figcaption"])
