"""Runs and sweeps that start from the weights of a model, or continue from the state of another run."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator import api
from orchestrator.config import workload_loader
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec
from orchestrator.engine import loop
from orchestrator.registry.models import VALIDATION_SEEN
from orchestrator.runs import earlier_training, start_point, worker
from orchestrator.runs.progress_reporter import ProgressReporter
from orchestrator.runs.session import Result
from orchestrator.storage import records, remote, run_lookup
from orchestrator.storage.settings import resolve
from orchestrator.storage.usage_log import UsageLog
from tests.support.commands import typed
from tests.support.refusals import refused
from tests.support.toy import Toy
from workloads.data import datasets, fingerprint

Run = Callable[..., Result]
MINE = "def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.01, 0.2)}\n"


@pytest.fixture
def run(toy_workload: str, no_page: None) -> Run:
    def started(workload: str | None = toy_workload, **asked: Any) -> Result:
        return api.run(workload, **{"tracking": "none", **asked})

    return started


def losses(result: Result) -> dict[int, float]:
    rows = [json.loads(line) for line in (result.folder / "history.jsonl").read_text().splitlines()]
    return {row["epoch"]: row["train/loss"] for row in rows if "train/loss" in row}


def spec_of(result: Result) -> ExperimentSpec:
    return ExperimentSpec.model_validate(records.open_folder(result.folder).record["spec"]["experiment"])


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("refit", [False, True])
def test_a_run_goes_on_for_longer_as_if_it_had_never_ended(
    run: Run, refit: bool, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow epochs each leave a checkpoint, of which the last two are kept."""
    whole = run(epochs=8, refit=False, name="whole")
    with monkeypatch.context() as patch:
        if slow:
            patch.setattr(loop, "REPORT_SECONDS", 0.0)
            patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        run(epochs=4, refit=refit, name="first")
    longer = run(None, origin="first", epochs=8)
    assert losses(longer) == {epoch: loss for epoch, loss in losses(whole).items() if epoch > 4}
    spec = spec_of(longer)
    assert spec.origin is not None
    assert spec.origin.startswith("first@4#")
    assert (spec.plan.refit, spec.plan.epochs, spec.params) == (False, 8, spec_of(whole).params)
    if not refit:  # the best epoch, 3, is the first run's
        assert longer.metrics == whole.metrics
        assert longer.extra["epochs"] == 3
        session = SimpleNamespace(folder=SimpleNamespace(path=longer.folder))
        status = ProgressReporter(session, spec).current_status(UsageLog(longer.folder))  # type: ignore[arg-type]
        assert status.best == {"error": whole.metrics["validation/error"]}


def test_a_fork_has_its_own_settings_and_a_command_that_repeats_it(run: Run, home: Path) -> None:
    run(epochs=3, patience=2, refit=False, name="first", seed=5)
    fork = run(None, origin="latest", epochs=5, lr=0.01)
    spec = spec_of(fork)
    assert (spec.params["lr"], spec.seed, spec.plan.patience) == (0.01, 5, 2)
    assert spec.fingerprint() != spec.model_copy(update={"origin": None}).fingerprint()
    again = typed(home, *shlex.split(spec.command())[1:], "--local", "--tracking=none", "--name=again")
    assert again.returncode == 0, again.stderr
    assert "Goes on from first after epoch 3, without a refit" in again.stdout
    repeated = run_lookup.find(resolve({}).storage, "again")
    assert ExperimentSpec.model_validate(repeated.record["spec"]["experiment"]).origin == spec.origin
    assert worker.outcome_of(repeated.path) is not None
    assert worker.outcome_of(repeated.path)["metrics"] == fork.metrics  # type: ignore[index]


def test_a_fork_that_failed_is_resumed(run: Run) -> None:
    run(epochs=2, refit=False, name="first")
    whole = run(None, origin="first", epochs=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "evaluate", lambda *of: 1 / 0)
        with pytest.raises(Exception, match="division"):
            run(None, origin="first", epochs=6, name="again")
    resumed = api.run(resume="again", tracking="none")
    assert losses(resumed) == losses(whole)
    assert resumed.metrics == whole.metrics


@pytest.fixture
def own(tmp_path: Path, home: Path) -> tuple[Path, ExperimentSpec, str]:
    """The folder of a user's dataset, an experiment on it, and its fingerprint."""
    files = tmp_path / "own"
    files.mkdir()
    (files / "train.csv").write_text("user,item\n1,1\n2,2\n3,3\n")
    (files / "test.csv").write_text("user,item\n1,4\n")
    spec = ExperimentSpec(workload="recommender", params={"dataset": str(files)}, plan=Plan(epochs=1, refit=False))
    return files, spec, fingerprint(str(files), tmp_path)


def test_node_with_another_dataset_content_is_named_in_the_error(
    own: tuple[Path, ExperimentSpec, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, spec, content = own
    sweep = tmp_path / "storage" / "sweep"
    folder = sweep / "trials" / "00003"
    folder.mkdir(parents=True)
    start_point.check_data(spec, tmp_path, folder)  # a run of an earlier version has no fingerprint
    start_point.record_data(sweep, spec.params, content, tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    start_point.check_data(spec, tmp_path, folder)
    (files / "test.csv").write_text("user,item\n1,5\n")
    refused(
        lambda: worker.experiment(spec, tmp_path, torch.device("cpu"), folder=folder).build(holdout=True),
        "Node node-7 has other bytes of dataset", str(files), "Bring the same files to both",
    )  # fmt: skip
    start_point.check_data(spec.model_copy(update={"params": {"dataset": "synthetic"}}), tmp_path, folder)
    (files / "test.csv").unlink()
    refused(lambda: start_point.check_data(spec, tmp_path, folder), "The dataset on node node-7: ")
    start_point.record_data(sweep, spec.params, None, tmp_path)  # a workload that reads its data itself
    start_point.check_data(spec, tmp_path, folder)


def test_changed_dataset_of_a_started_run_is_refused(own: tuple[Path, ExperimentSpec, str], tmp_path: Path) -> None:
    files, spec, content = own
    folder = tmp_path / "storage" / "run"
    folder.mkdir(parents=True)
    for _ in range(2):
        start_point.record_data(folder, spec.params, content, tmp_path)
    (files / "test.csv").write_text("user,item\n1,5\n")
    changed = fingerprint(str(files), tmp_path)
    refused(
        lambda: start_point.record_data(folder, spec.params, changed, tmp_path),
        f"The dataset {files}, or how this version of the program reads it", changed[:12], content[:12],
    )  # fmt: skip


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_damaged_dataset_fingerprint_counts_as_absent(
    content: str, own: tuple[Path, ExperimentSpec, str], tmp_path: Path
) -> None:
    _, spec, known = own
    folder = tmp_path / "storage" / "run"
    folder.mkdir(parents=True)
    start_point.record_data(folder, spec.params, known, tmp_path)
    noted = folder / "start" / "data" / "fingerprint.json"
    noted.write_text(content)
    start_point.check_data(spec, tmp_path, folder)
    start_point.record_data(folder, spec.params, known, tmp_path)
    assert json.loads(noted.read_text())["fingerprint"] == known
    (folder / "outcome.json").write_text(content)
    assert worker.outcome_of(folder) is None


def test_run_continued_from_another_keeps_the_recorded_fingerprint(run: Run, tmp_path: Path) -> None:
    first = run(epochs=2, refit=False, name="first")
    noted = first.folder / "start" / "data" / "fingerprint.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "fingerprint": "0" * 64}))
    settings = resolve({})
    origin = start_point.source(settings, "first").origin
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=3), origin=origin)
    start_point.prepare(tmp_path / "second", spec, settings)
    assert (tmp_path / "second/start/data/fingerprint.json").read_text() == noted.read_text()


def test_node_checks_a_large_dataset_that_the_driver_has_not_read(
    own: tuple[Path, ExperimentSpec, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, spec, content = own
    folder = tmp_path / "storage" / "run"
    folder.mkdir(parents=True)
    start_point.record_data(folder, spec.params, content, tmp_path, elsewhere=True)
    start_point.check_data(spec, tmp_path, folder)  # a small dataset, which the driver has read
    monkeypatch.setattr(datasets, "LARGE_BYTES", 1)
    start_point.record_data(folder, spec.params, content, tmp_path)
    start_point.check_data(spec, tmp_path, folder)
    start_point.record_data(folder, spec.params, content, tmp_path, elsewhere=True)
    refused(
        lambda: worker.experiment(spec, tmp_path, torch.device("cpu"), folder=folder).build(holdout=True),
        f"The dataset on node {socket.gethostname()}: ", "no user can give an item for validation", str(files),
    )  # fmt: skip


def test_workload_without_a_dataset_does_not_query_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has no files of the run yet; the run's folder is the copy of an object store."""
    monkeypatch.setattr(start_point, "download", lambda *args: pytest.fail("asked the store"))
    folder = remote.mirror_of("s3://bucket/runs", tmp_path) / "run" / "train"
    start_point.check_data(ExperimentSpec(workload="toy", params={}), tmp_path, folder)


def test_trials_of_a_sweep_continue_from_the_state_of_one_run(run: Run, tmp_path: Path) -> None:
    run(epochs=2, momentum=0.25, name="first")
    (tmp_path / "mine.py").write_text(MINE)
    found = api.sweep(
        None, origin="first", epochs=4, trials=3, scheduler="none", space=f"{tmp_path}/mine.py:space", tracking="none",
    )  # fmt: skip
    record = records.open_folder(found.folder).record["spec"]["sweep"]
    assert record["fixed"] == {"momentum": 0.25}
    assert record["origin"].startswith("first@2#")
    assert set(losses(found)) <= {3, 4}
    assert {row["epochs"] for row in found.trials().to_dict("records")} == {4}
    winner = start_point.source(resolve({}), found.id)
    assert winner.epoch == 4, "a sweep without a refit can be continued"
    assert api.run(origin=found.id, epochs=5, tracking="none").extra["epochs"] <= 5


def test_init_starts_from_the_final_weights_as_epoch_0(run: Run) -> None:
    first = run(epochs=3, refit=False, name="first", start=2.0)
    second = run(init="first", epochs=1, refit=False)
    rows = (second.folder / "history.jsonl").read_text().splitlines()
    untrained = json.loads(rows[0])
    assert untrained["epoch"] == 0
    assert untrained["validation/x"] == first.metrics["validation/x"] != 4.0
    spec = spec_of(second)
    assert spec.plan.init is not None
    assert spec.plan.init.startswith("first#")
    assert (
        spec.fingerprint()
        != spec.model_copy(update={"plan": spec.plan.model_copy(update={"init": None})}).fingerprint()
    )
    assert f"init={spec.plan.init}" in spec.command()


@pytest.mark.slow
@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("registered", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_runs_from_weights_of_a_refit_or_other_split_warn_and_are_tagged(
    run: Run, registered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.registry import models as registry

    def started(
        name: str,
        refit: bool,
        init: str | None = None,
        origin: str | None = None,
        epochs: int = 1,
        warning: str = earlier_training.REFITTED,
        **more: Any,
    ) -> tuple[bool, bool]:
        options = {"dataset": "synthetic", "dim": 4, "epochs": epochs, "refit": refit, "init": init, "origin": origin}
        capsys.readouterr()
        registers = name if registered else None
        result = run("recommender", name=name, register=registers, tracking=None, **options, **more)
        tags = registry.client(resolve({})).get_run(result.run_id).data.tags
        return warning in capsys.readouterr().out, VALIDATION_SEEN in tags

    number = "/1" if registered else ""
    assert started("honest", refit=False) == (False, False)
    assert started("refitted", refit=True) == (False, False)
    assert started("after-honest", refit=False, init=f"honest{number}") == (False, False)
    assert started("after-refitted", refit=False, init=f"refitted{number}") == (True, True)
    assert started("again", refit=False, init=f"after-refitted{number}") == (True, True)
    assert started("continued", refit=False, origin="again", epochs=2) == (True, True)
    assert started("continued-honest", refit=False, origin="honest", epochs=2) == (False, False)
    other = {"init": f"honest{number}", "warning": earlier_training.OTHER_SPLIT}
    assert started("other-seed", refit=False, split_seed=1, **other) == (True, True)
    assert started("other-test", refit="only", split="random", **other) == (True, True)


def test_earlier_training_records_all_datasets_of_a_chain_of_weights(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    spec = {"params": {"dataset": "a", "dataset_noise": 0.0, "split": "random", "split_seed": 0, "dim": 4}}
    plan = Plan(refit=False)
    earlier_training.note(first, "a's", spec, True)
    earlier_training.note(second, "b's", {"params": {}}, True, earlier_training.trained(first))
    same = {"split": "random"}
    assert earlier_training.warning(second, "a's", same, plan) == earlier_training.REFITTED
    assert earlier_training.warning(second, "a's", same, Plan(refit="only")) is None
    assert earlier_training.warning(second, "a's", {"split": "clean"}, plan) == earlier_training.OTHER_SPLIT
    assert earlier_training.warning(second, "b's", {}, plan) == earlier_training.REFITTED
    assert earlier_training.warning(second, "c's", {}, plan) is None
    assert earlier_training.warning(second, None, {}, plan) is None
    assert earlier_training.warning(tmp_path, "a's", same, plan) is None


def test_earlier_training_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / earlier_training.FILE).write_text('{"fingerprint": "a\'s"}')
    warned = earlier_training.warning(tmp_path, "a's", {"split": "random"}, Plan(refit=False))
    assert warned == earlier_training.REFITTED
    (tmp_path / earlier_training.FILE).write_text('{"fingerprint": null}')
    assert earlier_training.warning(tmp_path, "a's", {}, Plan(refit=False)) is None


def test_refit_of_a_sweep_with_init_starts_from_the_given_weights(run: Run, tmp_path: Path) -> None:
    run(epochs=3, refit=False, name="first")
    (tmp_path / "mine.py").write_text(MINE)
    options: dict[str, Any] = {"trials": 2, "scheduler": "none", "space": f"{tmp_path}/mine.py:space", "epochs": 1}
    found = api.sweep("toy", init="first", tracking="none", **options)
    scratch = api.sweep("toy", tracking="none", **options)
    assert max(found.metrics["validation/x"], found.metrics["test/x"]) < 1.5 < scratch.metrics["test/x"]


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_init_takes_a_registered_model_by_its_alias(run: Run) -> None:
    from orchestrator.registry import models as registry

    first = run(epochs=3, refit=False, register="mine", tracking=None)
    registry.client(resolve({})).set_registered_model_alias("mine", "champion", "1")
    second = run(init="mine@champion", epochs=1, refit=False, tracking=None)
    assert spec_of(second).plan.init.startswith("mine/1#")  # type: ignore[union-attr]
    assert (
        json.loads((second.folder / "history.jsonl").read_text().splitlines()[0])["validation/x"]
        == (first.metrics["validation/x"])
    )
    tags = registry.client(resolve({})).get_run(second.run_id).data.tags
    assert tags["orchestrator.init"] == spec_of(second).plan.init
    assert "Starts from the weights of mine/1" in tags["mlflow.note.content"]
    refused(lambda: run(init="mine@challenger", tracking=None), "Unknown alias of mine: got 'challenger'", "champion")
    refused(lambda: run(init="mine/7", tracking=None), "Unknown version of mine: got '7'")
    refused(lambda: run("recommender", init="mine/1", tracking=None), "mine/1 is a model of another workload: got toy")


def test_invalid_init_or_origin_is_refused(run: Run, tmp_path: Path) -> None:
    run(epochs=3, name="first")
    (tmp_path / "mine.py").write_text(MINE)
    space = f"{tmp_path}/mine.py:space"
    refused(
        lambda: run(init="firstt"), "init names no model: got 'firstt'", start_point.REFERENCES, "Did you mean first?"
    )
    refused(lambda: run(init="first#0000"), "The weights of first are not the recorded ones", "#0000")
    refused(
        lambda: run("recommender", init="first"), "first is a model of another workload: got toy; allowed: recommender"
    )
    refused(
        lambda: run(None, origin="first", epochs=3), "first has trained 3 epochs already: got epochs=3", "more than 3"
    )
    refused(lambda: run(None, origin="first", epochs=9, refit=True), "A refit cannot repeat the training of two runs")
    refused(lambda: run(None, origin="first", epochs=9, init="first"), "A run that goes on from first has its weights")
    refused(
        lambda: run("recommender", origin="first"), "first is a run of another workload: got recommender; allowed: toy"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload_loader.params("toy"), "abstains", True, raising=False)
        part: dict[str, Any] = {"abstention_part": 0.2, "epochs": 9}
        refused(lambda: run(None, origin="first", **part), "first has learned from other queries", "allowed: 0")
        refused(lambda: run(init="first", **part), "may have learned from them", "abstention_part=0.2 with init=first")
    refused(lambda: run(**part), "The workload toy does not abstain", "got abstention_part=0.2. Leave it out")
    refused(lambda: run(None, origin="first@3#0000", epochs=9), "The state of first is not the recorded one")
    refused(lambda: api.sweep(origin="first", epochs=9, scheduler="pbt", space=space, tracking="none"), "scheduler=pbt")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Toy, "load_weights")
        refused(lambda: run(init="first"), "The workload toy cannot start from weights: it has no load_weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "load_weights", lambda *of: _raise(ValueError("the weights do not fit: x is () there")))
        refused(lambda: run(init="first"), "Training cannot start from first: the weights do not fit: x is () there")
    shutil.rmtree(run_lookup.find(resolve({}).storage, "first").checkpoints)
    refused(
        lambda: run(None, origin="first", epochs=9),
        "first has kept no state of a selection to go on from",
        "init=first",
    )


def _raise(error: Exception) -> None:
    raise error


def test_plan_with_probe_of_a_continued_run_succeeds(run: Run, home: Path) -> None:
    run(epochs=2, refit=False, name="first")
    planned = typed(home, "plan", "run", "--from", "first", "epochs=4", "--local", "--probe", "--tracking=none")
    assert planned.returncode == 0, planned.stderr
