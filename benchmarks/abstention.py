"""Whether a promised risk holds: 1,000 draws of calibration queries, from models that have not seen them.

VERA is trained with a part of the queries held out. That part and the test part, one query of each family, are the
population. Each draw takes as many calibration queries as the part has and asks for a threshold; the risk among the
answered queries of the population is then known. On the generated questions the probability of success of each query
is known too: their labels are drawn again in each draw, and risks are exact. ``usual`` is the threshold of the largest
share of calibration queries with a risk of at most α among them, as ``selective/score/threshold`` is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HERE, data_root, origin, read_results, write_results
from numpy.typing import NDArray
from scipy import stats

from workloads.abstention.calibration import temperatures_of
from workloads.abstention.drift import drift
from workloads.abstention.guarantees import Answering, Grid, conformal_risk_control, learn_then_test
from workloads.abstention.part import one_of_each
from workloads.contract import Runtime
from workloads.data import DATASETS
from workloads.data.questions.synthetic import SYNTHETIC_QUESTIONS, Planted, generate
from workloads.losses.evidential import top
from workloads.metrics import calibration
from workloads.vera.abstention import abstention_side, scored
from workloads.vera.evaluation import LabelledQueries
from workloads.vera.inference import rank
from workloads.vera.params import Params
from workloads.vera.published import MAIN
from workloads.vera.workload import Vera

RISKS = (0.05, 0.1, 0.2)
DELTA = 0.1
LEVEL = 0.01
"""Of the test for drift."""

PART = 0.2
GENERATED = "synthetic-questions"
TOPICS = 600
METHODS = ("ltt", "ltt, several k", "crc", "usual")
SUCCESSES = ("top_1", "top_3")
FILES = {"pathquestion": "pathquestion/questions.jsonl.gz", "scifact": "scifact/queries.jsonl"}
SMALLER: Mapping[str, Any] = {"encoder": "tiny", "max_length": 64, "eval_candidates": 50}
"""Smaller than in the published tables, so that a CPU is enough: the promise does not depend on the model."""

EPOCHS = 10
STEPS = 40
"""Of an epoch."""

POINTS = 50
"""Thresholds of a grid."""


@dataclass(frozen=True, eq=False)
class Population:
    """N queries: ``scores`` by kind and success, ``failure`` by success, its probability or 0 and 1, (N,) each.

    ``grids``: by kind and success, from the validation part. ``n``: queries of a calibration draw. ``known``: whether
    ``failure`` is a probability.
    """

    scores: Mapping[str, Mapping[str, NDArray[np.float64]]]
    failure: Mapping[str, NDArray[np.float64]]
    grids: Mapping[str, Mapping[str, Grid]]
    n: int
    known: bool

    def draw(self, random: np.random.Generator) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
        """Calibration queries, drawn independently, and their losses by success; with known truth, with new labels."""
        rows = random.integers(len(self.failure["top_1"]), size=self.n)
        if not self.known:
            return rows, {success: failure[rows] for success, failure in self.failure.items()}
        label = random.random(self.n)
        return rows, {one: (label < failure[rows]).astype(np.float64) for one, failure in self.failure.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[GENERATED, "pathquestion", "scifact"])
    parser.add_argument("--epochs", type=int, help="of each training, for a quick look, which is not stored")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    file = HERE / "results" / "abstention.json"
    results = read_results(file)
    for name in args.only:
        made = origin()
        population = trained(name, args.epochs)
        rows = [row for kind in population.scores for row in measured(population, kind, args.draws)]
        size = len(population.failure["top_1"])
        about = {"queries": size, "calibration": population.n, "draws": args.draws, "delta": DELTA}
        shift = {"drift": alarms(population, args.draws)}
        results[name] = {**made, **about, "scores": ordered(population), **shift, "rows": rows}
        show(name, results[name])
        if args.epochs is None:
            write_results(file, results)


def trained(name: str, epochs: int | None) -> Population:
    """Train a model with a part held out, and score everything that it has not seen."""
    params: dict[str, Any] = {"eval_k": 1}
    length = epochs or EPOCHS
    if name == GENERATED:
        planted = Planted(TOPICS)
        known = replace(SYNTHETIC_QUESTIONS, version=f"{TOPICS} topics", reader=lambda _: generate(planted))
        DATASETS[GENERATED] = known  # type: ignore[index]
        root = Path()
    else:
        row = next(row for row in MAIN.rows(name) if row.method == "VERA")
        params = {**row.settings.params, **SMALLER}
        root = data_root(FILES[name])
    runtime = Runtime(device=torch.device("cpu"), data=root, seed=0, epochs=length, abstention_part=PART)
    runtime = replace(runtime, steps_per_epoch=STEPS)
    vera = Vera(Params(**{**params, "dataset": name}), runtime)
    for epoch in range(1, length + 1):
        vera.train_epoch(epoch)
    data = vera.data
    test = one_of_each(data.parts.test, 0, data.pool.family)
    test = test[data.pool.lengths[test] > 0]
    whole = np.concatenate([data.abstention, test])
    validation = scored(
        rank(vera.model, data, data.parts.validation, vera.params, runtime), data, data.parts.validation
    )
    ranked = rank(vera.model, data, whole, vera.params, runtime)
    ks = [1, 3]
    temperatures = temperatures_of({"": validation.ranking}, ks)
    sides = [abstention_side(one, ks, vera.params, temperatures) for one in (validation, scored(ranked, data, whole))]
    seen = {one.name: one.losses for one in sides[0].successes}
    grids = {
        kind: {one: Grid.of(scores, seen[one], POINTS) for one, scores in by.items()}
        for kind, by in sides[0].scores.items()
    }
    failure = {one.name: one.losses for one in sides[1].successes}
    odds = LabelledQueries.of(data, whole).odds
    if odds is not None:
        failure = {f"top_{k}": 1 - odds.gather(1, top(ranked.scores, k)).sum(1).numpy() for k in ks}
    return Population(sides[1].scores, failure, grids, len(data.abstention), odds is not None)


def threshold(
    method: str, population: Population, kind: str, rows: NDArray[np.int64], losses: Mapping[str, NDArray[np.float64]],
    risk: float,
) -> tuple[str, Answering] | None:  # fmt: skip
    """What a method answers by, from a calibration draw: the success and the threshold.

    With several k, the first one that answers at least a half is taken, else the one that answers most.
    """
    scores = {one: population.scores[kind][one][rows] for one in SUCCESSES}
    grids = population.grids[kind]
    if method == "ltt, several k":
        each = [(one, learn_then_test(scores[one], losses[one], grids[one], risk, DELTA / 2)) for one in SUCCESSES]
        attained = [(one, answering) for one, answering in each if answering is not None]
        wide = [pair for pair in attained if pair[1].coverage >= 0.5]
        return wide[0] if wide else max(attained, key=lambda pair: pair[1].answered, default=None)
    own = scores["top_1"]
    failed = losses["top_1"]
    answering: Answering | None
    if method == "ltt":
        answering = learn_then_test(own, failed, grids["top_1"], risk, DELTA)
    elif method == "crc":
        answering = conformal_risk_control(own, failed, risk)
    else:
        value = calibration.threshold_at_risk(torch.from_numpy(own), torch.from_numpy(1 - failed), risk)
        answering = Answering(value, int((own >= value).sum()), len(own))
    return ("top_1", answering) if answering and answering.answered else None


def measured(population: Population, kind: str, draws: int) -> list[dict[str, Any]]:
    """For each risk and method: how often the risk is above what was asked, coverage, how often nothing is promised.

    ``above``: the risk among the answered of the population exceeds α. ``wrong``: the mean over draws of the share of
    all queries that are answered and fail, what ``crc`` bounds.
    """
    rows = []
    for risk in RISKS:
        random = np.random.default_rng(0)
        values: dict[str, list[tuple[float, float, float]]] = {method: [] for method in METHODS}
        for _ in range(draws):
            drawn, losses = population.draw(random)
            for method in METHODS:
                chosen = threshold(method, population, kind, drawn, losses, risk)
                if chosen is None:
                    values[method].append((0, 0, 0))
                    continue
                failure = population.failure[chosen[0]]
                answered = population.scores[kind][chosen[0]] >= chosen[1].threshold
                mean = float(failure[answered].mean()) if answered.any() else 0.0
                share = float(answered.mean())
                values[method].append((mean, share, mean * share))
        for method, results in values.items():
            each = np.array(results)
            above = int((each[:, 0] > risk + 1e-9).sum())
            ends = stats.binomtest(above, draws).proportion_ci(0.95, method="exact")
            rows.append(
                {
                    "score": kind, "risk": risk, "method": method, "above": above / draws, "above_low": ends.low,
                    "above_high": ends.high, "coverage": float(each[:, 1].mean()),
                    "refused": float((each[:, 1] == 0).mean()), "mean_risk": float(each[:, 0].mean()),
                    "wrong": float(each[:, 2].mean()),
                }
            )  # fmt: skip
    return rows


def alarms(population: Population, draws: int) -> dict[str, Any]:
    """How often ``drift`` gives an alarm, for calibration queries and as many others of the population as are left.

    ``false``: of all others, with the ends of its interval. ``shifted``: of those others that fail, in a tenth of the
    draws. By the first score.
    """
    scores = next(iter(population.scores.values()))["top_1"]
    failed = population.failure["top_1"] > 0.5
    random = np.random.default_rng(1)
    seen = {"false": 0, "shifted": 0}
    for number in range(draws):
        left = np.ones(len(scores), np.bool_)
        drawn = random.choice(len(scores), population.n, replace=False)
        left[drawn] = False
        for name, others in (("false", left), ("shifted", left & failed)):
            if name == "false" or number < draws // 10:
                found = drift(scores[drawn], scores[others], seed=number)
                seen[name] += found is not None and found.p <= LEVEL
    ends = stats.binomtest(seen["false"], draws).proportion_ci(0.95, method="exact")
    shares = {"false": seen["false"] / draws, "shifted": seen["shifted"] / max(1, draws // 10)}
    return {"level": LEVEL, **shares, "false_low": ends.low, "false_high": ends.high}


def ordered(population: Population) -> dict[str, dict[str, float]]:
    """AUROC and excess AURC of each score against the success ``top_1`` on the population."""
    success = torch.from_numpy(1 - population.failure["top_1"])
    table = {}
    for kind, by in population.scores.items():
        scores = torch.from_numpy(by["top_1"])
        table[kind] = {
            "auroc": float(calibration.auroc(scores, success)),
            "excess_aurc": float(calibration.excess_aurc(scores, success)),
            "aurc": float(calibration.aurc(scores, success)),
            "risk": float(1 - success.mean()),
        }
    return table


def show(name: str, result: Mapping[str, Any]) -> None:
    print(f"\n{name}: {result['queries']} queries, {result['calibration']} to calibrate with, {result['draws']} draws")
    print(f"drift: {result['drift']}")
    print("| score | AUROC | excess AURC | α | method | above α (95%) | coverage | refused | wrong of all |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        score = result["scores"][row["score"]]
        print(
            f"| {row['score']} | {score['auroc']:.3f} | {score['excess_aurc']:.4f} | {row['risk']} | {row['method']} "
            f"| {row['above']:.3f} ({row['above_low']:.3f} to {row['above_high']:.3f}) | {row['coverage']:.3f} "
            f"| {row['refused']:.3f} | {row['wrong']:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
