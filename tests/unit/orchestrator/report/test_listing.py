"""Listing of runs and sweeps, the best trials of a sweep, and its progress."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from optuna.trial import TrialState, create_trial

from orchestrator.cli.app import app
from orchestrator.errors import UserError
from orchestrator.report import listing
from orchestrator.runs.driver_status import DriverStatus, StatusPublisher
from orchestrator.search.journal import JOURNAL, open_study
from orchestrator.search.progress import search_progress
from orchestrator.storage import records, run_lookup
from orchestrator.storage.names import RECORD
from orchestrator.storage.settings import Settings, resolve
from tests.support.finished import continue_sweep, run, sweep
from workloads.contract import Objective

LOWEST = Objective("error", "min")

pytestmark = pytest.mark.usefixtures("toy_workload")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(resolve(), storage=tmp_path)


def test_runs_are_listed_newest_first_with_their_main_metric(settings: Settings) -> None:
    for name, started in (("old", "2026-01-01T00:00:00+00:00"), ("new", "2026-01-02T00:00:00+00:00")):
        run(settings.storage, name, 1.0).update(started=started, ended="2026-01-03T00:00:00+00:00")
    sweep(settings.storage, "s", [(3.0,), (1.0,)]).update(started="2026-01-01T12:00:00+00:00")
    rows, known = listing.listed(settings, limit=20)
    assert [(row["id"], row["kind"]) for row in rows] == [("new", "run"), ("s", "sweep"), ("old", "run")]
    assert known == 3
    assert (rows[0]["metric"], rows[0]["value"], rows[0]["seconds"]) == ("test/error", 2.0, 86_400)
    assert (rows[1]["trials_done"], rows[1]["trials_target"]) == (2, 3)
    text = listing.as_text(rows, known)
    assert [line.split()[0] for line in text.splitlines()] == ["ID", "new", "s", "old"]
    assert listing.as_text(listing.listed(settings, limit=1)[0], known).endswith("2 more: --limit 3")


def test_list_is_filtered_by_kind_and_status_and_unknown_values_raise(settings: Settings) -> None:
    run(settings.storage, "a", 1.0)
    running = sweep(settings.storage, "b", [(1.0,)], settled=False)
    lost = run(settings.storage, "c", 1.0)
    lost.update(status="running")
    assert [row["id"] for row in listing.listed(settings, kind="sweep", limit=9)[0]] == ["b"]
    assert [row["id"] for row in listing.listed(settings, status="running", limit=9)[0]] == ["b"]
    assert [row["id"] for row in listing.listed(settings, status="lost", limit=9)[0]] == ["c"]
    assert running.status() == "running"
    with pytest.raises(UserError, match=r"Unknown status: got 'lots'.*Did you mean 'lost'"):
        listing.listed(settings, status="lots", limit=9)
    with pytest.raises(UserError, match=r"Unknown workload among the runs: got 'toi'.*Did you mean 'toy'"):
        listing.listed(settings, workload="toi", limit=9)


def test_empty_storage_is_listed_as_no_run_or_sweep(settings: Settings) -> None:
    assert listing.as_text(*listing.listed(settings, limit=9)) == "No run or sweep yet."


def test_selection_without_a_run_is_listed_as_none(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(settings.storage, "one", 1.0)
    for words in (["--status", "failed"], ["--kind", "sweep"]):
        app(["ls", *words, "--storage", str(settings.storage)], standalone_mode=False)
        assert capsys.readouterr().out == "None.\n"


# Best trials


def test_best_of_a_settled_sweep_is_its_winner_with_test_value(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,), None], fixed={"start": 5.0})
    (row,) = listing.best(folder, 1)
    assert (row["trial"], row["validation"], row["test"], row["model_uri"]) == (
        1,
        {"error": 1.0},
        {"error": 9.0},
        "m-1",
    )
    assert row["params"] == {"lr": 0.02, "momentum": 0.5, "start": 5.0}
    assert row["command"].startswith("orchestrator run toy lr=0.02 momentum=0.5 start=5.0")
    assert f"--seed={1_000_003}" in row["command"]
    assert "repeat:" in listing.best_as_text([row])


def test_population_member_is_reproduced_by_the_command_of_its_sweep(settings: Settings) -> None:
    """No single run has the parameters of a member, because they change during training."""
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,)], settled=False)
    study = open_study(folder.path)
    first = study.trials[0]
    later = {**first.user_attrs["params"], "lr": 0.05}
    lineage = {"lineage": [{"epoch": 2, "from": 0, "params": later}], "began_with": first.user_attrs["params"]}
    about = {**first.user_attrs, **lineage, "params": later, "best_value": 0.5}
    study.add_trial(create_trial(value=0.5, params=first.params, distributions=first.distributions, user_attrs=about))
    (row,) = listing.best(folder, 1)
    assert (row["trial"], row["params"]["lr"]) == (2, 0.05)
    assert row["command"].startswith("orchestrator reproduce run s ")


def test_best_trials_so_far_of_a_running_sweep_have_no_test_value(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,), (2.0,)], settled=False)
    rows = listing.best(folder, 2)
    assert [row["trial"] for row in rows] == [1, 2]
    assert (rows[0]["test"], rows[0]["model_uri"], rows[0]["run_id"]) == (None, None, None)
    assert [line.split()[0] for line in listing.best_as_text(rows).splitlines()] == ["TRIAL", "1", "2"]


def test_best_trial_of_a_continued_sweep_is_not_the_recorded_winner(settings: Settings) -> None:
    """The record of the sweep has the earlier result."""
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,)])
    assert listing.progress(folder)["best"]["trial"] == 1
    continue_sweep(folder, 0.5)
    (row,) = listing.best(folder, 1)
    assert row["trial"] == 2
    assert row["test"] is None
    assert listing.progress(folder)["best"] == {"trial": 2, "error": 0.5}
    (shown,) = listing.listed(settings, limit=9)[0]
    assert (shown["status"], shown["value"], shown["trials_done"]) == ("running", None, 3)
    folder.release("interrupted", 130)
    assert listing.best(folder, 1)[0]["trial"] == 2


def test_best_is_ranked_by_estimate_with_standard_errors_and_contenders(settings: Settings) -> None:
    """The noisiest trial has the best value by chance; it is second by its estimate."""
    values = [(0.99,), (1.0,), (1.6,), (1.7,), (9.0,)]
    folder = sweep(settings.storage, "s", values, settled=False, spreads=[9.0, 0.1, 0.1, 0.1, 0.1])
    first, *others = listing.best(folder, 5)
    assert first["trial"] == 1
    assert {2, 3, 4} >= {others[-1]["trial"]}
    assert first["contenders"] == [1, 0]
    assert others[0]["contenders"] is None
    errors = {row["trial"]: row["estimate"]["units_error"] for row in (first, *others)}
    assert errors[0] == pytest.approx(9 / 200**0.5, rel=0.2)
    assert errors[1] < 0.05
    assert first["estimate"]["seeds_error"] is None
    assert "estimate:   " in listing.best_as_text([first])
    assert " over units)" in listing.best_as_text([first])
    heading = listing.best_as_text([first, *others]).splitlines()[0]
    assert "ESTIMATE" in heading
    assert "SE (UNITS)" in heading
    assert "SE (SEEDS)" not in heading


def test_a_finalist_has_the_mean_of_its_seeds(settings: Settings) -> None:
    values = [(0.1,), (0.2,), (0.3,), (0.5,), (0.2,)]
    folder = sweep(settings.storage, "s", values, settled=False, repeat_of={3: 0, 4: 1})
    rows = {row["trial"]: row for row in listing.trial_rows(folder)}
    assert rows[0]["value"] == pytest.approx(0.3)
    assert rows[0]["seeds"] == [0.1, 0.5]
    assert "seeds" not in rows[2]
    best = listing.best(folder, 2)[0]
    assert (best["trial"], best["validation"], best["seeds"]) == (1, {"error": 0.2}, [0.2, 0.2])
    assert best["estimate"]["seeds_error"] > 0


def test_best_shows_mean_and_spread_of_repeated_seeds(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0, 5.0), (1.0, 8.0)], seeds=2)
    (row,) = listing.best(folder, 1)
    assert (row["trial"], row["validation"], row["seeds"]) == (0, {"error": 4.0}, [3.0, 5.0])
    assert row["spread"] == pytest.approx(2**0.5)
    assert "mean of 2 seeds, sd 1.414" in listing.best_as_text([row])


def test_best_without_a_complete_trial_raises_user_error(settings: Settings) -> None:
    with pytest.raises(UserError, match="s has no complete trial"):
        listing.best(sweep(settings.storage, "s", [None], settled=False), 1)
    folder = sweep(settings.storage, "t", [], settled=False)
    (folder.path / JOURNAL).unlink()
    with pytest.raises(UserError, match="t has no trials"):
        listing.best(folder, 1)
    assert not (folder.path / JOURNAL).exists()


def test_reading_a_sweep_that_runs_changes_nothing(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,)], settled=False)
    with (folder.path / JOURNAL).open("a") as file:
        file.write('{"op_code":')  # its driver is writing a line just now
    before = {file: file.read_bytes() for file in folder.path.iterdir()}
    listing.best(folder, 1)
    listing.progress(folder)
    assert {file: file.read_bytes() for file in folder.path.iterdir()} == before


# Progress


def test_progress_counts_trial_states_and_estimates_the_time_left(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,), None], settled=False)
    spec = folder.record["spec"]
    spec["sweep"]["search"]["trials"] = 9
    folder.update(spec=spec)
    study = open_study(folder.path)
    study.ask()
    told = listing.progress(folder)
    assert told["trials"] == {"complete": 2, "fail": 1, "running": 1}
    assert (told["target"], told["best"]) == (9, {"trial": 1, "error": 1.0})
    assert told["seconds_left"] is not None
    assert listing.progress_as_text(told).startswith(
        "4 of 9 trials: 2 complete, 1 fail, 1 running; best: trial 1, error 1;"
    )


def test_progress_shows_the_expected_gain_that_the_driver_reports(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,)], settled=False)
    gain = "expected gain of 8 more trials 0.001, noise 0.002"
    with StatusPublisher(folder) as publisher:
        publisher.set_source(lambda: DriverStatus(expected_gain=gain))
    assert listing.progress_as_text(listing.progress(folder)).endswith(f"; {gain}")
    folder.release("interrupted", 130)
    assert "expected_gain" not in listing.progress(folder), "it is of the trials that ran then"


def test_long_resumed_trial_does_not_increase_the_estimated_time_left() -> None:
    moment = datetime(2026, 1, 1)
    ended = [create_trial(state=TrialState.COMPLETE, value=0.0) for _ in range(5)]
    for trial, seconds in zip(ended, (7, 5, 5, 5, 3600), strict=True):
        trial.datetime_start, trial.datetime_complete = moment, moment + timedelta(seconds=seconds)
    running = create_trial(state=TrialState.RUNNING)
    running.datetime_start = datetime.now()
    left = search_progress([*ended, running], 10, LOWEST, None)["seconds_left"]
    assert 20 <= left <= 25, "a running trial counts as the usual five seconds at most"


def test_time_left_is_unknown_if_the_last_trial_takes_longer_than_usual() -> None:
    ended, last = create_trial(state=TrialState.COMPLETE, value=0.0), create_trial(state=TrialState.RUNNING)
    now = datetime.now()
    ended.datetime_start, ended.datetime_complete = now - timedelta(seconds=70), now - timedelta(seconds=60)
    last.datetime_start = now - timedelta(seconds=60)
    left = {target: search_progress([ended, last], target, LOWEST, None)["seconds_left"] for target in (2, 3)}
    assert left == {2: None, 3: 10.0}


def test_repeats_of_finalists_are_part_of_the_target_of_trials(settings: Settings) -> None:
    """Two of the five trials are repeats of finalists; three of the four requested trials have ended."""
    values = [(0.1,), (0.2,), (0.3,), (0.2,), (0.2,)]
    for settled in (True, False):
        folder = sweep(settings.storage, f"s{settled}", values, settled=settled, repeat_of={3: 0, 4: 1})
        spec = folder.record["spec"]
        spec["sweep"]["search"]["trials"] = 4
        folder.update(spec=spec)
        (row,) = (one for one in listing.listed(settings, limit=9)[0] if one["id"] == folder.id)
        assert (row["trials_done"], row["trials_target"]) == (5, 6)
        assert listing.progress(folder)["target"] == 6


def test_sweep_without_a_driver_has_interrupted_not_running_trials(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), (1.0,)], settled=False)
    open_study(folder.path).ask()
    folder.release("interrupted", 130)
    told = listing.progress(folder)
    assert (told["trials"], told["seconds_left"]) == ({"complete": 2, "interrupted": 1}, None)
    assert listing.progress_as_text(told) == "3 of 3 trials: 2 complete, 1 interrupted; best: trial 1, error 1"


def test_progress_of_a_sweep_without_trials_is_zero(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [], settled=False)
    assert listing.progress(folder) == {"trials": {}, "target": 1, "best": None, "seconds_left": None}
    assert listing.progress_as_text(listing.progress(folder)) == "0 of 1 trials"


def test_trials_of_a_warm_start_are_not_counted_as_own_trials(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,)], settled=False)
    study = open_study(folder.path)
    trial = study.get_trials()[0]
    trial.user_attrs["warm_from"] = "other"
    trial.values = [0.0]
    study.add_trial(trial)
    assert trial.state == TrialState.COMPLETE
    assert listing.progress(folder)["trials"] == {"complete": 1}
    assert listing.best(folder, 9)[0]["validation"] == {"error": 3.0}


def test_trial_rows_come_from_the_journal_until_the_sweep_is_settled(settings: Settings) -> None:
    folder = sweep(settings.storage, "s", [(3.0,), None], settled=False)
    rows = listing.trial_rows(folder)
    assert [(row["trial"], row["state"], row["value"]) for row in rows] == [(0, "complete", 3.0), (1, "fail", None)]
    assert rows[1]["cause"] == "train/loss is nan at epoch 2"
    assert rows[0]["params.lr"] == 0.01
    run_lookup.find(settings.storage, "s").release("finished", 0)
    (folder.path / "trials.json").write_text('[{"trial": 7}]')
    folder.release("finished", 0)
    assert listing.trial_rows(folder) == [{"trial": 7}]


def test_record_without_a_spec_does_not_hide_other_records(settings: Settings) -> None:
    sweep(settings.storage, "whole", [(3.0,)])
    sweep(settings.storage, "broken", [(3.0,)]).update(spec={})
    rows, _ = listing.listed(settings, limit=9)
    assert {row["id"]: row.get("trials_done") for row in rows} == {"whole": 1, "broken": None}
    assert len(listing.as_text(rows, 2).splitlines()) == 3


def test_a_short_list_of_many_reads_few_records(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is never started after the last change of its record, so old records need not be read."""
    for number in range(12):
        day = f"2026-01-{number + 1:02d}T00:00:00+00:00"
        folder = run(settings.storage, f"r{number:02d}", 1.0)
        folder.update(started=day, ended=day)
        moment = datetime.fromisoformat(day).timestamp()
        os.utime(folder.path / RECORD, (moment, moment))
    late = records.open_folder(settings.storage / "r02")
    late.update(tracking="none")  # changed last, started early
    opened: list[Path] = []
    open_folder = records.open_folder
    monkeypatch.setattr(run_lookup, "open_folder", lambda path: opened.append(path) or open_folder(path))
    rows, known = listing.listed(settings, limit=3)
    assert [row["id"] for row in rows] == ["r11", "r10", "r09"]
    assert known == 12
    assert len(opened) <= 5
    (settings.storage / "r11" / RECORD).write_text("{")
    assert [row["id"] for row in listing.listed(settings, limit=3)[0]] == ["r10", "r09", "r08"]
