"""Trials per minute of matrix factorisation: one at a time, and 8 and 32 trained together, in one process.

32 trials that differ in learning rate, weight decay and seed, evaluated every epoch, on ML-100K and the synthetic set.
The last row of each dataset has small steps, which ``pack=auto`` packs on a CPU. Needs no Ray and no tracker; with
``--device cuda`` it measures a GPU. ``--datasets synthetic`` needs no data.
"""

from __future__ import annotations

import sys
from functools import partial

from harness import HERE, Benchmark, Row, answer, arguments, spawn, thread_count

TRIALS, EPOCHS = 32, 3
SHAPES = ((32, 1024), (32, 2048), (64, 1024), (64, 2048), (16, 256))
"""Dimension and batch size."""

SMALL = (16, 256)
APART, SIZES = 1, (8, 32)


def trials_a_minute(dataset: str, dim: int, batch_size: int, at_once: int, threads: int, device: str) -> float:
    options = {
        "dataset": dataset, "dim": dim, "batch-size": batch_size, "at-once": at_once, "threads": threads,
        "trials": TRIALS, "epochs": EPOCHS, "device": device,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, str(HERE / "packed_trials.py"), *words]
    seconds = answer(spawn(command, threads=threads)[0])["seconds"]
    return float(60 * TRIALS / seconds)


def main() -> None:
    parser = arguments("Trials trained together compared with the same trials one by one.", rounds=3)
    parser.add_argument("--datasets", nargs="+", default=["ml-100k", "synthetic"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    bench = Benchmark("packing" if args.device == "cpu" else f"packing_{args.device}", args.rounds, args.patience)
    for threads in args.threads:
        for dataset in args.datasets:
            for dim, batch_size in SHAPES:
                what = f"{dataset}, d={dim}, B={batch_size}{thread_count(threads)}"
                names = {at_once: f"{what}, {at_once} at once" for at_once in (APART, *SIZES)}
                bench.run(
                    {
                        name: partial(trials_a_minute, dataset, dim, batch_size, at_once, threads, args.device)
                        for at_once, name in names.items()
                    }
                )
                least = 1.15 if (dim, batch_size) == SMALL else None
                for at_once in SIZES:
                    together, apart = bench.median(names[at_once]), bench.median(names[APART])
                    bench.rows.append(
                        Row(f"{at_once} together: {what}", "trials/min", together, "apart", apart, at_least=least)
                    )
    bench.finish()


if __name__ == "__main__":
    main()
