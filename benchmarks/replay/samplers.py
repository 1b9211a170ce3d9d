"""Samplers on recorded trials: what each finds in so many trials.

    python -m benchmarks.replay.samplers .cache/recordings/gbpr.npz

A suggestion is answered by the nearest recorded trial that was not used yet, one after the other. The distance is
Euclidean over the searched parameters, each scaled to its range (by its logarithm where it is searched so); categories
differ by 1. The samplers are those of a sweep, and learn from the recorded parameters and values. The winner is the
trial with the best value on validation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, json_to_distribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from benchmarks.harness import HERE, commit
from benchmarks.replay.recording import Array, Recording, read
from orchestrator.search import samplers

Factory = Callable[[int], BaseSampler]
"""A sampler for a seed."""

SAMPLERS: dict[str, Factory] = {
    "random": lambda seed: samplers.sampler("random", seed),
    "tpe": lambda seed: samplers.sampler("tpe", seed),
    "tpe from 10": lambda seed: TPESampler(seed=seed, n_startup_trials=10),
    "gp": lambda seed: samplers.sampler("gp", seed),
    "gp from 5": lambda seed: GPSampler(seed=seed, n_startup_trials=5),
}
"""The samplers of a sweep, and variants that learn from another number of trials on."""

BUDGETS = (6, 9, 12, 16, 24, 32, 48, 64)
"""Numbers of trials."""


def positions(params: Sequence[Mapping[str, Any]], distributions: Mapping[str, BaseDistribution]) -> Array:
    """(trials, dimensions): parameters scaled to their ranges; a category has a dimension of each choice."""
    columns = []
    for name, distribution in distributions.items():
        values = [each[name] for each in params]
        if isinstance(distribution, CategoricalDistribution):
            columns += [np.array([value == choice for value in values]) / 2**0.5 for choice in distribution.choices]
            continue
        scale = np.log if distribution.log else np.asarray  # type: ignore[attr-defined]
        low, high = scale(distribution.low), scale(distribution.high)  # type: ignore[attr-defined]
        columns.append((scale(values) - low) / (high - low))
    return np.stack(columns, axis=1)


def play(recording: Recording, sampler: Factory, trials: int, seed: int) -> list[int]:
    """The recorded trials that ``trials`` suggestions lead to."""
    distributions = {key: json_to_distribution(text) for key, text in recording.about["distributions"].items()}
    study = optuna.create_study(direction="maximize")
    pool = positions(recording.params, distributions)
    best = recording.values.max(axis=1)
    free = np.ones(len(pool), dtype=bool)
    used: list[int] = []
    for number in range(trials):
        study.sampler = sampler(samplers.seed_of(seed, number))
        suggested = study.ask(distributions)
        study.tell(suggested, state=TrialState.FAIL)  # in its place its neighbour is complete
        distance = ((pool - positions([suggested.params], distributions)) ** 2).sum(axis=1)
        nearest = int(np.where(free, distance, np.inf).argmin())
        free[nearest] = False
        used.append(nearest)
        params = recording.params[nearest]
        study.add_trial(create_trial(params=params, distributions=distributions, value=float(best[nearest])))
    return used


def compare(recording: Recording, replays: int, of_gp: int) -> dict[str, Any]:
    """By sampler: test and validation value of the winner after each of :data:`BUDGETS`, and CPU seconds a suggestion.

    GP, whose suggestions are slow, is replayed ``of_gp`` times, up to half of the largest number of trials.
    """
    best = recording.values.max(axis=1)
    result = {}
    for name, sampler in SAMPLERS.items():
        is_gp = name.startswith("gp")
        seeds = of_gp if is_gp else replays
        budgets = [budget for budget in BUDGETS if budget <= max(BUDGETS) / (1 + is_gp)]
        winners = np.empty((seeds, len(budgets)), dtype=int)
        started = time.process_time()
        for seed in range(seeds):
            used = np.array(play(recording, sampler, budgets[-1], seed))
            winners[seed] = [used[best[used[:budget]].argmax()] for budget in budgets]
        seconds = time.process_time() - started
        test, validation = recording.test[winners], best[winners]
        result[name] = {
            "replays": seeds,
            "trials": budgets,
            "test": np.round(test.mean(axis=0), 5).tolist(),
            "test_se": np.round(test.std(axis=0, ddof=1) / seeds**0.5, 5).tolist(),
            "validation": np.round(validation.mean(axis=0), 5).tolist(),
            "validation_se": np.round(validation.std(axis=0, ddof=1) / seeds**0.5, 5).tolist(),
            "seconds": round(seconds / (seeds * budgets[-1]), 4),
        }
    return result


def table(result: Mapping[str, Any]) -> str:
    """Values of the winner by number of trials, as Markdown."""
    about = result["about"]
    fixed = " ".join(f"{name}={value}" for name, value in about["fixed"].items())
    lines = [
        f"{about['dataset']} {fixed}: {result['trials']} trials. NDCG@20 of the winner after so many trials, with its "
        "standard error, and CPU seconds a suggestion."
    ]
    for split in ("validation", "test"):
        lines += [
            "",
            f"| {split} | {' | '.join(map(str, BUDGETS))} | replays | seconds |",
            "| --- |" + " --- |" * (len(BUDGETS) + 2),
        ]
        for name, row in result["samplers"].items():
            values = [f"{value:.4f} ± {se:.4f}" for value, se in zip(row[split], row[f"{split}_se"])]
            values += [""] * (len(BUDGETS) - len(values))
            lines.append(f"| {name} | {' | '.join(values)} | {row['replays']} | {row['seconds']:.3f} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--replays", type=int, default=60)
    parser.add_argument("--gp-replays", type=int, default=20, help="Of GP, whose suggestions are slow.")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args(words)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    for file in options.recordings:
        recording = read(file)
        result = {
            "about": recording.about,
            "trials": len(recording.test),
            "commit": commit(),
            "samplers": compare(recording, options.replays, options.gp_replays),
        }
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"replay-samplers-{recording.about['search']}"
        (options.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        (options.out / f"{name}.md").write_text(table(result))
        print(table(result), flush=True)


if __name__ == "__main__":
    main()
