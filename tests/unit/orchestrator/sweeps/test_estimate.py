"""The plan: its arithmetic, its JSON, a probe that trains, and plans that no cluster can run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.cli import app
from orchestrator.config.plan import Plan
from orchestrator.config.spec import ExperimentSpec, Resources, Search, SweepSpec
from orchestrator.errors import RunFailed
from orchestrator.storage.settings import resolve
from orchestrator.sweeps import estimate
from orchestrator.sweeps.estimate import Probe
from tests.support.toy import Clock, Toy

NODES = [{"CPU": 4.0, "GPU": 0.0}, {"CPU": 3.0, "GPU": 0.0}]
PROBE = Probe(epoch_seconds=2.0, alone_seconds=2.0, start_seconds=7.0, checkpoint_bytes=1000)

pytestmark = pytest.mark.usefixtures("toy_workload")


def sweep(plan: dict[str, Any] | None = None, resources: dict[str, Any] | None = None, **search: Any) -> SweepSpec:
    return SweepSpec(
        workload="toy",
        plan=Plan(**{"epochs": 27, "refit": False} | (plan or {})),
        resources=Resources(**resources or {}),
        search=Search(**{"trials": 18, "scheduler": "none"} | search),
    )


def planned(spec: Any, probe: Probe | None = PROBE, nodes: Any = None, local: bool = False) -> estimate.Forecast:
    return estimate.plan(spec, NODES if nodes is None else nodes, probe, local=local)


# Arithmetic, compared with calculations by hand


def test_plan_of_a_run_estimates_epochs_time_and_storage() -> None:
    """10 epochs to select and 10 to refit, of 2 s each on 2 x 3 CPUs: 40 s, and 7 s until the first epoch has ended."""
    spec = ExperimentSpec(
        workload="toy", params={}, plan=Plan(epochs=10, refit=True), resources=Resources(workers=2, cpus_per_worker=3)
    )
    found = planned(spec)
    assert (found.kind, found.trials, found.epochs_at_most, found.epochs_expected) == ("run", 1, 20, 20)
    assert (found.device, found.device_hours_at_most) == ("CPU", pytest.approx(20 * 2 * 6 / 3600))
    assert found.wall_seconds_expected == 47
    assert found.storage_bytes == 4000, "two of the run and two more"
    assert (found.at_once, found.fitting, found.nodes) == (1, 1, 2), "one worker of 3 CPUs on each node"


def test_plan_of_a_refit_only_run_counts_its_epochs_once() -> None:
    spec = ExperimentSpec(workload="toy", params={}, plan=Plan(epochs=10, refit="only"))
    assert planned(spec).epochs_at_most == 10


def test_plan_of_a_sweep_without_scheduler_counts_all_epochs() -> None:
    """18 trials of 27 epochs, 7 at once (4 + 3): 486 epochs of 2 s, 7 s a start."""
    found = planned(sweep())
    assert (found.trials, found.at_once, found.fitting) == (18, 7, 7)
    assert (found.epochs_at_most, found.epochs_expected) == (486, 486)
    assert found.device_hours_expected == pytest.approx(486 * 2 / 3600)
    assert found.wall_seconds_expected == pytest.approx(486 * 2 / 7 + 7 * 18 / 7)
    assert found.storage_bytes == 1000 * (2 * 18 + 2)


def test_plan_adds_the_winners_refit_outside_the_parallel_trials() -> None:
    found = planned(sweep({"refit": True}))
    assert (found.epochs_at_most, found.epochs_expected) == (486 + 27, 486 + 27)
    assert found.wall_seconds_expected == pytest.approx(486 * 2 / 7 + 27 * 2 + 18)


def test_asha_leaves_a_third_at_each_rung() -> None:
    """Of 27 epochs the rungs are 3 and 9: 3 + 6/3 + 18/9 = 7 epochs a trial."""
    found = planned(sweep(scheduler="asha"))
    assert (found.epochs_at_most, found.epochs_expected) == (486, 18 * 7)
    assert estimate.survivors(sweep(scheduler="asha")) == pytest.approx(1 / 9)


def test_hyperband_estimate_counts_trials_by_bracket() -> None:
    """Optuna's brackets of 27 epochs take 9, 5 and 3 of 17 trials: stopped at 3 and 9, at 9, and never."""
    spec = sweep(scheduler="hyperband")
    expected = (9 * 7 + 5 * (9 + 18 / 3) + 3 * 27) / 17
    assert estimate.expected_share(spec) * 27 == pytest.approx(expected)
    assert estimate.survivors(spec) == pytest.approx((9 / 9 + 5 / 3 + 3) / 17)
    assert planned(spec).epochs_expected == math.ceil(18 * expected)


def test_median_estimate_trains_three_quarters_of_all_epochs() -> None:
    assert planned(sweep(scheduler="median")).epochs_expected == math.ceil(486 * 0.75)


def test_further_seeds_are_counted_for_trials_that_reach_the_last_epoch() -> None:
    """1/9 of 18 configurations are trained with two more seeds: 2 * 2 * 27 epochs more."""
    found = planned(sweep(scheduler="asha", seeds=3))
    assert (found.epochs_at_most, found.epochs_expected) == (3 * 486, 18 * 7 + 2 * 2 * 27)
    assert found.storage_bytes == 1000 * (2 * 3 * 18 + 2)
    assert planned(sweep(seeds=3)).epochs_expected == 3 * 486


def test_plan_counts_epochs_and_storage_of_finalists_repeats() -> None:
    """Each of the 3 finalists has two further runs."""
    found = planned(sweep(finalists=3, finalist_seeds=3))
    assert found.epochs_at_most == found.epochs_expected == 486 + 6 * 27
    assert found.storage_bytes == 1000 * (2 * (18 + 6) + 2)


def test_plan_of_a_population_counts_four_checkpoints_and_each_restart() -> None:
    """20 epochs: nine meetings, ten starts of each of 4 members."""
    found = planned(sweep({"epochs": 20}, scheduler="pbt", trials=4))
    assert found.epochs_expected == found.epochs_at_most == 80
    assert found.storage_bytes == 1000 * (4 * 4 + 2)
    assert found.wall_seconds_expected == pytest.approx(80 * 2 / 4 + 7 * 40 / 4)


@pytest.mark.parametrize(
    ("asked", "at_once"), [({"concurrency": 3}, 3), ({"concurrency": 99}, 7), ({"trials": 2}, 2), ({}, 7)]
)
def test_trials_at_once_are_limited_by_concurrency_trials_and_nodes(asked: dict[str, Any], at_once: int) -> None:
    assert planned(sweep(**asked)).at_once == at_once


def test_local_plan_has_one_trial_at_once() -> None:
    found = planned(sweep(), local=True)
    assert (found.at_once, found.fitting, found.nodes) == (1, 1, 1)


def test_plan_of_packed_trials_counts_processes_and_time() -> None:
    """100 trials of 10 epochs, 12 at once in 3 processes: 4 together take 8 s an epoch, the winner's refit 5 s."""
    spec = SweepSpec(
        workload="recommender",
        plan=Plan(epochs=10, refit=True),
        resources=Resources(cpus_per_worker=2),
        search=Search(trials=100, scheduler="none", pack=4),
    )
    probe = Probe(epoch_seconds=2.0, alone_seconds=5.0, start_seconds=7.0, checkpoint_bytes=1000)
    found = planned(spec, probe)
    assert (found.at_once, found.processes, found.fitting) == (12, 3, 3)
    assert found.device_hours_expected == pytest.approx((1000 * 2 + 10 * 5) * 2 / 3600)
    assert found.wall_seconds_expected == pytest.approx((1000 * 2 + 100 * 7) / 3 + 10 * 5)
    rows = dict(found.rows())
    assert rows["at once"] == "12 in 3 processes (3 fit on 2 nodes)"
    assert rows["a process holds"] == "1 worker of 2 CPU"
    assert rows["an epoch"] == "2 s, alone 5 s"
    asked = spec.model_copy(update={"search": spec.search.model_copy(update={"concurrency": 5})})
    assert (planned(asked, None).at_once, planned(asked, None).processes) == (5, 3)


def test_plan_counts_gpu_hours_for_trials_with_gpus() -> None:
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 4.0}]
    found = planned(sweep(resources={"gpus_per_worker": 0.5, "cpus_per_worker": 1}), nodes=nodes)
    assert (found.device, found.fitting) == ("GPU", 4 + 2), "the second node has only two CPUs"
    assert found.device_hours_at_most == pytest.approx(486 * 2 * 0.5 / 3600)


def test_plan_without_a_probe_has_no_time_and_no_storage() -> None:
    found = planned(sweep(), probe=None)
    assert {found.epoch_seconds, found.device_hours_at_most, found.wall_seconds_expected, found.storage_bytes} == {None}
    assert found.rows()[-1] == ["time and storage", "not measured; --probe trains two epochs to find out"]


def test_rows_of_a_plan_describe_trials_epochs_devices_and_storage() -> None:
    rows = dict(planned(sweep({"refit": True}, scheduler="asha", seeds=3)).rows())
    assert rows["trials"] == "18 x 3 seeds"
    assert rows["epochs"] == "1458 + 27 refit at most, about 234 + 27 refit expected"
    assert dict(planned(sweep()).rows())["epochs"] == "486 at most"
    assert rows["a trial holds"] == "1 worker of 1 CPU"
    undecided = dict(replace(planned(sweep()), gpus_open=True).rows())["a trial holds"]
    assert undecided == "1 worker of 1 CPU; GPUs are decided on the cluster, unless --gpus-per-worker is given"
    packed = replace(planned(sweep()), gpus=1.0, at_once=64, processes=2)
    assert dict(packed.rows())["at once"].startswith("64 in 2 processes, or as many as fit into a GPU's memory (")
    assert rows["at once"] == "7 (7 fit on 2 nodes)"
    assert rows["CPU hours"] == "0.825 at most, about 0.145 expected"
    assert rows["storage"] == "110 KB"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1499, "1.5 KB"),
                       (1_449_999, "1.45 MB"), (999_999, "1 MB"), (2e12, "2 TB")]
)  # fmt: skip
def test_sizes_in_bytes_are_shown_with_rounded_units(size: float, text: str) -> None:
    assert estimate._bytes(int(size)) == text


# Probes


@pytest.fixture
def probe_clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in the toy's epochs; the first one takes 4 s more."""
    train = Toy.train_epoch

    def warm_up(self: Toy, epoch: int) -> Any:
        clock.sleep(4.0 if epoch == 1 else 0.0)
        return train(self, epoch)

    monkeypatch.setattr(estimate, "time", clock)
    monkeypatch.setattr(Toy, "train_epoch", warm_up)


@pytest.mark.usefixtures("probe_clock")
def test_probe_measures_epoch_time_start_time_and_checkpoint_size() -> None:
    params = {"slow": 0.5}
    spec = ExperimentSpec(workload="toy", params=params, plan=Plan(epochs=400, patience=1, refit=True), seed=1)
    found = estimate.measure(spec, resolve({"tracking": "none"}))
    assert (found.epoch_seconds, found.start_seconds) == (0.5, 4.5)
    assert 100 < found.checkpoint_bytes < 10_000


@pytest.mark.usefixtures("probe_clock")
def test_probe_of_a_sweep_trains_a_draw_of_its_search_space(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def space(trial):\n    return {'slow': trial.suggest_float('slow', 0.1, 0.2)}\n")
    for scheduler in ("asha", "pbt"):
        spec = sweep(space=f"{tmp_path}/mine.py:space", scheduler=scheduler)
        assert 0.1 <= estimate.measure(spec, resolve({"tracking": "none"})).epoch_seconds <= 0.2


# As a command

Type = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def type_line(capsys: pytest.CaptureFixture[str], toy_workload: str, tmp_path: Path) -> Type:
    (tmp_path / "mine.py").write_text("def space(trial):\n    return {'lr': trial.suggest_float('lr', 0.1, 0.2)}\n")

    def run(line: str) -> tuple[int, str, str]:
        words = line.replace("SPACE", f"{tmp_path}/mine.py:space").split()
        code = app.run(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("probe", ["", " --probe"])
def test_plan_as_json_is_one_line_and_starts_no_run(probe: str, type_line: Type, tmp_path: Path) -> None:
    line = "plan sweep toy --tracking none --local --space SPACE --trials 6 --scheduler none epochs=5 --json"
    code, out, err = type_line(line + probe)
    assert (code, out.count("\n"), err) == (0, 1, "")
    found = json.loads(out)
    assert found | {"trials": 6, "epochs_at_most": 35, "at_once": 1, "workload": "toy"} == found
    assert (found["epoch_seconds"] is None) is not bool(probe)
    storage = tmp_path / "home" / "storage"
    assert not storage.exists() or list(storage.iterdir()) == [], "the plan started a run"


def test_plan_as_a_table_shows_epochs_time_and_storage(type_line: Type) -> None:
    code, out, _ = type_line("plan run toy --tracking none --local epochs=5 --probe")
    assert code == 0
    for word in ("run of toy", "epochs", "5 + 5 refit at most", "an epoch", "CPU hours", "storage"):
        assert word in out


def test_run_after_a_plan_in_the_same_process_still_trains(type_line: Type) -> None:
    assert type_line("plan run toy --tracking none --local epochs=5")[0] == 0
    code, out, _ = type_line("run toy --tracking none --local epochs=1 --json")
    assert code == 0
    assert json.loads(out)["status"] == "finished"


def test_a_probe_whose_process_dies_on_the_cluster_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import orchestrator.cluster.train_group  # noqa: F401  # Ray Train's own modules call ray.remote when imported

    error = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")

    def fail(reference: object) -> None:
        raise error

    task = SimpleNamespace(remote=lambda *arguments: None)
    monkeypatch.setattr(ray, "remote", lambda function: SimpleNamespace(options=lambda **resources: task))
    monkeypatch.setattr(ray, "get", fail)
    with pytest.raises(RunFailed, match="The probe failed: out of memory, killed by Ray's memory monitor: accumulate"):
        estimate._measure_there(ExperimentSpec(workload="toy", params={}), resolve(), 1)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("plan sweep toy --space SPACE --cpus-per-worker 4096", 3, ("too small: got 1 worker(s) of 4096 CPU each",)),
        ("plan run toy --workers 512 batch_size=512", 3, ("got 512 worker(s)", "allowed: what it has: ")),
        ("plan run toy --workers 512 batch_size=512 --json", 3, ("got 512 worker(s)",)),
        ("plan run toy --ray-address 127.0.0.1:9", 3, ("No Ray answers at 127.0.0.1:9",)),
        ("plan sweep toy --space SPACE --trials 0", 2, ("Search setting trials is not valid: got 0",)),
        ("plan run toy ephocs=3", 2, ("Unknown parameter: got 'ephocs'", "'epochs'?")),
        ("plan", 2, ("plan needs the command of a run or a sweep. Such as: orchestrator plan run",)),
        ("plan submit x", 2, ("plan needs the command of a run or a sweep: got submit x",)),
        ("plan run --resume latest", 2, ("plan does not work with --resume: got --resume",)),
        ("plan sweep --resume=toy-1", 2, ("plan does not work with --resume",)),
    ],
)
def test_impossible_or_malformed_plan_is_refused(line: str, code: int, words: tuple[str, ...], type_line: Type) -> None:
    found, out, err = type_line(f"{line} --tracking none" if "toy" in line and "toy-1" not in line else line)
    assert (found, out) == (code, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
