"""SimCLR's augmentation compared with lightly's input pipeline as shipped: images per second, two views of each.

Only the input pipeline is timed. lightly decodes JPEG bytes and augments PIL images in DataLoader workers; ours decodes
once and augments batches of 256 on as many threads as lightly has workers. Images of
32 x 32, crops of 8% to all of the area, jitter of strength 1, with and without blur.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from harness import HERE, Benchmark, Contestant, answer, arguments, data_root, peers_python, spawn, thread_count

IMAGES = 5_000
BLURS = {"with blur": 0.5, "without blur": 0.0}


def rate(command: list[str], blur: float, threads: int) -> float:
    """Images per second of one process of a contestant."""
    result = answer(spawn([*command, "--images", str(IMAGES), "--blur", str(blur)], threads=threads)[0])
    return float(result["images"] / result["seconds"])


def contestants(threads: int) -> dict[str, Contestant]:
    ours = [sys.executable, str(HERE / "ours_augment.py"), "--threads", str(threads)]
    lightly = [peers_python("peers-neural"), str(HERE / "peers" / "lightly_augment.py"), "--workers", str(threads)]
    found: dict[str, Contestant] = {}
    for name, blur in BLURS.items():
        found[f"ours {name}{thread_count(threads)}"] = partial(rate, ours, blur, threads)
        found[f"lightly {name}{thread_count(threads)}"] = partial(rate, lightly, blur, 1)
    return found


def main() -> None:
    args = arguments("SimCLR's augmentation compared with lightly's.", rounds=3).parse_args()
    data_root("cifar10/train.parquet")
    bench = Benchmark("augment", args.rounds, args.patience)
    for threads in (1, 2):
        bench.run(contestants(threads))
        for name in BLURS:
            ours, lightly = (f"{system} {name}{thread_count(threads)}" for system in ("ours", "lightly"))
            bench.compare(f"augmentation {name}{thread_count(threads)}", "images/s", ours, lightly, at_least=8)
    bench.notes.append(f"{os.cpu_count()} cores; a worker of lightly's counts as a thread.")
    bench.finish()


if __name__ == "__main__":
    main()
