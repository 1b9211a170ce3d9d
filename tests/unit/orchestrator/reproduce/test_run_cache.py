from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from orchestrator.errors import UNAVAILABLE, Interrupted, UserError
from orchestrator.reproduce import run_cache, table_runs
from orchestrator.runs import driver
from orchestrator.search import spaces
from orchestrator.storage import records, run_lookup
from orchestrator.storage.records import RunFolder
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import request, sweep
from tests.support.waiting import HANG_SECONDS


def test_search_with_another_range_gets_another_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one name, values of the earlier range would be reported for the new one, or a resume would be refused."""
    spec = request.sweep("recommender", settings, search={"trials": 2}, local=True)
    names = []
    for high in (0.01, 0.01, 0.05):

        def space(trial: optuna.Trial, high: float = high) -> dict[str, Any]:
            return {"lr": trial.suggest_float("lr", 0.001, high)}

        monkeypatch.setattr(spaces, "load", lambda workload, name, space=space: space)
        names.append(run_cache.name_of(spec, settings, "about"))
    assert names[0] == names[1] != names[2]


def test_a_search_that_was_stopped_before_its_first_trial_is_resumed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store the name is taken, and another process may have begun to drive the search."""
    spec = request.sweep("recommender", settings, search={"trials": 2}, local=True)
    options = driver.Options(local=True, name=run_cache.name_of(spec, settings, "about"))
    folder = driver.create(spec, settings, options)
    folder.release("interrupted", 130)
    resumed = []

    def resume(found: RunFolder, *_: Any) -> None:
        resumed.append(found.path)
        raise Interrupted("orchestrator sweep --resume")

    monkeypatch.setattr(sweep, "resume", resume)
    with pytest.raises(Interrupted):
        run_cache.run(spec, settings, True, "about")
    assert resumed == [folder.path]
    assert (folder.path / "record.json").exists()


def test_a_run_whose_time_is_over_is_stopped_once_its_storage_answers_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()
    answers = iter([UserError("The storage cannot be used", code=UNAVAILABLE)])

    def find(*_: Any) -> Any:
        for error in answers:
            raise error
        return SimpleNamespace(stop=stopped.set)

    monkeypatch.setattr(run_lookup, "find_here", find)
    monkeypatch.setattr(run_cache, "STOP_AGAIN_SECONDS", 0.01)
    moments = iter([0.0])
    monkeypatch.setattr(run_cache, "time", SimpleNamespace(monotonic=lambda: next(moments, 2.0)))
    with run_cache.until(1.0), run_cache._stopped_in_time("one", settings):
        assert stopped.wait(HANG_SECONDS)


def test_a_run_on_a_dataset_of_any_name_has_a_valid_name(settings: Settings) -> None:
    spec = request.experiment("recommender", settings, overrides={"dataset": "synthetic"}, local=True)
    name = run_cache.name_of(spec, settings, f"thesis-{table_runs.plain('Büro 日本')}")
    assert records.create(settings.storage, "run", "recommender", {}, "orchestrator run", name).id == name
