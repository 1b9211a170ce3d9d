"""Exact search over the lifelong index, memory-mapped in five segments, compared with faiss-cpu's flat index in memory.

Random vectors of length one in 384 dimensions, the best 100 of each query; the best of several calls, without the first
of a process. It is an error if they do not find the same documents.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from harness import HERE, Benchmark, answer, arguments, peers_python, spawn, thread_count

DIM, K, CALLS = 384, 100, 5
AGREE = 0.999
"""Least share of documents that both find: their products may differ in the last bit."""


def rate(command: list[str], folder: Path, threads: int) -> float:
    """Queries per second of one process of a contestant."""
    words = [*command, "--folder", str(folder), "--k", str(K), "--calls", str(CALLS), "--threads", str(threads)]
    return float(answer(spawn(words, threads=threads)[0])["queries_per_second"])


def drawn(count: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, DIM), np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def agreement(folder: Path, one: str, other: str, least: float = 0.0) -> float:
    """Mean share of a query's documents that both found. Raises SystemExit below ``least``."""
    sides = [np.load(folder / f"{name}.npy") for name in (one, other)]
    share = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(*sides)]))
    if share < least:
        raise SystemExit(f"{one} and {other} have only {share:.2%} of the documents in common: no speeds to compare")
    return share


def main() -> None:
    parser = arguments("The lifelong index compared with faiss.", rounds=3)
    parser.add_argument("--documents", type=int, nargs="+", default=[7_520, 100_000])
    parser.add_argument("--queries", type=int, default=512)
    args = parser.parse_args()
    commands = {
        "ours": [sys.executable, str(HERE / "ours_search.py")],
        "faiss": [peers_python("peers-neural"), str(HERE / "peers" / "faiss_search.py")],
    }
    bench = Benchmark("lifelong_search", args.rounds, args.patience)
    for documents in args.documents:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.save(folder / "index.npy", drawn(documents, 0))
            np.save(folder / "queries.npy", drawn(args.queries, 1))
            for threads in (1, 2):
                names = {system: f"{system}, {documents:,} documents{thread_count(threads)}" for system in commands}
                bench.run(
                    {names[system]: partial(rate, command, folder, threads) for system, command in commands.items()}
                )
                what = f"best {K} of {documents:,}{thread_count(threads)}"
                bench.compare(what, "queries/s", names["ours"], names["faiss"], at_least=1.0)
            same = agreement(folder, "ours", "faiss", AGREE)
            bench.notes.append(f"{documents:,} documents: both found {same:.2%} of the same ones.")
    bench.finish()


if __name__ == "__main__":
    main()
