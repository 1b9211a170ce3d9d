"""Checkpoints, lists of runs, and copies of datasets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from growth import MIB, Cost, Item, measured


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


def ls(size: int, folder: Path) -> Cost:
    """List the 20 newest of finished runs."""
    from orchestrator.report import listing

    settings = _runs(size, folder)
    with measured(folder) as cost:
        listing.listed(settings, limit=20)
    return cost


def status(size: int, folder: Path) -> Cost:
    """Find the newest run by ``latest``, and print its status."""
    from orchestrator.cli import run_control

    settings = _runs(size, folder)
    with measured(folder) as cost, redirect_stdout(StringIO()):
        run_control.status(settings, "latest", wait=False, address=None, as_json=True)
    return cost


def _runs(size: int, folder: Path) -> Any:
    """Settings of a storage with so many finished runs."""
    from datetime import UTC, datetime

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
    return settings


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
        while server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        else:
            raise SystemExit("moto's S3 server has ended: is moto[server] installed?")
        client.create_bucket(Bucket="scale")
        for part in range(4):
            client.put_object(Bucket="scale", Key=f"set/{part}", Body=bytes(size // 4))
        with measured(folder) as cost:
            stores.stage(staged_path("s3://scale/set"))
    finally:
        server.kill()
        server.wait()
    return cost


STATES = (64 * MIB, 128 * MIB, 256 * MIB)
RUNS = (2_500, 5_000, 10_000)

ITEMS = {
    "checkpoint": Item("write a checkpoint", "byte of state", STATES, checkpoint),
    "checkpoint-wait": Item("training waits for it", "byte of state", STATES, checkpoint_wait),
    "checkpoint-read": Item("find and read it", "byte of state", STATES, checkpoint_read),
    "stage": Item("stage from an object store", "byte", (32 * MIB, 64 * MIB, 128 * MIB), stage),
    "ls": Item("`ls`, the newest runs", "run", RUNS, ls),
    "status": Item("`status latest`", "run", RUNS, status),
}
