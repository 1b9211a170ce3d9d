"""Ranking losses on SciFact and Cranfield against BM25: NDCG@10, means over seeds, paired bootstrap over queries.

MiniLM on BM25's top 20 documents, at most 192 tokens, the epoch chosen on validation. ``scifact``: cross-encoder, each
loss with one seed, the two best on validation with three; ``top100``: these on BM25's top 100; ``further``: others with
one seed; ``cran``: bi-encoder, the losses for which grades matter, on Cranfield. Finished runs are not repeated, so the
script can be interrupted, and several can share the work. Without a part it prints the results: tables, comparisons of
losses, and shares of truncated sequences.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HERE, mean_text, origin, printed, read_results
from safetensors.torch import load_file, save_file

from orchestrator.report.statistics import Difference, holm, over_units
from workloads.contract import Evaluation, Runtime
from workloads.data import cache_dir, default_data_root
from workloads.data.cache import file_lock, replacing
from workloads.text_ranker.params import Params
from workloads.text_ranker.workload import TextRanker

RESULTS = HERE / "results" / "text_ranker_quality.json"

COMMON: dict[str, Any] = {"encoder": "minilm", "max_length": 192, "lr": 5e-5, "batch_size": 8, "dropout": 0.0}
"""Without dropout, which in attention takes more than half of a step on a CPU."""

SHALLOW, DEEP = 20, 100
KEPT = ("ndcg_at_10", "mrr_at_10", "map", "recall_at_10")
SYSTEMS = ("", "fused_", "bm25_")

LOSSES: dict[str, dict[str, Any]] = {
    "ranknet": {"loss": "ranknet"},
    "margin": {"loss": "margin"},
    "margin, learnt": {"loss": "margin", "learnable": True},
    "listwise": {"loss": "listwise"},
    "lambdarank": {"loss": "lambdarank"},
}
"""Losses on SciFact. With its two grades, adaptive losses equal the plain ones."""

FURTHER: dict[str, dict[str, Any]] = {
    "ranknet, bi-encoder": {"loss": "ranknet", "scoring": "bi", "lr": 2e-5},
    "ranknet, σ = 3": {"loss": "ranknet", "sigma": 3.0},
}
"""Further losses on SciFact, with one seed."""

GRADED: dict[str, dict[str, Any]] = {
    "ranknet": {"loss": "ranknet"},
    "adaptive ranknet": {"loss": "adaptive_ranknet"},
    "ranknet, S = 0 of judged": {"loss": "ranknet", "ties": "judged"},
    "adaptive ranknet, S = 0 of judged": {"loss": "adaptive_ranknet", "ties": "judged"},
    "margin": {"loss": "margin"},
    "adaptive margin": {"loss": "adaptive_margin"},
    "listwise": {"loss": "listwise"},
}
"""Losses on Cranfield."""

ON: dict[str, tuple[dict[str, Any], int]] = {
    "scifact": ({"dataset": "scifact", "negatives": 3}, 4),
    "cran": ({"dataset": "cran", "positives": 4, "negatives": 4, "batch_size": 4, "scoring": "bi", "lr": 2e-5}, 4),
}
"""Parameters and epochs. Cranfield's 90 training queries are too few for the new head of a cross-encoder (.21 on
validation after two epochs), so losses are compared there with a bi-encoder, which is a good ranker from the start."""


COMPARED: dict[str, list[tuple[str, str]]] = {
    "cran": [
        ("adaptive ranknet", "ranknet"),
        ("adaptive ranknet, S = 0 of judged", "adaptive ranknet"),
        ("ranknet, S = 0 of judged", "ranknet"),
        ("adaptive margin", "margin"),
        ("adaptive ranknet", "listwise"),
    ],
}
"""Pairs of losses to compare: with one difference each, and the first with the listwise loss."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["scifact", "top100", "further", "cran"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    seeds = range(arguments.seeds)
    if arguments.part in ("scifact", "top100"):
        for name in LOSSES:
            measure("scifact", name, 0)
        for seed, name in product(seeds, best()):
            measure("scifact", name, seed)
            if arguments.part == "top100":
                measure("scifact", name, seed, DEEP)
    if arguments.part == "further":
        for name in FURTHER:
            measure("scifact", name, 0)
    if arguments.part == "cran":
        for seed, name in product(seeds, GRADED):
            measure("cran", name, seed)
    printed(__file__)
    show()


def key(dataset: str, name: str, seed: int, depth: int = SHALLOW) -> str:
    return f"{dataset} | {name} | {seed} | top {depth}"


def best(count: int = 2) -> list[str]:
    """Losses of SciFact by validation with the first seed, best first."""
    done = read_results(RESULTS)
    return sorted(LOSSES, key=lambda name: -done[key("scifact", name, 0)]["validation"]["ndcg_at_10"])[:count]


def measure(dataset: str, name: str, seed: int, depth: int = SHALLOW) -> None:
    """Train and test one model, or test a trained one on deeper lists, and write the result."""
    own = key(dataset, name, seed, depth)
    if own in read_results(RESULTS):
        return
    started, file = time.monotonic(), cache_dir() / "text_ranker_quality" / f"{key(dataset, name, seed)}.safetensors"
    params, epochs = ON[dataset]
    settings = {**COMMON, **params, **{**LOSSES, **FURTHER, **GRADED}[name], "eval_candidates": depth}
    runtime = Runtime(torch.device("cpu"), default_data_root(), seed, epochs, precision="bf16", accumulate=2)
    ranker = TextRanker(Params(**settings), runtime)
    curve: list[dict[str, float]] = []
    if depth == SHALLOW:
        trained_from = time.monotonic()
        curve = train(ranker, epochs, file)
        print(f"{own}: {time.monotonic() - trained_from:.0f} s of training", flush=True)
    ranker.load_state_dict({**ranker.state_dict(), "model": load_file(file)})
    ranker.choose_weight()
    seen, tested = ranker.evaluate("validation"), ranker.evaluate("test")
    record(
        own,
        {
            "settings": settings,
            "epochs": epochs,
            "curve": curve,
            "validation": dict(seen.metrics),
            "test": dict(tested.metrics),
            "units": units(tested),
            "seconds": time.monotonic() - started,
            **origin(),
        },
    )
    print(f"{own}: NDCG@10 {tested.metrics['ndcg_at_10']:.4f}", flush=True)


def record(own: str, run: dict[str, Any]) -> None:
    """Add a run to the results; several processes may share the work."""
    with file_lock(cache_dir() / "text_ranker_quality" / "results.lock"):
        lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in {**read_results(RESULTS), own: run}.items())
        RESULTS.parent.mkdir(exist_ok=True)
        with replacing(RESULTS) as file:
            file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def train(ranker: TextRanker, epochs: int, file: Path) -> list[dict[str, float]]:
    """Losses and validation metrics of every epoch. Writes the weights of the best one to the file."""
    rows: list[dict[str, float]] = []
    file.parent.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, epochs + 1):
        found = {f"train/{name}": value for name, value in dict(ranker.train_epoch(epoch)).items()}
        found |= {name: ranker.evaluate("validation").metrics[name] for name in ("ndcg_at_10", "fused_ndcg_at_10")}
        if all(found["ndcg_at_10"] > row["ndcg_at_10"] for row in rows):
            save_file(ranker.state_dict()["model"], file)
        rows.append(found)
        print(f"{file.stem}: epoch {epoch}: {found}", flush=True)
    return rows


def units(evaluation: Evaluation) -> dict[str, list[float]]:
    """NDCG@10 of each query, for every system."""
    names = [f"{system}ndcg_at_10" for system in SYSTEMS]
    return {name: [round(float(value), 5) for value in evaluation.units[name]] for name in names}


def show() -> None:
    """Print the tables of all results."""
    done = read_results(RESULTS)
    for dataset, losses, depth in (("scifact", {**LOSSES, **FURTHER}, SHALLOW), ("scifact", LOSSES, DEEP),
                                   ("cran", GRADED, SHALLOW)):  # fmt: skip
        rows = {
            name: [done[own] for seed in range(9) if (own := key(dataset, name, seed, depth)) in done]
            for name in losses
        }
        rows = {name: found for name, found in rows.items() if found}
        if rows:
            print(f"\n{dataset}, BM25's top {depth}\n")
            table(rows)
            if depth == SHALLOW:
                compare(rows, COMPARED.get(dataset, []))
            cut(rows)


def table(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    bm25 = next(iter(rows.values()))[0]
    measured = " | ".join(f"{bm25['test'][f'bm25_{name}']:.4f}" for name in KEPT)
    print(
        "| system | seeds | validation | NDCG@10 | MRR@10 | MAP | recall@10 | weight of BM25 | against BM25, NDCG@10 |"
    )
    print("|---" * 9 + "|")
    print(f"| BM25 | | {bm25['validation']['bm25_ndcg_at_10']:.4f} | {measured} |||")
    for name, runs in rows.items():
        for system in SYSTEMS[:2]:
            values = [mean_text([run["test"][f"{system}{metric}"] for run in runs]) for metric in KEPT]
            seen = mean_text([run["validation"][f"{system}ndcg_at_10"] for run in runs])
            weight = mean_text([run["test"]["bm25_weight"] for run in runs]) if system else ""
            against = difference(over_units(mean_units(runs, system), mean_units(runs, "bm25_")))
            shown = f"{name}, with BM25" if system else name
            print(f"| {shown} | {len(runs)} | {seen} | {' | '.join(values)} | {weight} | {against} |")


def compare(rows: Mapping[str, list[dict[str, Any]]], pairs: Sequence[tuple[str, str]]) -> None:
    """Compare losses: paired bootstrap over queries of the means over seeds."""
    measured = [(one, other) for one, other in pairs if one in rows and other in rows]
    if not measured:
        return
    print("\n| compared, NDCG@10 | validation | test | Holm's p |\n|---|---|---|---|")
    found = [over_units(*(mean_units(rows[name], "") for name in pair)) for pair in measured]
    corrected = holm([1.0 if one.p is None else one.p for one in found])
    for pair, one, p in zip(measured, found, corrected):
        seen = [statistics.mean(run["validation"]["ndcg_at_10"] for run in rows[name]) for name in pair]
        print(f"| {' - '.join(pair)} | {seen[0] - seen[1]:+.4f} | {difference(one)} | {p:.2g} |")


def cut(rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Shares of sequences longer than ``max_length``. They depend on the data only."""
    shares: dict[str, list[str]] = {}
    for name, runs in rows.items():
        share = " and ".join(f"{runs[0][split]['truncated']:.1%} of {split}" for split in ("validation", "test"))
        shares.setdefault(share, []).append(name)
    for share, names in shares.items():
        print(f"\nSequences cut: {share} ({'; '.join(names)})")


def mean_units(runs: Sequence[Mapping[str, Any]], system: str) -> Any:
    """NDCG@10 of each test query, mean over seeds."""
    return np.mean([run["units"][f"{system}ndcg_at_10"] for run in runs], axis=0)


def difference(found: Difference) -> str:
    """Mean difference with interval and p."""
    tested = "" if found.p is None else f" [{found.low:+.4f}, {found.high:+.4f}], p = {found.p:.2g}"
    return f"{found.value:+.4f}{tested}"


if __name__ == "__main__":
    main()
