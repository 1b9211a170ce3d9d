"""Epochs of the recommender in batches, by loss and sampler, as ratios to BPR with uniform negatives.

Matrix factorisation, d = 32, Adam, one thread, on ML-100K in batches of 1,024 and on generated data of Gowalla's size
in batches of 8,192. Models are built once; a sample is the median of some epochs, in turn (A B A B). With
``--device cuda`` both are trained on the GPU, in batches of 8,192; ``--peak`` adds a row with the share of the GPU's
memory bandwidth that BPR's epoch uses. ``--only BCL`` measures the methods with this prefix, and their references.
"""

from __future__ import annotations

import resource
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Benchmark, Row, arguments, data_root

from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

AUTHORS_DPL = 65_000
"""Examples per second of the authors' DPL with M = N = 10 on ML-100K, measured once on two cores of an AMD EPYC."""

SMALL, LARGE = "ML-100K", "Gowalla's size"
METHODS: dict[str, dict[str, Any]] = {
    "BPR": {},
    "PNS": {"sampler": "popularity"},
    "DNS": {"sampler": "dns"},
    "BNS, sampled": {"sampler": "bns", "ecdf": "sampled"},
    "BNS, exact": {"sampler": "bns"},
    "DPL, M = N = 5": {"loss": "dpl", "negatives": 5, "positives": 5},
    "DPL, M = N = 10": {"loss": "dpl", "negatives": 10, "positives": 10},
    "InfoNCE, N = 64": {"loss": "infonce", "negatives": 64},
    "BCL, N = 64": {"loss": "bcl", "negatives": 64, "alpha": 0.9},
    "BCL, N = 64, alpha = auc": {"loss": "bcl", "negatives": 64},
    "BPRAC": {"loss": "bprac"},
}
TOO_LARGE = {"BNS, exact"}  # all items for each interaction, on a GPU only


BCL = {name for name in METHODS if name.startswith("BCL")}

FLOAT, INDEX = 4, 8
"""Bytes."""


def bpr_bytes(interactions: int, nodes: int, dim: int, batch_size: int) -> int:
    """Minimal memory traffic of an epoch of BPR with Adam, in bytes, without caches.

    For each interaction: three nodes written and read, their rows gathered, their gradients scattered (read and
    written). For each step: the gradient cleared, and Adam's reads of table, gradient and two moments and writes of all
    but the gradient.
    """
    steps = -(-interactions // batch_size)
    rows = interactions * 3 * (2 * INDEX + 3 * dim * FLOAT)
    return rows + steps * nodes * dim * FLOAT * (1 + 4 + 3)


class Trained:
    """A model with timed epochs."""

    def __init__(self, dataset: str, device: torch.device, batch_size: int, method: dict[str, Any]) -> None:
        params = Params(dataset=dataset, dim=32, batch_size=batch_size, lr=1e-3, weight_decay=0, **method)
        root = data_root() if dataset == "ml-100k" else Path()
        self._workload = Recommender(params, Runtime(device=device, data=root, seed=0, epochs=1, holdout=False))
        self._epoch = 0

    def seconds(self, epochs: int) -> float:
        """Median seconds of some epochs."""
        result = []
        for _ in range(epochs):
            self._epoch += 1
            started = time.perf_counter()
            self._workload.train_epoch(self._epoch)  # ends with a read from the device
            result.append(time.perf_counter() - started)
        return statistics.median(result)

    @property
    def least_bytes(self) -> int:
        """See :func:`bpr_bytes`."""
        data, params = self._workload.data, self._workload.params
        return bpr_bytes(self.interactions, data.n_users + data.n_items, params.dim, params.batch_size)

    def rate(self, epochs: int) -> float:
        """Examples per second."""
        return self.interactions / self.seconds(epochs)

    @property
    def interactions(self) -> int:
        """Interactions in an epoch."""
        return int(self._workload.data.pairs.shape[1])


def main() -> None:
    parser = arguments("The recommender's losses and samplers, as ratios to BPR with uniform negatives.", rounds=3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda.")
    parser.add_argument("--peak", type=float, help="Memory bandwidth of the GPU, in GB/s, such as 3350 of an H100 SXM.")
    parser.add_argument("--only", default="", help="How the names of the methods begin that are measured.")
    args = parser.parse_args()
    if args.peak is not None and not args.peak > 0:
        parser.error("--peak is a bandwidth in GB/s, above 0")
    chosen = {name for name in METHODS if name.lower().startswith(args.only.lower())}
    if not chosen:
        parser.error(f"--only {args.only} names none of: {'; '.join(METHODS)}")
    chosen |= {"BPR"} | ({"DNS"} if any(name.startswith("BNS") for name in chosen) else set())
    chosen |= {"InfoNCE, N = 64"} if chosen & BCL else set()
    torch.set_num_threads(1)
    device = torch.device(args.device)
    name = "samplers" if device.type == "cpu" else "samplers-gpu"
    part = f"-{args.only.lower()}" if args.only else ""  # which keeps the results of the whole table
    bench = Benchmark(name + part, args.rounds, args.patience)
    for place, dataset, batch_size, epochs in (
        (SMALL, "ml-100k", 1024 if device.type == "cpu" else 8192, 5),
        (LARGE, "synthetic-1m", 8192, 1),
    ):
        large = place == LARGE and device.type == "cpu"
        methods = [name for name in METHODS if name in chosen and not (large and name in TOO_LARGE)]
        contestants = {}
        for name in methods:
            model = Trained(dataset, device, batch_size, METHODS[name])
            model.seconds(1)  # does not count: it includes one-time work
            contestants[f"{name}, {place}"] = partial(model.rate, epochs)
            if name == "BPR":
                bpr = model
        bench.run(contestants)
        _rows(bench, place, methods)
        if args.peak is not None:
            _bandwidth(bench, place, bpr, args.peak)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    bench.notes.append(f"Peak memory with all models at once: {peak:.1f} GiB.")
    bench.finish()


def _rows(bench: Benchmark, place: str, methods: list[str]) -> None:
    """Rows of maximal ratios of epoch times."""
    bpr, dns = f"BPR, {place}", f"DNS, {place}"
    bench.hold(bpr, "ex/s", bpr, at_least=0.7e6)
    for name, peer, times in (
        ("PNS", bpr, None),
        ("DNS", bpr, 1.5),
        ("BNS, sampled", dns, 3),
        ("BNS, exact", bpr, None),
        ("DPL, M = N = 5", bpr, 4),
        ("DPL, M = N = 10", bpr, None),
        ("InfoNCE, N = 64", bpr, None),
        ("BCL, N = 64", f"InfoNCE, N = 64, {place}", 1.5),
        ("BCL, N = 64, alpha = auc", f"InfoNCE, N = 64, {place}", 1.5),
        ("BPRAC", bpr, 1.2),
    ):
        if name in methods:
            bench.compare(f"{name}, {place}", "ex/s", f"{name}, {place}", peer, at_least=times and 1 / times)
    if place == SMALL and "DPL, M = N = 10" in methods:
        bench.hold(f"DPL, M = N = 10, {place}", "ex/s", f"DPL, M = N = 10, {place}", at_least=5 * AUTHORS_DPL)


def _bandwidth(bench: Benchmark, place: str, bpr: Trained, peak: float) -> None:
    """Memory traffic of BPR's epoch per second, as a share of ``peak`` GB/s."""
    seconds = bpr.interactions / bench.median(f"BPR, {place}")
    reached = bpr.least_bytes / seconds / 1e9
    bench.rows.append(Row(f"BPR, {place}: memory traffic, of the peak", "GB/s", reached, "--peak", peak))


if __name__ == "__main__":
    main()
