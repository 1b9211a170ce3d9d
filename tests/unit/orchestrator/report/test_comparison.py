"""Comparisons of runs and sweeps: groups, statistical tests, and output formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config.plan import Plan
from orchestrator.errors import UserError
from orchestrator.report import comparison_output, markdown
from orchestrator.report.comparison import Comparison, compare
from orchestrator.report.samples import entries
from orchestrator.report.statistics import holm, over_seeds
from orchestrator.search import unit_values
from orchestrator.storage.names import TEST_UNITS, VALIDATION_UNITS
from orchestrator.storage.records import RunFolder
from tests.support.finished import continue_sweep, run, sweep

pytestmark = pytest.mark.usefixtures("toy_workload")


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    """Three learning rates, three seeds each; 0.1 is best."""
    errors = {0.1: (1.0, 1.2, 1.1), 0.2: (2.0, 2.4, 2.3), 0.3: (1.3, 1.1, 1.4)}
    return [
        run(tmp_path, f"lr{lr}-s{seed}", error, seed=seed, lr=lr)
        for lr, of in errors.items()
        for seed, error in enumerate(of)
    ]


def groups(found: Comparison) -> dict[str, tuple[float, ...]]:
    return {found.name(row.group): row.values for row in found.rows}


def test_runs_are_grouped_by_parameters_that_differ_except_the_seed(runs: list[RunFolder]) -> None:
    found = compare(runs)
    assert found.by == ("lr",)
    assert groups(found) == {"lr=0.1": (1.0, 1.2, 1.1), "lr=0.2": (2.0, 2.4, 2.3), "lr=0.3": (1.3, 1.1, 1.4)}
    assert found.reference == ("0.1",)
    worse, near = (row for row in found.rows if row.difference)
    expected = [over_seeds(row.values, (1.0, 1.2, 1.1), "welch").p or 0.0 for row in (worse, near)]
    assert [worse.p, near.p] == holm(expected)
    assert any("chosen by these very values" in note for note in found.notes)


def test_a_baseline_is_named_by_its_value(runs: list[RunFolder]) -> None:
    for name in ("0.3", "lr=0.3"):
        assert compare(runs, baseline=name).reference == ("0.3",)
    with pytest.raises(UserError, match=r"Unknown baseline: got '0\.4'"):
        compare(runs, baseline="0.4")


def test_split_test_compares_the_values_on_test(runs: list[RunFolder]) -> None:
    assert groups(compare(runs[:3], split="test")) == {"all": (2.0, 2.4, 2.2)}


def test_runs_that_differ_only_in_seed_form_one_group(runs: list[RunFolder]) -> None:
    found = compare(runs[:3])
    assert found.by == ()
    assert [row.difference for row in found.rows] == [None]
    assert comparison_output.text(found, "table").splitlines()[-1].split() == ["3", "1.1", "0.1"]


def test_run_given_twice_is_counted_once(runs: list[RunFolder]) -> None:
    assert [row.summary.n for row in compare([runs[0], runs[1], runs[0]]).rows] == [2]


def test_repeated_experiment_with_equal_seed_counts_once(tmp_path: Path) -> None:
    again = [run(tmp_path, name, 1.0, seed=4) for name in ("one", "two")]
    found = compare(again)
    assert groups(found) == {"all": (1.0,)}
    assert found.notes == ("Left out: 1 with the parameters and seed of another. They are no additional seeds.",)


def test_settings_of_logs_and_checkpoints_make_no_further_seed(tmp_path: Path) -> None:
    plans = [Plan(epochs=4, refit=True, log_every=n, checkpoint_every=n + 1) for n in (0, 5)]
    same = [run(tmp_path, f"r{n}", 1.0, plan=plan) for n, plan in enumerate(plans)]
    assert groups(compare(same)) == {"all": (1.0,)}


def test_equal_settings_on_different_data_are_not_a_repetition(tmp_path: Path) -> None:
    one, other = run(tmp_path, "one", 1.0, seed=4), run(tmp_path, "two", 2.0, seed=4, data="d2")
    assert groups(compare([one, other], mixed=True)) == {"all": (1.0, 2.0)}


def test_repeated_seeds_make_no_difference_significant(tmp_path: Path) -> None:
    runs = [run(tmp_path, f"{lr}-{n}", lr, lr=lr, seed=4) for lr in (0.1, 0.2) for n in range(3)]
    (row,) = (row for row in compare(runs).rows if row.difference)
    assert row.p is None


def test_trials_of_a_sweep_have_seeds_of_their_own(tmp_path: Path) -> None:
    """The repeat of trial 0 has another seed; a run with the real seed of a trial is not an additional seed."""
    folder = sweep(tmp_path, "s", [(3.0,), (4.0,), (3.2,)], repeat_of={2: 0})
    params = {"lr": 0.01, "momentum": 0.9}
    seeds = [entry.params["seed"] for entry in entries(folder, "validation", every=True)]
    assert seeds == [0, 2 * 1_000_003, 1_000_003]
    other = run(tmp_path, "other", 1.0, seed=4, **params)
    assert not any("no additional seeds" in note for note in compare([folder, other], by=["lr"]).notes)
    repeat = run(tmp_path, "repeat", 3.2, seed=2 * 1_000_003, **params)
    assert any(note.startswith("Left out: 1 with") for note in compare([folder, repeat], by=["lr"]).notes)


def test_winners_of_two_sweeps_count_as_different_seeds(tmp_path: Path) -> None:
    """Both winners have the same configuration."""
    fixed = {"lr": 0.1, "momentum": 0.5}
    first, second = (sweep(tmp_path, f"s{n}", [(2.0,)] * n + [(1.0,)], fixed=fixed) for n in (1, 2))
    assert not any("no additional seeds" in note for note in compare([first, second]).notes)


def test_a_continued_sweep_is_represented_by_its_best_so_far(tmp_path: Path) -> None:
    """The units in the folder of the sweep are those of the earlier winner."""
    folder = sweep(tmp_path, "s", [(3.0,), (1.0,)])
    (folder.path / "winner" / "trial.json").write_text("1")
    (folder.path / "winner" / VALIDATION_UNITS).touch()
    (entry,) = entries(folder, "validation", every=False)
    assert (entry.trial, entry.units is not None) == (1, True)
    continue_sweep(folder, 0.5)
    (entry,) = entries(folder, "validation", every=False)
    assert (entry.trial, entry.units) == (2, None)
    with pytest.raises(UserError, match="s has no values on test: it is running"):
        entries(folder, "test", every=False)


def test_groups_of_one_seed_are_compared_by_paired_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(5, 3, 200)
    a = run(tmp_path, "a", 5.0, lr=0.1, units=hard)
    b = run(tmp_path, "b", 5.5, lr=0.2, units=hard + rng.normal(0.5, 0.5, 200))
    (row,) = (row for row in compare([a, b]).rows if row.difference)
    assert row.difference is not None
    assert row.difference.test == "paired bootstrap, 200 units"
    assert row.p is not None
    assert row.p < 0.01
    c = run(tmp_path, "c", 5.5, lr=0.3, units=hard[:100])
    (row,) = (row for row in compare([a, c]).rows if row.difference)
    assert row.difference is not None
    assert (row.p, row.difference.why) == (None, "n < 2")


def test_few_units_are_compared_by_an_exact_sign_flip_test(tmp_path: Path) -> None:
    units = np.array([0.3, 0.5, 0.2, 0.4, 0.6, 0.1])
    a = run(tmp_path, "a", 0.35, lr=0.1, units=units)
    b = run(tmp_path, "b", 0.45, lr=0.2, units=units + np.array([0.2, 0.1, 0.05, 0.15, 0.12, 0.03]))
    found = compare([a, b])
    (row,) = (row for row in found.rows if row.difference)
    assert row.p == pytest.approx(2 / 2**6)
    assert "Test: paired sign flips, exact, 6 units; two-sided" in found.notes[0]
    assert "The paired test is over the units of one seed each: it does not hold for other seeds." in found.notes


def test_rows_with_equal_values_for_all_seeds_have_no_p_and_a_reason(tmp_path: Path) -> None:
    """The values are three times 0.1 and three times 0.3: without a spread, a difference cannot be tested."""
    folders = [
        run(tmp_path, f"{error}-{seed}", error, seed=seed, lr=lr)
        for lr, error in ((0.1, 0.1), (0.2, 0.3))
        for seed in range(3)
    ]
    found = compare(folders)
    assert [row.summary.spread for row in found.rows] == [0.0, 0.0]
    for form in ("table", "markdown", "csv", "json", "html"):
        assert "no spread" in comparison_output.text(found, form, folders)  # type: ignore[arg-type]
    (record,) = (one for one in json.loads(comparison_output.text(found, "json"))["rows"] if one["lr"] == "0.2")
    assert (record["p"], record["p_holm"], record["test"]) == (None, None, "no spread")


def test_units_of_different_data_or_splits_are_not_paired(tmp_path: Path) -> None:
    """The ids of the units are equal numbers, but they denote different queries or users."""
    units = np.random.default_rng(0).normal(5, 3, 50)
    a = run(tmp_path, "a", 5.0, lr=0.1, units=units)
    other_data = run(tmp_path, "b", 5.5, lr=0.2, units=units + 0.5, data="d2")
    other_split = run(tmp_path, "c", 5.5, lr=0.3, units=units + 0.5)
    other_split.record["spec"]["experiment"]["params"]["split_seed"] = 7
    same = run(tmp_path, "d", 5.5, lr=0.4, units=units + 0.5)
    assert method_of(compare([a, other_data], mixed=True)) == "n < 2"
    assert method_of(compare([a, other_split])) == "n < 2"
    assert method_of(compare([a, same])) == "paired bootstrap, 50 units"


def test_units_of_runs_that_evaluate_after_other_epochs_are_paired(tmp_path: Path) -> None:
    """The setting evaluate_every begins with eval, as do parameters of the evaluation data."""
    units = np.random.default_rng(0).normal(5, 3, 50)
    a, b = (run(tmp_path, name, 5.0, units=values) for name, values in (("a", units), ("b", units + 0.5)))
    b.record["spec"]["experiment"]["plan"]["evaluate_every"] = 5
    assert method_of(compare([a, b])) == "paired bootstrap, 50 units"


def test_model_calibrated_on_validation_is_not_paired_on_validation(tmp_path: Path) -> None:
    """Its validation values are too good; on test it is compared like any other model."""
    units = np.random.default_rng(0).normal(5, 3, 50)
    plain = run(tmp_path, "a", 5.0, lr=0.1, units=units)
    learnt = run(tmp_path, "b", 4.5, lr=0.2, units=units - 0.5)
    for folder, part in ((plain, "train"), (learnt, "validation")):
        folder.record["spec"]["experiment"]["params"]["calibration_part"] = part
        (folder.path / TEST_UNITS).write_bytes((folder.path / VALIDATION_UNITS).read_bytes())
    assert method_of(compare([plain, learnt])) == "n < 2"
    assert method_of(compare([plain, learnt], split="test")) == "paired bootstrap, 50 units"


def method_of(found: Comparison) -> str | None:
    """The test of the one difference, or why there is none."""
    (difference,) = (row.difference for row in found.rows if row.difference)
    return difference.test or difference.why


def test_runs_on_different_data_are_refused_unless_mixed(tmp_path: Path) -> None:
    a, b = run(tmp_path, "a", 1.0), run(tmp_path, "b", 2.0, data="d2", lr=0.2)
    with pytest.raises(UserError, match=r"a and b are of different data, .*: got d1 and d2. .*--mixed"):
        compare([a, b])
    assert set(groups(compare([a, b], mixed=True))) == {"lr=0.1", "lr=0.2"}


def test_unknown_parameter_or_metric_raises_with_the_nearest_name(runs: list[RunFolder]) -> None:
    with pytest.raises(UserError, match=r"Unknown parameter: got 'momentun'.*Did you mean 'momentum'\?"):
        compare(runs, by=["momentun"])
    with pytest.raises(UserError, match=r"Unknown metric: got 'eror'; allowed: error, x\. Did you mean 'error'\?"):
        compare(runs, metrics=["eror"])


def test_metric_missing_in_one_run_raises_user_error(runs: list[RunFolder], tmp_path: Path) -> None:
    other = sweep(tmp_path, "s", [(1.0,)])
    with pytest.raises(UserError, match="trial 0 of s has no x; allowed: error"):
        compare([runs[0], other], metrics=["x"])


def test_run_or_sweep_without_values_raises_user_error(tmp_path: Path) -> None:
    folder = run(tmp_path, "a", 1.0)
    folder.update(status="failed", result=None)
    with pytest.raises(UserError, match=r"a has no values on validation: it is failed. Leave it out"):
        compare([folder])
    with pytest.raises(UserError, match="s has no complete trial"):
        compare([sweep(tmp_path, "s", [None], settled=False)], by=["lr"])


# Sweeps


def test_only_complete_trials_are_grouped_by_a_searched_parameter(tmp_path: Path) -> None:
    found = compare([sweep(tmp_path, "s", [(3.0,), (1.0,), None, (2.0,), (5.0,)])], by=["momentum"])
    assert groups(found) == {"momentum=0.5": (1.0, 2.0), "momentum=0.9": (3.0, 5.0)}
    assert any("Within a group lr differ too" in note for note in found.notes)


def test_repeated_seeds_of_a_trial_form_one_group(tmp_path: Path) -> None:
    found = compare([sweep(tmp_path, "s", [(3.0, 3.2), (1.0, 1.4)], seeds=2)], by=["trial"])
    assert groups(found) == {"trial=0": (3.0, 3.2), "trial=1": (1.0, 1.4)}
    assert not any("Within" in note for note in found.notes)
    (row,) = (row for row in found.rows if row.difference)
    assert row.p is not None


def test_sweeps_are_compared_by_their_winners(tmp_path: Path) -> None:
    a = sweep(tmp_path, "a", [(3.0,), (1.0,)], fixed={"start": 4.0})
    b = sweep(tmp_path, "b", [(2.0,), (4.0,)], fixed={"start": 5.0})
    assert groups(compare([a, b])) == {"start=4": (1.0,), "start=5": (2.0,)}
    assert groups(compare([a, b], split="test")) == {"start=4": (9.0,), "start=5": (9.0,)}
    c = sweep(tmp_path, "c", [(2.5,)], fixed={"start": 4.0})
    assert groups(compare([a, c])) == {"id=a": (1.0,), "id=c": (2.5,)}


def test_parameter_values_that_print_alike_are_separate_groups(tmp_path: Path) -> None:
    near = [run(tmp_path, name, 1.0, lr=lr) for name, lr in (("a", 0.12345678), ("b", 0.12345679))]
    assert len(compare(near).rows) == 2


# Output formats


def test_json_csv_and_markdown_output_have_the_same_rows(runs: list[RunFolder]) -> None:
    found = compare(runs)
    told = json.loads(comparison_output.text(found, "json"))
    assert told["reference"] == {"lr": "0.1"}
    rows = list(csv.DictReader(comparison_output.text(found, "csv").splitlines()))
    for record, row in zip(told["rows"], rows):
        assert float(row["mean"]) == record["mean"]
        assert row["lr"] == record["lr"]
        assert (row["p_holm"] or None) == (record["p_holm"] and str(record["p_holm"]))
    table = [line for line in comparison_output.text(found, "markdown").splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    assert "reference" in comparison_output.text(found, "table")


def test_bars_and_line_breaks_in_markdown_cells_are_escaped() -> None:
    assert markdown.table(["a|b", "c"], [["x\ny", ""]]) == "| a\\|b | c |\n| --- | --- |\n| x y |  |"


def test_parameter_value_with_a_bar_is_escaped_in_markdown(tmp_path: Path) -> None:
    a, b = run(tmp_path, "a", 1.0), run(tmp_path, "b", 1.0)
    a.record["spec"]["experiment"]["params"]["kind"] = "x|y"
    b.record["spec"]["experiment"]["params"]["kind"] = "z"
    assert "| x\\|y |" in comparison_output.text(compare([a, b]), "markdown")


def test_several_metrics_are_compared_in_rows_of_their_own(runs: list[RunFolder]) -> None:
    found = compare(runs, metrics=["error", "x"])
    assert [row.metric for row in found.rows] == ["error"] * 3 + ["x"] * 3
    flat: dict[str, Any] = next(r for r in comparison_output.records(found) if r["metric"] == "x" and r["lr"] == "0.2")
    assert (flat["test"], flat["p"]) == ("no spread", None)


def test_standard_errors_over_seeds_and_over_units_are_separate_columns(tmp_path: Path) -> None:
    """Seeds shift every unit by the same amount here, so units of the difference vary by their own noise alone."""
    rng = np.random.default_rng(0)
    hard = rng.normal(5, 3, 400)
    noise = {lr: rng.normal(0, 0.5, 400) for lr in (0.1, 0.2)}
    errors = {0.1: (5.0, 5.2, 5.1), 0.2: (5.6, 5.4, 5.8)}
    folders = [
        run(tmp_path, f"{lr}-{seed}", error, seed=seed, lr=lr, units=hard + noise[lr] + error)
        for lr, of in errors.items()
        for seed, error in enumerate(of)
    ]
    found = compare(folders)
    (row,) = (row for row in found.rows if row.difference)
    assert row.seeds_error == pytest.approx((0.1**2 / 3 + 0.2**2 / 3) ** 0.5)
    assert row.units_error == pytest.approx(np.std(noise[0.2] - noise[0.1], ddof=1) / 20, rel=1e-6)
    assert row.power is not None
    assert row.power.detectable is not None
    assert row.power.needed == 4
    columns, _ = comparison_output.cells(found)
    assert columns[-4:] == ["se (seeds)", "se (units)", "detects", "seeds needed"]
    other = run(tmp_path, "other", 5.7, seed=4, lr=0.2)  # has no units
    mixed = compare([*folders, other])
    assert "se (seeds)" in comparison_output.cells(mixed)[0]
    assert "se (units)" not in comparison_output.cells(mixed)[0]
    (row,) = (row for row in mixed.rows if row.difference)
    assert row.units_error is None
    assert row.power is not None


def test_units_of_each_seed_of_a_sweep_are_read(tmp_path: Path) -> None:
    """Two configurations have two seeds each; the sweep keeps the values of a quarter of the units."""
    rng = np.random.default_rng(1)
    errors, hard = [[1.0, 1.1], [1.05, 1.12]], rng.normal(0, 1, 100)
    folder = sweep(tmp_path, "s", errors, seeds=2)
    noise = rng.normal(0, 0.5, (2, 2, 100))
    for trial, seed in ((0, 0), (0, 1), (1, 0), (1, 1)):
        values = hard + noise[trial, seed]
        encoded = unit_values.encode({"id": np.arange(100), "error": values}, float(values.mean()))
        assert encoded is not None
        unit_values.write(folder.path, trial, seed, {**encoded, "total": 400})
    found = compare([folder], by=["momentum"])
    (row,) = (row for row in found.rows if row.difference)
    assert row.units_error == pytest.approx(np.std(noise[1].mean(0) - noise[0].mean(0), ddof=1) / 20, rel=1e-5)
    assert row.seeds_error is not None
    assert any(note.startswith("No number of seeds settles momentum=0.5: ") for note in found.notes)
    assert "No number of seeds" in comparison_output.text(found, "table")


def test_units_of_the_repeats_of_a_finalist_are_read(tmp_path: Path) -> None:
    values = [(1.0,), (2.0,), (1.1,), (2.1,)]
    folder = sweep(tmp_path, "s", values, repeat_of={2: 0, 3: 1}, spreads=[0.1] * 4)
    (row,) = (row for row in compare([folder], by=["lr"]).rows if row.difference)
    assert row.summary.n == 2
    assert row.units_error == pytest.approx(0.1 / 200**0.5, rel=0.2)
    single = compare([sweep(tmp_path, "t", values[:2], spreads=[0.1] * 2)], by=["lr"])
    (row,) = (row for row in single.rows if row.difference)
    assert row.difference is not None
    assert "paired" in str(row.difference.test)
