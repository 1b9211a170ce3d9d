"""What a unit costs as data grow: time, peak memory and bytes of each workload's first wall, at three sizes.

    python benchmarks/scale.py                          # all items, three sizes each
    python benchmarks/scale.py prepare --sizes 1e6 4e6 16e6
    python benchmarks/scale.py checkpoint --memory 64 --disk 500

Each size runs in a process of its own, on generated data. The table has the cost of a unit at each size, and its
growth: the largest size's cost of a unit over the smallest one's, 1 where the cost is proportional. The wall is the
size at which the line through the two larger sizes reaches ``--memory`` or ``--disk``, in GiB. It is computed, not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from harness import HERE, answer, number, origin, spawn, versions

GIB = 2**30
MIB = 2**20


@dataclass
class Cost:
    """What one run takes: seconds, peak of the process' memory above what it held before, and bytes written."""

    seconds: float = 0.0
    memory: int = 0
    written: int = 0


Measure = Callable[[int, Path], Cost]


@dataclass(frozen=True)
class Item:
    """Something whose cost grows. ``measure`` takes a size and an empty folder."""

    what: str
    unit: str
    sizes: Sequence[int]
    measure: Measure


@contextmanager
def measured(folder: Path, private: bool = False) -> Iterator[Cost]:
    """Measure what happens inside, on Linux.

    The peak is this process' resident memory (``VmHWM``, reset before). If ``private``, pages of mapped files, which
    the system can take back, do not count: ``RssAnon``, read every 5 ms.
    """
    cost = Cost()
    before = bytes_in(folder)
    Path("/proc/self/clear_refs").write_text("5")
    held = memory("RssAnon" if private else "VmRSS")
    peaks = [held]
    done = Event()

    def sample() -> None:
        while not done.wait(0.005):
            peaks[0] = max(peaks[0], memory("RssAnon"))

    sampler = Thread(target=sample)
    if private:
        sampler.start()
    started = time.monotonic()
    yield cost
    cost.seconds = time.monotonic() - started
    if private:
        done.set()
        sampler.join()
    cost.memory = (peaks[0] if private else memory("VmHWM")) - held
    cost.written = bytes_in(folder) - before


def memory(name: str) -> int:
    """``VmRSS``, ``VmHWM`` or ``RssAnon`` of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def bytes_in(folder: Path) -> int:
    """Bytes on disk below a folder; a file with several names counts once."""
    files = {(status.st_dev, status.st_ino): status.st_size for status in map(os.stat, files_in(folder))}
    return sum(files.values())


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _interactions(size: int, folder: Path) -> Any:
    from workloads.data.interactions.synthetic_large import Sizes, generate_large

    return generate_large(Sizes(n_users=size // 33, n_items=max(size // 24, 10_000), n_interactions=size))


def read_csv(size: int, folder: Path) -> Cost:
    return _read(size, folder, "csv")


def read_parquet(size: int, folder: Path) -> Cost:
    return _read(size, folder, "parquet")


def _read(size: int, folder: Path, end: str) -> Cost:
    """Convert a user's table with text ids and times, rows in random order, and draw its test part."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv, parquet

    from workloads.data import load_interactions
    from workloads.data.interactions import load

    data = _interactions(size, folder)
    pairs = np.random.default_rng(0).permutation(np.concatenate([data.train, data.test]))
    names = [pc.binary_join_element_wise(kind, pa.array(ids).cast("string"), "") for kind, ids in zip("ui", pairs.T)]
    table = pa.table({"user": names[0], "item": names[1], "timestamp": np.arange(size)})
    path = folder / f"all.{end}"
    (csv.write_csv if end == "csv" else parquet.write_table)(table, path)
    del data, pairs, names, table
    load.CACHED_FROM = 1
    with measured(folder, private=True) as cost:
        load_interactions(str(path), folder)
    return cost


def prepare(size: int, folder: Path) -> Cost:
    import torch

    from workloads.recommender import shared

    data = _interactions(size, folder)
    shared.SHARED_FROM = 1
    with measured(folder, private=True) as cost:
        shared.prepare_on_node(data, 0, True, torch.device("cpu"), "scale")
    return cost


def prepare_again(size: int, folder: Path) -> Cost:
    """A further process of the node: private memory, since what it maps is in the node's memory once."""
    import torch

    from workloads.recommender import shared

    data = _interactions(size, folder)
    prepare(size, folder)
    shared._shared.cache_clear()
    with measured(folder, private=True) as cost:
        shared.prepare_on_node(data, 0, True, torch.device("cpu"), "scale")
    return cost


def evaluate(size: int, folder: Path) -> Cost:
    return _rank(size, folder, None)


def evaluate_sample(size: int, folder: Path) -> Cost:
    return _rank(size, folder, 1000)


def _rank(size: int, folder: Path, users: int | None) -> Cost:
    """Rank users with one interaction in 10,000 of 100,000 items."""
    import numpy as np
    import torch

    from workloads.recommender.dataset import History, sampled_users
    from workloads.recommender.evaluation import evaluation, rank_users
    from workloads.recommender.scorers import Factors

    source = np.random.default_rng(0)
    items = 100_000
    wanted, seen = (
        History.of(np.stack([np.arange(size), source.integers(items, size=size)], 1), size, torch.device("cpu"))
        for _ in range(2)
    )
    model = Factors(torch.randn(size, 32), torch.randn(items, 32))
    with measured(folder) as cost:
        if users is not None:
            chosen = sampled_users(wanted, users, 0)
            wanted, seen, model = wanted.only(chosen), seen.only(chosen), model.only(chosen)
        values, lists = rank_users([model], wanted, seen)
        evaluation(values[0], lists[0], wanted, torch.ones(items, dtype=torch.int64))
    return cost


def checkpoint(size: int, folder: Path) -> Cost:
    """Three checkpoints of a state of so many bytes, of one best epoch: the middle one's cost."""
    from orchestrator.engine import checkpoint_writer

    checkpoint_writer.BACKGROUND_BYTES = sys.maxsize
    state = _state(size)
    with checkpoint_writer.CheckpointWriter(folder, 3) as writer:
        writer.save(state, 1)
        with measured(folder) as cost:
            writer.save(state, 2)
    return cost


def checkpoint_wait(size: int, folder: Path) -> Cost:
    """For how long training waits for a checkpoint that is written in the background."""
    from orchestrator.engine import checkpoint_writer

    checkpoint_writer.BACKGROUND_BYTES = 1
    state = _state(size)
    with checkpoint_writer.CheckpointWriter(folder, 3) as writer:
        writer.save(state, 1)
        writer.finish()
        with measured(folder) as cost:
            writer.save(state, 2)
            waited = time.monotonic()
            writer.finish()
        cost.seconds -= time.monotonic() - waited
    return cost


def checkpoint_read(size: int, folder: Path) -> Cost:
    from orchestrator.engine import checkpoint

    path = checkpoint.write(folder / checkpoint.name(1), _state(size))
    with measured(folder) as cost:
        assert checkpoint.latest(folder) == path
        checkpoint.read(path)
    return cost


def _state(size: int) -> Any:
    """A table and Adam's moments, and values of units of a tenth of their size."""
    import torch

    from orchestrator.engine.checkpoint import BestEpoch, Checkpoint

    tables = {name: torch.rand(size // 12) for name in ("table", "mean", "square")}
    state = {"workload": tables, "best": None, "units": {"ndcg": torch.rand(size // 40)}}
    return Checkpoint({"workload": "scale"}, 1, state, BestEpoch())


def bm25(size: int, folder: Path) -> Cost:
    """Index documents of 60 words and search them by 100 queries of six, words drawn by Zipf's law."""
    import numpy as np

    from workloads.data.retrieval.bm25 import search

    source = np.random.default_rng(0)
    ranks = np.minimum(source.zipf(1.3, (size + 10, 60)), 200_000)
    texts = [" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]
    queries = [" ".join(text.split()[first : first + 6]) for text in texts[-10:] for first in range(0, 60, 6)]
    search(texts[:10], queries[:1], 10)  # imports bm25s and SciPy
    with measured(folder) as cost:
        search(texts[:-10], queries, 100)
    return cost


def images(size: int, folder: Path) -> Cost:
    """Convert PNG images of 64 pixels to 32, from a folder of ten classes."""
    import numpy as np
    from PIL import Image

    from workloads.data.images.load import load_images

    source = np.random.default_rng(0)
    files = folder / "files"
    for order in range(size):
        file = files / str(order % 10) / f"{order}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.integers(0, 255, (64, 64, 3), np.uint8)).save(file)
    with measured(folder) as cost:
        load_images(str(files), folder, 32)
    return cost


def image_stream(size: int, folder: Path) -> Cost:
    """Read images of 32 pixels from a file for a pass, of which 20,480 are in memory at a time."""
    from image_stream import one_pass, write

    import workloads.simclr.batches  # noqa: F401  # imports PyTorch

    file = folder / "images.npy"
    write(file, size, 32)
    with measured(folder) as cost:
        one_pass(file, 20_480)
    return cost


def index(size: int, folder: Path) -> Cost:
    """Write vectors of 384 dimensions as a segment of an index, and search it by 100 queries."""
    import numpy as np
    import torch

    from workloads.encoders.search import exact_topk
    from workloads.lifelong.index import Index

    vectors = np.random.default_rng(0).standard_normal((size, 384), np.float32)
    with measured(folder) as cost:
        written = Index("scale", 384, True, folder / "index")
        written.append(0, np.arange(size), vectors)
        exact_topk(torch.randn(100, 384), written.blocks(), 100)
    return cost


def runs(size: int, folder: Path) -> Cost:
    """List the 20 newest of finished runs."""
    from datetime import UTC, datetime

    from orchestrator.report import listing
    from orchestrator.storage import records
    from orchestrator.storage.names import RECORD
    from orchestrator.storage.settings import resolve

    settings = resolve({"storage": str(folder / "storage"), "tracking": "none"})
    first = records.create(settings.storage, "run", "scale", {}, "orchestrator run", name="r0")
    first.release("finished", 0)
    content = json.loads((first.path / RECORD).read_text()) | {"status": "finished"}
    for order in range(1, size):
        started = datetime.fromtimestamp(1_700_000_000 + order, UTC).isoformat()
        path = settings.storage / f"r{order}"
        path.mkdir()
        (path / RECORD).write_text(json.dumps(content | {"started": started, "ended": started}))
        os.utime(path / RECORD, (1_700_000_000 + order,) * 2)
    with measured(folder) as cost:
        listing.listed(settings, limit=20)
    return cost


def stage(size: int, folder: Path) -> Cost:
    """Copy an object of so many bytes from a local S3 server."""
    import socket

    from workloads.data import stores
    from workloads.data.cache import staged_path

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.environ.update(keys, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}")
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        import boto3

        client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        client.create_bucket(Bucket="scale")
        for part in range(4):
            client.put_object(Bucket="scale", Key=f"set/{part}", Body=bytes(size // 4))
        with measured(folder) as cost:
            stores.stage(staged_path("s3://scale/set"))
    finally:
        server.kill()
        server.wait()
    return cost


def intervals(size: int, folder: Path) -> Cost:
    import numpy as np

    from orchestrator.report import statistics

    values = np.random.default_rng(0).normal(0.01, 1, size)
    statistics.over_units(values, np.zeros(size))  # imports SciPy
    with measured(folder) as cost:
        statistics.over_units(values, np.zeros(size))
    return cost


ITEMS: Mapping[str, Item] = {
    "read-csv": Item("read a table, CSV", "interaction", (10**6, 2 * 10**6, 4 * 10**6), read_csv),
    "read-parquet": Item("read a table, Parquet", "interaction", (10**6, 2 * 10**6, 4 * 10**6), read_parquet),
    "prepare": Item("prepare interactions", "interaction", (10**6, 2 * 10**6, 4 * 10**6), prepare),
    "prepare-again": Item("map prepared interactions", "interaction", (10**6, 2 * 10**6, 4 * 10**6), prepare_again),
    "evaluate": Item("rank all users, 100,000 items", "user", (500, 1000, 2000), evaluate),
    "evaluate-sample": Item("rank 1,000 of the users", "user", (2000, 4000, 8000), evaluate_sample),
    "checkpoint": Item("write a checkpoint", "byte of state", (64 * MIB, 128 * MIB, 256 * MIB), checkpoint),
    "checkpoint-wait": Item(
        "training waits for it", "byte of state", (64 * MIB, 128 * MIB, 256 * MIB), checkpoint_wait
    ),
    "checkpoint-read": Item("find and read it", "byte of state", (64 * MIB, 128 * MIB, 256 * MIB), checkpoint_read),
    "bm25": Item("BM25 of documents of 60 words", "document", (10_000, 20_000, 40_000), bm25),
    "images": Item("convert PNG images", "image", (2_000, 4_000, 8_000), images),
    "image-stream": Item("stream images in a pass", "image", (100_000, 200_000, 400_000), image_stream),
    "index": Item("write and search vectors", "document", (20_000, 40_000, 80_000), index),
    "stage": Item("stage from an object store", "byte", (32 * MIB, 64 * MIB, 128 * MIB), stage),
    "runs": Item("list the newest runs", "run", (2_500, 5_000, 10_000), runs),
    "intervals": Item("interval of paired differences", "unit", (10**5, 10**6, 10**7), intervals),
}


def run(name: str, size: int) -> Cost:
    """Run an item at a size in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        environment = {"ORCHESTRATOR_CACHE": folder, "ORCHESTRATOR_HOME": f"{folder}/home"}
        words = [sys.executable, str(HERE / "scale.py"), name, "--one", str(size), "--folder", folder]
        output, _ = spawn(words, env=environment, threads=1)
        return Cost(**answer(output))


def wall(sizes: Sequence[int], used: Sequence[int], limit: float) -> float | None:
    """The size at which the line through the two larger sizes reaches the limit; None if it does not grow."""
    slope = (used[-1] - used[-2]) / (sizes[-1] - sizes[-2])
    return sizes[-1] + (limit - used[-1]) / slope if slope > 0 else None


def table(found: Mapping[str, Mapping[int, Cost]], limits: Mapping[str, float]) -> list[str]:
    """The lines of the printed table."""
    lines = [
        "| item | unit | sizes | µs a unit | growth | bytes in memory a unit | growth | bytes on disk a unit | wall |",
        f"|{'---|' * 9}",
    ]
    for name, costs in found.items():
        item = ITEMS[name]
        sizes = sorted(costs)
        seconds, memories, written = (
            [getattr(costs[size], field) for size in sizes] for field in ("seconds", "memory", "written")
        )
        walls = []
        for what, used in (("memory", memories), ("disk", written)):
            if len(sizes) > 1 and (size := wall(sizes, used, limits[what] * GIB)):
                walls.append(f"{size:.1e} ({what}, {limits[what]:g} GiB)")
        columns = [item.what, item.unit, " / ".join(number(size) for size in sizes)]
        for values, scale in ((seconds, 1e6), (memories, 1.0)):
            each = [scale * value / size for value, size in zip(values, sizes)]
            growth = f"{each[-1] / each[0]:.2f}" if each[0] > 0 else "-"
            columns += [" / ".join(f"{value:.3g}" for value in each), growth]
        columns += [f"{written[-1] / sizes[-1]:.3g}", "; ".join(walls) or "-"]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("items", nargs="*", choices=[*ITEMS, []], help="Default: all.")
    parser.add_argument("--sizes", nargs="+", type=lambda text: int(float(text)), help="In the place of an item's own.")
    parser.add_argument("--memory", type=float, default=64, help="Memory of the machine of the wall, in GiB.")
    parser.add_argument("--disk", type=float, default=1000, help="Its disk, in GiB.")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(asdict(ITEMS[args.items[0]].measure(args.one, args.folder))))
        return
    before = origin()
    found: dict[str, dict[int, Cost]] = {}
    for name in args.items or ITEMS:
        found[name] = {}
        for size in args.sizes or ITEMS[name].sizes:
            found[name][size] = run(name, size)
            print(f"{name} {size:,}: {asdict(found[name][size])}", file=sys.stderr)
    print("\n".join(table(found, {"memory": args.memory, "disk": args.disk})))
    if not args.items and not args.sizes:
        results = {name: {str(size): asdict(cost) for size, cost in costs.items()} for name, costs in found.items()}
        made = {"benchmark": "scale", **before, "versions": versions("torch", "numpy"), "results": results}
        (HERE / "results" / "scale.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
