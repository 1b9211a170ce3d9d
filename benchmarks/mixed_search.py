"""Search of a lifelong index of which a part was embedded again, exact and approximate, compared with faiss-cpu.

Clustered unit vectors in 384 dimensions: a tenth of the documents has rows of a second model, and one in a hundred was
deleted. Each part is searched with query vectors of its own, and both lists are merged. Exact: faiss has a flat index
for each part. Approximate: lists by the nearest centre, the same numbers of lists and probes on both sides. The best
100 of each query; the best of several calls. Memory is what the highest resident
size of a process has grown by since its imports; that of the mapped index is the operating system's to take back.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from harness import HERE, Benchmark, answer, arguments, peers_python, spawn, thread_count
from lifelong_search import AGREE, DIM, K, agreement

CLUSTERS, NOISE = 1000, 0.06
EMBEDDED_AGAIN, DELETED = 10, 100
"""Every so many documents."""


def drawn(count: int, seed: int) -> np.ndarray:
    """Unit vectors around common centres, (count, DIM)."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, DIM), np.float32) / DIM**0.5
    random = np.random.default_rng(seed)
    rows = np.empty((count, DIM), np.float32)
    for first in range(0, count, 2**16):
        part = rows[first : first + 2**16]
        part[:] = centres[random.integers(CLUSTERS, size=len(part))]
        part += NOISE * random.standard_normal(part.shape, np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return rows


def write(folder: Path, documents: int, queries: int) -> None:
    """Rows and queries of both models, and the documents of each part."""
    docs = np.arange(documents)
    again = docs[docs % EMBEDDED_AGAIN == 0]
    gone = docs[docs % DELETED == 1]
    np.save(folder / "gone.npy", gone)
    np.save(folder / "old-docs.npy", docs)
    np.save(folder / "new-docs.npy", again)
    for number, (name, count) in enumerate((("old", documents), ("new", len(again)))):
        np.save(folder / f"{name}.npy", drawn(count, 1 + number))
        np.save(folder / f"{name}-queries.npy", drawn(queries, 11 + number))


def measured(key: str, command: list[str], threads: int) -> dict[str, float]:
    """Queries per second and memory of one process."""
    result = answer(spawn([*command, "--threads", str(threads)], threads=threads)[0])
    return {key: result["queries_per_second"], f"{key}, memory": result["memory_mb"]}


def main() -> None:
    parser = arguments("A lifelong index with rows of two models compared with faiss.", rounds=3)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    scripts = {
        "ours": [sys.executable, str(HERE / "ours_mixed_search.py")],
        "faiss": [peers_python("peers-neural"), str(HERE / "peers" / "faiss_mixed_search.py")],
    }
    bench = Benchmark("mixed_search", args.rounds, args.patience)
    for documents in args.documents:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, documents, args.queries)
            spawn([*scripts["ours"], "--folder", str(folder), "--build"])
            for kind, threads in ((kind, threads) for kind in ("exact", "approximate") for threads in args.threads):
                contestants = {}
                for system, script in scripts.items():
                    words = {"--folder": folder, "--k": K, "--calls": args.calls}
                    lists = {"--lists": args.lists, "--probes": args.probes} if kind == "approximate" else {}
                    command = [*script, *(str(word) for pair in (words | lists).items() for word in pair)]
                    key = f"{system}, {kind}, {documents:,} documents{thread_count(threads)}"
                    contestants[key] = partial(measured, key, command, threads)
                bench.run(contestants)
                bench.compare(f"{kind}, best {K} of {documents:,}{thread_count(threads)}", "queries/s", *contestants)
                for key in contestants:
                    bench.notes.append(f"{key}: at most {max(bench.samples[f'{key}, memory']):,.0f} MB.")
            for one, other, least in (("ours-exact", "faiss-exact", AGREE), ("ours-approximate", "ours-exact", 0.0),
                                      ("faiss-approximate", "faiss-exact", 0.0)):  # fmt: skip
                share = agreement(folder, one, other, least)
                bench.notes.append(f"{documents:,} documents: {one} and {other} have {share:.2%} in common.")
    bench.finish()


if __name__ == "__main__":
    main()
