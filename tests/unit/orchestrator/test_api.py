"""The calls of a notebook: the command line's names, its checks, and errors that speak of keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from orchestrator.cli import training
from orchestrator.errors import UserError
from tests.support.commands import SPACES

HERE: dict[str, Any] = {"tracking": "none", "epochs": 2}


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(("call", "verb"), [(api.run, training.run_command), (api.sweep, training.sweep_command)])
def test_the_keywords_are_those_of_the_command_line(call: Any, verb: Any) -> None:
    named = set(inspect.signature(call).parameters) - {"workload", "settings_of_the_workload"}
    assert named == set(inspect.signature(verb).parameters) - {"words", "as_json"}


def test_a_run_with_a_storage_of_its_own_and_its_resume(toy_workload: str, tmp_path: Path) -> None:
    result = api.run(toy_workload, storage=str(tmp_path / "here"), experiment="mine", name="first", **HERE)
    assert result.folder == tmp_path / "here" / "first"
    again = {"resume": "latest", "storage": str(tmp_path / "here"), "tracking": "none"}
    refused(lambda: api.run(**again), "first has already finished")
    refused(
        lambda: api.run(toy_workload, **again, workers=2, lr=1),
        "resume goes on with what was asked for", "got workload workers lr", "Keep only resume",
    )  # fmt: skip
    refused(lambda: api.sweep(**again, more_trials=2), "There is no sweep yet")
    refused(lambda: api.sweep(**again, trials=2), "got trials. Keep only resume")


def test_the_seed_of_a_file_counts_where_none_is_given(toy_workload: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(f"workload: {toy_workload}\nseed: 5\n")
    result = api.run(config=tmp_path / "exp.yaml", name="seeded", **HERE)
    assert '"seed": 5' in (result.folder / "record.json").read_text()


def test_errors_speak_of_keywords(toy_workload: str) -> None:
    words = ("local=True runs in one process: got workers=2. Set local=False.",)
    refused(lambda: api.run(toy_workload, workers=2, **HERE), *words)
    refused(lambda: api.sweep(toy_workload, workers=2, space=f"{SPACES}:space", **HERE), *words)
    refused(lambda: api.run(**HERE), "No workload is named. run(WORKLOAD, ...), or config=FILE.")
    refused(lambda: api.sweep(**HERE), "No workload is named. sweep(WORKLOAD, ...), or config=FILE.")
    refused(lambda: api.run(toy_workload, ray_address="auto", **HERE), "A local run uses no Ray", "Set local=False")
    refused(lambda: api.sweep(toy_workload, retry_failed=True, **HERE), "Name it with resume=ID")
