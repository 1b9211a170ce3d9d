"""Training epochs of the recommender on ML-100K compared with RecBole, a DataLoader with Python collate, and implicit.

An epoch includes shuffle, negative sampling, forward, backward and step over 80,000 interactions, but no evaluation. d
= 32, batches of 2,048, Adam. Counts epochs from the fifth on: their median in a process, then the median over rounds.
One and two threads, set at the start of each process.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from harness import HERE, Benchmark, Contestant, answer, arguments, peers_python, spawn, thread_count

WARM_UP = 4
OURS, RECBOLE, DATALOADER, IMPLICIT = "ours", "RecBole", "DataLoader", "implicit"
AUTHORS = "ours lightgcn, as the authors' one layer"
AUTHORS_LIGHTGCN = 80_000
"""Examples per second of the LightGCN of the thesis' author on ML-100K, one layer, batches of 1,024, measured once on
two cores of an AMD EPYC."""


def median_epoch(command: list[str], epochs: int, threads: int, warm_up: int = WARM_UP) -> tuple[float, int]:
    """Median seconds of an epoch after the warm-up, in one process of a contestant, and the examples of an epoch."""
    words = [*command, "--epochs", str(warm_up + epochs), "--threads", str(threads)]
    result = answer(spawn(words, threads=threads)[0])
    return statistics.median(result["seconds"][warm_up:]), result["examples"]


def examples_a_second(command: list[str], epochs: int, threads: int) -> float:
    """Rate of one process of a contestant over the epochs after the warm-up."""
    seconds, examples = median_epoch(command, epochs, threads)
    return examples / seconds


def contestants(threads: int) -> dict[str, Contestant]:
    ours, peers = [sys.executable, str(HERE / "ours_epoch.py"), "--backbone"], str(HERE / "peers")
    recbole = [peers_python(), f"{peers}/recbole_epoch.py", "--backbone"]
    commands = {
        f"{OURS} mf": ([*ours, "mf"], 40),
        f"{RECBOLE} mf": ([*recbole, "mf"], 16),
        f"{DATALOADER} mf": ([sys.executable, f"{peers}/dataloader_epoch.py"], 12),
        f"{IMPLICIT} mf": ([peers_python(), f"{peers}/implicit_epoch.py"], 40),
        f"{OURS} lightgcn": ([*ours, "lightgcn"], 16),
        f"{RECBOLE} lightgcn": ([*recbole, "lightgcn"], 6),
        AUTHORS: ([*ours, "lightgcn", "--layers", "1", "--batch-size", "1024"], 16),
    }
    return {
        name + thread_count(threads): partial(examples_a_second, command, epochs, threads)
        for name, (command, epochs) in commands.items()
    }


def main() -> None:
    args = arguments("Training epochs on ML-100K, ours compared with peers.", rounds=3).parse_args()
    bench = Benchmark("mf_epoch", args.rounds, args.patience)
    for threads in (1, 2):
        bench.run(contestants(threads))
        suffix = thread_count(threads)
        ours, lightgcn = f"{OURS} mf{suffix}", f"{OURS} lightgcn{suffix}"
        bench.hold(f"MF-BPR{suffix}", "ex/s", ours, at_least=0.7e6)
        bench.compare(f"MF-BPR{suffix}", "ex/s", ours, f"{RECBOLE} mf{suffix}", at_least=1)
        bench.compare(f"MF-BPR{suffix}", "ex/s", ours, f"{DATALOADER} mf{suffix}", at_least=3)
        bench.compare(f"MF-BPR{suffix}", "ex/s", ours, f"{IMPLICIT} mf{suffix}")
        bench.compare(f"LightGCN-BPR{suffix}", "ex/s", lightgcn, f"{RECBOLE} lightgcn{suffix}", at_least=3)
        what = f"LightGCN-BPR, one layer (authors {AUTHORS_LIGHTGCN:,}){suffix}"
        bench.hold(what, "ex/s", AUTHORS + suffix, at_least=3 * AUTHORS_LIGHTGCN)
    bench.notes += [
        "DataLoader: plain PyTorch with Python collate. LightGCN has two layers, in batches of 2,048, where not said.",
        "implicit counts draws: one that hits a positive is skipped, not drawn again.",
    ]
    bench.finish()


if __name__ == "__main__":
    main()
