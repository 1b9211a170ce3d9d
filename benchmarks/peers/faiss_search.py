"""faiss-cpu's flat index with inner products, one process: queries per second of the best call, as JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import faiss
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with index.npy and queries.npy")
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    faiss.omp_set_num_threads(args.threads)
    rows, queries = np.load(args.folder / "index.npy"), np.load(args.folder / "queries.npy")
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    seconds = []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        _, found = index.search(queries, args.k)
        seconds.append(time.perf_counter() - started)
    np.save(args.folder / "faiss.npy", found)
    print(json.dumps({"queries_per_second": len(queries) / min(seconds[1:])}))


if __name__ == "__main__":
    main()
