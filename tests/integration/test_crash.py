"""Any process may be killed at any moment: tests with real processes, Ray, an MLflow store and signals.

The toy workload spends its time sleeping, so the events do not depend on how busy the machine is.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.cluster.interrupts import ONE_PRESS_SECONDS
from orchestrator.storage import run_lookup
from orchestrator.sweeps import trial_manager
from tests.support.commands import SPACES, Start, Store, trials, typed
from tests.support.toy import LOST, TRAINED, Clock

TRIALS = 4
SWEEP = ["sweep", "toy", "--space", f"{SPACES}:space", "--scheduler", "none", "--trials", str(TRIALS)]


@pytest.mark.faults
@pytest.mark.parametrize("place", ["local", "ray"])
def test_sweep_resumes_after_its_driver_is_killed(place: str, home: Path, start: Start) -> None:
    epochs, store = 10, Store(home)
    extra = ["--local"] if place == "local" else []
    first = start(*SWEEP, f"epochs={epochs}", "slow=0.8", "--concurrency", "2", *extra)
    first.until(lambda: first.completed() and store.steps())
    first.kill()
    done = first.completed()
    assert done < TRIALS
    for file in home.glob("storage/*/tune/**/*"):  # Ray's own state, which a resume must not need
        if file.is_file():
            file.write_bytes(b"damaged")

    second = start("sweep", "--resume", "latest")
    assert second.end() == 0, second.text()
    assert second.completed() == TRIALS - done, "a finished trial was repeated"
    assert [row["trial"] for row in trials(home)] == list(range(TRIALS))
    assert len({row["params.lr"] for row in trials(home)}) == TRIALS, "the sampler repeated its values"
    store.check()
    store.check_trials(TRIALS, epochs)
    assert store.tag("orchestrator.kind").count("sweep") == 1


@pytest.mark.faults
def test_resume_keeps_the_number_of_micro_batches(home: Path, start: Start) -> None:
    """The number is recorded when it is chosen, and a resumed run starts with it."""
    store = Store(home)
    first = start("run", "toy", "--local", "epochs=60", "slow=0.3", "accumulate=auto", "fits=2")
    first.until(lambda: list(home.glob("storage/*/checkpoints/checkpoint-*/checkpoint.json")))
    first.kill()
    assert "continuing with 4 micro-batches" in first.text()
    (journal,) = home.rglob("tracking.jsonl")
    assert "orchestrator.accumulate" in journal.read_text() or store.tag("orchestrator.accumulate") == ["4"]
    assert json.loads(typed(home, "status", "latest", "--json").stdout)["accumulate"] == 4
    second = start("run", "--resume", "latest")
    assert second.end() == 0, second.text()
    assert "Out of memory" not in second.text()
    assert "accumulate=auto: 4 micro-batches for each batch" in second.text()
    assert store.tag("orchestrator.accumulate") == ["4"]
    store.check()


@pytest.mark.faults
def test_a_trial_goes_on_when_its_process_is_killed(
    home: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, store, trained = 40, Store(home), tmp_path / "epochs"
    monkeypatch.setenv(TRAINED, str(trained))
    sweep = start(*SWEEP[:-1], "1", f"epochs={epochs}", "slow=0.25", "--concurrency", "1")
    sweep.until(lambda: list(home.glob("storage/*/trials/00000/checkpoint-*/checkpoint.json")))
    (victim,) = sweep.until(lambda: sweep.workers("Trainable.train"))
    victim.kill()
    saved = max(int(file.name[-8:]) for file in home.glob("storage/*/trials/00000/checkpoint-*"))
    before = len(trained.read_text().splitlines())
    assert sweep.end() == 0, sweep.text()
    store.check()
    (steps,) = (steps for key, steps in store.steps().items() if "/" in key)
    assert steps == list(range(1, epochs + 1))
    (refit,) = store.steps("refit/loss").values()
    assert len(trained.read_text().splitlines()) <= before + epochs - saved + refit[-1], "the trial started over"


@pytest.mark.faults
@pytest.mark.long
def test_the_winner_goes_on_when_its_process_is_killed(
    home: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, trained = Store(home), tmp_path / "epochs"
    monkeypatch.setenv(TRAINED, str(trained))
    slowly = ["epochs=40", "slow=0.5", "momentum=0.0", "optimum=0.0"]  # so that the best epoch is a late one
    sweep = start(*SWEEP[:-1], "1", *slowly)
    sweep.until(lambda: list(home.glob("storage/*/winner/checkpoints/checkpoint-*/checkpoint.json")))
    (victim,) = sweep.workers("_winner_task")
    victim.kill()
    saved = max(int(file.name[-8:]) for file in home.glob("storage/*/winner/checkpoints/checkpoint-*"))
    before = len(trained.read_text().splitlines())
    assert sweep.end() == 0, sweep.text()
    store.check()
    (steps,) = store.steps("refit/loss").values()
    assert steps == list(range(1, steps[-1] + 1))
    assert len(trained.read_text().splitlines()) - before <= steps[-1] - (saved - 40), "the refit started over"


@pytest.mark.faults
@pytest.mark.long
def test_a_run_goes_on_when_a_train_worker_is_killed(home: Path, start: Start) -> None:
    epochs, store = 40, Store(home)
    run = start("run", "toy", f"epochs={epochs}", "slow=0.25", "--workers", "2", "--cpus-per-worker", "1")
    saved = run.until(lambda: list(home.glob("storage/*/train/checkpoint-*/checkpoint.json")))
    resumed_from = json.loads(saved[0].read_text())["epoch"]
    assert 0 < resumed_from < epochs
    run.until(lambda: run.workers("RayTrainWorker"))[0].kill()
    assert run.end() == 0, run.text()
    store.check()
    (steps,) = store.steps().values()
    assert steps == list(range(1, epochs + 1))


@pytest.mark.faults
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["run", "toy", "epochs=4000", "slow=0.1", "--local"], id="run-local"),
        pytest.param(
            ["run", "toy", "epochs=4000", "slow=0.1", "--cpus-per-worker", "1"], id="run-ray", marks=pytest.mark.long
        ),
        pytest.param([*SWEEP, "epochs=4000", "slow=0.1"], id="sweep-ray"),
    ],
)
def test_sigterm_and_ctrl_c_interrupt_cleanly_and_resume_continues(words: list[str], home: Path, start: Start) -> None:
    """The first driver gets SIGTERM, for which Ray has a handler of its own; the second gets Ctrl-C."""
    store = Store(home)
    first = start(*words)
    first.until(lambda: any(len(steps) > 5 for steps in store.steps().values()))
    first.terminate()
    assert first.end() == 130, first.text()
    assert "Traceback" not in first.text()
    assert "SIGTERM" not in first.text(), "Ray's own handler was called"
    (folder,) = run_lookup.folders(home / "storage")
    assert (folder.record["status"], folder.record["exit_code"]) == ("interrupted", 130)
    assert folder.record["ended"]
    resume = first.text().split("Continue with: orchestrator ")[1].splitlines()[0]
    assert store.query("select run_uuid from runs where status = 'RUNNING'") == []
    before = {key: max(steps) for key, steps in store.steps().items()}

    second = start(*resume.split())
    second.until(lambda: any(steps[-1] > before.get(key, 10**9) for key, steps in store.steps().items()))
    second.ctrl_c()
    assert second.end() == 130, second.text()
    store.check()
    after = store.steps()
    assert after.keys() >= before.keys()
    for key, steps in after.items():
        assert steps == list(range(1, steps[-1] + 1)), f"{key}: a row was lost or doubled"


@pytest.mark.faults
@pytest.mark.usefixtures("database")
def test_second_signal_ends_an_interrupted_run_at_once(home: Path, start: Start) -> None:
    """The epoch, and so the saving after it, takes longer than any test."""
    store = Store(home)
    run = start("run", "toy", "epochs=2", "slow=3600", "--local")
    run.until(lambda: store.query("select run_uuid from runs where status = 'RUNNING'"))
    run.terminate()
    run.until(lambda: not store.query("select run_uuid from runs where status = 'RUNNING'"))
    (folder,) = run_lookup.folders(home / "storage")
    assert (folder.record["status"], folder.record["exit_code"], folder.status()) == ("interrupted", 130, "running")
    run.until(lambda: "Press Ctrl-C again" in run.text())
    time.sleep(ONE_PRESS_SECONDS)
    run.terminate()
    assert run.end() == 130
    assert run_lookup.find(home / "storage", folder.id).status() == "interrupted"


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.usefixtures("third_party")
def test_all_trials_complete_after_an_accelerator_is_lost(
    home: Path, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the loss every call of the process fails, so that the later trials need another process."""
    monkeypatch.setenv(LOST, str(tmp_path / "lost"))
    sweep = start(*SWEEP[:2], "--space", f"{SPACES}:one_loses_its_device", *SWEEP[4:], "epochs=4", "--concurrency", "1")
    assert sweep.end() == 0, sweep.text()
    assert (tmp_path / "lost").exists()
    assert [row["state"] for row in trials(home)] == ["complete"] * TRIALS
    Store(home).check()


@pytest.mark.usefixtures("third_party", "database")
def test_trials_with_nan_loss_fail_and_the_others_complete(home: Path) -> None:
    words = ["sweep", "toy", "--scheduler", "none", "epochs=4", "--local", "--trials", "4"]
    sweep = typed(home, *words, "--space", f"{SPACES}:some_diverge")
    assert sweep.returncode == 4, sweep.stderr
    assert [row["state"] for row in trials(home)] == ["complete", "fail", "complete", "fail"]
    assert trials(home)[1]["cause"] == "train/loss is nan at epoch 3"
    store = Store(home)
    store.check()
    assert sorted(status for (status,) in store.query("select status from runs")) == ["FAILED"] * 2 + ["FINISHED"] * 3
    assert [steps for key, steps in store.steps().items() if key.endswith("/1")] == [[1, 2]], "rows before the NaN"


@pytest.mark.usefixtures("third_party", "database")
def test_sweep_fails_with_the_commonest_cause_if_all_trials_fail(home: Path) -> None:
    words = ["sweep", "toy", "--scheduler", "none", "epochs=4", "--local", "--trials", "3"]
    sweep = typed(home, *words, "--space", f"{SPACES}:all_diverge")
    assert sweep.returncode == 1, sweep.stdout
    assert "3 of 3: train/loss is nan at epoch 2" in sweep.stderr
    assert "Traceback" not in sweep.stdout + sweep.stderr


@pytest.mark.usefixtures("third_party", "database")
def test_sweep_succeeds_when_its_time_budget_is_spent(
    home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_manager, "time", clock)
    sweep = typed(home, *SWEEP[:-1], "50", "epochs=5", "slow=0.1", "--time-budget", "3", "--local")
    assert sweep.returncode == 0, sweep.stderr
    states = [row["state"] for row in trials(home)]
    assert 1 <= states.count("complete") < 50
    Store(home).check()
