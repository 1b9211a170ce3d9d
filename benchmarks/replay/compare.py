"""Schedulers and selectors on recorded trials: what they find in a given device time, and how often they err.

    python -m benchmarks.replay.compare .cache/recordings/bce.npz --replays 200

All schedulers see the same random orders of the trials. Device time is counted in trials that run to their end, of
average cost. "Wrong" is the share of replays in which a trial was stopped that would have had the best value of those
that were decided on. Selectors choose among :data:`CHOICE` complete trials of those with further seeds. The coverage is
how often the trials that cannot be separated from the best contain the truly best one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import HERE, commit
from benchmarks.replay.recording import Array, Recording, read
from benchmarks.replay.simulation import Replay, replay
from orchestrator.search.racing import Racing
from orchestrator.search.schedulers import Halving, Median, Scheduler, brackets, rungs
from orchestrator.search.selection import Candidate, select
from orchestrator.search.unit_values import UnitValues
from workloads.contract import Objective

SCHEDULERS = ("none", "asha", "hyperband", "median", "racing")
BUDGETS = (12, 16, 24, 32, 48, 64)
"""Device time, in whole trials."""

WORKERS = 8
CHOICE = 24
FINALISTS = 3
OBJECTIVE = Objective("ndcg_at_20", "max")


def scheduler(name: str, epochs: int) -> Scheduler | None:
    """A scheduler of the product by name."""
    if name == "none":
        return None
    by_name: dict[str, Scheduler] = {"median": Median(), "racing": Racing(epochs)}
    return by_name.get(name) or Halving(brackets(epochs, name))  # type: ignore[arg-type]


def one(recording: Recording, name: str, order: Array, device_seconds: float, workers: int) -> Replay:
    """One replay of a scheduler."""
    epochs = recording.epochs[-1]
    new = scheduler(name, epochs)
    return replay(
        recording, order, new, workers=workers, device_seconds=device_seconds,
        rungs=rungs(epochs, name),  # type: ignore[arg-type]
        observe=new.observe if isinstance(new, Racing) else None,
    )  # fmt: skip


def schedulers(recording: Recording, replays: int) -> dict[str, Any]:
    """By scheduler: test and validation value of the winner at each of :data:`BUDGETS`, and the errors."""
    whole = recording.whole
    best = recording.values.max(axis=1)
    result = {}
    for name in SCHEDULERS:
        test = np.full((replays, len(BUDGETS)), np.nan)
        validation = test.copy()
        wrong = started = stopped = lost = 0
        for index in range(replays):
            order = np.random.default_rng(index).permutation(len(best))
            played = one(recording, name, order, max(BUDGETS) * whole, WORKERS)
            for column, budget in enumerate(BUDGETS):
                if complete := played.complete_at(budget * whole):
                    winner = complete[int(np.argmax(best[complete]))]
                    test[index, column] = recording.test[winner]
                    validation[index, column] = best[winner]
            wrong += played.stopped_winners() > 0
            started += played.started
            stopped += len(played.stopped)
            lost += played.stopped_winners()
        result[name] = {
            "test": _rounded(np.nanmean(test, axis=0)),
            "test_se": _rounded(np.nanstd(test, axis=0, ddof=1) / np.sqrt((~np.isnan(test)).sum(axis=0))),
            "validation": _rounded(np.nanmean(validation, axis=0)),
            "without_winner": _rounded(np.isnan(test).mean(axis=0)),
            "wrong": round(wrong / replays, 4),
            "wrong_of_stopped": round(lost / max(1, stopped), 5),
            "started": round(started / replays, 1),
            "stopped": round(stopped / replays, 1),
        }
    return result


def selectors(recording: Recording, replays: int) -> dict[str, Any]:
    """By selector: the mean test value over seeds of the trial it chooses, and the trainings it needs."""
    kept = np.arange(len(recording.repeated))
    at_best = recording.repeat_units.astype(np.float32).mean(axis=3)  # (R, S, K)
    value = recording.values[recording.repeated].max(axis=1)
    seeds = np.concatenate([value[:, None], at_best.max(axis=2)], axis=1)
    units = np.stack([recording.units[t, recording.best[t]] for t in recording.repeated]).astype(np.float64)
    truth = np.concatenate([recording.test[recording.repeated][:, None], recording.repeat_test], axis=1).mean(axis=1)

    def by_estimate(chosen: Array) -> int:
        candidates = [
            Candidate(int(i), float(value[i]), (float(value[i]),), UnitValues(units.shape[1], "", units[i]))
            for i in chosen[np.argsort(-value[chosen])]
        ]
        selection = select(candidates, OBJECTIVE)
        assert selection is not None
        return selection.best

    def by_finalists(chosen: Array) -> int:
        finalists = chosen[np.argsort(-value[chosen])][:FINALISTS]
        return int(finalists[np.argmax(seeds[finalists].mean(axis=1))])

    choices: dict[str, tuple[Callable[[Array], int], float]] = {
        "largest value": (lambda chosen: int(chosen[np.argmax(value[chosen])]), CHOICE),
        "estimate": (by_estimate, CHOICE),
        f"{FINALISTS} finalists": (by_finalists, CHOICE + FINALISTS * (seeds.shape[1] - 1)),
        "mean over seeds": (lambda chosen: int(chosen[np.argmax(seeds[chosen].mean(axis=1))]), CHOICE * seeds.shape[1]),
    }
    sets = [np.random.default_rng(index).permutation(kept)[:CHOICE] for index in range(replays)]
    return {
        name: {
            "test": round(float(np.mean([truth[choose(chosen)] for chosen in sets])), 4),
            "regret": round(float(np.mean([truth[chosen].max() - truth[choose(chosen)] for chosen in sets])), 4),
            "trainings": trainings,
        }
        for name, (choose, trainings) in choices.items()
    }


def coverage(recording: Recording, replays: int) -> dict[str, Any]:
    """How often the contenders of :data:`CHOICE` trials of one seed contain the best one, and their average number.

    ``units``: validation is drawn from the recorded units, with replacement, half as many. All of them are the
    population over which the best trial is known, and nothing but the draw is noise. ``test``: validation as recorded;
    the best one is that by the test split, on average over seeds, of which the contenders of one seed know nothing.
    """
    repeated = recording.repeated
    units = np.stack([recording.units[t, recording.best[t]] for t in repeated]).astype(np.float64)
    test = np.concatenate([recording.test[repeated][:, None], recording.repeat_test], axis=1).mean(axis=1)
    size = units.shape[1] // 2
    inside, sizes = {"units": 0, "test": 0}, {"units": 0, "test": 0}
    for index in range(replays):
        random = np.random.default_rng(index)
        chosen = random.permutation(len(repeated))[:CHOICE]
        drawn = units[chosen][:, random.integers(units.shape[1], size=size)]
        for name, values, truth in (("units", drawn, units.mean(axis=1)), ("test", units[chosen], test)):
            found = _contenders(chosen, values)
            inside[name] += int(chosen[truth[chosen].argmax()]) in found
            sizes[name] += len(found)
    return {
        name: {"covered": round(inside[name] / replays, 4), "contenders": round(sizes[name] / replays, 1)}
        for name in inside
    }


def _contenders(trials: Array, values: Array) -> tuple[int, ...]:
    """The trials that cannot be separated from the best one. ``values``: (trials, units)."""
    means = values.mean(axis=1)
    candidates = [
        Candidate(int(trials[i]), float(means[i]), (float(means[i]),), UnitValues(values.shape[1], "", values[i]))
        for i in np.argsort(-means)
    ]
    selection = select(candidates, OBJECTIVE)
    assert selection is not None
    return selection.contenders or ()


def table(result: dict[str, Any]) -> str:
    """Both parts as Markdown."""
    about = result["about"]
    budgets = " | ".join(f"{budget}" for budget in BUDGETS)
    fixed = " ".join(f"{name}={value}" for name, value in about["fixed"].items())
    lines = [
        f"{about['dataset']} {fixed}: {result['trials']} trials, {result['replays']} replays. Test NDCG@20 of the "
        "winner after the device time of so many whole trials.",
        "",
        f"| scheduler | {budgets} | trials started | wrong |",
        "| --- |" + " --- |" * (len(BUDGETS) + 2),
    ]
    for name, row in result["schedulers"].items():
        values = " | ".join(f"{value:.4f}" for value in row["test"])
        lines.append(f"| {name} | {values} | {row['started']:.0f} | {row['wrong']:.3f} |")
    if "selectors" not in result:
        return "\n".join(lines) + "\n"
    lines += ["", "| selector | trainings | test, mean over seeds | regret |", "| --- | --- | --- | --- |"]
    for name, row in result["selectors"].items():
        lines.append(f"| {name} | {row['trainings']:.0f} | {row['test']:.4f} | {row['regret']:.4f} |")
    lines += ["", "| the best one is that | in the set | trials in the set |", "| --- | --- | --- |"]
    for name, meaning in (("units", "over all units, of which half were drawn"), ("test", "by test, mean over seeds")):
        row = result["coverage"][name]
        lines.append(f"| {meaning} | {row['covered']:.3f} | {row['contenders']:.1f} |")
    return "\n".join(lines) + "\n"


def _rounded(values: Array) -> list[float]:
    return [round(float(value), 5) for value in values]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(words)
    for file in options.recordings:
        recording = read(file)
        started = time.monotonic()
        result = {
            "about": recording.about,
            "trials": len(recording.test),
            "replays": options.replays,
            "budgets": BUDGETS,
            "workers": WORKERS,
            "commit": commit(),
            "schedulers": schedulers(recording, options.replays),
        }
        if len(recording.repeated) >= CHOICE:
            result["selectors"] = selectors(recording, options.replays)
            result["coverage"] = coverage(recording, options.replays)
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"replay-{recording.about['search']}"
        (options.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        (options.out / f"{name}.md").write_text(table(result))
        print(table(result), f"{time.monotonic() - started:.0f} s", sep="\n", flush=True)


if __name__ == "__main__":
    main()
