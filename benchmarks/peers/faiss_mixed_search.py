"""faiss-cpu's indexes of two parts with lists merged, one process: queries per second and memory, as JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import faiss
import numpy as np

MODELS = ("old", "new")


def peak_kb(reset: bool = False) -> int:
    """Highest resident size since the start or the last reset. A new process inherits its parent's in getrusage."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with what mixed_search.py writes")
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lists", type=int, help="approximate search with so many lists in all")
    parser.add_argument("--probes", type=int, default=1)
    args = parser.parse_args()
    faiss.omp_set_num_threads(args.threads)
    imported = peak_kb(reset=True)
    docs = {name: np.load(args.folder / f"{name}-docs.npy") for name in MODELS}
    gone = np.load(args.folder / "gone.npy")
    rows_of = {
        "old": np.flatnonzero(~np.isin(docs["old"], docs["new"]) & ~np.isin(docs["old"], gone)),
        "new": np.flatnonzero(~np.isin(docs["new"], gone)),
    }
    count = sum(map(len, rows_of.values()))
    parts = []
    for name, kept in rows_of.items():
        rows = np.load(args.folder / f"{name}.npy", mmap_mode="r")[kept]
        index = faiss.IndexFlatIP(rows.shape[1])
        if args.lists:
            lists = max(1, args.lists * len(rows) // count)
            index = faiss.IndexIVFFlat(index, rows.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.max_points_per_centroid = 64
            index.nprobe = args.probes
            index.train(rows)
        index.add(rows)
        parts.append((index, np.load(args.folder / f"{name}-queries.npy"), docs[name][kept]))
        del rows
    seconds = []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        scores, found = [], []
        for index, queries, own in parts:
            values, rows = index.search(queries, args.k)
            scores.append(np.where(rows < 0, -np.inf, values))
            found.append(own[rows])
        joined = np.concatenate(scores, 1)
        order = np.argsort(-joined, axis=1, kind="stable")[:, : args.k]
        result = np.take_along_axis(np.concatenate(found, 1), order, 1)
        seconds.append(time.perf_counter() - started)
    np.save(args.folder / f"faiss-{'approximate' if args.lists else 'exact'}.npy", result)
    memory = (peak_kb() - imported) / 1024
    print(json.dumps({"queries_per_second": len(parts[0][1]) / min(seconds[1:]), "memory_mb": memory}))


if __name__ == "__main__":
    main()
