"""Triples per second in training MiniLM as a cross-encoder on Cranfield: ours compared with the note's loop.

The note encodes both documents of every triple separately, padded, in float32. Ours encodes the documents of a query
once, for all its triples, and in bf16. Same queries, documents, loss, optimiser,
length and dropout (none). A step has 8 queries with one relevant document and 3 others: 24 triples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import HERE, Benchmark, answer, arguments, data_root, spawn, thread_count

STEPS, WARM = 4, 1
NAMES = ("ours, bf16", "ours, fp32", "the note's loop, fp32", "the note's loop, bf16 autocast")
SETTINGS: dict[str, Any] = {
    "dataset": "cran", "encoder": "minilm", "max_length": 192, "batch_size": 8, "positives": 1, "negatives": 3,
    "dropout": 0.0, "bm25_weight": 0.5, "eval_candidates": 20,
}  # fmt: skip


def main() -> None:
    parser = arguments("Training steps of the text ranker compared with the note's loop.", rounds=3)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--contestant", choices=NAMES)
    args = parser.parse_args()
    if args.contestant:
        print(json.dumps({"triples": triples_a_second(args.contestant)}))
        return
    bench = Benchmark("text_ranker_step", args.rounds, args.patience)
    for threads in args.threads:
        bench.run({f"{name}{thread_count(threads)}": partial(apart, name, threads) for name in NAMES})
        for ours, theirs, least in ((0, 2, 2.5), (1, 2, 1.3), (0, 3, None)):
            mine, peer = (f"{NAMES[place]}{thread_count(threads)}" for place in (ours, theirs))
            bench.compare(mine, "triples/s", mine, peer, at_least=least)
    bench.finish()


def apart(name: str, threads: int) -> float:
    """Run one contestant in a separate process."""
    command = [sys.executable, str(HERE / "text_ranker_step.py"), f"--contestant={name}"]
    env = {"ORCHESTRATOR_DATA": str(data_root("classic-ir/cran/qrels.tsv"))}
    return float(answer(spawn(command, threads=threads, env=env)[0])["triples"])


def triples_a_second(name: str) -> float:
    import torch

    from workloads.contract import Runtime
    from workloads.data import default_data_root
    from workloads.text_ranker.params import Params
    from workloads.text_ranker.workload import TextRanker

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    precision: Any = "bf16" if "bf16" in name else "fp32"
    runtime = Runtime(torch.device("cpu"), default_data_root(), 0, 10, precision=precision, steps_per_epoch=STEPS)
    ranker = TextRanker(Params(**SETTINGS), runtime)
    epoch: Callable[[int], Any] = ranker.train_epoch if name.startswith("ours") else note(ranker)
    epoch(WARM)
    started = time.monotonic()
    epoch(WARM + 1)
    return STEPS * SETTINGS["batch_size"] * SETTINGS["negatives"] / (time.monotonic() - started)


def note(ranker: Any) -> Callable[[int], None]:
    """The note's loop over the triples of the same batches: two padded passes, RankNet with S = 1, AdamW."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional
    from transformers import AutoModel, AutoTokenizer

    from workloads.encoders.sources import folder_of

    folder, bf16 = folder_of(SETTINGS["encoder"]), ranker.runtime.precision == "bf16"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    linear = nn.Linear(model.config.hidden_size, 1)
    optimizer = torch.optim.AdamW([*model.parameters(), *linear.parameters()], lr=3e-5, weight_decay=0.01)
    queries, docs = (column.to_pylist() for column in (ranker.data.data.queries, ranker.data.data.docs))

    def scores(query_rows: Any, doc_rows: Any) -> torch.Tensor:
        pairs = [queries[row] for row in query_rows], [docs[row] for row in doc_rows]
        inputs = tokenizer(
            *pairs, truncation=True, max_length=SETTINGS["max_length"], padding=True, return_tensors="pt"
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            hidden = model(**inputs).last_hidden_state
        result: torch.Tensor = linear(hidden[:, 0].float())
        return result

    def epoch(number: int) -> None:
        for groups, _ in ranker.group_sampler.batches(ranker.runtime, number):
            row, place = np.nonzero(groups.docs[:, 1:] >= 0)
            query_rows = groups.queries[row]
            positive = scores(query_rows, groups.docs[row, 0])
            negative = scores(query_rows, groups.docs[row, 1 + place])
            torch.autograd.backward(-functional.logsigmoid(positive - negative).mean())
            optimizer.step()
            optimizer.zero_grad()

    return epoch


if __name__ == "__main__":
    main()
