"""Images of a set larger than memory: how fast are they read, from file to batch, without augmentation?

    python benchmarks/image_stream.py
    python benchmarks/image_stream.py --images 2e6 --size 32 --folder /data/disk

One pass of SimCLR's batches of 256 over generated images, in a process of its own with two threads. In memory: the
whole set is shuffled and its file is in the page cache. Streamed: ``shuffle_buffer`` is half of the set, and the file
is removed from the page cache before the pass, so that every image is read once from the disk of ``--folder``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import HERE, Benchmark, answer, arguments, spawn

BATCH = 256
THREADS = 2
LEAST = 10_000
"""Images a second of 32 pixels that are to be streamed."""


def write(file: Path, images: int, size: int) -> None:
    """Write random images block by block."""
    import numpy as np

    source = np.random.default_rng(0)
    stored = np.lib.format.open_memmap(file, "w+", np.uint8, (images, 3, size, size))
    for first in range(0, images, 10_000):
        block = stored[first : first + 10_000]
        block[:] = source.integers(0, 256, block.shape, np.uint8)
    stored.flush()


def one_pass(file: Path, buffer: int | None) -> dict[str, Any]:
    """Seconds of a pass over the images of a file, after a warm-up with a few of them."""
    import numpy as np
    import torch

    from workloads.augment import Recipe
    from workloads.contract import Runtime
    from workloads.data.images.resident import prepare
    from workloads.data.images.types import Images, Pixels
    from workloads.simclr import batches as module

    class NoDraws(Recipe):
        """Draws nothing: views are not made."""

        def draw(self, count: int, generator: Any) -> Any:
            return torch.empty(count)

    def images(count: int) -> Images:
        pixels = Pixels(stored, np.arange(len(stored)) % 10, np.arange(count))
        return Images(pixels, Pixels(stored, pixels.labels, np.arange(2)), tuple(map(str, range(10))))

    stored = np.load(file, mmap_mode="c")
    runtime = Runtime(device=torch.device("cpu"), data=Path(), seed=0, epochs=1)
    recipe = NoDraws(stored.shape[2], stored.shape[2])
    seconds = 0.0
    for count in (16 * BATCH, len(stored)):
        part = prepare(images(count), 0, False, runtime.device, buffer is not None).train
        held = None if buffer is None else min(buffer, count)
        with file.open("rb") as opened:
            if buffer is not None:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while buffer is None and opened.read(1 << 22):
                pass
        started = time.perf_counter()
        read = sum(len(batch) for batch in module.batches(part, recipe, BATCH, runtime, 1, held))
        seconds = time.perf_counter() - started
    return {"images": read, "seconds": seconds}


def rate(file: Path, buffer: int | None) -> float:
    words = [sys.executable, str(HERE / "image_stream.py"), "--file", str(file), "--buffer", str(buffer or 0)]
    found = answer(spawn(words, threads=THREADS)[0])
    return float(found["images"] / found["seconds"])


def main() -> None:
    parser = arguments((__doc__ or "").splitlines()[0], rounds=3)
    parser.add_argument("--images", type=lambda text: int(float(text)), default=500_000)
    parser.add_argument("--size", type=int, default=32, help="Height and width.")
    parser.add_argument(
        "--folder", type=Path, help="A folder on disk for the images. Default: the one for temporary files."
    )
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--buffer", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file is not None:
        print(json.dumps(one_pass(args.file, args.buffer or None)))
        return
    bench = Benchmark("image_stream", args.rounds, args.patience)
    with tempfile.TemporaryDirectory(prefix="image-stream-", dir=args.folder) as folder:
        file = Path(folder) / "images.npy"
        write(file, args.images, args.size)
        bench.run({"in memory": partial(rate, file, None), "streamed": partial(rate, file, args.images // 2)})
    bench.hold("streamed", "images/s", "streamed", at_least=LEAST)
    bench.compare("streamed, of in memory", "images/s", "streamed", "in memory", at_least=0.5)
    bench.notes.append(f"{args.images:,} images of {args.size} pixels; {THREADS} threads.")
    bench.finish()


if __name__ == "__main__":
    main()
