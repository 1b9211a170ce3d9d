"""NDCG@10 on SciFact's test queries with documents that are cut, and as the best of their passages.

MiniLM without training ranks BM25's top 20 by cosine, at most 192 tokens a text, bf16. The difference is tested over
queries. ``orchestrator reproduce ranker-passages`` trains with passages: about two hours of a core a run.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from harness import HERE, data_root, origin, write_results

from orchestrator.report.statistics import over_units
from workloads.contract import Runtime
from workloads.text_ranker.params import Params
from workloads.text_ranker.workload import TextRanker

RESULTS = HERE / "results" / "passages.json"
METRICS = ("ndcg_at_10", "mrr_at_10", "map", "truncated")
COMMON: dict[str, Any] = {"encoder": "minilm", "scoring": "bi", "max_length": 192, "eval_candidates": 20}


def main() -> None:
    torch.set_num_threads(1)
    units: dict[str, Any] = {}
    results: dict[str, Any] = {"settings": COMMON}
    for long in ("cut", "best_passage"):
        runtime = Runtime(torch.device("cpu"), data_root("scifact/queries.jsonl"), seed=0, epochs=1, precision="bf16")
        tested = TextRanker(Params(dataset="scifact", long_documents=long, **COMMON), runtime).evaluate("test")
        units[long] = tested.units["ndcg_at_10"]
        results[long] = {name: tested.metrics[name] for name in METRICS}
    gain = over_units(units["best_passage"], units["cut"])
    results |= {"gain": {"value": gain.value, "low": gain.low, "high": gain.high, "p": gain.p}, **origin()}
    write_results(RESULTS, results)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
