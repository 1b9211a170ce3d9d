"""Search of a mutable index with rows of two models, one process: queries per second and memory, as JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from workloads.encoders.inverted_lists import InvertedLists
from workloads.lifelong.encoder_change import IndexPart, merged, search_parts
from workloads.lifelong.mutable_index import MutableIndex

MODELS = ("old", "new")
STORED = 100_000
"""Documents stored at once."""


def build(folder: Path) -> None:
    """Make the index: all documents by the old model, some of them again by the new one, and the deletions."""
    index = MutableIndex.create(folder / "index", "benchmark", np.load(folder / "old.npy", mmap_mode="r").shape[1])
    for model, name in enumerate(MODELS):
        rows = np.load(folder / f"{name}.npy", mmap_mode="r")
        docs = np.load(folder / f"{name}-docs.npy")
        for first in range(0, len(docs), STORED):
            part = slice(first, first + STORED)
            index.put(model, docs[part], np.ascontiguousarray(rows[part]))
    index.delete(np.load(folder / "gone.npy"))
    index.compact()


def peak_kb(reset: bool = False) -> int:
    """Highest resident size since the start or the last reset. A new process inherits its parent's in getrusage."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with what mixed_search.py writes")
    parser.add_argument("--build", action="store_true", help="make the index, and no more")
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lists", type=int, help="approximate search with so many lists in all")
    parser.add_argument("--probes", type=int, default=1)
    args = parser.parse_args()
    if args.build:
        build(args.folder)
        return
    torch.set_num_threads(args.threads)
    imported = peak_kb(reset=True)
    index = MutableIndex(args.folder / "index")
    queries = [torch.from_numpy(np.load(args.folder / f"{name}-queries.npy")) for name in MODELS]
    docs = [index.docs(model) for model in (0, 1)]
    search: Callable[[], tuple[torch.Tensor, NDArray[np.int64]]]
    if args.lists:
        sizes = [max(1, args.lists * len(own) // len(index)) for own in docs]
        lists = [InvertedLists(torch.from_numpy(index.vectors(model)), sizes[model]) for model in (0, 1)]

        def search() -> tuple[torch.Tensor, NDArray[np.int64]]:
            parts = [one.search(asked, args.k, args.probes) for one, asked in zip(lists, queries)]
            return merged([(scores, own[rows.numpy()]) for (scores, rows), own in zip(parts, docs)], args.k)

    else:
        one, zero = torch.ones(1), torch.zeros(1)

        def search() -> tuple[torch.Tensor, NDArray[np.int64]]:
            parts = [IndexPart(queries[model], index.blocks(model), docs[model], one, zero) for model in (0, 1)]
            return search_parts(parts, args.k)

    seconds = []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        _, result = search()
        seconds.append(time.perf_counter() - started)
    np.save(args.folder / f"ours-{'approximate' if args.lists else 'exact'}.npy", result)
    memory = (peak_kb() - imported) / 1024
    print(json.dumps({"queries_per_second": len(queries[0]) / min(seconds[1:]), "memory_mb": memory}))


if __name__ == "__main__":
    main()
