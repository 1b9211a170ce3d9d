"""What a sweep's driver costs: a report, a suggestion, and how long trials wait for it.

The real manager, study and journals: in sweeps of 1,000 and 5,000 trials; then under a simulated executor that posts
the reports of 8 to 512 concurrent trials of one-second epochs, and is checked against 8 processes of Ray Tune.
Times are CPU seconds of the driver: neighbours on the machine do not count, waits for its disk do not either.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from harness import Benchmark, Row
from posting import PostedTrial, actor
from simulated_sweep import Driver, Executor, driver, filled, new_folder, spec

AT_ONCE = (8, 32, 128, 512)
SIZES = ((1000, 20.0), (5000, 60.0))
"""Trials of a sweep, and the milliseconds that a suggestion may take then."""

ACTORS, ACTOR_EPOCH = 8, 0.2
POSTED = ("number", "spec", "folder", "pace")
"""What a process that posts reports needs to know."""

ASKS = 30
SLOW = 0.016
"""Seconds per report of a driver on a slow, busy machine."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    bench = Benchmark("driver_cost", rounds=1)
    home = Path(tempfile.mkdtemp(prefix="driver-cost-"))
    os.environ["ORCHESTRATOR_HOME"] = str(home / "home")
    try:
        for trials, most in SIZES:
            costs(bench, home, trials, most)
        overhead, latency = real_actors(bench, home)
        for at_once in AT_ONCE:
            waiting(bench, home, at_once, overhead, latency)
        waiting(bench, home, 128, SLOW, latency, f", {1000 * SLOW:g} ms a report")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    bench.finish()


def costs(bench: Benchmark, home: Path, trials: int, most: float) -> None:
    """Milliseconds of a suggestion and of each kind of report, after so many trials."""
    folder = filled(home, trials, 10 * ASKS, f"s{trials}")
    made = driver(folder, spec(trials + 10 * ASKS))
    made.manager.next()  # with what a driver computes once
    posted: list[PostedTrial] = []
    row(bench, trials, "a suggestion", each(ASKS, lambda k: posted.append(ask(made))))
    made.manager.ask_ahead()
    row(bench, trials, "a suggestion asked ahead", each(1, lambda k: posted.append(ask(made))), at_most=most)
    row(bench, trials, "a report", each(2 * ASKS, lambda k: post(made, posted[k % ASKS])))
    row(bench, trials, "a report at a rung", each(ASKS, lambda k: post(made, posted[k])))
    left = [trial for trial in posted if trial.seed_run in made.study.running()]
    row(bench, trials, "a report at the end", each(len(left), lambda k: post(made, left[k], to_end=True)))
    made.manager.close()
    folder.release("interrupted", 130)


def each(count: int, call: Callable[[int], Any]) -> float:
    """Milliseconds of CPU that a call takes."""
    used = time.process_time()
    for number in range(count):
        call(number)
    return 1000 * (time.process_time() - used) / max(1, count)


def ask(made: Driver) -> PostedTrial:
    config = made.manager.next()
    assert config is not None
    return PostedTrial(config)


def post(made: Driver, trial: PostedTrial, to_end: bool = False) -> None:
    trial.train()
    while to_end and not trial.ended:
        trial.train()
    made.manager.result(trial.seed_run, trial.payload())


def row(bench: Benchmark, trials: int, what: str, value: float, *, at_most: float | None = None) -> None:
    bench.rows.append(Row(f"{what}, {trials:,} trials", "ms", value, at_most=at_most))


def real_actors(bench: Benchmark, home: Path) -> tuple[float, float]:
    """Eight processes on Ray Tune against the simulation of them.

    Returns the seconds that Tune itself takes for a report, and those on the way, which one process alone waits.
    """
    from orchestrator.cluster import connection

    os.environ |= connection.QUIET
    import ray

    ray.init("local", num_cpus=ACTORS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    _, served, alone, _ = on_tune(home, 1)
    overhead, _, _, share = on_tune(home, ACTORS)
    ray.shutdown()
    latency = max(0.0, alone - served)
    made = fresh(home, "as-actors", 2 * ACTORS)
    simulated = Executor(made, ACTORS, overhead, latency=latency, epoch_seconds=ACTOR_EPOCH, every_epoch=True)
    simulated.run()
    bench.rows.append(Row("Ray Tune for a report", "ms", 1000 * overhead))
    bench.rows.append(Row("on the way to the driver and back", "ms", 1000 * latency))
    bench.rows.append(Row(f"{ACTORS} processes wait, a report each {ACTOR_EPOCH} s", "%", share))
    bench.rows.append(Row("the same, simulated", "%", simulated.share("interval", "rung", "end")))
    return overhead, latency


def on_tune(home: Path, at_once: int) -> tuple[float, float, float, float]:
    """Of processes that post reports: Tune's CPU seconds for one, the driver's for one, the wait for one, the share."""
    from orchestrator.sweeps import tune

    seen = home / f"seen-{at_once}"
    seen.mkdir()
    made = fresh(home, f"actors-{at_once}", 2 * at_once)
    own, marks = 0.0, []
    result = made.manager.result

    def count(seed_run: int, payload: Any) -> bool:
        nonlocal own
        marks.append(time.process_time())
        stopped = result(seed_run, payload)
        own += time.process_time() - marks[-1]
        return stopped

    begin = made.manager.next

    def plain() -> dict[str, Any] | None:
        """Without the objects whose modules import PyTorch."""
        config = begin()
        return config and {name: value for name, value in config.items() if name in POSTED}

    made.manager.result, made.manager.next = count, plain  # type: ignore[method-assign]
    with mock.patch.object(tune, "TrialActor", actor(ACTOR_EPOCH, seen)):
        tune.run_trials(made.spec, made.folder, made.manager, at_once, lambda slots: slots, lambda *loss: None)
    served = (marks[-1] - marks[0]) / len(marks)
    trials = [json.loads(file.read_text()) for file in seen.iterdir()]
    assert not any(trial["torch"] for trial in trials), "they were to cost nothing"
    waited, seconds = (sum(trial[name] for trial in trials) for name in ("waited", "seconds"))
    return served - own / len(marks), served, waited / len(marks), 100 * waited / seconds


def fresh(home: Path, name: str, trials: int) -> Driver:
    """The driver of a new sweep whose trials are drawn at random and all run to their ends."""
    asked = spec(trials, "random")
    asked = asked.model_copy(
        update={
            "search": asked.search.model_copy(update={"scheduler": "none"}),
            "plan": asked.plan.model_copy(update={"decide_at": ()}),
        }
    )
    return driver(new_folder(home, asked, name), asked)


def waiting(bench: Benchmark, home: Path, at_once: int, overhead: float, latency: float, where: str = "") -> None:
    """What share of their time trials wait for the driver, with a report a second and with the driver's pace."""
    for rationed in (False, True):
        name = f"w{at_once}-{'rationed' if rationed else 'each-second'}"
        asked = spec(2 * at_once)
        executor = Executor(driver(new_folder(home, asked, name), asked), at_once, overhead, rationed, latency)
        executor.run()
        how = where if rationed else f"{where}, a report a second"
        bench.rows += [
            Row(f"{at_once} trials wait{how}", "%", executor.share("interval"), at_most=2.0 if rationed else None),
            Row(f"{at_once} trials wait at rungs{how}", "%", executor.share("rung")),
            Row(f"{at_once} trials wait at their ends{how}", "%", executor.share("end")),
            Row(f"{at_once} processes wait for a next trial{how}", "%", executor.share("begin")),
            Row(f"{at_once} trials: the driver is busy{how}", "%", 100 * executor.busy / executor.now),
        ]
        shutil.rmtree(home / name)


if __name__ == "__main__":
    main()
