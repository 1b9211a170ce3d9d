"""Search spaces and published tables of lifelong retrieval: each row has valid parameters."""

from __future__ import annotations

import optuna
import pytest

from search_spaces import lifelong as spaces
from workloads.lifelong.params import Params
from workloads.lifelong.published import ABLATION, MAIN, PUBLISHED, SAVINGS
from workloads.lifelong.published.figures import savings
from workloads.published import Table


@pytest.mark.parametrize("preset", ["space", "ranking", "embedding", "replay"])
def test_search_spaces_draw_valid_parameters(preset: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [Params(**getattr(spaces, preset)(study.ask())) for _ in range(20)]
    expected = {"space": {"ranking", "embedding"}, "replay": {"frozen"}}
    assert {one.compatible for one in drawn} == expected.get(preset, {preset})


TABLES = [entry for entry in PUBLISHED if isinstance(entry, Table)]


def test_counted_savings_match_the_formula() -> None:
    """A rebuilt index embeds three quarters of the collection again in each session, on average."""
    assert SAVINGS in PUBLISHED
    cells = savings(quick=True).tables["saved"]
    assert [cell["sessions"] for cell in cells] == [1, 2, 3]
    assert [cell["counted"] for cell in cells] == pytest.approx([cell["formula"] for cell in cells])
    assert cells[2]["formula"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_every_table_row_has_valid_and_distinct_parameters(table: Table) -> None:
    for dataset in table.datasets:
        rows = {row.method: Params(**row.settings.params) for row in table.rows(dataset)}
        assert table.reference in rows
        assert len(set(rows.values())) == len(rows)
        assert all(row.dataset == dataset and row.encoder == "minilm" for row in rows.values())
        assert all(row.settings.epochs > rows[row.method].split_sessions for row in table.rows(dataset))


def test_each_ablation_row_changes_one_parameter() -> None:
    rows = {row.method: Params(**row.settings.params).model_dump() for row in ABLATION.rows("classic-ir")}
    reference = rows.pop("L2R")
    depending = {
        "alpha", "standardise", "diversity", "n_memory", "capacity", "align_weight", "detach_target",
    }  # fmt: skip
    for method, params in rows.items():
        different = {name for name, value in params.items() if value != reference[name]}
        assert len(different - depending) == 1 or (len(different) == 1 and different <= depending), method


def test_reference_of_the_main_table_is_l2r_with_isd_memory_and_ranking() -> None:
    row = next(row for row in MAIN.rows("scifact") if row.method == MAIN.reference)
    found = Params(**row.settings.params)
    assert (found.new, found.memory, found.compatible, found.update) == ("l2r", "isd", "ranking", "continue")
