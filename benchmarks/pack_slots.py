"""What a step of a pack costs: through the actor of ``sweeps/pack.py``, and as a step of a Ray Tune trial.

A pack returns to its driver whenever one of its members is at a rung, with many members at nearly every epoch. Here a
step is 5 ms of sleep, and returns one member's report. Tune cannot send new members to a running trial: its variant
leaves them in the cluster's key-value store, where each step looks. A process waits from a step's return to the start
of the next one.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import HERE, Benchmark, Contestant, Row, arguments

from orchestrator.cluster import connection

SLOTS, STEPS, STEP_SECONDS, NEW_MEMBERS = (1, 8), 200, 0.005, 10
"""Processes; steps of each; seconds of one; steps between two new members."""

CPU, WAIT = "the driver's CPU for a step", "wait of a process between steps"

METRICS = {"train/loss": 0.5, "train/rate": 0.1, "validation/score": 0.4, "validation/other": 0.5}
CONFIG = {"number": 7, "folder": "x" * 100, "spec": {"params": {f"p{k}": 0.1 for k in range(20)}, "plan": METRICS}}


class Member:
    """A pack's process: notes how long it waits for each step."""

    def __init__(self) -> None:
        self._left: float | None = None
        self.waits: list[float] = []

    def advance(self) -> list[Any]:
        if self._left is not None:
            self.waits.append(time.monotonic() - self._left)
        time.sleep(STEP_SECONDS)
        payload = {"rows": [[3, time.time(), METRICS]], "epoch": 3, "best_value": 0.4, "best_metrics": METRICS}
        self._left = time.monotonic()
        return [(7, payload)]


class Actor:
    """As :class:`orchestrator.sweeps.pack.PackActor`."""

    def __init__(self) -> None:
        self._member = Member()

    def step(self, begin: Any, drop: Any, stopping: bool) -> tuple[Any, Any]:
        return self._member.advance(), {7}

    def waits(self) -> list[float]:
        return self._member.waits


def figures(name: str, way: Callable[[int], tuple[float, float]], slots: int) -> dict[str, float]:
    """Milliseconds of one run: :data:`CPU`, and the median :data:`WAIT`."""
    return {f"{name}: {what}, {processes(slots)}": value for what, value in zip((CPU, WAIT), way(slots))}


def processes(slots: int) -> str:
    return f"{slots} process{'es' * (slots > 1)}"


def by_actors(slots: int) -> tuple[float, float]:
    """CPU milliseconds of the driver for a step, and median milliseconds that a process waits for the next one."""
    import ray

    actors = [ray.remote(Actor).options(num_cpus=1).remote() for _ in range(slots)]
    answers = {actor.step.remote([], [], False): actor for actor in actors}
    done, began = dict.fromkeys(actors, 0), 0.0
    while answers:
        (ready,), _ = ray.wait(list(answers), num_returns=1)
        began = began or time.process_time()  # processes have started
        actor = answers.pop(ready)
        ray.get(ready)
        done[actor] += 1
        if done[actor] < STEPS:
            begin = [CONFIG] if done[actor] % NEW_MEMBERS == 0 else []
            answers[actor.step.remote(begin, [], False)] = actor
    used = time.process_time() - began
    waits = [wait for actor in actors for wait in ray.get(actor.waits.remote())]
    for actor in actors:
        ray.kill(actor)
    return 1000 * used / (slots * STEPS), 1000 * statistics.median(waits)


def by_tune(slots: int) -> tuple[float, float]:
    """As :func:`by_actors`, with a Trainable a slot."""
    from ray import tune

    from orchestrator.cluster.ray_compat import kv_get, kv_put

    waits: list[float] = []
    marks: list[float] = []

    class Slot(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self._member, self._key = Member(), f"slot-{config['slot']}".encode()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def step(self) -> dict[str, Any]:
            json.loads(kv_get(self._key, namespace=b"packs") or b"[]")
            payloads = self._member.advance()
            ended = self.iteration + 1 >= STEPS
            return {"payloads": payloads, "done": ended, "waits": self._member.waits if ended else None}

    class Stopper(tune.Stopper):  # type: ignore[misc]
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            marks.append(time.process_time())
            result.pop("payloads", None)  # Tune would store them
            waits.extend(result.pop("waits") or [])
            if result["training_iteration"] % NEW_MEMBERS == 0:
                kv_put(f"slot-{result['config']['slot']}".encode(), json.dumps([CONFIG]).encode(), namespace=b"packs")
            return False

        def stop_all(self) -> bool:
            return False

    with tempfile.TemporaryDirectory(prefix="pack-slots-") as folder:
        tune.Tuner(
            tune.with_resources(Slot, {"CPU": 1}),
            param_space={"slot": tune.grid_search(list(range(slots)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=folder,
                stop=Stopper(),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    return 1000 * (marks[-1] - marks[0]) / (len(marks) - 1), 1000 * statistics.median(waits)


def main() -> None:
    args = arguments(__doc__.splitlines()[0], 3).parse_args()
    bench = Benchmark("pack_slots", args.rounds, args.patience)
    os.environ |= connection.QUIET
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray

    ray.init("local", num_cpus=max(SLOTS), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for slots in SLOTS:
        ways: dict[str, Contestant] = {
            name: partial(figures, name, way, slots) for name, way in (("actor", by_actors), ("Tune", by_tune))
        }
        bench.run(ways)
        for what in (f"{figure}, {processes(slots)}" for figure in (CPU, WAIT)):
            ours, theirs = (bench.median(f"{name}: {what}") for name in ways)
            bench.rows.append(Row(what, "ms", ours, "Tune", theirs))
    ray.shutdown()
    bench.finish()


if __name__ == "__main__":
    main()
