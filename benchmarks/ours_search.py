"""Exact top-k over a memory-mapped index, one process: queries per second of the best call, as JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from workloads.encoders.search import exact_topk
from workloads.lifelong.index import Index

SESSIONS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with index.npy and queries.npy")
    parser.add_argument("--k", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = np.load(args.folder / "index.npy", mmap_mode="r")
    index = Index("benchmark", rows.shape[1], True, args.folder / "index")
    for session, docs in enumerate(np.array_split(np.arange(len(rows)), SESSIONS)):
        index.append(session, docs, np.ascontiguousarray(rows[docs]))
    queries, seconds = torch.from_numpy(np.load(args.folder / "queries.npy")), []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        _, result = exact_topk(queries, index.blocks(), args.k)
        seconds.append(time.perf_counter() - started)
    np.save(args.folder / "ours.npy", result.numpy())
    print(json.dumps({"queries_per_second": len(queries) / min(seconds[1:])}))


if __name__ == "__main__":
    main()
