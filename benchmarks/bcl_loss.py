"""Forward and backward of the contrastive losses on two views of 256 images: BCL by sorting, and by all pairs.

From embeddings (512, 128) to their gradient, with scores. The second form compares all pairs of an anchor's N = 510
samples (N³ in all), as the eCDF is defined (thesis (6.30)) and as the authors' code computes it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from harness import HERE, Benchmark, answer, arguments, spawn, thread_count

BATCH, DIMENSIONS, TEMPERATURE = 256, 128, 0.5
WARM, REPEATS = 3, 15
NAMES = ("BCL", "BCL by the cube", "InfoNCE", "DCL", "HCL")


def main() -> None:
    parser = arguments("The losses' own time.", rounds=3)
    parser.add_argument("--contestant", choices=NAMES)
    args = parser.parse_args()
    if args.contestant:
        print(json.dumps({"milliseconds": milliseconds(args.contestant)}))
        return
    bench = Benchmark("bcl_loss", args.rounds, args.patience)
    for threads in (1, 2):
        suffix = thread_count(threads)
        bench.run({f"{name}{suffix}": partial(apart, name, threads) for name in NAMES})
        bench.hold(f"BCL{suffix}", "ms", f"BCL{suffix}", at_most=25 if threads == 2 else None)
        for other in NAMES[1:]:
            bench.compare(f"BCL{suffix}", "ms", f"BCL{suffix}", f"{other}{suffix}")
    bench.finish()


def apart(name: str, threads: int) -> float:
    """Run one contestant in a separate process."""
    command = [sys.executable, str(HERE / "bcl_loss.py"), f"--contestant={name}"]
    return float(answer(spawn(command, threads=threads)[0])["milliseconds"])


def milliseconds(name: str) -> float:
    """Median time of a loss' forward and backward."""
    import torch
    from torch.nn import functional

    from workloads.losses import contrastive
    from workloads.scores import two_view_scores

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    Scores = torch.Tensor
    bcl = {"alpha": 0.9, "beta": 0.9, "tau": 0.1}

    def by_the_cube(positive: Scores, negatives: Scores) -> Scores:
        scores = negatives.detach()
        places = (scores.unsqueeze(1) <= scores.unsqueeze(2)).sum(2) / scores.shape[1]
        weights = contrastive.bcl_weights_at(places, **bcl)
        return contrastive.infonce_loss(positive, negatives + TEMPERATURE * weights.log(), TEMPERATURE)

    def debiased(positive: Scores, negatives: Scores, beta: float) -> Scores:
        return contrastive.hcl_loss(
            positive, negatives, positive.unsqueeze(1), tau=0.1, beta=beta, temperature=TEMPERATURE, floor="cosine"
        )

    losses: dict[str, Callable[[Scores, Scores], Scores]] = {
        "BCL": lambda positive, negatives: contrastive.bcl_loss(positive, negatives, temperature=TEMPERATURE, **bcl),
        "BCL by the cube": by_the_cube,
        "InfoNCE": lambda positive, negatives: contrastive.infonce_loss(positive, negatives, TEMPERATURE),
        "DCL": partial(debiased, beta=0.0),
        "HCL": partial(debiased, beta=1.0),
    }
    source = torch.Generator().manual_seed(0)
    views = functional.normalize(torch.randn(2 * BATCH, DIMENSIONS, generator=source), dim=1).requires_grad_()
    anchors, spent = torch.arange(2 * BATCH), []
    for _ in range(WARM + REPEATS):
        views.grad, started = None, time.perf_counter()
        torch.autograd.backward(losses[name](*two_view_scores(views, anchors)).mean())
        spent.append(time.perf_counter() - started)
    return 1000 * statistics.median(spent[WARM:])


if __name__ == "__main__":
    main()
