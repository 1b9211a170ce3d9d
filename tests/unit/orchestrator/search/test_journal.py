"""The journal of a study, read in one piece or in part."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from orchestrator.errors import UserError
from orchestrator.search.journal import JOURNAL, open_study


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
    assert len(ours.get_trials()) == 5, "what others write afterwards"
    assert open_study(tmp_path).user_attrs == {"read": True}


def test_a_summary_has_states_values_and_small_attributes(tmp_path: Path) -> None:
    written = filled(tmp_path)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"op_code":4,"half')  # is being written
    summary = open_study(tmp_path, summary=True).get_trials()
    assert [(t.state, t.values) for t in summary] == [(t.state, t.values) for t in written.get_trials()]
    assert [t.datetime_complete for t in summary] == [t.datetime_complete for t in written.get_trials()]
    assert all(t.user_attrs == {"epoch": 3} and not t.params and not t.intermediate_values for t in summary)
    assert len((tmp_path / JOURNAL).read_text().splitlines()) > 20, "nothing was written"


@pytest.mark.parametrize("summary", [False, True])
def test_a_damaged_journal_is_refused(summary: bool, tmp_path: Path) -> None:
    filled(tmp_path)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    lines[1] = lines[1][:20]
    (tmp_path / JOURNAL).write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"cannot be read"):
        open_study(tmp_path, summary=summary)
