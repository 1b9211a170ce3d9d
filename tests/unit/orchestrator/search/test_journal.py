"""The journal of a study, read completely or as a summary."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from orchestrator.errors import UserError
from orchestrator.search.journal import JOURNAL, Journal, open_study
from tests.support.tracked import full_disk


def filled(folder: Path) -> optuna.Study:
    study = open_study(folder, ["maximize"])
    for number in range(4):
        trial = study.ask()
        trial.set_user_attr("params", {"x": trial.suggest_float("x", 0, 1)})
        trial.report(0.5, 1)
        trial.set_user_attr("epoch", 3)
        if number < 3:
            study.tell(trial, 1.0 * number, state=optuna.trial.TrialState.COMPLETE)
    return study


def test_a_journal_is_read_as_optuna_reads_it(tmp_path: Path) -> None:
    written = filled(tmp_path)
    plain = optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL))
    usual = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(plain))
    ours = open_study(tmp_path)
    assert ours.get_trials() == usual.get_trials() == written.get_trials()
    ours.set_user_attr("read", True)
    written.ask()
    assert len(ours.get_trials()) == 5, "later entries of another study object are missing"
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        optuna.Trial(ours, 0).set_user_attr("late", True)
    written.ask()
    assert len(ours.get_trials()) == 6, "later entries are missing after an error"
    assert open_study(tmp_path).user_attrs == {"read": True}


def test_optuna_applies_one_log_for_each_ended_trial(tmp_path: Path) -> None:
    """Otherwise Optuna copies a trial for each of its lines: 110,000 times in a sweep of 5,000 trials."""
    study = open_study(tmp_path, ["maximize"])
    study.enqueue_trial({"x": 0.5}, user_attrs={"request": "one"})
    study.add_trial(create_trial(value=1.0, params={"x": 0.1}, distributions={"x": FloatDistribution(0, 1)}))
    for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL):  # the first was enqueued
        trial = study.ask()
        trial.set_user_attr("params", {"x": trial.suggest_float("x", 0, 1)})
        trial.suggest_categorical("kind", ["a", "b"])
        trial.report(float("inf"), 1)
        trial.report(0.5, 3)
        trial.set_constraint("small", -1.0)
        study.tell(trial, 1.0 if state == TrialState.COMPLETE else None, state=state)
    study.ask().suggest_float("x", 0, 1)
    study.enqueue_trial({"x": 0.25})
    study.set_user_attr("finalists", 3)

    file = tmp_path / JOURNAL
    plain = optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(str(file))))
    ours = open_study(tmp_path)
    assert [vars(trial) for trial in ours.get_trials()] == [vars(trial) for trial in plain.get_trials()]
    assert ours.user_attrs == plain.user_attrs == {"finalists": 3}
    logs = list(Journal(file).read_logs(0))
    assert Counter(log["op_code"] for log in logs) == {0: 1, 4: 6, 5: 1, 2: 1}, (
        "one log for the running trial's parameter"
    )
    assert len(file.read_text().splitlines()) > 3 * len(logs)


def test_a_summary_has_states_values_and_small_attributes(tmp_path: Path) -> None:
    written = filled(tmp_path)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"op_code":4,"half')  # an incomplete last line
    summary = open_study(tmp_path, summary=True).get_trials()
    assert [(t.state, t.values) for t in summary] == [(t.state, t.values) for t in written.get_trials()]
    assert [t.datetime_complete for t in summary] == [t.datetime_complete for t in written.get_trials()]
    assert all(t.user_attrs == {"epoch": 3} and not t.params and not t.intermediate_values for t in summary)
    assert len((tmp_path / JOURNAL).read_text().splitlines()) > 20, "reading must not change the file"


def test_entries_appended_together_are_synced_to_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / JOURNAL)
    study = open_study(tmp_path, ["maximize"], backend=journal)
    trial = study.ask()
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    with journal.together():
        trial.set_user_attr("epoch", 3)
        assert open_study(tmp_path, summary=True).get_trials()[0].user_attrs == {"epoch": 3}, "a kill loses nothing"
        study.tell(trial, 0.5)
    assert len(waits) == 1
    study.set_user_attr("after", True)  # the lock is released
    plain = optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(str(tmp_path / JOURNAL))))
    assert plain.get_trials() == study.get_trials()
    assert (plain.trials[0].value, plain.user_attrs) == (0.5, {"after": True})


@pytest.mark.parametrize("together", [False, True])
def test_after_a_full_disk_the_study_goes_on_and_is_resumed(together: bool, tmp_path: Path) -> None:
    """Otherwise the cut-off line would damage the next one, and no driver could read the journal any more."""
    journal = Journal(tmp_path / JOURNAL)
    study = open_study(tmp_path, ["maximize"], backend=journal)
    trial = study.ask()
    full = full_disk(tmp_path / JOURNAL, room=20)
    with pytest.raises(OSError, match="too large"), full, journal.together() if together else nullcontext():
        trial.set_user_attr("params", {"x": 0.5})
    trial.set_user_attr("epoch", 3)
    study.tell(trial, 0.5)
    (resumed,) = open_study(tmp_path).get_trials()
    assert (resumed.value, resumed.user_attrs) == (0.5, {"epoch": 3})


@pytest.mark.parametrize("summary", [False, True])
def test_a_damaged_journal_is_refused(summary: bool, tmp_path: Path) -> None:
    filled(tmp_path)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    lines[1] = lines[1][:20]
    (tmp_path / JOURNAL).write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"cannot be read"):
        open_study(tmp_path, summary=summary)
