"""Trials of two workers on a cluster with room for one of them at a time: nothing hangs, nothing is left behind.

The cluster does not belong to the sweep and lives on, so that leftovers of the sweep are visible. A placement group of
another job is there all the time and must stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.train import ControllerError
from ray.util import placement_group
from ray.util.placement_group import PlacementGroup, remove_placement_group

from orchestrator.config.spec import ExperimentSpec, Resources
from orchestrator.runs import train
from orchestrator.storage.settings import Timeouts
from tests.support.clusters import busy, groups, logical, named, soon, workers_reserved
from tests.support.commands import SPACES, Start, Store, starting, trials, typed
from tests.support.waiting import HANG_SECONDS

TRIALS = 2
SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--workers", "2", "--cpus-per-worker", "1"]
SWEEP += ["--gpus-per-worker", "0"]  # the cluster's GPU is declared, but does not exist

ONE_TRIAL = [*SWEEP, "--trials", "1", "--scheduler", "none"]
RUN = ["run", "toy", *SWEEP[4:]]


COLLECTIVE_SECONDS = 600
"""The default time that a worker waits for the others."""


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the started epochs. It is named before the cluster starts, whose processes write it."""
    monkeypatch.setenv("TOY_EPOCHS", str(tmp_path / "epochs"))
    return tmp_path / "epochs"


@pytest.fixture
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two CPUs, on one node unless a test requests two, and a declared GPU that another job holds."""
    asked = getattr(request, "param", "one node")
    cpus = (1, 1) if asked == "two nodes" else (2,)
    nodes = [{"num_cpus": number, "num_gpus": 1 - place} for place, number in enumerate(cpus)]
    with logical(monkeypatch, nodes, dashboard=asked == "dashboard") as address:
        other = placement_group([{"GPU": 1}])
        ray.get(other.ready())
        yield address
        assert [group["placement_group_id"] for group in groups()] == [other.id.hex()], (
            "the sweep left a group or removed the other job's"
        )
        assert soon(lambda: not busy()), f"processes are left: {[process.cmdline()[0] for process in busy()]}"


@pytest.fixture
def start(home: Path, database: Path, address: str) -> Iterator[Start]:
    with starting(home, "--ray-address", address) as begin:
        yield begin
    soon(lambda: len(groups()) == 1)


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("one node", marks=[pytest.mark.faults, pytest.mark.versions]),
        pytest.param("dashboard", marks=[pytest.mark.faults, pytest.mark.long]),
        pytest.param("two nodes", marks=[pytest.mark.faults, pytest.mark.long]),
    ],
    indirect=True,
)
def test_asha_sweep_runs_one_trial_of_two_workers_at_a_time(
    home: Path, start: Start, request: pytest.FixtureRequest
) -> None:
    """For other versions without the winner's refit, which needs one more group."""
    store = Store(home)
    refit = f"refit={request.node.callspec.params['address'] != 'one node'}".lower()
    sweep = start(*SWEEP, "--trials", str(TRIALS), "epochs=3", "slow=0.1", refit)
    most = 0
    while sweep.process.poll() is None:
        most = max(most, len(workers_reserved()))
        soon(lambda: sweep.process.poll() is not None, 0.2)
    assert sweep.end() == 0, sweep.text()
    assert most == 1, "a group was created without room for it"
    states = [row["state"] for row in trials(home)]
    assert len(states) == TRIALS
    assert set(states) == {"complete", "pruned"}
    store.check()
    for key, steps in store.steps().items():
        assert steps == list(range(1, len(steps) + 1)), f"{key}: a row was lost or doubled"


@pytest.mark.faults
@pytest.mark.long
def test_a_busy_cluster_is_waited_for(home: Path, start: Start) -> None:
    """A sweep that waits for resources of other jobs holds none itself. Its trial starts when they are released."""
    taken = _take_a_cpu()
    words = ["--trials", "1", "--scheduler", "none", "epochs=2", "refit=false", "--tracking", "none"]
    sweep = start(*SWEEP, *words)
    sweep.until(lambda: any(group["state"] == "PENDING" for group in groups()))
    assert ray.available_resources()["CPU"] == 1
    assert not named("RayTrainWorker"), "a worker runs before there is room for both"
    remove_placement_group(taken)
    assert sweep.end() == 0, sweep.text()
    assert [row["state"] for row in trials(home)] == ["complete"]


@pytest.mark.faults
@pytest.mark.parametrize("words", [SWEEP, RUN], ids=["sweep", "run"])
def test_ctrl_c_interrupts_the_wait_for_resources(words: list[str], start: Start) -> None:
    taken = _take_a_cpu()
    waiting = start(*words)
    waiting.until(lambda: any(group["state"] == "PENDING" for group in groups()))
    waiting.ctrl_c()
    assert waiting.end() == 130, waiting.text()
    remove_placement_group(taken)


@pytest.mark.faults
@pytest.mark.long
def test_trial_with_nan_loss_fails_and_the_others_complete(home: Path, start: Start) -> None:
    words = ["--space", f"{SPACES}:some_diverge", "--trials", "3", "--scheduler", "none", "epochs=4", "refit=false"]
    sweep = start(*SWEEP, *words)
    assert sweep.end() == 4, sweep.text()
    assert [row["state"] for row in trials(home)] == ["complete", "fail", "complete"]
    assert trials(home)[1]["cause"] == "train/loss is nan at epoch 3"
    Store(home).check()


@pytest.mark.faults
@pytest.mark.parametrize(
    "words", [pytest.param(ONE_TRIAL, id="sweep"), pytest.param(RUN, id="run", marks=pytest.mark.long)]
)
def test_worker_without_report_is_named_and_its_resources_are_freed(words: list[str], start: Start) -> None:
    begun = start(*words, "epochs=3", "hang_at=2", "on_rank=1", "--trial-timeout", "40")
    assert begun.end() == 1, begun.text()
    assert "no report for 40 s; worker 1 hung at File" in begun.text()
    assert "in train_epoch" in begun.text()


@pytest.mark.faults
@pytest.mark.parametrize(
    "words", [pytest.param(ONE_TRIAL, id="sweep"), pytest.param(RUN, id="run", marks=pytest.mark.long)]
)
def test_an_error_on_one_rank_ends_the_group_at_once(trained: Path, words: list[str], start: Start) -> None:
    """The error is not retried: it would occur again. Rank 0 waits for the other rank then, for up to ten minutes."""
    began = time.monotonic()
    begun = start(*words, "epochs=3", "raise_at=2", "on_rank=1")
    assert begun.end() == 1, begun.text()
    assert time.monotonic() - began < COLLECTIVE_SECONDS / 2, "the end waited for rank 0"
    assert "worker 1: ValueError: the third layer is missing (toy.py:" in begun.text()
    assert sorted(trained.read_text().split()) == ["1", "1", "2"], "a group was started again"


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "fault", "said", "code"),
    [
        (RUN, "nan_at=2", "train/loss is nan at epoch 2", 1),
        (RUN, "refuse_at=2", "This node has other bytes of the dataset. Fetch it again", 2),
        (ONE_TRIAL, "refuse_at=2", "This node has other bytes of the dataset", 1),
    ],
)
def test_nan_or_refusal_on_one_rank_ends_the_group_at_once(
    trained: Path, words: list[str], fault: str, said: str, code: int, start: Start
) -> None:
    began = time.monotonic()
    begun = start(*words, "epochs=3", fault, "on_rank=1")
    assert begun.end() == code, begun.text()
    assert time.monotonic() - began < COLLECTIVE_SECONDS / 2, "the end waited for rank 0"
    assert said in " ".join(begun.text().split())
    assert "no answer" not in begun.text()
    assert max(map(int, trained.read_text().split())) == 2, "a group was started again"


@pytest.mark.faults
def test_hung_worker_is_named_after_the_collective_timeout(
    trained: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails, as only it notices the timeout; the group is not started again."""
    monkeypatch.setenv("ORCHESTRATOR_COLLECTIVE_TIMEOUT", "15")
    begun = start(*RUN, "epochs=3", "hang_at=2", "on_rank=1")
    assert begun.end() == 1, begun.text()
    words = " ".join(begun.text().split())
    assert "no answer from the other workers for 15 s (ORCHESTRATOR_COLLECTIVE_TIMEOUT); worker 1 hung at File" in words
    assert "in train_epoch" in words
    assert sorted(trained.read_text().split()) == ["1", "1", "2"], "a group was started again"


@pytest.mark.faults
def test_startup_timeout_of_a_group_is_reported_with_its_setting(address: str, tmp_path: Path) -> None:
    """A CPU that was free when the group was planned is taken before the group starts."""
    taken = _take_a_cpu()
    spec = ExperimentSpec(workload="recommender", params={}, resources=Resources(workers=2))
    group = train.start(spec, tmp_path / "train", tmp_path, stop_file=tmp_path / "stop", timeouts=Timeouts(600, 1))
    assert group.ended(HANG_SECONDS)
    with pytest.raises(ControllerError) as caught:
        group.result()
    assert train.lost_a_process(caught.value), "the first start on a node is slow: the next one may be in time"
    cause = train.failure_text(caught.value)
    assert "worker group startup timed out after 1.0 seconds waiting for 2 workers" in cause
    assert "Set the ORCHESTRATOR_START_TIMEOUT environment variable" in cause
    remove_placement_group(taken)


FLAT = [*ONE_TRIAL, "--workers", "1", "--pack", "off"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("words", "micro_batches"),
    [
        pytest.param(ONE_TRIAL, 2, id="sweep"),
        pytest.param(RUN, 4, id="run", marks=pytest.mark.long),
        pytest.param(FLAT, 4, id="flat"),
    ],
)
def test_training_out_of_memory_continues_in_micro_batches(
    home: Path, words: list[str], micro_batches: int, start: Start
) -> None:
    begun = start(*words, "epochs=4", "refit=false", "accumulate=auto", "batch_size=8", f"fits={8 // micro_batches}")
    assert begun.end() == 0, begun.text()
    assert f"accumulate=auto: {micro_batches} micro-batches for each batch" in begun.text()
    Store(home).check()


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_profile_of_a_group_is_reported_before_its_result(workers: int, home: Path, start: Start) -> None:
    """The sentence comes before the result, and the trace is an artifact. Two ranks spend time on collectives."""
    words = ["recommender", "dim=8", "batch_size=512", "epochs=2", "refit=false", "--profile", "3"]
    begun = start("run", *words, "--workers", str(workers), "--cpus-per-worker", "1", "--gpus-per-worker", "0")
    assert begun.end() == 0, begun.text()
    assert begun.text().index("Profile of 3 steps in ") < begun.text().index("validation: ")
    assert begun.text().count("Profile of") == 1
    (file,) = home.glob("storage/*/profile/summary.json")
    found = json.loads(file.read_text())
    assert (found["collectives"] > 0) == (workers > 1), found
    assert list(home.glob("artifacts/**/trace.json.gz"))


@pytest.mark.faults
def test_decided_gpus_of_a_worker_are_kept_on_resume(home: Path, start: Start) -> None:
    """Another job holds the cluster's only GPU, so the run waits for it; so does the resumed run."""
    first = start("run", "toy", "epochs=3")
    first.until(lambda: "Waiting for workers" in first.text())
    assert "GPUs of a worker: 1 (decided on the cluster; --gpus-per-worker sets it)" in first.text()
    first.ctrl_c()
    assert first.end() == 130, first.text()
    assert json.loads(typed(home, "status", "latest", "--json").stdout)["devices"] == "1 worker of 1 GPU"
    second = start("run", "--resume", "latest")
    second.until(lambda: "Waiting for workers" in second.text())
    assert "toy on 1 worker of 1 GPU" in second.text()
    assert "decided" not in second.text()
    second.ctrl_c()
    assert second.end() == 130, second.text()


@pytest.mark.faults
@pytest.mark.long
def test_sweep_of_groups_resumes_after_its_driver_is_killed(home: Path, start: Start) -> None:
    epochs, store = 20, Store(home)
    words = ["--trials", "2", "--scheduler", "none", f"epochs={epochs}", "slow=0.4", "refit=false"]
    first = start(*SWEEP, *words)
    first.until(lambda: _saved(home))
    first.kill()
    assert soon(lambda: len(groups()) == 1 and not busy()), "trials of the killed driver still run"

    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    assert [row["state"] for row in trials(home)] == ["complete"] * 2
    store.check()
    store.check_trials(2, epochs)


@pytest.mark.faults
@pytest.mark.long
def test_ctrl_c_saves_a_checkpoint_and_the_sweep_resumes(home: Path, start: Start) -> None:
    store = Store(home)
    first = start(*SWEEP, "--trials", "2", "--scheduler", "none", "epochs=4000", "slow=0.1", "checkpoint_every=4000")
    first.until(lambda: any(len(steps) > 5 for steps in store.steps().values()))
    first.ctrl_c()
    assert first.end() == 130, first.text()
    assert "Traceback" not in first.text()
    assert _saved(home), "nothing was saved"
    assert soon(lambda: len(groups()) == 1 and not busy())
    before = {key: max(steps) for key, steps in store.steps().items()}

    second = start("sweep", "--resume", "latest")
    second.until(lambda: any(steps[-1] > before.get(key, 10**9) for key, steps in store.steps().items()))
    second.ctrl_c()
    assert second.end() == 130, second.text()
    store.check()
    for key, steps in store.steps().items():
        assert steps == list(range(1, steps[-1] + 1)), f"{key}: a row was lost or doubled"


@pytest.mark.faults
def test_a_trial_goes_on_when_its_processes_are_killed(home: Path, start: Start) -> None:
    """A worker is killed, which Train restarts in the same group; then the trial's own process, which Tune restarts."""
    epochs, store = 100, Store(home)
    sweep = start(*SWEEP, "--trials", "1", "--scheduler", "none", f"epochs={epochs}", "slow=0.4", "refit=false")
    for victim in ("RayTrainWorker", "GroupTrial"):
        known = _saved(home)
        sweep.until(lambda known=known: _saved(home) - known)
        sweep.until(lambda victim=victim: named(victim))[0].kill()
    assert sweep.end() == 0, sweep.text()
    store.check()
    (steps,) = (steps for key, steps in store.steps().items() if "/" in key)
    assert steps == list(range(1, epochs + 1))


def _take_a_cpu() -> PlacementGroup:
    """Reserve one of the two CPUs for another job."""
    taken = placement_group([{"CPU": 1}])
    ray.get(taken.ready())
    return taken


def _saved(home: Path) -> set[Path]:
    """The complete checkpoints of the first trial."""
    return set(home.glob("storage/*/trials/00000/checkpoint-*/checkpoint.json"))
