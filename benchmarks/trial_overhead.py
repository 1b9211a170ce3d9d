"""What a trial costs in addition to its training: 32 trials with ten reports, tracked in MLflow (SQLite).

On Ray, two at a time: ours; Ray Tune's function trainables with OptunaSearch and the MLflow callback; and Tune trials
that each start a TorchTrainer (four of them). In-process: ours with and without tracking; Optuna with MLflow's fluent
calls. Seconds per trial from the first suggestion to the last trial's end; also of whole processes. Our reports are
sent one by one, as the peers send theirs; as shipped, reports of short epochs are combined, which is measured too. All
write to one initialised store, and all trials of every contestant must be complete.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from functools import partial
from pathlib import Path

import optuna
from harness import HERE, Benchmark, Contestant, answer, arguments, spawn
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

TRIALS, NESTED_TRIALS, AT_ONCE, REPORTS = 32, 4, 2, 10
IDLE = HERE / "idle"
SWEEP = [
    *(sys.executable, "-m", "orchestrator", "sweep", "idle", f"epochs={REPORTS}", "--trials", str(TRIALS)),
    *("--scheduler", "none", "--space", f"{IDLE / 'idle.py'}:space", "--json"),
]
RAY, BATCHED, LOCAL, UNTRACKED = "ours", "ours as shipped", "ours --local", "ours --local --tracking none"
TUNE, NESTED, OPTUNA = "Tune function + MLflow callback", "Tune trial -> TorchTrainer", "Optuna + MLflow fluent"
WHOLE = ", whole process"


class Sweeps:
    """Runs contestants with one store. Each gives seconds per trial, and those of the whole process."""

    def __init__(self, home: Path) -> None:
        self.home, self.store = home, f"sqlite:///{home / 'mlflow.db'}"

    def ours(self, name: str, *options: str, each: bool = True, tracked: bool = True) -> dict[str, float]:
        """Seconds per trial are from the sweep's journal."""
        env = {"ORCHESTRATOR_HOME": str(self.home), "PYTHONPATH": str(IDLE)}
        if each:
            env["IDLE_REPORT_ALL"] = "1"
        output, seconds = spawn([*SWEEP, *options], env=env)
        result = answer(output)
        trials = self._trials(str(result["id"]))
        if tracked:
            self._check_tracked(str(result["run_id"]))
        begin = min(trial.datetime_start for trial in trials if trial.datetime_start)
        end = max(trial.datetime_complete for trial in trials if trial.datetime_complete)
        return {name: (end - begin).total_seconds() / len(trials), name + WHOLE: seconds}

    def peer(self, name: str, script: str, trials: int, *options: str) -> dict[str, float]:
        words = [sys.executable, str(HERE / "peers" / script), "--trials", str(trials), "--tracking", self.store]
        output, seconds = spawn([*words, *options], env={"MLFLOW_DISABLE_TELEMETRY": "true"})
        result = answer(output)
        if result["trials"] != trials:
            raise SystemExit(f"{name}: {result['trials']} of {trials} trials are complete")
        return {name: result["seconds"] / trials, name + WHOLE: seconds}

    def _trials(self, sweep: str) -> list[optuna.trial.FrozenTrial]:
        journal = self.home / "storage" / sweep / "study.jsonl"
        study = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(journal))))
        trials: list[optuna.trial.FrozenTrial] = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        if len(trials) != TRIALS:
            raise SystemExit(f"{sweep}: {len(trials)} of {TRIALS} trials are complete")
        return trials

    def _check_tracked(self, parent: str) -> None:
        """Check that every trial has a run, and every report its values."""
        with sqlite3.connect(self.home / "mlflow.db") as store:
            found = store.execute(
                "SELECT count(DISTINCT run_uuid), count(*) FROM metrics JOIN tags USING (run_uuid) WHERE tags.key = "
                "'mlflow.parentRunId' AND tags.value = ? AND metrics.key = 'validation/score'",
                (parent,),
            ).fetchone()
        if found != (TRIALS, TRIALS * REPORTS):
            raise SystemExit(f"MLflow has {found[0]} trials and {found[1]} reports")


def main() -> None:
    args = arguments("What a trial costs in addition to its training.", rounds=3).parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    home = Path(tempfile.mkdtemp())
    sweeps = Sweeps(home)
    at_once = ("--concurrency", str(AT_ONCE))
    contestants: dict[str, Contestant] = {
        RAY: partial(sweeps.ours, RAY, *at_once),
        TUNE: partial(sweeps.peer, TUNE, "tune_function.py", TRIALS, *at_once),
        BATCHED: partial(sweeps.ours, BATCHED, *at_once, each=False),
        NESTED: partial(sweeps.peer, NESTED, "tune_function.py", NESTED_TRIALS, *at_once, "--nested"),
        LOCAL: partial(sweeps.ours, LOCAL, "--local"),
        OPTUNA: partial(sweeps.peer, OPTUNA, "optuna_mlflow.py", TRIALS),
        UNTRACKED: partial(sweeps.ours, UNTRACKED, "--local", "--tracking", "none", tracked=False),
    }
    bench = Benchmark("trial_overhead", args.rounds, args.patience)
    try:
        sweeps.ours(LOCAL, "--local")  # creates the store and warms the file cache
        bench.run(contestants)
    finally:
        shutil.rmtree(home)
    trial = "s/trial"
    bench.compare("on Ray, every report sent", trial, RAY, TUNE, at_most=0.4)
    bench.compare("on Ray, every report sent", trial, RAY, NESTED, at_most=0.03)
    bench.compare("on Ray, as shipped", trial, BATCHED, TUNE)
    bench.hold("--local", trial, LOCAL, at_most=0.03)
    bench.compare("--local", trial, LOCAL, OPTUNA)
    bench.hold("--local --tracking none", trial, UNTRACKED, at_most=0.06)
    for ours, theirs in ((RAY, TUNE), (BATCHED, TUNE), (LOCAL, OPTUNA), (UNTRACKED, OPTUNA)):
        bench.compare(f"{ours}{WHOLE}", "s", ours + WHOLE, theirs + WHOLE)
    bench.finish()


if __name__ == "__main__":
    main()
