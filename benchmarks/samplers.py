"""Epochs of the recommender in batches, by loss and by sampler, as ratios to BPR with uniform negatives.

Matrix factorisation, d = 32, Adam, one thread, on ML-100K in batches of 1,024 and on generated data of Gowalla's size
in batches of 8,192. Models are built once; a sample is the median of some epochs, in turn (A B A B). With
``--device cuda`` both are trained on the GPU, in batches of 8,192.
"""

from __future__ import annotations

import resource
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Benchmark, arguments, data_root

from workloads.contract import Runtime
from workloads.recommender.params import Params
from workloads.recommender.workload import Recommender

AUTHORS_DPL = 65_000
"""Examples a second of the authors' DPL with M = N = 10 on ML-100K, measured once, on two cores of an AMD EPYC."""

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
    "BPRAC": {"loss": "bprac"},
}
TOO_LARGE = {"BNS, exact"}  # every item for every interaction: on a GPU only


class Trained:
    """A model whose epochs are timed."""

    def __init__(self, dataset: str, device: torch.device, batch_size: int, method: dict[str, Any]) -> None:
        params = Params(dataset=dataset, dim=32, batch_size=batch_size, lr=1e-3, weight_decay=0, **method)
        root = data_root() if dataset == "ml-100k" else Path()
        self._workload = Recommender(params, Runtime(device=device, data=root, seed=0, epochs=1, holdout=False))
        self._epoch = 0

    def seconds(self, epochs: int) -> float:
        """The median of some epochs."""
        found = []
        for _ in range(epochs):
            self._epoch += 1
            started = time.perf_counter()
            self._workload.train_epoch(self._epoch)  # ends with a value read from the device
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    def rate(self, epochs: int) -> float:
        """Examples a second."""
        return self._workload.data.pairs.shape[1] / self.seconds(epochs)


def main() -> None:
    parser = arguments("The recommender's losses and samplers, as ratios to BPR with uniform negatives.", rounds=3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(asked.device)
    bench = Benchmark("samplers" if device.type == "cpu" else "samplers-gpu", asked.rounds, asked.patience)
    for place, dataset, batch_size, epochs in (
        (SMALL, "ml-100k", 1024 if device.type == "cpu" else 8192, 5),
        (LARGE, "synthetic-1m", 8192, 1),
    ):
        methods = [name for name in METHODS if place == SMALL or device.type != "cpu" or name not in TOO_LARGE]
        contestants = {}
        for name in methods:
            model = Trained(dataset, device, batch_size, METHODS[name])
            model.seconds(1)  # not counted: it builds what is built once
            contestants[f"{name}, {place}"] = partial(model.rate, epochs)
        bench.run(contestants)
        _rows(bench, place, methods)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    bench.notes.append(f"Peak memory with all models at once: {peak:.1f} GiB.")
    bench.finish()


def _rows(bench: Benchmark, place: str, methods: list[str]) -> None:
    """Ratios of times: how many times as long an epoch is, at most."""
    bpr, dns = f"BPR, {place}", f"DNS, {place}"
    bench.hold(bpr, "ex/s", bpr, at_least=0.7e6)
    for name, peer, times in (
        ("PNS", bpr, None),
        ("DNS", bpr, 1.5),
        ("BNS, sampled", dns, 3 if place == LARGE else None),
        ("BNS, exact", bpr, None),
        ("DPL, M = N = 5", bpr, 4),
        ("DPL, M = N = 10", bpr, None),
        ("InfoNCE, N = 64", bpr, None),
        ("BCL, N = 64", f"InfoNCE, N = 64, {place}", 1.5),
        ("BPRAC", bpr, 1.2),
    ):
        if name in methods:
            bench.compare(f"{name}, {place}", "ex/s", f"{name}, {place}", peer, at_least=times and 1 / times)
    if place == SMALL:
        bench.hold(f"DPL, M = N = 10, {place}", "ex/s", f"DPL, M = N = 10, {place}", at_least=5 * AUTHORS_DPL)


if __name__ == "__main__":
    main()
