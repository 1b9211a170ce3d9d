"""Published tables: budgets, the order of methods, and the written record and page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from orchestrator.errors import UserError
from orchestrator.report import statistics
from orchestrator.reproduce import ranking, table_report, table_runs
from orchestrator.reproduce.catalog import all_published as published
from orchestrator.reproduce.published import ReproductionRequest
from orchestrator.reproduce.run_cache import Done
from orchestrator.reproduce.table import Block, Measured, Reproduction
from orchestrator.reproduce.table_runs import Choice, ReproductionBudget
from orchestrator.runs import worker
from orchestrator.storage.settings import resolve
from workloads.published import Doubt, Method, Row, Table
from workloads.recommender.published.tables import TABLES


def row(table: str, dataset: str, backbone: str, method: str) -> Row:
    return next(one for one in TABLES[table].rows(dataset, backbone) if one.method == method)


def test_compared_and_tested_metrics_are_columns_of_every_table() -> None:
    for one in (one for one in published().values() if isinstance(one, Table)):
        assert {one.compared_by, *one.tested, *one.lower} <= set(one.columns), one.id
        assert one.by[0] == "dataset"
        for place in one.places:
            names = {row.method for row in one.rows(*place)}
            assert names <= set(one.methods)
            assert one.reference is None or one.reference in names, one.id


def test_a_dataset_may_have_epochs_of_its_own() -> None:
    vera = published()["vera-main"]
    assert isinstance(vera, Table)
    epochs = {place[0]: {row.settings.epochs for row in vera.rows(*place)} for place in vera.places}
    assert epochs == {"pathquestion": {6}, "scifact": {20}}


# -- budgets of runs -----------------------------------------------------------------------------------------


def test_ladder_of_epochs_ends_at_the_last_epoch() -> None:
    assert table_runs.ladder(100) == [20, 40, 60, 80, 100]
    assert table_runs.ladder(2) == [1, 2]


def test_training_on_the_test_part_requires_as_published() -> None:
    with pytest.raises(UserError, match="--as-published"):
        table_runs.check_reads_test("thesis-4.5", True, ReproductionBudget())
    table_runs.check_reads_test("thesis-4.5", True, ReproductionBudget(as_published=True))
    table_runs.check_reads_test("thesis-4.2", False, ReproductionBudget())


def test_quick_reproduction_has_a_name_and_budget_of_its_own() -> None:
    asked = ReproductionRequest(TABLES["thesis-4.2"], {"dataset": ("ml-100k",), "backbone": ("mf",)}, ("|M|=5",))
    assert asked.name(ReproductionBudget()) == "thesis-4.2-ml-100k-mf--M--5"
    assert asked.name(ReproductionBudget(quick=True)) != asked.name(ReproductionBudget())
    long = replace(asked, where={"dataset": ("/data/" + "deep/" * 40,)})
    assert len(long.name(ReproductionBudget())) == 100
    assert long.name(ReproductionBudget(quick=True)) != long.name(ReproductionBudget())
    assert ReproductionBudget(quick=True).limited().seeds == 2
    assert ReproductionBudget(quick=True, seeds=1).limited().seeds == 1


# -- the order of methods ------------------------------------------------------------------------------------


def done(
    folder: Path,
    values: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    metric: str = "ndcg_at_20",
) -> Done:
    if values is not None:
        columns = {"id": np.asarray(ids or range(len(values))), metric: np.asarray(values)}
        worker.write_table(columns, folder / worker.TEST_UNITS)
    return Done(folder, {}, reused=False)


@pytest.mark.parametrize(
    ("users", "test"),
    [(40, "paired sign flips, 10000 drawn, 40 units"), (60, "paired t over 2 seeds and 60 units")],
)
def test_neighbouring_methods_are_compared_by_users_over_seeds(users: int, test: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random((2, 2, users))  # method, seed, user
    ids = list(range(users))
    entrants: list[ranking.Entrant] = [
        ("worst", {"ndcg_at_20": [0.1, 0.1]}, [done(tmp_path / f"w{i}", [0.1] * users) for i in range(2)]),
        ("a", {"ndcg_at_20": list(a.mean(1))}, [done(tmp_path / f"a{i}", a[i]) for i in range(2)]),
        # the users of b are in another order
        (
            "b",
            {"ndcg_at_20": list(b.mean(1) + 1)},
            [done(tmp_path / f"b{i}", b[i][::-1] + 1, ids[::-1]) for i in (0, 1)],
        ),
        ("failed", {}, []),
    ]
    first, second = ranking.order(entrants, "ndcg_at_20")
    assert (first.better, first.worse, second.better, second.worse) == ("b", "a", "a", "worst")

    def expect(values: Any, others: Any) -> statistics.Difference:
        if users == 60:
            return statistics.over_units_and_seeds(values, others)
        return statistics.over_units(values.mean(0), others.mean(0))

    expected = expect(b + 1, a)
    assert first.difference.value == pytest.approx(expected.value)
    assert (first.difference.p, second.difference.test) == (expected.p, test)
    assert not first.named
    outer = expect(b + 1, np.full(b.shape, 0.1))
    raw = [first.difference.p or 0.0, second.difference.p or 0.0, outer.p or 0.0]
    assert [first.p, second.p] == statistics.holm(raw)[:2]  # chosen among all pairs by these values


def test_pairs_named_by_the_source_come_first_with_their_own_correction(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    units = {name: rng.normal(mean, 1, 50) for name, mean in (("ours", 0.3), ("a", 0.6), ("b", 0.0), ("c", 0.1))}
    entrants: list[ranking.Entrant] = [
        (name, {"auc": [float(of.mean())]}, [done(tmp_path / name, of, metric="auc")]) for name, of in units.items()
    ]
    pairs = [("ours", "a"), ("ours", "b"), ("ours", "absent")]
    steps = ranking.order(entrants, "auc", named=pairs)
    ranked = sorted(units, key=lambda name: -units[name].mean())
    assert [{step.better, step.worse} for step in steps if step.named] == [
        pair for pair in map(set, combinations(ranked, 2)) if pair in ({"ours", "a"}, {"ours", "b"})
    ]
    assert all(ranked.index(step.better) < ranked.index(step.worse) for step in steps)
    named, rest = [step for step in steps if step.named], [step for step in steps if not step.named]
    assert [step.p for step in named] == statistics.holm([step.difference.p or 0.0 for step in named])
    assert {step.pairs for step in named} == {2}
    assert {step.pairs for step in rest} == {6}
    assert [(step.better, step.worse) for step in rest] == [
        pair for pair in pairwise(ranked) if set(pair) not in ({"ours", "a"}, {"ours", "b"})
    ]


def test_the_tables_name_pairs_of_published_methods() -> None:
    for table in TABLES.values():
        assert table.named or table.id == "thesis-4.5"
        assert {name for pair in table.named for name in pair} <= set(table.methods) - set(table.extra)


def test_without_values_by_user_the_seeds_are_compared(tmp_path: Path) -> None:
    entrants: list[ranking.Entrant] = [
        ("a", {"auc": [0.7, 0.71]}, [done(tmp_path / "a")] * 2),
        ("b", {"auc": [0.6, 0.62]}, [done(tmp_path / "b")] * 2),
    ]
    (step,) = ranking.order(entrants, "auc")
    assert step.difference.test == "Welch's t"
    assert step.p == step.difference.p


def test_deterministic_rows_have_a_reason_and_no_p(tmp_path: Path) -> None:
    entrants: list[ranking.Entrant] = [
        ("a", {"auc": [0.1] * 3}, [done(tmp_path / "a")] * 3),
        ("b", {"auc": [0.3] * 3}, [done(tmp_path / "b")] * 3),
    ]
    (step,) = ranking.order(entrants, "auc")
    assert (step.p, step.difference.p, step.difference.why) == (None, None, "no spread")


def test_every_method_is_compared_with_the_reference_where_there_is_one(tmp_path: Path) -> None:
    means = {"b": 0.3, "full": 0.2, "a": 0.5, "c": 0.1}
    entrants: list[ranking.Entrant] = [
        (name, {"nll": [mean]}, [done(tmp_path / name, [mean - 0.1, mean + 0.1], metric="nll")])
        for name, mean in means.items()
    ]
    steps = ranking.order(entrants, "nll", lower=True, reference="full")
    assert [(step.better, step.worse) for step in steps] == [("c", "full"), ("full", "b"), ("full", "a")]
    assert [step.difference.value for step in steps] == pytest.approx([0.1, 0.1, 0.3])  # the lead, in either direction
    assert ranking.order(entrants[:1], "nll", reference="full") == []
    without = ranking.order([entrants[0], *entrants[2:]], "nll", lower=True, reference="full")
    assert [(step.better, step.worse) for step in without] == [("c", "b"), ("b", "a")], "neighbours are compared"


def test_one_method_has_no_order(tmp_path: Path) -> None:
    assert ranking.order([("a", {"auc": [0.7]}, [done(tmp_path)])], "auc") == []


# -- output of reports ---------------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """A record of two rows that ran, one above and one below its published value, and one row that failed."""
    known = TABLES["thesis-4.4"]
    chosen = Choice({"loss": "bpr", "lr": 0.00123456, "weight_decay": 1e-6}, 7, "search-1", trials=6)
    rns, bns, bce = (row("thesis-4.4", "ml-100k", "mf", name) for name in ("BPR, RNS", "BPR, BNS", "BCE, RNS"))

    def values(first: float, second: float) -> dict[str, list[float]]:
        return {metric: [first, second] for metric in known.columns}

    measured = (
        Measured(rns, chosen, values(0.42, 0.44), (done(tmp_path / "r0"), done(tmp_path / "r1"))),
        Measured(bns, chosen, values(0.05, 0.07), (done(tmp_path / "b0"), done(tmp_path / "b1"))),
        Measured(bce, None, {}, (), "out of memory"),
    )
    entrants = [(one.row.method, one.values, one.runs) for one in measured]
    order = ranking.order(entrants, known.compared_by, named=known.named)
    block = Block({"dataset": "ml-100k", "backbone": "mf"}, measured, tuple(order))
    (tmp_path / "r0").mkdir(exist_ok=True)
    (tmp_path / "r0" / "environment.json").write_text(
        json.dumps({"sources": [{"name": "ours", "commit": "0123456789abcdef", "dirty": True}]})
    )
    found = table_report.record(Reproduction(known, ReproductionBudget(seeds=2), (block,), {"ml-1m": "not here"}))
    return found | {"when": "2026-11-22T19:00:00+00:00", "commits": {"ours": "fedcba987654", "theirs": None}}


def test_reproductions_of_two_homes_have_separate_mlflow_runs(
    told: dict[str, Any], database: Path, tmp_path: Path
) -> None:
    """The homes share one MLflow store; a further reproduction from a home continues the run of this home."""
    runs = []
    for home in ("ada", "bob", "ada"):
        folder = tmp_path / home / "a-table"
        folder.mkdir(parents=True, exist_ok=True)
        settings = replace(resolve({}), tracking=f"sqlite:///{database}", home=tmp_path / home)
        table_report._track(told, [], folder, settings)
        client = MlflowClient(f"sqlite:///{database}")
        experiment = client.get_experiment_by_name(told["workload"])
        runs.append(len(client.search_runs([experiment.experiment_id])))
    assert runs == [1, 2, 2]


def test_record_has_values_differences_doubts_and_failures(told: dict[str, Any]) -> None:
    above, below, failed = told["rows"]
    value = above["metrics"]["ndcg_at_20"]
    assert value["mean"] == pytest.approx(0.43)
    assert value["sd"] == pytest.approx(0.02 / math.sqrt(2))
    assert value["difference"] == pytest.approx(0.43 - 0.3962)
    assert value["reached"]
    assert not below["metrics"]["ndcg_at_20"]["reached"]
    assert below["metrics"]["ndcg_at_20"]["doubts"] == ["E-4.16"]
    assert (failed["failure"], failed["metrics"], told["complete"]) == ("out of memory", {}, False)


def test_the_record_and_its_page_have_commit_date_and_the_values_of_each_seed(told: dict[str, Any]) -> None:
    assert told["rows"][0]["metrics"]["ndcg_at_20"]["values"] == [0.42, 0.44]
    assert told["rows"][0]["commits"] == ["0123456789ab-dirty"]
    text = table_report.markdown(told)
    assert "Written at 2026-11-22T19:00:00+00:00 by fedcba987654 of ours." in text
    assert "Commits of its runs: 0123456789ab-dirty." in text
    assert "ndcg_at_20 by seed:\n\n- BPR, RNS: 0.42000, 0.44000\n- BPR, BNS: 0.05000, 0.07000" in text
    assert "\n\nSettings selected on validation:\n\n- BPR, RNS: lr=0.001235, weight_decay=1e-06; 6 trials\n" in text


def test_share_of_the_gap_between_bpr_and_the_oracle_is_reported() -> None:
    known = TABLES["thesis-5.2"]
    rows = {row.method: row for row in known.rows("synthetic", "mf")}
    assert "L_SUP" not in {row.method for row in known.rows("ml-100k", "mf")}

    def record(**means: float) -> dict[str, Any]:
        columns = dict.fromkeys(known.columns_on("synthetic"), 1.0) | {"truth_auc": 2.0}
        ran = [
            Measured(rows[name], None, {m: [factor * mean] * 2 for m, factor in columns.items()})
            for name, mean in means.items()
        ]
        block = Block({"dataset": "synthetic", "backbone": "mf"}, tuple(ran))
        found = table_report.record(Reproduction(known, ReproductionBudget(seeds=2), (block,)))
        return found | {"when": "now", "commits": {}}

    found = record(BPR=0.40, DPL=0.44, HCL=0.38, L_SUP=0.48)
    for metric in ("ndcg_at_20", "truth_auc", "truth_ndcg_at_20"):
        assert [row["closed"][metric] for row in found["rows"]] == pytest.approx([0, 0.5, -0.25, 1])
    text = table_report.markdown(found)
    assert "| gap closed | gap closed, truth_auc | gap closed, truth_ndcg_at_20 | note |" in text
    assert "| 50% | 50% | 50% |" in text
    assert "0.8800 ± 0.0000 |" in text  # truth_auc of DPL, without a published value
    for none in (record(BPR=0.40, DPL=0.44), record(BPR=0.40, DPL=0.44, L_SUP=0.40)):
        assert all(row["closed"] == {} for row in none["rows"])
        assert "gap closed" not in table_report.markdown(none)


def test_csv_has_one_line_per_value(told: dict[str, Any]) -> None:
    lines = list(csv.DictReader(io.StringIO(table_report.as_csv(told))))
    assert len(lines) == 2 * len(TABLES["thesis-4.4"].columns)
    (one,) = (line for line in lines if (line["method"], line["metric"]) == ("BPR, BNS", "recall_at_5"))
    assert (float(one["mean"]), one["n"], float(one["published"])) == (pytest.approx(0.06), "2", 0.1467)


def test_markdown_names_values_failures_and_the_published_order(told: dict[str, Any]) -> None:
    text = table_report.markdown(told)
    assert "0.4300 ± 0.0141 / 0.3962" in text
    assert "BPR, RNS > BPR, BNS by 0.3700" in text
    assert "published order: BPR, BNS > BPR, RNS" in text
    assert "Welch's t; p corrected by Holm\n" in text  # the one pair is named by the source
    assert "out of memory (BCE, RNS)" in text
    assert "Left out: not here" in text
    assert all(line.count("|") == 13 for line in text.splitlines() if line.startswith("|"))


def test_markdown_notes_that_neighbours_were_chosen_by_the_same_values(told: dict[str, Any]) -> None:
    (step,) = told["order"]
    assert (step["named"], step["pairs"]) == (True, 1)
    other = {**step, "named": False, "pairs": 3, "worse": "BCE, RNS"}
    text = table_report.markdown({**told, "order": [step, other]})
    assert (
        "p corrected by Holm over the 1 named by the source; neighbours, from BPR, RNS > BCE, RNS on, were chosen by "
        "the same values; theirs is over all 3 pairs\n"
    ) in text
    text = table_report.markdown({**told, "order": [other]})
    assert "p corrected by Holm: neighbours were chosen by the same values; theirs is over all 3 pairs\n" in text


def test_doubt_concerns_the_rows_and_metrics_that_it_names() -> None:
    one = Row({"dataset": "ml-1m", "backbone": "mf"}, "BPR", Method({}), {"auc": 0.5})
    assert Doubt("X", "all").concerns(one, "auc")
    assert Doubt("X", "one", metrics=("auc",)).concerns(one)
    assert not Doubt("X", "one", metrics=("auc",)).concerns(one, "ndcg_at_5")
    assert not Doubt("X", "another", {"dataset": ("ml-100k",)}).concerns(one)
    assert not Doubt("X", "another", methods=("DNS",)).concerns(one)
