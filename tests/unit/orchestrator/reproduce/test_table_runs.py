"""Tables, figures and computations of a third party's workload, run in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.app import app
from orchestrator.console import Console
from orchestrator.errors import DONE, PARTIAL, UserError
from orchestrator.reproduce.catalog import all_published
from orchestrator.reproduce.figures import _chosen
from orchestrator.reproduce.published import ReproductionRequest, reproduce
from orchestrator.reproduce.table_runs import ReproductionBudget, Runner
from orchestrator.storage.settings import Settings
from tests.support.toy_published import PUBLISHED, REGIME
from workloads import catalog
from workloads.published import Computation, Figure, Method, Table, Trained

pytestmark = pytest.mark.usefixtures("published")


def ask(
    name: str, settings: Settings, quick: bool = False, as_published: bool = False, **asked: Any
) -> tuple[dict[str, Any], int]:
    budget = ReproductionBudget(REGIME.seeds, REGIME.trials, quick, local=True, as_published=as_published)
    return reproduce(ReproductionRequest(all_published()[name], **asked), settings, budget, Console(json=True))


@pytest.mark.slow
def test_table_has_mean_spread_and_a_test_against_its_reference(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine.loop.CHECKPOINT_SECONDS", 0.0)
    told, code = ask("toy-main", settings)
    assert "published" not in capsys.readouterr().err
    assert code == DONE
    assert [row["method"] for row in told["rows"]] == ["steep", "flat", "searched"]
    assert all(
        len(row["metrics"]["error"]["values"]) == 2 and row["metrics"]["error"]["sd"] > 0 for row in told["rows"]
    )
    assert [row["search"] is not None for row in told["rows"]] == [False, False, True]
    assert {(step["better"], step["worse"]) for step in told["order"]} == {("steep", "flat"), ("searched", "flat")}
    assert all(step["difference"] > 0 for step in told["order"])
    folder = Path(told["folder"])
    stored = json.loads((folder / "toy-main.json").read_text())
    assert stored["workload"] == "toy"
    assert stored["when"] == told["when"]
    assert all(row["commits"] == sorted(filter(None, told["commits"].values())) for row in stored["rows"])
    page = (folder / "toy-main.md").read_text()
    assert f"Written at {told['when']} by " in page
    for row in told["rows"]:
        values = row["metrics"]["error"]["values"]
        assert f"- {row['method']}: {values[0]:.5f}, {values[1]:.5f}" in page
    again, _ = ask("toy-main", settings)  # nothing is run twice
    assert [row["runs"] for row in again["rows"]] == [row["runs"] for row in told["rows"]]
    assert len(list(settings.storage.glob("parabola-synthetic-seed*"))) == 6
    assert not list(settings.storage.glob("parabola-synthetic-seed*/checkpoints"))  # a measured run is not continued


@pytest.mark.slow
def test_failed_trials_of_a_search_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Runner.chosen
    monkeypatch.setattr(Runner, "chosen", lambda self, *asked: replace(chosen(self, *asked), failed=1))
    told, _ = ask("toy-main", settings, methods=("searched", "flat", "Searched"))
    assert [(row["method"], row["trials"], row["failed_trials"]) for row in told["rows"]] == [
        ("searched", 2, 1),
        ("flat", 0, 0),
    ], "a method that is given twice is one row"
    page = (Path(told["folder"]) / "toy-main.md").read_text()
    assert "- 1 of 2 trials of the search failed (searched)" in page
    assert f"| flat | {told['rows'][1]['epochs']} |" in page


def test_missing_dataset_is_reported_and_the_other_datasets_are_run(settings: Settings) -> None:
    told, code = ask("toy-missing", settings)
    assert code == PARTIAL
    assert list(told["missing"]) == ["gowalla"]
    (row,) = told["rows"]
    assert row["metrics"]["four"]["mean"] > 0
    with pytest.raises(UserError, match="gowalla"):
        ask("toy-missing", settings, where={"dataset": ("gowalla",)})


def test_quick_reproduction_uses_the_reduced_plan_of_the_regime(settings: Settings) -> None:
    method = Method({"lr": 0.1}, (), 40)
    regime = replace(REGIME, plan={"precision": "bf16"}, quick={"steps_per_epoch": 3})
    specs = [
        Runner(regime, settings, ReproductionBudget(quick=q, local=True)).final_spec(method, {}, 40, 0)
        for q in (True, False)
    ]
    assert [spec.plan.steps_per_epoch for spec in specs] == [3, None]
    assert {spec.plan.precision for spec in specs} == {"bf16"}
    assert [(spec.plan.refit, spec.plan.patience) for spec in specs] == [(False, 3)] * 2  # selected on validation


@pytest.mark.slow
def test_search_has_no_refit_and_selects_the_epochs_of_final_models(settings: Settings) -> None:
    runner = Runner(replace(REGIME, refit=True), settings, ReproductionBudget(trials=2, local=True))
    method = Method({}, ("lr",), 40)
    spec = runner.search_spec(method)
    assert spec is not None
    assert not spec.plan.refit
    choice = runner.choose(method)
    assert choice.epochs < 40, "selected on validation"
    final = runner.final_spec(method, choice.params, choice.epochs, 0)
    assert (final.plan.refit, final.plan.epochs) == ("only", choice.epochs)


def test_as_published_is_refused_for_a_source_not_selecting_on_test(settings: Settings) -> None:
    with pytest.raises(UserError, match="Leave out --as-published"):
        ask("toy-main", settings, as_published=True)


def test_missing_metric_of_a_run_is_reported_as_failure_of_its_row(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    monkeypatch.setitem(all_published(), "toy-main", replace(one, metrics=("error", "eror"), reference=None))
    told, code = ask("toy-main", settings, methods=("flat",))
    assert code == PARTIAL
    assert "has no eror on test" in told["rows"][0]["failure"]


def test_error_of_a_measurement_is_reported_as_failure_of_its_row(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(run: Trained) -> dict[str, float]:
        raise ValueError("synthetic has no ratings")

    one = all_published()["toy-main"]
    assert isinstance(one, Table)
    monkeypatch.setitem(all_published(), "toy-main", replace(one, measure=nothing))
    told, code = ask("toy-main", settings, methods=("flat",))
    assert (code, told["rows"][0]["metrics"]) == (PARTIAL, {})
    assert told["rows"][0]["failure"].endswith("synthetic has no ratings")


def test_a_figure_shows_values_on_test_over_a_parameter(settings: Settings) -> None:
    told, _ = ask("toy-values", settings)
    (curve,) = told["curves"]
    assert (curve["x"], curve["name"], curve["x_label"]) == ([0.1, 0.2], "steep", "lr")
    assert len(set(curve["y"])) == 2
    assert all(sd > 0 for sd in curve["sd"])
    assert [sum(values) / 2 for values in curve["by_seed"]] == pytest.approx(curve["y"])
    page = (Path(told["folder"]) / "toy-values.md").read_text()
    assert f"Written at {told['when']} by " in page
    first, second = (", ".join(f"{value:.5f}" for value in values) for values in curve["by_seed"])
    assert page.endswith(f"By seed:\n\n- steep, lr = 0.1: {first}\n- steep, lr = 0.2: {second}\n")
    assert {file.suffix for file in Path(told["folder"]).iterdir()} == {".json", ".csv", ".md", ".svg", ".png"}


def test_a_line_is_left_out_where_its_method_does_not_exist(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = all_published()["toy-values"]
    assert isinstance(one, Figure)
    (line,) = one.panels[0].lines
    some = replace(line, name="some", method=replace(line.method, only={"size": ("8",)}))
    figure = replace(one, by=("dataset", "size"), panels=(replace(one.panels[0], lines=(some, line)),))
    assert figure.confined == {}
    (chosen,) = _chosen(figure.panels[0].lines, ("size",), {"size": ("16",)}, ())
    assert (chosen.name, chosen.where) == ("steep", {"size": "16"})
    assert [one.name for one in _chosen(figure.panels[0].lines, ("size",), {}, ())] == ["some", "steep"]

    app(["reproduce", "thesis-fig4.5", "--help"], standalone_mode=False)
    assert "available: mf" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(
        UserError, match=r"thesis-fig4\.5 .* got backbone=lightgcn; allowed: backbone=mf\. Leave out --backbone"
    ):
        ask("thesis-fig4.5", settings, where={"dataset": ("synthetic",), "backbone": ("lightgcn",)})


def test_figure_over_epochs_has_a_value_for_each_epoch(settings: Settings) -> None:
    (curve,) = ask("toy-epochs", settings)[0]["curves"]
    assert (curve["x"], curve["sd"]) == ([1.0, 2.0, 3.0, 4.0], [None] * 4)


def test_custom_figure_of_a_workload_is_drawn_from_its_runs(settings: Settings) -> None:
    told, _ = ask("toy-slopes", settings, methods=("Steep",))
    assert [(len(curve["y"]), curve["note"], curve["y_label"]) for curve in told["curves"]] == [
        (3, "2 runs", "error")
    ] * 2
    with pytest.raises(UserError, match="steep"):
        ask("toy-slopes", settings, methods=("steap",))


def test_a_computation_needs_no_runs(settings: Settings) -> None:
    told, code = ask("toy-theory", settings, quick=True)
    assert code == DONE
    assert told["tables"] == {"size": [{"points": 3, "quick": True}]}
    assert told["curves"][0]["y"] == [1.0, 0.0, 1.0]
    assert (Path(told["folder"]) / "toy-theory-size.csv").read_text() == "points,quick\n3,True\n"
    assert not settings.storage.exists()


def test_reproduce_command_lists_all_results_and_suggests_the_nearest(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    app(["reproduce", "--help"], standalone_mode=False)
    listed = capsys.readouterr().out
    assert all(one.id in listed for one in PUBLISHED)
    assert "thesis-4.2" in listed
    with pytest.raises(UserError, match="Did you mean 'toy-theory'"):
        app(["reproduce", "toy-teory"], standalone_mode=False)
    app(["reproduce", "toy-main", "--help"], standalone_mode=False)
    assert "--trials" in capsys.readouterr().out
    app(["reproduce", "toy-theory", "--help"], standalone_mode=False)
    assert "--trials" not in capsys.readouterr().out


def test_the_list_has_tables_then_figures_in_natural_order() -> None:
    ids = list(all_published())
    kinds = [isinstance(one, Table) for one in all_published().values()]
    assert kinds == sorted(kinds, reverse=True)
    assert ids.index("thesis-6.7") < ids.index("toy-main") < ids.index("thesis-fig3.4")
    numbers = ["2.3", "3.2", "3.3", "3.4", "3.5", "3.6", "4.2", "4.3", "4.4", "4.5", "5.3", "5.4", "6.1", "6.4", "6.8"]
    numbers += ["6.8-trained", "6.9", "6.10"]
    assert [name for name in ids if name.startswith("thesis-fig")] == [f"thesis-fig{number}" for number in numbers]


def test_the_older_spelling_of_a_figure_still_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    for spelling in ("thesis-fig4.4", "thesis-figure-4.4", "thesis-fig6.9", "thesis-figure-6.9"):
        app(["reproduce", spelling, "--help"], standalone_mode=False)
        assert f"figure {spelling[-3:]}" in capsys.readouterr().out
    assert not any("-figure-" in name for name in all_published())


def test_one_id_of_two_workloads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.BUILT_IN, "other", catalog.BUILT_IN["toy"])
    with pytest.raises(UserError, match="Two workloads publish toy-main"):
        all_published()


@pytest.mark.faults  # long
@pytest.mark.parametrize("name", [name for name, one in all_published().items() if isinstance(one, Computation)])
def test_every_computation_finishes_with_curves_or_tables(name: str, settings: Settings) -> None:
    told, code = ask(name, settings, quick=True)
    assert code == DONE
    assert told["curves"] or told["tables"]
