"""Ways to learn from the test split: each is impossible, refused, visible in the audit, or listed as not visible."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.cli import app
from orchestrator.console import Console
from orchestrator.errors import Interrupted, UserError
from orchestrator.report import audit as view
from orchestrator.report.audit import Audit, audits
from orchestrator.runs import driver
from orchestrator.runs.driver import Options
from orchestrator.storage import look_ledger, run_lookup
from orchestrator.storage.names import LOOKS, TEST_UNITS
from orchestrator.storage.settings import Settings, resolve
from orchestrator.sweeps import request
from orchestrator.sweeps import sweep as sweeps
from orchestrator.sweeps.sweep import ResumeOptions
from orchestrator.tracking.names import fitting_tag
from tests.support import toy

pytestmark = pytest.mark.usefixtures("toy_workload", "no_page")

Run = Callable[..., Path]


@pytest.fixture
def run(settings: Settings) -> Run:
    """A function that trains the toy to its end and returns the run's folder."""

    def train(name: str, **asked: Any) -> Path:
        spec = request.experiment("toy", settings, overrides={"epochs": 3, **asked}, local=True)
        return driver.run(spec, settings, Options(local=True, name=name), Console()).folder

    return train


def sweep(settings: Settings, tmp_path: Path, **search: Any) -> str:
    (tmp_path / "s.py").write_text("def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.01, 0.2)}\n")
    search = {"space": f"{tmp_path}/s.py:space", "scheduler": "none", "trials": 3} | search
    spec = request.sweep("toy", settings, overrides={"epochs": 3}, local=True, search=search)
    return sweeps.sweep(spec, settings, Options(local=True, name="search"), Console()).id


def only(settings: Settings) -> Audit:
    (found,) = audits(settings, "toy")
    return found


def rows_of(settings: Settings) -> list[Path]:
    return sorted((settings.storage / look_ledger.FOLDER).glob("*/*.json"))


def test_every_run_has_a_ledger_row_before_its_test_evaluation(
    settings: Settings, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    evaluate = toy.Toy.evaluate

    def counted(self: toy.Toy, split: Any) -> Any:
        if split == "test":
            seen.append(len(rows_of(settings)))
        return evaluate(self, split)

    monkeypatch.setattr(toy.Toy, "evaluate", counted)
    run("one")
    run("two", lr=0.05)
    assert seen == [1, 2]
    found = only(settings)
    assert [row.fields["run"] for row in found.rows] == ["one", "two"]
    assert (found.faults, found.notes) == ([], [])
    assert all(row.fields["selection"] == "epochs by error (min) on validation" for row in found.rows)


def test_losing_trials_are_not_evaluated_on_test(settings: Settings, tmp_path: Path) -> None:
    sweep(settings, tmp_path)
    (row,) = only(settings).rows
    assert row.fields["selection"] == "trial and epochs by error (min) on validation"


def test_a_search_by_a_test_metric_is_refused(settings: Settings) -> None:
    with pytest.raises(UserError, match="test must not affect choices: got 'test/error:min'; allowed: error:min"):
        request.experiment("toy", settings, overrides={"objective": "test/error:min"}, local=True)


def test_more_seeds_add_looks_and_widen_the_intervals(settings: Settings, run: Run) -> None:
    """The half-widths are the normal quantiles at 1 - .05 / (2 k) times the standard error, for k looks."""
    folder = run("one")
    units = np.array([0.1, 0.5, 0.9, 0.5])
    pq.write_table(pa.table({"id": np.arange(4), "error": units}), folder / TEST_UNITS)
    (alone,) = only(settings).values
    assert alone.together == alone.alone
    for number in range(4):
        run(f"seed-{number}", start=3.0 + number)
    found = only(settings)
    assert len(found.rows) == len(found.values) == 5
    (value,) = (value for value in found.values if value.run == "one")
    error = units.std(ddof=1) / 2
    for (low, high), quantile in ((value.alone, 1.959964), (value.together, 2.575829)):  # of 97.5% and 99.5%
        assert (value.value - low, high - value.value) == pytest.approx((quantile * error,) * 2, rel=1e-6)


def test_audit_notes_looks_with_two_configurations_of_a_resumed_sweep(settings: Settings, tmp_path: Path) -> None:
    name = sweep(settings, tmp_path, trials=2, sampler="random")
    for _ in range(6):
        folder = run_lookup.find(settings.storage, name, "sweep")
        sweeps.resume(folder, settings, Console(), ResumeOptions(more_trials=3))
        if len(only(settings).rows) > 1:
            break
    assert only(settings).notes == ["search looked with 2 configurations"]


def test_audit_notes_a_second_look_of_a_run_resumed_after_its_look(
    settings: Settings, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look is counted without a value, and the resumed run looks again."""
    with monkeypatch.context() as patch:
        patch.setattr(driver.worker, "write_outcome", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted):
            run("one")
    assert len(only(settings).rows) == 1
    driver.resume(run_lookup.find(settings.storage, "one"), settings, Console())
    assert only(settings).notes == ["one looked 2 times with the same model: it was resumed after a look"]


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_removed_last_ledger_row_is_detected_from_the_run_folders(settings: Settings, run: Run) -> None:
    run("one")
    run("two")
    rows_of(settings)[-1].unlink()
    assert only(settings).faults == ["The folder of two has row 2, and the chain does not: it was cut or changed"]


def test_removed_ledger_is_detected_from_the_run_folders(settings: Settings, run: Run) -> None:
    run("one")
    (settings.storage / look_ledger.FOLDER).rename(settings.home / "away")
    assert "The folder of one has row 1" in only(settings).faults[0]


def test_changed_last_ledger_row_is_detected_from_the_run_folders(settings: Settings, run: Run) -> None:
    run("one")
    edit(rows_of(settings)[0], run="another")
    assert "The folder of one has row 1" in only(settings).faults[0]


def test_changed_ledger_row_is_detected_from_the_next_row(settings: Settings, run: Run) -> None:
    run("one")
    run("two")
    edit(rows_of(settings)[0], run="another")
    assert "row 1 is not the one that row 2 follows" in only(settings).faults


def test_record_that_differs_from_the_outcome_is_reported_as_fault(settings: Settings, run: Run) -> None:
    file = run("one") / "record.json"
    record = json.loads(file.read_text())
    record["result"]["metrics"]["test/error"] = 0.0
    file.write_text(json.dumps(record))
    assert "The record of one has test/error 0, its outcome" in only(settings).faults[0]


def test_look_that_cannot_be_written_is_noted_and_the_run_succeeds(
    settings: Settings, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage may be unavailable at the end of a training, which must not fail the run."""

    def away(*_: Any) -> None:
        raise OSError("No space left on device")

    run("one")
    with monkeypatch.context() as patch:
        patch.setattr(look_ledger, "append", away)
        run("two")
    assert only(settings).notes == ["two could not write its row: No space left on device"]


def test_ledger_rows_name_the_user_of_each_run(settings: Settings, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ada", "ben"):
        monkeypatch.setenv("LOGNAME", name)
        run(name)
    assert [row.fields["by"] for row in only(settings).rows] == ["ada", "ben"]


def test_audit_notes_runs_selected_on_test_with_as_published(settings: Settings, run: Run) -> None:
    file = run("one") / "record.json"
    edit(file, command="orchestrator reproduce thesis-3.2 --as-published")
    assert only(settings).notes == ["one was selected on test, as its source does (--as-published)"]


@pytest.mark.parametrize(("values", "used"), [({"quality": True, "truth": "test"}, True), ({"quality": True}, False)])
def test_use_of_the_test_part_in_training_is_printed_and_recorded(
    settings: Settings, values: dict[str, Any], used: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"dataset": "synthetic", "dim": 4, "epochs": 1, **values}
    spec = request.experiment("recommender", settings, overrides=asked, local=True)
    driver.run(spec, settings, Options(local=True, name="one"), Console())
    assert (driver.READS_TEST in capsys.readouterr().out) == used
    (found,) = audits(settings, "synthetic")
    assert [row.fields["selection"].endswith("; training used test") for row in found.rows] == [used]


def test_audit_lists_the_uses_of_test_that_it_cannot_detect(settings: Settings, run: Run) -> None:
    """Code of a workload, search space or script that reads the file; other storages; a chain removed with its runs."""
    run("one")
    text = view.as_text(only(settings))
    for words in ("a script", "a workload's own code", "a search space", "other storages", "with all its runs"):
        assert words in text


def test_ledger_keeps_the_row_of_a_deleted_run(settings: Settings, run: Run) -> None:
    shutil.rmtree(run("one"))
    assert [row.fields["run"] for row in only(settings).rows] == ["one"]


@pytest.mark.slow
def test_removed_ledger_row_of_a_deleted_run_is_detected_from_mlflow(
    database: Path, run: Run, settings: Settings
) -> None:
    tracked = resolve({})
    spec = request.experiment("recommender", tracked, overrides={"epochs": 1, "dim": 4, "dataset": "synthetic"},
                              local=True)  # fmt: skip
    for name in ("one", "two"):
        folder = driver.run(spec, tracked, Options(local=True, name=name), Console()).folder
    shutil.rmtree(folder)
    rows_of(tracked)[-1].unlink()
    (found,) = audits(tracked, "synthetic")
    assert found.faults == ["MLflow's run of two has row 2, and the chain does not: it was cut or changed"]
    assert len(found.values) == 1


def test_truncated_looks_tag_of_mlflow_is_noted(settings: Settings, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of many sessions may have more looks than fit into a tag; its folder has all of them."""
    run("one")
    noted = json.dumps([{"chain": "c", "digest": "0" * 64}] * 200)
    tagged = SimpleNamespace(
        data=SimpleNamespace(tags={"orchestrator.looks": fitting_tag(noted), "orchestrator.id": "one"})
    )
    client = SimpleNamespace(search_experiments=None, search_runs=None)
    monkeypatch.setattr(view.registry, "client", lambda of: client)
    monkeypatch.setattr(view, "all_pages", lambda search: [])
    monkeypatch.setattr(view, "all_runs", lambda *of: iter([tagged]))
    assert view._tracked(replace(settings, tracking="sqlite:///x"), "f" * 64) == (
        [],
        ["MLflow has cut the looks of one: only its folder has them all"],
    )


def test_audit_command_prints_looks_and_exits_with_1_on_faults(
    settings: Settings, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("one")
    capsys.readouterr()
    assert app.run(["audit", "toy", "--tracking", "none"]) == 0
    assert "1 look at the test split by 1 run" in capsys.readouterr().out
    (folder / LOOKS).write_text((folder / LOOKS).read_text().replace('"digest": "', '"digest": "0'))
    assert app.run(["audit", "toy", "--tracking", "none", "--json"]) == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in shown["looks"]] == ["one"]
    assert len(shown["faults"]) == 1
    assert app.run(["audit", "tio", "--tracking", "none"]) == 2
    assert "Did you mean 'toy'?" in capsys.readouterr().err
