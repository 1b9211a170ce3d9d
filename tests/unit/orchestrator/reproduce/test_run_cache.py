from __future__ import annotations

from typing import Any

import optuna
import pytest

from orchestrator.reproduce import run_cache
from orchestrator.search import spaces
from orchestrator.storage.settings import Settings
from orchestrator.sweeps import request


def test_a_search_with_another_range_is_another_search(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that values of an earlier range are not reported as those of the new one, and no resume is refused."""
    spec = request.sweep("recommender", settings, search={"trials": 2}, local=True)
    names = []
    for high in (0.01, 0.01, 0.05):

        def space(trial: optuna.Trial, high: float = high) -> dict[str, Any]:
            return {"lr": trial.suggest_float("lr", 0.001, high)}

        monkeypatch.setattr(spaces, "load", lambda workload, name, space=space: space)
        names.append(run_cache.name_of(spec, settings, "about"))
    assert names[0] == names[1] != names[2]
