"""The Python calls run and sweep: the command line's options and checks, and errors that name keywords."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from orchestrator import api
from orchestrator.api import OF_COMMANDS
from orchestrator.cli import training
from orchestrator.cli.common import _read_as
from orchestrator.config.options import flag_of, options_of
from orchestrator.config.spec import Resources, Search, SweepSpec
from orchestrator.errors import UNAVAILABLE, RunFailed, UserError
from orchestrator.runs import worker
from orchestrator.runs.driver import Options
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import request
from tests.support import refusals
from tests.support.commands import SPACES
from tests.support.toy import Toy
from tests.support.waiting import until

HERE: dict[str, Any] = {"tracking": "none", "epochs": 2}


def refused(call: Callable[[], Any], *words: str) -> None:
    assert "--" not in str(refusals.refused(call, *words))


VERBS = [(api.run, "run"), (api.sweep, "sweep")]
VALUES = {bool: [], int: ["2"], float: ["2"], str: ["x"], list[str]: ["x"], Path: ["x"]}

LEFT_OUT = {"resume", "origin", "more_trials", "retry_failed", "tracking", "storage", "ray_address"}
"""Options that a plan does not accept, and addresses, which would be resolved."""


DESCRIBED = {
    "name", "gpus_per_worker", "cpus_per_worker", "max_gpus", "tracking", "experiment", "storage", "ray_address",
    "concurrency", "max_failures",
}  # fmt: skip
"""Options whose help describes a default that is found when a command runs."""


def test_the_defaults_in_help_are_those_of_the_spec() -> None:
    """An option that is not given is None, so that a file may set it; its default is that of the spec."""
    defaults: dict[str, Any] = {"keep": Options().keep, "seed": SweepSpec.model_fields["seed"].default}
    for part in (Search, Resources):
        defaults |= {name: field.default for name, field in part.model_fields.items()}
    helps = {name: get_args(option.annotation)[1].help for name, option in options_of(api.sweep).items()}
    shown = {name: found[1] for name, text in helps.items() if (found := re.search(r"\[default: ([^;\]]*)", text))}
    assert {name: str(defaults[name]) for name in shown.keys() - DESCRIBED} == {
        name: text for name, text in shown.items() if name not in DESCRIBED
    }
    assert len(shown.keys() - DESCRIBED) > 8


class Parsed(Exception):
    """Raised after a command has read its options."""


@pytest.mark.parametrize(("call", "verb"), VERBS)
def test_python_call_command_and_plan_have_the_same_options(
    call: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = options_of(call)
    command = cast("TyperGroup", get_command(training.app)).commands[verb]
    flags = {one.name: one for one in command.params if isinstance(one, TyperOption) and one.name != "as_json"}
    assert flags.keys() == declared.keys()
    words: list[str] = []
    for name, option in declared.items():
        kind, info = get_args(option.annotation)
        assert inspect.signature(call).parameters[name].annotation == kind
        assert (flags[name].help, flags[name].opts) == (info.help, [flag_of(name)])
        if name not in LEFT_OUT:
            types = [one for one in get_args(_read_as(kind)) or (kind,) if one is not NoneType]
            words += [flags[name].opts[0], *VALUES[list[str] if name == "warm_start" else types[0]]]

    read: list[dict[str, Any]] = []

    def by_name(given: dict[str, Any], *, python: bool) -> None:
        read.append(dict(given))
        raise Parsed

    monkeypatch.setattr(request, "by_name", by_name)
    for first in ([verb], ["plan", verb]):
        with pytest.raises(Parsed):
            training.app([*first, "toy", *words], standalone_mode=False)
    typed, planned = read
    assert typed == planned
    defaults = {name: OF_COMMANDS.get(name, option.default) for name, option in declared.items()}
    unchanged = {name for name, default in defaults.items() if typed[name] == default}
    assert unchanged == LEFT_OUT & declared.keys()


def test_the_calls_can_be_completed() -> None:
    shown = subprocess.check_output([sys.executable, "-c", "import orchestrator; print(*dir(orchestrator))"], text=True)
    assert {"run", "sweep", "load_model"} <= {*shown.split()}


def test_a_calls_signature_has_types_and_defaults() -> None:
    shown = inspect.signature(api.sweep)
    assert str(shown.parameters["seeds"]) == "seeds: int | None = None"
    assert str(shown.parameters["local"]) == "local: bool = True"
    assert "given" not in shown.parameters
    with pytest.raises(TypeError, match="multiple values for argument 'workload'"):
        api.run("toy", workload="toy")


def test_run_uses_the_given_storage_and_resume_refuses_other_options(toy_workload: str, tmp_path: Path) -> None:
    result = api.run(toy_workload, storage=str(tmp_path / "here"), experiment="mine", name="first", **HERE)
    assert result.folder == tmp_path / "here" / "first"
    again = {"resume": "latest", "storage": str(tmp_path / "here"), "tracking": "none"}
    refused(lambda: api.run(**again), "first has already finished")
    refused(
        lambda: api.run(toy_workload, **again, workers=2, lr=1),
        "resume continues with the recorded options", "got workload lr", "It takes only workers, gpus_per_worker, ",
    )  # fmt: skip
    refused(lambda: api.sweep(**again, more_trials=2), "There is no sweep yet")
    refused(lambda: api.sweep(**again, trials=2), "got trials. It takes only more_trials and retry_failed")


def test_load_result_gives_what_run_and_sweep_returned(toy_workload: str, tmp_path: Path) -> None:
    there: dict[str, Any] = {**HERE, "storage": tmp_path / "here"}
    result = api.run(toy_workload, name="one", **there)
    search = api.sweep(toy_workload, name="many", space=f"{SPACES}:space", trials=3, **there)
    for reference, before in (("one", result), ("latest", search)):
        again = api.load_result(reference, storage=tmp_path / "here")
        assert again.to_json() == before.to_json()
        assert again.history().equals(before.history())
        assert again.trials().equals(before.trials())


def test_load_result_refuses_what_has_no_result(toy_workload: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed):
        api.run(toy_workload, name="broken", raise_at=1, storage=tmp_path / "here", **HERE)
    broken = partial(api.load_result, "broken", storage=tmp_path / "here")
    refusals.refused(broken, "broken has no result: it is failed", "orchestrator status broken ")
    refused(lambda: api.load_result("other", storage=tmp_path / "here"), "Unknown run or sweep: got 'other'")
    refused(lambda: api.load_result(Path("one")), "The run is not given by its id: got PosixPath('one')")  # type: ignore[arg-type]


def test_option_values_are_checked_against_their_types(toy_workload: str, tmp_path: Path) -> None:
    result = api.run(toy_workload, storage=tmp_path / "here", seed=np.int64(3), **HERE)
    assert result.folder.parent == tmp_path / "here"
    assert '"seed": 3' in (result.folder / "record.json").read_text()
    refused(
        lambda: api.run(toy_workload, tracking=5), "The option tracking is not valid: got 5; allowed: a valid string"
    )
    refused(lambda: api.sweep(toy_workload, space=until), "The option space is not valid", "Name it by a string")
    refused(lambda: api.run(toy_workload, seed=True), "The option seed is not valid: got True")
    refused(lambda: api.sweep(toy_workload, max_cost="x"), "max_cost is not valid: got 'x'; allowed: a valid number")
    refused(
        lambda: api.sweep(toy_workload, constraint="loss<1", space=f"{SPACES}:space", **HERE),
        "got 'loss<1'; allowed: METRIC<=NUMBER",
    )
    refused(lambda: api.sweep(toy_workload, warm_start=4, **HERE), "The option warm_start is not valid: got 4")


def test_a_servable_without_a_predictor_is_not_registered(
    toy_workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Toy.servable
    monkeypatch.setattr(Toy, "servable", lambda self: replace(served(self), predictor=None))
    api.run(toy_workload, epochs=2, register="toy")
    assert "no model is logged, or registered as toy" in " ".join(capsys.readouterr().out.split())


def test_runs_of_two_threads_train_one_after_the_other(
    toy_workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with worker.own_device(Resources(), print):
            other = pool.submit(api.run, toy_workload, **HERE)
            until(lambda: "Waiting: another run trains in this process" in capsys.readouterr().out)
        assert other.result().status == "finished"


@pytest.mark.parametrize("own", [False, True])
def test_settings_of_pytorch_are_as_before(toy_workload: str, own: bool) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(own)
        api.run(toy_workload, cpus_per_worker=1, deterministic=True, **HERE)
        assert torch.get_num_threads() == 3
        assert torch.are_deterministic_algorithms_enabled() == own
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)


def test_seed_of_the_config_file_is_used_when_none_is_given(toy_workload: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(f"workload: {toy_workload}\nseed: 5\n")
    result = api.run(config=tmp_path / "exp.yaml", name="seeded", **HERE)
    assert '"seed": 5' in (result.folder / "record.json").read_text()


def test_misspelt_option_or_option_of_another_call_is_refused(toy_workload: str) -> None:
    refused(
        lambda: api.run(toy_workload, trials=3, **HERE),
        "trials=3 is an option of sweep, not of run. Remove it, or call sweep.",
    )
    refused(lambda: api.run(toy_workload, regstr="rec", **HERE), "got 'regstr'. Did you mean 'register'?")
    refused(lambda: api.sweep(toy_workload, trails=3, **HERE), "got 'trails'. Did you mean 'trials'?")


def test_errors_name_keyword_arguments_instead_of_flags(toy_workload: str) -> None:
    words = ("local=True runs in one process: got workers=2. Set local=False.",)
    refused(lambda: api.run(toy_workload, workers=2, **HERE), *words)
    refused(lambda: api.sweep(toy_workload, workers=2, space=f"{SPACES}:space", **HERE), *words)
    refused(lambda: api.run(**HERE), "No workload is given. run(WORKLOAD, ...), or config=FILE.")
    refused(lambda: api.sweep(**HERE), "No workload is given. sweep(WORKLOAD, ...), or config=FILE.")
    refused(lambda: api.run(toy_workload, ray_address="auto", **HERE), "A local run uses no Ray", "Set local=False")
    refused(lambda: api.sweep(toy_workload, retry_failed=True, **HERE), "Name it with resume=ID")


def test_a_member_of_an_enum_is_its_value() -> None:
    settings = resolve({"tracking": "none"})
    for backbone in ("mf", "lightgcn"):
        member = Enum("Backbone", {"chosen": backbone}).chosen  # type: ignore[attr-defined]
        plain, named = (
            request.experiment(
                "recommender", settings, overrides={"dataset": "synthetic", "backbone": value}, local=True
            )
            for value in (backbone, member)
        )
        assert named == plain


def test_a_table_or_a_result_for_an_argument_is_shown_in_short(toy_workload: str) -> None:
    table = pd.DataFrame({"user": range(30)})
    result = api.run(toy_workload, **HERE)
    calls: list[Callable[[], Any]] = [
        lambda: api.run(toy_workload, lr=table, **HERE),
        lambda: api.run(toy_workload, seed=table, **HERE),
        lambda: api.run(table),  # type: ignore[arg-type]
        lambda: api.run(resume=result),  # type: ignore[arg-type]
        lambda: api.load_model(result),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"got (user 0 0|Result\(id=).*\.\.\.") as caught:
            call()
        assert len(str(caught.value)) < 250
        assert "\n" not in str(caught.value)


def test_a_time_limit_needs_another_process(toy_workload: str) -> None:
    words = "--trial-timeout", "set local=False in a notebook"
    refusals.refused(lambda: api.run(toy_workload, trial_timeout=5, **HERE), *words)
    refusals.refused(lambda: api.sweep(toy_workload, trial_timeout=5, space=f"{SPACES}:space", **HERE), *words)


def test_a_model_that_cannot_be_loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    refused(lambda: api.load_model(Path("rec/1")), "The model is not given by its name: got PosixPath('rec/1')")  # type: ignore[arg-type]
    refused(lambda: api.load_model("rec/1", tracking=Path("a")), "The tracking address is not supported: got 'a'")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^The model rec/1 cannot be fetched: ") as caught:
        api.load_model("rec/1", tracking="http://127.0.0.1:9")
    assert caught.value.code == UNAVAILABLE
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ, "it is for our own requests"


def test_argument_that_is_not_utf_8_is_refused(toy_workload: str) -> None:
    words = ("An argument is not UTF-8: got 'a\\udcff'. Write it in UTF-8.",)
    refused(lambda: api.run(toy_workload, note="a\udcff", **HERE), *words)
    refused(lambda: api.run(toy_workload, register="a\udcff", **HERE), *words)
    refused(lambda: api.sweep(toy_workload, warm_start=["a\udcff"], space=f"{SPACES}:space", **HERE), *words)
    refused(lambda: api.load_model("a\udcff/1"), *("An argument is not UTF-8: got 'a\\udcff/1'",))
